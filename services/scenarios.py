"""The list of faults that the reliability page shows, each as what happens while the load runs."""

import asyncio
import os
import signal
import socket
from contextlib import suppress

from services.chaos import (
    Load,
    Redis,
    Scenario,
    Stage,
    kill,
    memory_mb,
    start_dispatcher_again,
    until_dead,
    until_running,
)
from services.stress import STRESS

OVERLOAD = Load(requests=1500, gap_s=0.01, prompt_tokens=600, output_tokens=150)
"""About ten times what two engines at speed 1 can do."""

MOVING = Load(requests=60, gap_s=0.1, prompt_tokens=150, output_tokens=500)
"""Answers long enough to move several times."""

PHASES = ("reserve", "copy", "stop", "receive", "commit")


async def nothing(stage: Stage) -> None:
    """Nothing breaks: the baseline."""


async def kill_worker(stage: Stage) -> None:
    """kill -9 in the middle of many streams."""
    await until_running(stage, 0.4)
    await kill(stage, stage.worker(0))


async def kill_both_workers(stage: Stage) -> None:
    """Both die, one after the other: what nobody can end fails with its reason."""
    await until_running(stage, 0.4)
    await kill(stage, stage.worker(0))
    await asyncio.sleep(1.0)
    await kill(stage, stage.worker(1))


async def kill_dispatcher(stage: Stage) -> None:
    """kill -9, and a new one on the same ports two seconds later."""
    await until_running(stage, 0.4)
    await kill(stage, stage.state.dispatcher)
    await asyncio.sleep(2.0)
    await start_dispatcher_again(stage)


async def hang_worker(stage: Stage) -> None:
    """The whole process stands still for 12 s: no heartbeat."""
    await until_running(stage, 0.3)
    await stage.order(0, "hang", seconds=12.0)


async def stall_engine(stage: Stage) -> None:
    """Steps stand still for 5 s while heartbeats go on."""
    await until_running(stage, 0.3)
    await stage.order(0, "stall", seconds=5.0)


async def partition(stage: Stage) -> None:
    """Nothing passes between a worker and the dispatcher for 5 s."""
    await until_running(stage, 0.3)
    await stage.order(0, "partition", seconds=5.0)


async def cut_links(stage: Stage) -> None:
    """Both links break again and again."""
    await until_running(stage, 0.2)
    for turn in range(8):
        await stage.order(turn % 2, "cut")
        await asyncio.sleep(0.4)


async def freeze_reports(stage: Stage) -> None:
    """A worker tells nothing of its state for 5 s."""
    await until_running(stage, 0.2)
    await stage.order(0, "freeze_reports", seconds=5.0)


async def refuse(stage: Stage) -> None:
    """A worker that looks healthy fails whatever it gets, for 3 s."""
    await until_running(stage, 0.2)
    await stage.order(0, "refuse")
    await asyncio.sleep(3.0)
    await stage.order(0, "none")


async def skew(stage: Stage) -> None:
    """A worker's clock jumps by an hour, and back."""
    await until_running(stage, 0.3)
    await stage.order(0, "skew", seconds=3600.0)
    await asyncio.sleep(2.0)
    await stage.order(0, "skew", seconds=-7200.0)


async def drain_worker(stage: Stage) -> None:
    """SIGTERM to a worker under load: what it holds ends there, nothing new comes."""
    await until_running(stage, 0.3)
    os.kill(stage.worker(0).pid, signal.SIGTERM)
    await until_dead(stage.worker(0))


async def stop_dispatcher(stage: Stage) -> None:
    """SIGTERM to the dispatcher under load, and a new one on the same ports."""
    await until_running(stage, 0.4)
    os.kill(stage.state.dispatcher.pid, signal.SIGTERM)
    await until_dead(stage.state.dispatcher)
    await start_dispatcher_again(stage)


async def slow_readers(stage: Stage) -> None:
    """Twenty clients that read a byte a second, and a hundred connections that never finish their headers."""
    host, _, port = stage.state.dispatcher.http.rpartition(":")
    body = b'{"model":"m","prompt":"x","max_tokens":3000,"ignore_eos":true,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    held: list[socket.socket] = []
    for number in range(120):
        one = socket.create_connection((host, int(port)), timeout=5.0)
        one.setblocking(False)
        with suppress(OSError):
            one.send(
                head % len(body) + body if number < 20 else b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-"
            )
        held.append(one)
    try:
        for _ in range(6):
            await asyncio.sleep(1.0)
            for number, one in enumerate(held):
                with suppress(OSError):
                    _ = one.recv(1) if number < 20 else one.send(b"a")
    finally:
        for one in held:
            one.close()


async def overload(stage: Stage) -> None:
    """Ten times the capacity: the dispatcher's memory is noted at its peak."""
    await until_running(stage, 0.05)
    before = memory_mb(stage.state.dispatcher)
    await until_running(stage, 0.98)
    grown = memory_mb(stage.state.dispatcher) - before
    if grown > 200.0:
        raise AssertionError(f"the dispatcher grew by {grown:.0f} MiB")


def die_in(phase: str) -> Scenario:
    """A worker dies in one phase of a migration while requests move to and fro."""

    async def act(stage: Stage) -> None:
        await until_running(stage, 0.3)
        await stage.order(0, "die_in", phase=phase)
        await until_dead(stage.worker(0))

    words = f"SIGKILL of a worker in phase {phase} of a live migration"
    return Scenario(f"migration-{phase}", words, act, MOVING, "fcfs-chunked+restless")


def redis_scenario(redis: Redis) -> Scenario:
    """kill -9 of Redis under load, started again on its file after 2 s."""

    async def act(stage: Stage) -> None:
        await until_running(stage, 0.4)
        redis.kill()
        await asyncio.sleep(2.0)
        await asyncio.to_thread(redis.start)

    words = (
        "kill -9 of Redis; back on its append-only file after 2 s (mode refuse: new requests get store_down)"
    )
    return Scenario("redis-kill", words, act, store=f"redis://127.0.0.1:{redis.port}")


SCENARIOS = (
    Scenario("baseline", "nothing breaks", nothing),
    Scenario("worker-kill", "kill -9 of one of two workers in mid-stream", kill_worker),
    Scenario("workers-kill", "kill -9 of both workers: no engine is left", kill_both_workers),
    Scenario(
        "dispatcher-kill", "kill -9 of the dispatcher; a new one on its journal after 2 s", kill_dispatcher
    ),
    Scenario("dispatcher-stop", "SIGTERM of the dispatcher under load, then a new one", stop_dispatcher),
    Scenario("worker-hang", "a worker's process stands still for 12 s (no heartbeat)", hang_worker),
    Scenario("worker-stall", "an engine makes no step for 5 s, its heartbeat goes on", stall_engine),
    Scenario("partition", "nothing passes on one worker's link for 5 s", partition),
    Scenario("link-cuts", "both links break eight times in a row", cut_links),
    Scenario("stale-reports", "one worker reports nothing for 5 s", freeze_reports),
    Scenario("worker-refuses", "a worker fails whatever it gets for 3 s", refuse),
    Scenario("clock-jump", "a worker's clock jumps an hour ahead and back", skew),
    Scenario("worker-drain", "SIGTERM of a worker under load", drain_worker),
    Scenario("slow-clients", "20 clients read a byte a second, 100 never finish their headers", slow_readers),
    Scenario(
        "overload",
        "ten times the capacity, 100 requests a tier may wait",
        overload,
        load=OVERLOAD,
        queue_max=100,
    ),
    Scenario(
        "migrations",
        "every 0.3 s a running request moves, to and fro, nothing breaks",
        nothing,
        MOVING,
        "fcfs-chunked+restless",
    ),
    *map(die_in, PHASES),
    *STRESS,
)
"""All but those that need a server beside."""
