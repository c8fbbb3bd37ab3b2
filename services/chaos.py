"""Faults on real processes under real load, each with its account: what was asked, how it ended, what got lost.

Each scenario starts a testbed of its own, replays a small synthetic window against it open loop while something
breaks, and counts at the client: every request ends once, every token index comes once and is the right one.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np

from loadgen.demand import Demand
from loadgen.facts import FAILED, FINISHED
from loadgen.plan import Plan
from loadgen.replay.run import Replay, Replayed, ReplayRules
from loadgen.replay.schedule import Schedule, seed_of
from services.local import (
    Running,
    State,
    Wish,
    alive,
    ask,
    await_ready,
    began_of,
    begin,
    environment,
    start,
    stop,
    write_state,
)
from services.proxy import Proxy
from services.sender import GrpcSender

DIGEST = "chaos"
"""Stands for a window's digest: the synthetic window is a function of its size alone."""

SPEC = "fcfs-chunked+least-requests"

PATIENCE_S = 30.0
"""How long a request may wait for its first token, or for the next one; then it ends with that reason."""

RESTLESS = '''"""In turn each engine gives one request to the next."""

from schedulers.policy import HOLD, ClusterPolicy
from schedulers.view import View

PERIOD_S = 0.3


def migrate(view: View, engine: int, now_s: float) -> float:
    """Name the next engine when it is this one's turn."""
    engines = len(view.engines.alive)
    mine = int(now_s / PERIOD_S) % engines == engine
    return float((engine + 1) % engines) if mine else HOLD


POLICY = ClusterPolicy(name="restless", migrate=migrate, period_s=PERIOD_S)
'''
"""A policy that keeps requests moving, so that faults meet migrations in every phase."""


class Load(NamedTuple):
    """A synthetic window: so many requests, evenly spaced; two tiers take turns."""

    requests: int = 150
    gap_s: float = 0.05
    prompt_tokens: int = 300
    output_tokens: int = 120
    after: int = 0  # the last so many come at a pace that the engines keep, one every ``after_gap_s``
    after_gap_s: float = 0.5


class Stage(NamedTuple):
    """One testbed under load; ``notes`` are figures that a scenario measures beside what the client counts."""

    state: State
    replay: Replay
    wish: Wish
    proxies: dict[str, Proxy]  # before the workers of a proxied scenario, by name
    notes: dict[str, str]

    def worker(self, number: int) -> Running:
        """A worker by its number."""
        return self.state.workers[number]

    async def order(self, number: int, fault: str, **more: Any) -> None:
        """Order a fault of a worker; raises AssertionError if it did not take the order."""
        status = await asyncio.to_thread(post, self.worker(number).http, "/chaos", {"fault": fault, **more})
        if status != 200:
            raise AssertionError(f"{self.worker(number).name} did not take the order to {fault}: {status}")


class Scenario(NamedTuple):
    """One row of the table; ``act`` runs beside the load."""

    name: str
    says: str
    act: Callable[[Stage], Awaitable[None]]
    load: Load = Load()
    spec: str = SPEC
    store: str = ""
    queue_max: int = 100_000
    proxied: bool = False  # workers reach the dispatcher through a proxy each


class Told(NamedTuple):
    """The account of one scenario."""

    name: str
    says: str
    requests: int
    finished: int
    refused: dict[str, int]
    failed: dict[str, int]
    lost_requests: int
    lost_tokens: int
    repeated_tokens: int
    migrations: int
    longest_gap_s: float
    took_s: float
    fault: str = ""  # what went wrong with the scenario itself
    notes: tuple[tuple[str, str], ...] = ()  # figures beside the counts, by name

    @property
    def good(self) -> bool:
        """True if nothing was lost or repeated and every request ended in a known way."""
        unknown = {"unfinished", "unsent", "other", "internal"}
        return not (
            self.lost_requests or self.lost_tokens or self.repeated_tokens or unknown & set(self.failed)
        )


def post(http: str, path: str, body: dict[str, Any]) -> int:
    """Send an order; return the status, 0 if nobody answered."""
    request = Request(f"http://{http}{path}", data=json.dumps(body).encode(), method="POST")
    try:
        with urlopen(request, timeout=10.0) as response:
            return int(response.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


def window(load: Load, run: str) -> Schedule:
    """Return the synthetic window as a schedule."""
    count = load.requests
    number = np.arange(count)
    zeros = np.zeros(count, np.int64)
    vary = 1.0 + 0.5 * np.sin(number)
    demand = Demand(
        arrival_s=np.cumsum(np.where(number < count - load.after, load.gap_s, load.after_gap_s)),
        prompt_tokens=np.maximum(1, load.prompt_tokens * vary).astype(np.int64),
        output_tokens=np.maximum(1, load.output_tokens * vary[::-1]).astype(np.int64),
        forecast_tokens=np.full(count, float(load.output_tokens)),
        tier=number % 2,
        tenant=number % 3,
        session=zeros - 1,
        luck=(number.astype(np.float64) * 0.6180339887498949) % 1.0,
    )
    return Schedule(
        run=run,
        window_id="chaos",
        window_sha256=DIGEST,
        speed=1.0,
        demand=demand,
        due_s=demand.arrival_s.copy(),
        parent=zeros - 1,
        gap_s=np.zeros(count),
        hash_offsets=None,
        hash_ids=None,
        block_tokens=0,
    )


async def run(scenario: Scenario, folder: Path, plan: Plan, speed: float = 1.0) -> Told:
    """Play one scenario on a fresh testbed in ``folder``; nothing is left running."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = scenario.spec
    if spec.endswith("+restless"):
        policy = (folder / "restless.py").resolve()
        policy.write_text(RESTLESS, encoding="utf-8")
        spec = f"{spec.removesuffix('restless')}{policy}:POLICY"
    wish = Wish(
        folder, plan, spec, spec, speed, scenario.store, chaos=True, queue_max=scenario.queue_max,
        patience_s=PATIENCE_S,
    )  # fmt: skip
    with ExitStack() as stack:
        proxies: dict[str, Proxy] = {}

        def route(name: str, address: str) -> str:
            proxies[name] = stack.enter_context(Proxy(address))
            return proxies[name].address

        if scenario.proxied:
            wish = replace(wish, route=route)
        state = await asyncio.to_thread(start, wish)
        try:
            return await play(scenario, state, wish, proxies)
        finally:
            await asyncio.to_thread(stop, folder, grace_s=2.0)


async def play(scenario: Scenario, state: State, wish: Wish, proxies: dict[str, Proxy]) -> Told:
    """Replay the load while the scenario acts."""
    schedule = window(scenario.load, str(time.time_ns()))
    rules = ReplayRules(drain_s=90.0)
    async with GrpcSender(state.dispatcher.grpc, schedule) as sender:
        replay = Replay(schedule, sender, rules, ((inf,) * 3, (inf,) * 3))
        notes: dict[str, str] = {}
        acting = asyncio.create_task(_act(scenario, Stage(state, replay, wish, proxies, notes)))
        told = await replay.run()
        fault = await acting
    return account(scenario, told)._replace(fault=fault, notes=tuple(notes.items()))


async def _act(scenario: Scenario, stage: Stage) -> str:
    """Let it act; return what went wrong with the act itself, "" if nothing did."""
    try:
        await scenario.act(stage)
    except AssertionError as error:
        return str(error)
    return ""


def account(scenario: Scenario, told: Replayed) -> Told:
    """Count what the client saw."""
    trails = told.trails
    ends: dict[str, dict[str, int]] = {}
    for (outcome, reason), count in sorted(trails.ends().items()):
        ends.setdefault(outcome, {})[reason] = count
    finished = trails.outcome == FINISHED
    short = trails.tokens[finished] < trails.schedule.demand.output_tokens[finished]
    total = sum(sum(reasons.values()) for reasons in ends.values())
    silent = int((trails.outcome == FAILED).sum()) - sum(ends.get("failed", {}).values())
    return Told(
        name=scenario.name,
        says=scenario.says,
        requests=len(trails.outcome),
        finished=int(finished.sum()),
        refused=ends.get("rejected", {}) | ends.get("expired", {}),
        failed=ends.get("failed", {}),
        lost_requests=len(trails.outcome) - total + silent + ends.get("failed", {}).get("unfinished", 0),
        lost_tokens=int(trails.lost.sum() + short.sum()),
        repeated_tokens=int(trails.repeated.sum()),
        migrations=int(trails.migrations.sum()),
        longest_gap_s=float(np.max(trails.longest_gap_s, initial=0.0)),
        took_s=told.took_s,
    )


async def kill(stage: Stage, one: Running) -> None:
    """SIGKILL a process and wait until it is gone."""
    os.kill(one.pid, signal.SIGKILL)
    while alive(one):
        await asyncio.sleep(0.01)


async def until_dead(one: Running, seconds: float = 60.0) -> None:
    """Wait until a process has died of what was ordered; raises AssertionError if it lives on."""
    until_s = time.monotonic() + seconds
    while alive(one):
        if time.monotonic() > until_s:
            raise AssertionError(f"{one.name} was to die and did not")
        await asyncio.sleep(0.05)


async def until_running(stage: Stage, share: float = 0.3) -> None:
    """Wait until so much of the load has been sent."""
    trails = stage.replay.trails
    while np.isnan(trails.sent_s).mean() > 1.0 - share:
        await asyncio.sleep(0.02)


async def start_dispatcher_again(stage: Stage) -> None:
    """Start the dispatcher anew on the ports and the journal that it had."""
    door, folder = stage.state.dispatcher, Path(stage.state.folder)
    again = ["services.dispatcher", "--config", str(folder / "dispatcher.toml"), "--http", door.http]
    started: list[Running] = []
    one = begin(folder, "dispatcher", [*again, "--grpc", door.grpc], started.append)
    await asyncio.to_thread(await_ready, folder, "dispatcher", [one], started.append)
    write_state(folder, replace(stage.state, processes=(started[-1], *stage.state.processes[1:])))


class Redis:
    """A Redis server of its own, with an append-only file, on a port of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--appendonly", "yes"]
        command += ["--appendfsync", "everysec", "--save", "", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise OSError("redis-server does not answer")

    def kill(self) -> None:
        """SIGKILL it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def memory_mb(one: Running) -> float:
    """Resident memory of a process, MiB; 0 if it is gone."""
    if began_of(one.pid) != one.began:
        return 0.0
    fields = Path(f"/proc/{one.pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def ready(stage: Stage) -> bool:
    """True if the dispatcher takes requests."""
    return ask(stage.state.dispatcher.http, "/ready")[0] == 200


def seeds_of(load: Load) -> list[int]:
    """The seeds of a load's answers."""
    return [seed_of(DIGEST, row) for row in range(load.requests)]
