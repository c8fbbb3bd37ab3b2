"""Step times of a real engine over a grid of batches, contexts and chunks, a row a step."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from schedulers.view import Tiers
from services.worker.vllm.capability import check_version
from services.worker.vllm.place import check_device, settled
from services.worker.vllm.settings import told
from sim.rig import ATTENTION, DECODES, KV, PREFILL


class Grid(NamedTuple):
    """Which steps are timed: requests at once by tokens of context, prompts, and the most tokens of a step."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    budget: int


GRIDS = {
    "cpu": Grid((1, 4, 8, 16), (16, 256, 1024), (16, 64, 128, 256, 512, 1900), 512),
    "gpu": Grid((1, 8, 32, 64), (64, 512, 1900), (64, 256, 512, 1024, 1900), 2048),  # not run
}
"""By what the engine runs on: a GPU takes larger batches before its steps take longer."""

STEPS = 10
"""Decode steps timed in a cell; a prompt longer than the budget is timed chunk by chunk, each at its offset."""

WARM = 5
"""Steps at the start that are not timed: the first ones allocate."""


def engine_for(model: str, device: str) -> Any:
    """Start an engine in this process; eager, without a prefix cache."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    tiers = Tiers(*(np.array([value]) for value in (np.inf, np.inf, np.inf, 1.0)))
    memory: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 30} if device == "cpu" else {}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="float32" if device == "cpu" else "auto",
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=max(GRIDS[device].batches),
            max_num_batched_tokens=GRIDS[device].budget,
            block_size=32,
            enable_prefix_caching=False,
            async_scheduling=False,
            scheduler_cls="services.worker.vllm.scheduler.PolicyScheduler",
            additional_config=told("fcfs-chunked", [0.0] * 7, tiers),
            **memory,
        )
    )


def cells(grid: Grid) -> Iterator[tuple[int, int, int]]:
    """Yield (requests, prompt tokens, output tokens) of each cell."""
    yield from ((batch, context, STEPS) for batch in grid.batches for context in grid.contexts)
    yield from ((1, prompt, 1) for prompt in grid.prompts)


def timed(engine: Any, turn: int, grid: Grid) -> Iterator[list[float]]:
    """Yield a row a step over the whole grid: prefill tokens, their attention work, decodes, KV tokens, seconds."""
    from vllm import SamplingParams

    plant = engine.engine_core.engine_core.scheduler.shadow.rig.plant
    number = 0
    for batch, prompt, output in cells(grid):
        for _ in range(batch):
            params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0, detokenize=False)
            ids = [1 + (number * 31 + place) % 2000 for place in range(prompt)]
            engine.add_request(f"m{turn}-{number}", {"prompt_token_ids": ids}, params)
            number += 1
        while engine.has_unfinished_requests():
            began_s = perf_counter()
            engine.step()
            seconds = perf_counter() - began_s
            flight = plant.flight[0]  # of the step that has just run
            yield [*(float(flight[place]) for place in (PREFILL, ATTENTION, DECODES, KV)), seconds]


def main(arguments: list[str]) -> int:
    """Measure MODEL on DEVICE into FOLDER/rows-N.csv, so many times over; prints what the engine is."""
    model, device, folder, turns = arguments[0], arguments[1], Path(arguments[2]), int(arguments[3])
    with settled(model):
        return measured(model, device, folder, turns, arguments[4])


def measured(model: str, device: str, folder: Path, turns: int, columns: str) -> int:
    """Time the grid so many times, after a warm-up; returns the exit code.

    Raises InputError for another device than the one asked for: its steps would bear the wrong name.
    """
    import vllm
    from vllm.platforms import current_platform

    check_version(vllm.__version__)
    check_device(device, on_processor=current_platform.is_cpu())
    engine = engine_for(model, device)
    for warm, _ in enumerate(timed(engine, 0, GRIDS[device])):
        if warm >= WARM and not engine.has_unfinished_requests():
            break
    for turn in range(1, turns + 1):
        with (folder / f"rows-{turn}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns.split(","))
            writer.writerows(timed(engine, turn, GRIDS[device]))
    blocks = engine.vllm_config.cache_config.num_gpu_blocks - 1
    sys.stdout.write(json.dumps({"vllm": vllm.__version__, "blocks": blocks}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
