"""A film of one run: how each engine stands at moments a step apart, and every move, boot, drain, death, dispatch.

The loop is stopped between two moments and looked at, so a run that is filmed is, to the last bit, the run that is
not. A state is therefore as of the last thing that happened in the cluster; ``Timeline.at_s`` says when that was.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from schedulers.errors import InputError
from schedulers.view import Floats, Ints
from sim.fabric import LOGGED, NOW, OVER, PAUSE, Fabric
from sim.rig import FINE, Rig

LOG_ROWS = 1 << 15
"""Events that are kept between two looks."""

SAMPLES = 600
"""Looks at a run if nothing is said."""

LOOKS_MOST = 8 * SAMPLES
"""Of a run that lasts far longer than was thought every second look is kept, and looks are twice as far apart."""

Onlooker = Callable[[Rig, float], None]
"""Called at each look with the rig and the time."""


class Timeline(NamedTuple):
    """What a film shows: k looks at e engines with t tiers, and n events."""

    at_s: Floats  # (k,)
    batch: Ints  # (k, e) requests in the batch
    used: Ints  # (k, e) KV blocks held by requests
    kept: Ints  # (k, e) KV blocks reserved for requests on their way here
    waiting: Ints  # (k, e, t) requests in the engine's queue
    centre: Ints  # (k, t) requests that the dispatcher holds
    life: Ints  # (k, e) values of schedulers.lives: OFF, BOOTING, SERVING, DRAINING, DEAD
    event_s: Floats  # (n,)
    kind: Ints  # (n,) of sim.log.KINDS
    engine: Ints  # (n,)
    other: Ints  # (n,) the target of a move, -1
    request: Ints  # (n,) -1
    blocks: Ints  # (e,) KV blocks of each engine
    began: Ints  # (e,) life at time zero
    lost: int  # events that found no room


class Film:
    """Takes looks ``every_s`` seconds of the run's time; give one to ``simulate`` and read ``timeline`` after it."""

    def __init__(self, every_s: float, onlooker: Onlooker | None = None) -> None:
        if not 0.0 < every_s < inf:
            raise InputError(f"looks {every_s:g} s apart", where="film", fix="use a time above 0")
        self.every_s, self.onlooker = every_s, onlooker
        self._looks: list[tuple[float, Ints, Ints, Ints, Ints, Ints, Ints]] = []
        self._events: list[Floats] = []
        self._lost = 0
        self._blocks = self._began = np.zeros(0, np.int64)

    def load(self, fabric: Fabric) -> Fabric:
        """Return the fabric with room for events."""
        return fabric._replace(log=np.zeros((LOG_ROWS, 5)))

    def shoot(self, play: Callable[[Rig], None], rig: Rig) -> None:
        """Play a rig to its end, looking at it now and then."""
        fabric, at = rig.fabric, rig.fabric.moment_s
        self._blocks, self._began = rig.known.engines.blocks_total.copy(), fabric.life.copy()
        at[PAUSE], every_s = 0.0, self.every_s
        while rig.plant.error[0] == FINE and fabric.counter[OVER] < 2:
            play(rig)
            self._collect(fabric)
            if fabric.counter[OVER] < 2:
                self._look(rig, at[NOW])
            if len(self._looks) >= LOOKS_MOST:
                self._looks, every_s = self._looks[::2], 2.0 * every_s
            later_s = max(at[PAUSE], at[NOW] // every_s * every_s) + every_s
            at[PAUSE] = later_s if fabric.counter[OVER] == 0 else inf
        self._look(rig, float(np.nanmax(rig.plant.finished_s, initial=at[NOW])))

    def _collect(self, fabric: Fabric) -> None:
        logged = int(fabric.counter[LOGGED])
        self._events.append(fabric.log[:logged].copy())
        self._lost += max(0, logged - len(fabric.log))
        fabric.counter[LOGGED] = 0

    def _look(self, rig: Rig, now_s: float) -> None:
        if self._looks and now_s <= self._looks[-1][0]:
            self._looks.pop()  # nothing but what happens at one moment lies between: the later look holds
        view, fleet, fabric = rig.known, rig.known.engines, rig.fabric
        tier, tiers = view.requests.tier, fleet.tier_blocks.shape[1]
        waiting = [
            np.bincount(tier[view.waiting[engine, : fleet.waiting[engine]]], minlength=tiers)
            for engine in range(len(fleet.alive))
        ]
        held = rig.plant.held[: rig.plant.held_count[0]]
        kept = fabric.reserved.copy()
        used = fleet.blocks_total - fleet.blocks_free - kept
        centre = np.bincount(tier[held], minlength=tiers)
        row = (float(now_s), fleet.running.copy(), used, kept, np.array(waiting), centre, fabric.life.copy())
        self._looks.append(row)
        if self.onlooker is not None:
            self.onlooker(rig, float(now_s))

    def timeline(self) -> Timeline:
        """Return what was seen; raises InputError if nothing was shot."""
        if not self._looks:
            raise InputError("the film is blank", fix="give it to simulate first")
        at_s, batch, used, kept, waiting, centre, life = (
            np.array(column) for column in zip(*self._looks, strict=True)
        )
        events = np.concatenate(self._events)
        kind, engine, other, request = events[:, 1:].astype(np.int64).T
        return Timeline(
            at_s=at_s, batch=batch, used=used, kept=kept, waiting=waiting, centre=centre, life=life,
            event_s=events[:, 0].copy(), kind=kind, engine=engine, other=other, request=request,
            blocks=self._blocks, began=self._began, lost=self._lost,
        )  # fmt: skip
