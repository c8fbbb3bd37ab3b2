"""``python -m services.worker.vllm``: one worker with a real engine."""

import sys

from services.settings import NIXL
from services.worker.process import UNTOLD, command, serve
from services.worker.vllm.config import EngineConfig
from services.worker.vllm.nixl import Nixl, NixlFront, surround
from services.worker.vllm.worker import Recomputes, engine_worker


async def work(config: EngineConfig) -> int:
    """Start the engine, then serve until told to stop; returns the exit code."""
    if config.moves == NIXL:
        surround(config)
        async with engine_worker(config, UNTOLD, NixlFront) as worker:
            return await serve(config, worker, Nixl)
    async with engine_worker(config, UNTOLD) as worker:
        return await serve(config, worker, Recomputes)


if __name__ == "__main__":  # vLLM starts its core by spawning, which imports this again
    sys.exit(command(EngineConfig(), work, "python -m services.worker.vllm"))
