"""A worker as a process: servers up, linked to its dispatcher, drained on SIGTERM."""

import argparse
import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import orjson
import structlog
import uvloop
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from schedulers.errors import InputError
from schedulers.view import Tiers
from services.rpc.windtunnel.v1.worker_pb2_grpc import add_WorkerPeerServicer_to_server
from services.worker.config import WorkerConfig, read_config
from services.worker.faults import Faults
from services.worker.link import OPTIONS, Addresses, Link
from services.worker.moves import Moves
from services.worker.web import Web
from services.worker.worker import Worker

log = structlog.get_logger()

Config = TypeVar("Config", bound=WorkerConfig)

SERVICES = ("", "windtunnel.v1.WorkerPeer")
"""Names under which health is told."""

UNTOLD = Tiers(np.array([inf]), np.array([inf]), np.array([inf]), np.ones(1))
"""Targets until the dispatcher tells its own."""

GRACE_S = 30.0
"""How long a worker that was told to stop waits for what it holds to end."""


@dataclass
class Place:
    """A worker at work, and where it listens (HOST:PORT)."""

    worker: Worker
    link: Link
    moves: Moves
    faults: Faults
    health: health.aio.HealthServicer
    grpc: str
    http: str
    tasks: "tuple[asyncio.Task[None], asyncio.Task[None]]"


@asynccontextmanager
async def running(
    config: WorkerConfig, worker: Worker | None = None, mover: type[Moves] = Moves
) -> AsyncIterator[Place]:
    """Run a worker in this loop, a simulated one if none is given: it listens, connects to its dispatcher and steps.

    Raises InputError for a bad profile or policy, OSError for an address that is taken.
    """
    worker = worker or Worker(config, UNTOLD)
    link = Link(worker, incarnation=secrets.randbits(63))
    faults = Faults(worker, link)
    moves = link.mover = mover(worker, link, faults)
    server, told = grpc.aio.server(options=OPTIONS), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(told, server)
    add_WorkerPeerServicer_to_server(moves, server)
    told_host = config.advertise or _host(config.grpc)
    peer = f"{told_host}:{server.add_insecure_port(config.grpc)}"
    runner = web.AppRunner(Web(worker, link, faults).app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, _host(config.http), int(config.http.rpartition(":")[2])).start()
    http = f"{config.advertise or _host(config.http)}:{runner.addresses[0][1]}"
    link.addresses = Addresses(peer, http)
    await server.start()
    tasks = asyncio.create_task(worker.run()), asyncio.create_task(link.run())
    place = Place(worker, link, moves, faults, told, peer, http, tasks)
    await tell_health(place, good=True)
    try:
        yield place
    finally:
        broken = [task for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(0.2)
        await runner.cleanup()
        if worker.log is not None:
            worker.log.close()
        for task in broken:
            task.result()  # what ended it is told, not swallowed


def _host(address: str) -> str:
    return address.rpartition(":")[0]


async def tell_health(place: Place, *, good: bool) -> None:
    """Answer health checks so from now on."""
    status = health_pb2.HealthCheckResponse.SERVING if good else health_pb2.HealthCheckResponse.NOT_SERVING
    for name in SERVICES:
        await place.health.set(name, status)


async def serve(config: WorkerConfig, worker: Worker | None = None, mover: type[Moves] = Moves) -> int:
    """Run until SIGTERM or SIGINT, or until the dispatcher says goodbye; return the exit code.

    The first signal drains: readiness falls, no new work comes, what is held ends within the grace. A second one
    ends at once. Raises InputError for a worker that the dispatcher does not take.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals: list[int] = []

    def heed(number: int) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed, number)
    async with running(config, worker, mover) as place:
        await _first_of(place, place.link.up, stop, place.link.left)
        if place.link.refused:
            fix = "change what it says is wrong, then start this worker again"
            raise InputError(place.link.refused, where=f"dispatcher {config.dispatcher}", fix=fix)
        say({"event": "ready", "worker_id": config.worker_id, "grpc": place.grpc, "http": place.http})
        gc.freeze()
        await _first_of(place, stop, place.link.left)
        await tell_health(place, good=False)
        place.link.leave("stopped")
        began_s = place.worker.now_s()
        while not place.worker.idle and len(signals) < 2 and place.worker.now_s() - began_s < GRACE_S:
            await asyncio.sleep(0.02)
        say({"event": "stopped", "worker_id": config.worker_id, "left": len(place.worker.answers)})
    return 0


async def _first_of(place: Place, *events: asyncio.Event) -> None:
    """Wait until one of the events is set; raises what ended a task of the worker, if one ends."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    done, _ = await asyncio.wait({*waits, *place.tasks}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    for task in done.intersection(place.tasks):
        task.result()


def say(told: dict[str, object]) -> None:
    """Print one JSON line on stdout for whoever started this process."""
    sys.stdout.write(orjson.dumps(told | {"pid": os.getpid()}).decode() + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and serve; 2 for bad settings."""
    return command(WorkerConfig(), serve, "python -m services.worker", arguments)


def command(
    default: Config,
    work: Callable[[Config], Coroutine[Any, Any, int]],
    name: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Read the command line into settings, starting from a default, and do the work; 2 for bad settings."""
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML file (services/worker/config.py)")
    for name in ("worker-id", "dispatcher", "grpc", "http", "advertise", "engine-policy"):
        parser.add_argument(f"--{name}", default=None)
    parser.add_argument("--speed", type=float, default=None)
    given = vars(parser.parse_args(arguments))
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        config = read_config(given.pop("config"), default, **given)
        with suppress(KeyboardInterrupt):
            return uvloop.run(work(config))
    except (InputError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 130
