"""What one step did, read off the engine model's tables: the log in which simulated and real engines are compared."""

import json
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from services.worker.engine import Engine
from sim.rig import END_S, START_S


class Step(NamedTuple):
    """One step: tokens that each request got in it, and who had lost its place when it was formed.

    Keys are those of the engine; times are seconds on its clock.
    """

    start_s: float
    end_s: float
    tokens: dict[Hashable, int]
    evicted: tuple[Hashable, ...] = ()


class StepReader:
    """Reads steps off an engine, one after each that was formed."""

    def __init__(self) -> None:
        self.evictions: dict[Hashable, int] = {}

    def read(self, engine: Engine) -> Step:
        """Return the step under way; what was evicted since the last one read counts as evicted by it."""
        view, plant = engine.rig.known, engine.rig.plant
        batch = view.running[0, : view.engines.running[0]].tolist()
        evicted = []
        for key, row in engine.row_of.items():
            count = int(view.requests.evictions[row])
            if count > self.evictions.get(key, 0):
                evicted.append(key)
            self.evictions[key] = count
        for key in self.evictions.keys() - engine.row_of.keys():
            del self.evictions[key]
        return Step(
            start_s=float(plant.flight[0, START_S]),
            end_s=float(plant.flight[0, END_S]),
            tokens={engine.key_of[row]: int(plant.chunk[row]) for row in batch if plant.chunk[row] > 0},
            evicted=tuple(sorted(evicted, key=str)),
        )


def line(step: Step) -> str:
    """Return a step as a line of JSON."""
    told = step._asdict() | {"tokens": {str(key): count for key, count in step.tokens.items()}}
    return json.dumps(told | {"evicted": [str(key) for key in step.evicted]}, sort_keys=True)


class Difference(NamedTuple):
    """A step in which two engines did not do the same: its place, and what each did."""

    place: int
    ours: Step | None
    theirs: Step | None

    def __str__(self) -> str:
        """Say who got what on either side."""
        sides = [("model", self.ours), ("engine", self.theirs)]
        words = [f"{name}: {'no step' if step is None else line(step)}" for name, step in sides]
        return f"step {self.place}\n  " + "\n  ".join(words)


def differences(ours: Iterable[Step], theirs: Iterable[Step], tolerance_s: float = 1e-9) -> list[Difference]:
    """Return the steps that differ in tokens, evictions or times, in order; a missing step differs."""
    mine, other = list(ours), list(theirs)
    found = []
    for place in range(max(len(mine), len(other))):
        a = mine[place] if place < len(mine) else None
        b = other[place] if place < len(other) else None
        same = a is not None and b is not None and (a.tokens, a.evicted) == (b.tokens, b.evicted)
        if not same or a is None or b is None or abs(a.start_s - b.start_s) > tolerance_s:
            found.append(Difference(place, a, b))
    return found
