"""The open loop: every request goes out at its absolute time, whatever the system does."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np

from loadgen.facts import FINISHED
from loadgen.replay.health import Health, Pulse, allow_connections
from loadgen.replay.lag import Lag, LagLimits, lag_of
from loadgen.replay.schedule import Schedule
from loadgen.replay.trails import OPEN, Sender, Trails
from schedulers.view import Floats

LEAD_S = 0.25
"""Between the start and the first request: connections and the loop settle."""

SPARE_FILES = 256
"""Files beside one connection a request."""


@dataclass(frozen=True)
class ReplayRules:
    """How a replay runs; times in wall seconds.

    ``drain_s`` is how long answers are awaited after the last request; ``stop_open`` ends a replay once so many
    requests are open (0: never), counted and told as such.
    """

    limits: LagLimits = field(default_factory=LagLimits)
    drain_s: float = 120.0
    stop_open: int = 0
    checked: bool = True
    progress_s: float = 0.5


class Tick(NamedTuple):
    """A replay as it goes on; ``attained`` a tier is the share of its ended requests that met their targets."""

    elapsed_s: float
    sent: int
    total: int
    open: int
    ended: int
    per_s: float  # sent over the last period
    attained: tuple[float | None, ...]


class Replayed(NamedTuple):
    """What a replay left behind."""

    trails: Trails
    lag: Lag
    health: Health
    took_s: float
    stopped: str  # "" if it ran to its end, else why not
    faults: tuple[str, ...]  # why it does not count

    @property
    def valid(self) -> bool:
        """True if it may be ranked."""
        return not self.faults


Targets = tuple[tuple[float, float, float], ...]
"""(ttft, tpot, e2e) a tier in seconds of the window, +inf for none."""


class Replay:
    """One schedule against one system; ``stop`` ends it early and keeps what was measured."""

    def __init__(self, schedule: Schedule, sender: Sender, rules: ReplayRules, targets: Targets) -> None:
        self.schedule, self.sender, self.rules, self.targets = schedule, sender, rules, targets
        self.trails = Trails(schedule, checked=rules.checked)
        self.stopped = ""
        self.pulse: Pulse | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = [asyncio.Event() for _ in schedule.parent] if (schedule.parent >= 0).any() else []
        self._stop = asyncio.Event()
        self._start_s = 0.0

    def stop(self, why: str) -> None:
        """End the replay: nothing more is sent, what is open is let go."""
        self.stopped = self.stopped or why
        self._stop.set()

    async def run(self, notice: Callable[[Tick], None] | None = None) -> Replayed:
        """Send all, await the drain, and judge the lag."""
        loop = asyncio.get_running_loop()
        allow_connections(len(self.schedule.due_s) + SPARE_FILES)
        pulse = self.pulse = Pulse()
        self._start_s = loop.time() + LEAD_S
        aside = [asyncio.create_task(pulse.run()), asyncio.create_task(self._tell(notice))]
        try:
            await self._first_of(self._send_all())
            await self._first_of(self._drain())
        finally:
            for task in (*aside, *self._tasks):
                task.cancel()
            await asyncio.gather(*aside, *self._tasks, return_exceptions=True)
        took_s = loop.time() - self._start_s
        self.trails.close("unfinished")
        lag = lag_of(self.trails.due_s, self.trails.sent_s)
        faults = tuple(lag.faults(self.rules.limits))
        return Replayed(self.trails, lag, pulse.health(), took_s, self.stopped, faults)

    async def _first_of(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until it is done or somebody says stop."""
        doing = asyncio.create_task(work)
        waiting = asyncio.create_task(self._stop.wait())
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not doing.done():
            doing.cancel()
            with suppress(asyncio.CancelledError):
                await doing
        else:
            doing.result()

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        for row in range(len(self.schedule.due_s)):
            if self.schedule.parent[row] >= 0:
                self._begin(self._after_parent(row))
                continue
            wait_s = self._start_s + float(self.schedule.due_s[row]) - loop.time()
            if wait_s > 0.0:  # an absolute target: what was overslept is not slept again
                await asyncio.sleep(wait_s)
            elif row % 64 == 0:
                await asyncio.sleep(0.0)  # behind its schedule it still lets answers in
            self._begin(self._send(row))
            if 0 < self.rules.stop_open <= self.trails.open:
                self.stop(f"over-saturated: {self.trails.open} requests open")
                return

    async def _after_parent(self, row: int) -> None:
        """A later turn: due a recorded gap after the answer before it came."""
        await self._ended[int(self.schedule.parent[row])].wait()
        due_s = self._now_s() + float(self.schedule.gap_s[row])
        self.trails.due_s[row] = due_s
        await asyncio.sleep(max(0.0, due_s - self._now_s()))
        await self._send(row)

    async def _send(self, row: int) -> None:
        asked = self.schedule.asked(row)
        self.trails.now_s = self._now_s()
        self.trails.sent(row, self.trails.now_s)
        await self.sender.send(asked, self.trails)
        if self._ended:
            self._ended[row].set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        """Await the answers that are open; after the last arrival's time and the grace they are let go."""
        until_s = asyncio.get_running_loop().time() + self.rules.drain_s
        while self._tasks and (left_s := until_s - asyncio.get_running_loop().time()) > 0.0:
            await asyncio.wait(self._tasks, timeout=min(left_s, 1.0))
        if self._tasks:
            self.stopped = (
                self.stopped or f"{len(self._tasks)} requests open {self.rules.drain_s:g} s after the last"
            )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._start_s

    async def _tell(self, notice: Callable[[Tick], None] | None) -> None:
        sent_before, period_s = 0, self.rules.progress_s
        while notice is not None:
            await asyncio.sleep(period_s)
            sent = int((~np.isnan(self.trails.sent_s)).sum())
            ended = int((self.trails.outcome != OPEN).sum())
            per_s = (sent - sent_before) / period_s
            sent_before = sent
            tick = Tick(
                max(0.0, self._now_s()),
                sent,
                len(self.schedule.due_s),
                self.trails.open,
                ended,
                per_s,
                self.attained(),
            )
            notice(tick)

    def attained(self) -> tuple[float | None, ...]:
        """Return the share of ended requests a tier that met its targets; None for a tier without target.

        What was refused or failed counts as missed.
        """
        tier, ended, met = self.schedule.demand.tier, self.trails.outcome != OPEN, self.met()
        shares: list[float | None] = []
        for number, targets in enumerate(self.targets):
            mine = ended & (tier == number)
            shares.append(None if min(targets) == inf or not mine.any() else float(met[mine].mean()))
        return tuple(shares)

    def met(self) -> Any:
        """Return which requests finished within every target of their tier, (n,) of bool."""
        seconds, limits = self.seconds(), np.array(self.targets)[self.schedule.demand.tier]
        with np.errstate(invalid="ignore"):
            within = [seconds[name] <= limits[:, place] for place, name in enumerate(("ttft", "tpot", "e2e"))]
        return np.logical_and.reduce([self.trails.outcome == FINISHED, *within])

    def seconds(self) -> dict[str, Floats]:
        """Return TTFT, TPOT and E2E of each request in seconds of the window, NaN where there is none yet."""
        trails, speed = self.trails, self.schedule.speed
        return {
            "ttft": (trails.first_s - trails.due_s) * speed,
            "tpot": (trails.last_s - trails.first_s) * speed / np.maximum(1, trails.tokens - 1),
            "e2e": (trails.last_s - trails.due_s) * speed,
        }
