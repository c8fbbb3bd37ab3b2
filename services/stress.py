"""Scenarios of too much and of ill will: a minute of overload, a cut network, idle connections, hostile input."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

import grpc
import numpy as np

from loadgen.facts import FINISHED
from services.chaos import Load, Scenario, Stage, memory_mb, until_running

MINUTE = Load(requests=6060, gap_s=0.01, prompt_tokens=600, output_tokens=150, after=60)
"""A minute at about ten times what two engines can do, then half a minute at a fifth of it."""

IDLE = 10_000
CUT_S = 5.0
NOT_PROTOBUF = b"\xff\xff\xff\xff not a message"


async def overload_minute(stage: Stage) -> None:
    """Note memory, the longest queue, who was served by tier, and when the first tokens come quickly again."""
    trails, demand = stage.replay.trails, stage.replay.schedule.demand
    crowd = np.arange(len(demand.tier)) < len(demand.tier) - MINUTE.after
    await until_running(stage, 0.05)
    early, highest, queue = memory_mb(stage.state.dispatcher), 0.0, 0
    while np.isnan(trails.sent_s[crowd]).any():
        open_now = int(((trails.outcome < 0) & np.isnan(trails.first_s) & ~np.isnan(trails.sent_s)).sum())
        queue, highest = max(queue, open_now), max(highest, memory_mb(stage.state.dispatcher))
        await asyncio.sleep(0.2)
    await until_running(stage, 1.0)
    await asyncio.sleep(3.0)
    ended_s = float(np.nanmax(trails.sent_s[crowd]))
    after = np.flatnonzero(~crowd)
    ttft_s = trails.first_s[after] - trails.due_s[after]
    slow = after[~(ttft_s < 0.5)]
    recovered_s = float(trails.due_s[slow[-1]]) - ended_s if len(slow) else 0.0
    served = [int(((trails.outcome == FINISHED) & (demand.tier == tier) & crowd).sum()) for tier in (0, 1)]
    stage.notes.update({
        "dispatcher's memory": f"{early:.0f} MiB after 3 s, at most {highest:.0f}",
        "most requests without a token": str(queue),
        "served of the minute's, by tier": " and ".join(map(str, served)),
        "first tokens within 0.5 s again after": f"{max(0.0, recovered_s):.1f} s",
    })  # fmt: skip
    if highest - early > 100.0 or queue > 2 * stage.wish.queue_max + 50:
        raise AssertionError(f"unbounded: memory {early:.0f} to {highest:.0f} MiB, queue {queue}")
    if recovered_s > 15.0:
        raise AssertionError(f"it took {recovered_s:.0f} s to recover")


async def network_cut(stage: Stage) -> None:
    """Nothing passes between a worker and the dispatcher for 5 s, both ends alive; then all of it does."""
    await until_running(stage, 0.3)
    proxy = stage.proxies[stage.worker(0).name]
    before = proxy.passed_bytes
    proxy.shut()
    await asyncio.sleep(CUT_S)
    during = proxy.passed_bytes
    proxy.open()
    stage.notes["bytes through the proxy before and during the cut"] = f"{before:,} and {during - before:,}"
    if before == 0:
        raise AssertionError("the worker did not go through the proxy")


async def network_breaks(stage: Stage) -> None:
    """A worker's connection is reset again and again, in mid-message wherever that is."""
    await until_running(stage, 0.2)
    for _ in range(10):
        for proxy in stage.proxies.values():
            proxy.cut()
        await asyncio.sleep(0.3)


async def idle_connections(stage: Stage) -> None:
    """Ten thousand connections that say nothing, open while the load runs."""
    host, _, port = stage.state.dispatcher.http.rpartition(":")
    before = memory_mb(stage.state.dispatcher)
    with ExitStack() as stack:
        for number in range(IDLE):
            line = stack.enter_context(socket.socket())
            line.setblocking(False)
            with suppress(BlockingIOError):
                line.connect((host, int(port)))
            if number % 200 == 199:
                await asyncio.sleep(0.02)
        await until_running(stage, 0.9)
        grown = memory_mb(stage.state.dispatcher) - before
    stage.notes["dispatcher's memory for 10,000 idle connections"] = f"{grown:.0f} MiB more"


async def hostile(stage: Stage) -> None:
    """Broken and oversized input at every door; each gets a refusal with its name, none an internal error."""
    await until_running(stage, 0.2)
    answers = await asyncio.to_thread(ask_badly, stage.state.dispatcher.http)
    codes = await break_messages(stage.state.dispatcher.grpc)
    wrong = {name: status for name, status in answers.items() if not 400 <= status < 500}
    stage.notes["HTTP statuses"] = ", ".join(f"{name} {status}" for name, status in answers.items())
    stage.notes["broken protobuf"] = ", ".join(codes)
    if wrong or not set(codes) <= {"INTERNAL", "INVALID_ARGUMENT", "UNKNOWN"}:
        raise AssertionError(f"not refused by name: {wrong or codes}")


def ask_badly(http: str) -> dict[str, int]:
    """Statuses of requests that nobody should send."""
    host, _, port = http.rpartition(":")
    plain = {"model": "m", "prompt": "x", "max_tokens": 4}
    sent: dict[str, tuple[bytes, dict[str, str]]] = {
        "not JSON": (b"{" * 5000, {}),
        "body of 5 MiB": (json.dumps(plain | {"prompt": "x" * (5 << 20)}).encode(), {}),
        "prompt over the memory": (json.dumps(plain | {"prompt": [1] * 400_000}).encode(), {}),
        "max_tokens of a million": (json.dumps(plain | {"max_tokens": 1_000_000}).encode(), {}),
        "id with a line break": (json.dumps(plain).encode(), {"X-Request-Id": "a%0d%0aset-cookie: b"}),
        "tier of another world": (json.dumps(plain).encode(), {"X-Windtunnel-Tier": "99"}),
    }
    found: dict[str, int] = {}
    for name, (body, more) in sent.items():
        line = HTTPConnection(host, int(port), timeout=20)
        headers = {"Content-Type": "application/json"} | more
        try:
            line.request("POST", "/v1/completions", body, headers)
            found[name] = line.getresponse().status
        except (OSError, HTTPException):
            found[name] = 0  # it was hung up on before it had said all
        finally:
            line.close()
    return found


async def broken() -> AsyncIterator[bytes]:
    """One message that is none."""
    yield NOT_PROTOBUF


async def break_messages(address: str) -> Sequence[str]:
    """Status codes of calls whose bytes are no message."""
    codes = []
    async with grpc.aio.insecure_channel(address) as channel:
        for method in ("Dispatcher/Submit", "Dispatcher/Cancel", "Dispatcher/Converse"):
            raw: Any = channel.stream_stream(f"/windtunnel.v1.{method}")
            call = raw(broken())
            try:
                async with asyncio.timeout(10.0):
                    async for _ in call:
                        pass
                codes.append("OK")
            except grpc.aio.AioRpcError as error:
                codes.append(error.code().name)
    return codes


STRESS = (
    Scenario(
        "overload-minute",
        "ten times the capacity for a minute, 100 requests a tier may wait, policy tier-shed",
        overload_minute,
        MINUTE,
        "fcfs-chunked+tier-shed",
        queue_max=100,
    ),
    Scenario(
        "network-cut",
        "nothing passes a proxy between a worker and the dispatcher for 5 s",
        network_cut,
        proxied=True,
    ),
    Scenario(
        "network-breaks",
        "both workers' connections are reset ten times in a row",
        network_breaks,
        proxied=True,
    ),
    Scenario("idle-connections", "10,000 connections that say nothing", idle_connections),
    Scenario(
        "hostile-input",
        "broken protobuf, 5 MiB bodies, max_tokens of a million, header injection",
        hostile,
    ),
)
