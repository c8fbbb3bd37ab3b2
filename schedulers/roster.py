"""The lives of a dispatcher's engines: which are ordered, serve, drain and may stop, as a policy wishes.

The choice is ``schedulers.lives``'s, as in the simulator. Who carries it out is somebody else: an order has a number,
so that it can be carried out once, and the engine that joins next takes the place of the oldest order.
"""

from collections.abc import Iterable

import numpy as np

from schedulers.board import Board, Place
from schedulers.decisions import DRAIN, ORDER, STOP, UNDRAIN, Bounds, Decision
from schedulers.lives import BOOTING, DRAINING, LEAVING, OFF, SERVING, to_drain, to_serve
from schedulers.view import Ints

NOWHERE = -1
"""Place of an order made before any engine was ever there."""


class Roster:
    """Lives by row of the board. With ``most`` = 0 nothing is ordered or drained by wish."""

    def __init__(self, board: Board, bounds: Bounds) -> None:
        self.board, self.least, self.most, self.boot_s = board, bounds.least, bounds.most, bounds.boot_s
        self.life: Ints = np.zeros(0, np.int64)
        self.orders: dict[int, tuple[int, float]] = {}  # by place: the order's number, and when it was given
        self.given = 0

    def seat(self, place: Place) -> int:
        """The row for an engine that nobody knows: the oldest order's, else one that is off, else a new one.

        Where the fleet is fixed every engine has a row of its own for ever.
        """
        if not self.most:
            return self._row(place)
        self.orders.pop(NOWHERE, None)
        while len(self.life) < self.most:  # policies see those that could be ordered, as the first one is
            self._row(place)
        free = [*self.orders, *self.rows(OFF)]
        row = int(free[0]) if free else self._row(place)
        self.board.furnish(row, place)
        return row

    def _row(self, place: Place) -> int:
        row = self.board.join(place)
        self.life = np.append(self.life, OFF)
        self.board.view.engines.alive[row] = 0
        return row

    def serves(self, engine: int) -> None:
        """It is there; one that drained by wish before its link was cut drains on."""
        self.orders.pop(engine, None)
        if self.life[engine] in (OFF, BOOTING):
            self.life[engine] = SERVING

    def gone(self, engine: int) -> None:
        """It is not there any more: its place is off, and can be ordered."""
        if self.life[engine] != BOOTING:
            self.life[engine], self.board.view.engines.draining[engine] = OFF, 0

    def rows(self, life: int) -> list[int]:
        """Engines in a state."""
        return [int(row) for row in np.flatnonzero(self.life == life)]

    @property
    def size(self) -> int:
        """Engines that are there or on order."""
        return int(np.count_nonzero(self.life != OFF)) + (NOWHERE in self.orders)

    def scale(self, change: int, now_s: float) -> list[Decision]:
        """Carry out a wish on the board; what is left for others to do is returned."""
        decisions: list[Decision] = []
        for _ in range(max(0, change)):
            engine = to_serve(self.life)
            if engine >= 0 and self.life[engine] == DRAINING:
                self.life[engine], self.board.view.engines.draining[engine] = SERVING, 0
                decisions.append(Decision(UNDRAIN, -1, engine, "policy"))
            elif engine >= 0 and self.size < self.most:
                decisions.append(self._order(engine, "policy", now_s))
        for _ in range(max(0, -change)):
            fleet = self.board.view.engines
            set_aside = (self.life == SERVING) & (fleet.draining == 1)  # by an operator's word, or its own
            engine = to_drain(np.where(set_aside, LEAVING, self.life), fleet, self.least)
            if engine >= 0:
                self.life[engine], fleet.draining[engine] = DRAINING, 1
                decisions.append(Decision(DRAIN, -1, engine, "policy"))
        return decisions

    def upkeep(self, idle: Iterable[int], now_s: float) -> list[Decision]:
        """Let go of drained engines that are ``idle``, of orders that took too long; order what the floor lacks."""
        decisions: list[Decision] = []
        fleet = self.board.view.engines
        for engine in idle:
            self.life[engine], fleet.alive[engine], fleet.draining[engine] = LEAVING, 0, 0
            decisions.append(Decision(STOP, -1, engine, "drained"))
        for engine, (_, since_s) in list(self.orders.items()):
            if now_s - since_s > self.boot_s:
                del self.orders[engine]
                if engine != NOWHERE:
                    self.life[engine], fleet.alive[engine] = OFF, 0
                decisions.append(Decision(STOP, -1, engine, "boot_timeout"))
        lacking = self.least - len(self.rows(SERVING)) - len(self.orders)
        places = [*self.rows(OFF)] if len(self.life) else [NOWHERE]
        missing = places[: max(0, min(lacking, self.most - self.size))]
        return decisions + [self._order(engine, "floor", now_s) for engine in missing]

    def _order(self, engine: int, reason: str, now_s: float) -> Decision:
        self.given += 1
        self.orders[engine] = self.given, now_s
        if engine != NOWHERE:
            self.life[engine] = BOOTING
            self.board.view.engines.alive[engine] = 2
        return Decision(ORDER, -1, engine, reason)
