"""A scaler as a process: it has no door for orders, only one for health and metrics."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from aiohttp import web
from prometheus_client import generate_latest

from schedulers.errors import InputError
from services.dispatcher.logs import configure
from services.scaler.config import DRIVERS, ScalerConfig, read_config
from services.scaler.driver import Driver, DriverError
from services.scaler.scaler import Scaler, session_of


def driver_of(config: ScalerConfig) -> Driver:
    """The driver that a configuration names; raises InputError."""
    if config.driver == "docker":
        from services.scaler.containers import Containers

        try:
            return Containers(config.project, config.service)
        except DriverError as error:
            fix = "start it, or mount its socket; DOCKER_HOST names another"
            raise InputError(f"the container engine: {error}", where="driver", fix=fix) from None
    from services.scaler.processes import Processes

    return Processes(Path(config.folder), config.module, config.python)


def pages(scaler: Scaler) -> web.Application:
    """What it shows of itself."""

    async def live(_: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"ready": scaler.ready}, status=200 if scaler.ready else 503)

    async def metrics(_: web.Request) -> web.Response:
        text = generate_latest(scaler.metrics.registry)
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.add_routes(
        [
            web.get("/live", live),
            web.get("/ready", ready),
            web.get("/health", ready),
            web.get("/metrics", metrics),
        ]
    )
    return app


@asynccontextmanager
async def shown(scaler: Scaler, http: str, advertise: str) -> AsyncIterator[str]:
    """Its pages while it works; yields HOST:PORT as others reach it. Raises InputError."""
    host, _, port = http.rpartition(":")
    runner = web.AppRunner(pages(scaler), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        yield f"{advertise or host}:{runner.addresses[0][1]}"
    except (OSError, ValueError) as error:
        raise InputError(
            f"can't listen at {http}: {error}", where="http", fix="name a free HOST:PORT"
        ) from None
    finally:
        await runner.cleanup()


async def serve(config: ScalerConfig) -> None:
    """Work until SIGTERM or SIGINT; workers go on without it."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    driver = driver_of(config)
    try:
        scaler = Scaler(config, driver)
        async with session_of(config) as session, shown(scaler, config.http, config.advertise) as address:
            scaler.metrics_at = address
            say({"event": "ready", "http": address, "grpc": "", "driver": driver.name})
            await scaler.run(session, stop)
    finally:
        driver.close()


def say(told: dict[str, object]) -> None:
    """Print one JSON line on stdout for whoever started this process."""
    sys.stdout.write(orjson.dumps(told | {"pid": os.getpid()}).decode() + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and serve; 2 for bad settings."""
    parser = argparse.ArgumentParser(prog="python -m services.scaler", description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML file (services/scaler/config.py names the fields)")
    parser.add_argument("--driver", choices=DRIVERS, default=None)
    parser.add_argument(
        "--workers-max", dest="most", type=int, default=None, help="workers that may run at once"
    )
    for name in ("dispatcher", "http", "advertise", "folder", "project", "service", "ca"):
        parser.add_argument(f"--{name}", default=None)
    for name in ("period-s", "grace-s", "orphan-s"):
        parser.add_argument(f"--{name}", type=float, default=None)
    given = vars(parser.parse_args(arguments))
    configure()
    try:
        asyncio.run(serve(read_config(given.pop("config"), **given)))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0
