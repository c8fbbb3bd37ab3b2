"""The process: opens its door, says when it is ready, and ends gracefully on SIGTERM."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import orjson
import uvicorn

from services.analysis.config import AnalysisConfig
from services.dispatcher.logs import log
from services.doors import QuietServer, opened

CONNECTIONS = 256
GRACE_S = 5
"""How long open requests may take after SIGTERM."""


@contextlib.asynccontextmanager
async def running(config: AnalysisConfig) -> AsyncIterator[str]:
    """Serve in this loop; yield HOST:PORT. Raises InputError for an address that is taken."""
    sock = opened(config.http, "--http", CONNECTIONS)
    from services.analysis.app import Door, application  # seconds: an address that is taken is told before
    from services.analysis.service import Analysis

    analysis, door = Analysis(config), Door()
    settings = uvicorn.Config(
        application(analysis, door), ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS, loop="none",
        timeout_keep_alive=15, timeout_graceful_shutdown=GRACE_S,
    )  # fmt: skip
    server = QuietServer(settings)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:
            if serving.done():
                await serving
            await asyncio.sleep(0.01)
        yield f"{config.http.rpartition(':')[0]}:{sock.getsockname()[1]}"
    finally:
        door.open = False
        server.should_exit = True
        await serving
        await analysis.close()
        sock.close()


async def serve(config: AnalysisConfig, ready: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; ``ready`` is told HOST:PORT. Raises InputError for an address that is taken."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config) as http:
        log.info("ready", http=http, folders=len(config.results), prometheus=bool(config.prometheus))
        ready(http)
        await stop.wait()
    log.info("stopped")


def say_ready(http: str) -> None:
    """Print one JSON line on stdout for whoever started this process."""
    told = {"event": "ready", "http": http, "grpc": "", "pid": os.getpid()}
    sys.stdout.write(orjson.dumps(told).decode() + "\n")
    sys.stdout.flush()
