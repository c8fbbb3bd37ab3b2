"""What one step did, read off the engine model's tables: the log in which simulated and real engines are compared."""

import json
import logging
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from schedulers.errors import InputError
from services.worker.engine import Engine
from sim.rig import END_S, START_S


class Step(NamedTuple):
    """One step: tokens that each request got in it, and who had lost its place when it was formed.

    Keys are those of the engine; times are seconds on its clock.
    """

    start_s: float
    end_s: float
    tokens: dict[Any, int]  # by key
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


LOG_BYTES = 256 << 20
"""A log ends before it grows larger: an hour of an engine that makes a hundred steps a second takes about half."""

CUT = '{"cut": true}'
"""Last line of a log that would have grown larger."""


class StepLog:
    """A file to which an engine's steps are added, a line each, as they are known; it outlives its writer."""

    def __init__(self, path: Path, limit_bytes: int = LOG_BYTES) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._reader = StepReader()
        self._lost: set[Hashable] = set()  # evicted in a step that carried nothing
        self._file = path.open(
            "a", encoding="utf-8", buffering=1
        )  # a step is written before the next is formed
        self._left = limit_bytes - path.stat().st_size

    def read(self, engine: Engine) -> None:
        """Add the step that the engine model has just formed."""
        self.add(self._reader.read(engine))

    def add(self, step: Step) -> None:
        """Add a step; one that carried nothing lends its evictions to the next."""
        if not step.tokens:
            self._lost.update(step.evicted)
            return
        if self._lost:
            step = step._replace(evicted=tuple(sorted(self._lost.union(step.evicted), key=str)))
            self._lost.clear()
        self._write(line(step))

    def close(self) -> None:
        """Add nothing any more."""
        self._file.close()

    def _write(self, text: str) -> None:
        if self._file.closed:
            return
        self._left -= len(text) + 1
        if self._left >= len(CUT) + 1:
            self._file.write(text + "\n")
            return
        self._file.write(CUT + "\n")
        self._file.close()
        logging.getLogger(__name__).warning("the log of steps is full: %s", self.path)


def log_file(folder: str, worker_id: str) -> Path:
    """Return the file of a worker's steps in a folder, which is made; raises InputError if nobody can write there."""
    path = Path(folder) / f"{worker_id.replace('/', '_')}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        what = f"steps can't be logged there: {error.strerror}"
        raise InputError(what, where=str(path), fix="name a folder that can be written") from None
    return path


class _Line(msgspec.Struct):
    start_s: float
    end_s: float
    tokens: dict[str, Annotated[int, msgspec.Meta(ge=1)]]
    evicted: list[str]


_LINE = msgspec.json.Decoder(_Line)


class Read(NamedTuple):
    """Steps of a log, keys as words; ``cut`` if its writer had to stop, or died in the middle of a line."""

    steps: list[Step]
    cut: bool = False


def read_log(path: Path) -> Read:
    """Return what a log holds; raises InputError naming file and line of what is no step."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        fix = "name a file that `windtunnel up --steps` made"
        raise InputError(f"can't read it: {error.strerror}", where=str(path), fix=fix) from None
    cut = bool(rest) or (bool(lines) and lines[-1] == CUT.encode())
    steps = []
    for number, text in enumerate(lines, 1):
        if number == len(lines) and text == CUT.encode():
            break
        try:
            told = _LINE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fix = "name a file that `windtunnel up --steps` made"
            raise InputError(f"no step: {error}", where=f"{path}:{number}", fix=fix) from None
        steps.append(Step(told.start_s, told.end_s, told.tokens, tuple(told.evicted)))
    return Read(steps, cut)


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
