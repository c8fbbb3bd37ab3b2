"""What a scaler does next, from what is wanted and what runs; it remembers little, and nothing that it needs."""

from dataclasses import dataclass, field
from math import inf

from services.scaler.driver import Unit
from services.wanted import Wanted

BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0
"""Rest after a failed start, doubled by each further one of the same order."""


@dataclass(frozen=True)
class Bounds:
    """The scaler's own limits, whatever the dispatcher wants."""

    most: int = 8  # workers that may run at once, those that end included
    orphan_s: float = 120.0  # a worker that the dispatcher has not known for so long is ended


@dataclass(frozen=True)
class Steps:
    """What to do now: orders to start, workers to end with the reason, dead ones to clear away."""

    start: tuple[str, ...] = ()
    stop: tuple[tuple[Unit, str], ...] = ()
    clear: tuple[Unit, ...] = ()
    booted: tuple[Unit, ...] = ()  # have joined since the last time
    crashed: tuple[Unit, ...] = ()  # died before they joined
    refused: int = 0  # orders for which there has been no room since this time


@dataclass
class Keeper:
    """Compares what is wanted with what runs. What it forgets at a restart is how long it has waited."""

    bounds: Bounds
    unknown_s: dict[str, float] = field(default_factory=dict)  # by handle: not known to the dispatcher since
    joined: set[str] = field(default_factory=set)  # handles
    unborn: set[str] = field(default_factory=set)  # handles of those that it has seen boot
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)  # by order: failures, not before
    mourned: set[str] = field(default_factory=set)  # handles of dead ones that were counted
    refused: set[str] = field(default_factory=set)  # orders that were counted as refused

    def steps(self, wanted: Wanted, units: list[Unit], now_s: float) -> Steps:
        """Return what to do. An order is carried out by the worker that boots for it; one that has joined may have
        taken another's place, so it does not count. Never more than ``most`` run."""
        alive, dead = [one for one in units if one.alive], [one for one in units if not one.alive]
        new = [one for one in dead if one.handle not in self.mourned and one.handle not in self.joined]
        crashed = [one for one in new if one.order in wanted.orders]
        for unit in crashed:
            self.failed(unit.order, now_s)
        self.mourned = {one.handle for one in dead}
        booted = [one for one in alive if one.worker in wanted.here and one.handle in self.unborn]
        self.unborn = {one.handle for one in alive if one.worker not in wanted.here} - self.joined
        self.joined = {one.handle for one in alive if one.worker in wanted.here or one.handle in self.joined}
        start, refused = self._start(wanted, alive, now_s)
        known = {one.handle for one in units}
        self.unknown_s = {handle: since_s for handle, since_s in self.unknown_s.items() if handle in known}
        self.waits = {order: wait for order, wait in self.waits.items() if order in wanted.orders}
        stop = [(one, why) for one in alive if (why := self._ends(one, wanted, now_s))]
        forlorn = [one for one in dead if one.order or self._unknown(one, wanted, now_s)]
        return Steps(tuple(start), tuple(stop), tuple(forlorn), tuple(booted), tuple(crashed), refused)

    def failed(self, order: str, now_s: float) -> None:
        """A start of an order failed: the next one waits."""
        failures = self.waits.get(order, (0, -inf))[0] + 1
        self.waits[order] = failures, now_s + min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (failures - 1))

    def _start(self, wanted: Wanted, alive: list[Unit], now_s: float) -> tuple[list[str], int]:
        booting = {one.order for one in alive if one.worker not in wanted.here}
        missing = [order for order in wanted.orders if order not in booting]
        room = max(0, self.bounds.most - len(alive))
        ready = [order for order in missing if now_s >= self.waits.get(order, (0, -inf))[1]]
        turned = set(ready[room:])
        new, self.refused = (
            turned - self.refused,
            turned | (self.refused & {*wanted.orders} - {*ready[:room]}),
        )
        return ready[:room], len(new)

    def _ends(self, unit: Unit, wanted: Wanted, now_s: float) -> str:
        """Why a worker ends now, '' if it does not."""
        if unit.worker in wanted.stop:
            return "drained"
        return "orphan" if self._unknown(unit, wanted, now_s) else ""

    def _unknown(self, unit: Unit, wanted: Wanted, now_s: float) -> bool:
        """True if the dispatcher has neither known nor ordered it for ``orphan_s``."""
        if unit.worker in wanted.here or (unit.alive and unit.order in wanted.orders):
            self.unknown_s.pop(unit.handle, None)
            return False
        since_s = self.unknown_s.setdefault(unit.handle, now_s)
        return now_s - since_s >= self.bounds.orphan_s
