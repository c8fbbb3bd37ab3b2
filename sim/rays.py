"""A crew on Ray: the same work on the machines of a cluster, with the files it makes carried back.

Machines of a cluster need not share a disk: a task travels with its window, and its shards come back as bytes
that this process writes. So nothing of a lost node is needed, and a killed driver loses the tasks in flight.
"""

import os
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple

from loadgen.manifest import write_whole
from loadgen.window import window_path
from schedulers.errors import InputError
from sim.crew import SILENCE_S, TRIES, Duty, Lost, Tell, Work

NODES_LOST = 20
"""So often a task may lose its machine under it; that is nobody's fault and no reason to give the task up."""

LOOK_S = 1.0
"""How long to wait for an end before looking for tasks that hang."""


class Answer(NamedTuple):
    """What a task told, the files that it made by relative name, and a refusal or a fault if there was one."""

    told: tuple[Any, ...]
    files: dict[str, bytes]
    refused: InputError | None = None
    broken: str = ""


class Flight(NamedTuple):
    """A task under way on the cluster, and since when."""

    duty: Duty
    since_s: float


class RayCrew:
    """Workers of a Ray cluster, with the ways of ``sim.crew.Crew``. Use as a context; leaving it lets go of them.

    ``on`` is "ray" (the cluster that RAY_ADDRESS names, else one on this machine) or an address. Raises
    InputError if Ray is not installed or no cluster answers.
    """

    def __init__(self, on: str, jobs: int) -> None:
        self.ray = import_ray()
        self.flying: dict[Any, Flight] = {}
        self.ours = not self.ray.is_initialized()
        if self.ours:
            self.connect(on, jobs)
        self.remote = self.ray.remote(num_cpus=1, max_retries=0)(do)

    def connect(self, on: str, jobs: int) -> None:
        """Join the cluster at the address, or start one here."""
        address = os.environ.get("RAY_ADDRESS", "local") if on == "ray" else on
        here: dict[str, Any] = {}
        if address == "local":
            here = {"num_cpus": max(1, jobs), "include_dashboard": False, "object_store_memory": 100 << 20}
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            said = str(error).strip().splitlines()
            raise InputError(
                f"no Ray cluster answers ({said[0] if said else type(error).__name__})",
                where=f"--on {on}",
                fix="start one with `ray start --head`, give its address, or say --on ray for one on this machine",
            ) from error

    def __enter__(self) -> "RayCrew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for ref in self.flying:
            with suppress(Exception):  # the cluster may be gone
                self.ray.cancel(ref, force=True)
        self.flying.clear()
        if self.ours:
            self.ray.shutdown()

    def run(self, work: Work, tasks: Iterable[Any], hear: Tell) -> None:
        """Do ``work(task, tell, stopped)`` for every task somewhere; ``hear`` gets all that is told, and Lost.

        A task is (job, manifest line, ...). Raises what ``sim.crew.Crew.run`` raises.
        """
        todo: Iterator[Duty] = iter(Duty(task, 0) for task in tasks)
        again: deque[Duty] = deque()
        while True:
            while len(self.flying) < self.room():
                duty = again.popleft() if again else next(todo, None)
                if duty is None:
                    break
                ref = self.remote.remote(work, duty.task, window_of(duty.task))
                self.flying[ref] = Flight(duty._replace(tries=duty.tries + 1), time.monotonic())
            if not self.flying:
                return
            ready, _ = self.ray.wait(list(self.flying), num_returns=1, timeout=LOOK_S)
            for ref in ready:
                self.land(ref, hear, again)
            self.stop_hanging(hear)

    def room(self) -> int:
        """Return how many tasks may be under way: one a core that the cluster has now, and one that waits."""
        return int(self.ray.cluster_resources().get("CPU", 0)) + 1

    def land(self, ref: Any, hear: Tell, again: deque[Duty]) -> None:
        """Take in what a task answered; one whose worker or machine died is to be done again, or Lost."""
        errors = self.ray.exceptions
        duty = self.flying.pop(ref).duty
        try:
            answer: Answer = self.ray.get(ref)
        except errors.RayError as error:
            fallen = isinstance(error, errors.NodeDiedError | errors.ObjectLostError | errors.OwnerDiedError)
            if duty.tries < (NODES_LOST if fallen else TRIES):
                again.append(duty)
            else:
                hear(Lost(duty.task, None))
            return
        if answer.refused is not None:
            raise answer.refused
        if answer.broken:
            raise RuntimeError(f"a worker failed:\n{answer.broken}")
        out = Path(duty.task[0].out)
        # The runs are written last: a shard of runs under its final name promises that their facts are there.
        for name in sorted(answer.files):
            write_whole(out / name, answer.files[name])
        for told in answer.told:
            hear(told)

    def stop_hanging(self, hear: Tell) -> None:
        """Give up tasks that have been under way for longer than all of their runs may be silent."""
        for ref, flight in list(self.flying.items()):
            runs = getattr(flight.duty.task, "runs", ())
            if time.monotonic() - flight.since_s > SILENCE_S * max(1, len(runs)):
                del self.flying[ref]
                self.ray.cancel(ref, force=True)
                hear(Lost(flight.duty.task, None, hung=True))


def import_ray() -> Any:
    """Return the module ray, with its telemetry off. Raises InputError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own dependencies
            import ray
    except ImportError:
        raise InputError("Ray is not installed", where="--on", fix="pip install 'windtunnel[ray]'") from None
    return ray


def window_of(task: Any) -> bytes:
    """Return the bytes of a task's window, which travel with it. Raises InputError if they can't be read."""
    job, line = task[0], task[1]
    path = window_path(Path(job.plan.windows), line)
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"the window's file is missing or unreadable ({error.strerror})"
        fix = "freeze it again with `windtunnel windows freeze`, same options and folder"
        raise InputError(what, where=str(path), fix=fix) from error


def do(work: Work, task: Any, window: bytes) -> Answer:
    """Do one task in a folder of its own on whatever machine this is, and bring back all that it made."""
    with TemporaryDirectory(prefix="windtunnel-") as name:
        here = Path(name)
        job, line, rest = task[0], task[1], tuple(task[2:])
        write_whole(window_path(here / "in", line), window)
        moved = replace(job, out=here / "out", plan=replace(job.plan, windows=str(here / "in")))
        mine = task._replace(job=moved) if hasattr(task, "_replace") else (moved, line, *rest)
        told: list[Any] = []
        try:
            work(mine, told.append, never)
        except InputError as error:
            return Answer((), {}, refused=error)
        except Exception:
            return Answer((), {}, broken=traceback.format_exc())
        made = {str(path.relative_to(moved.out)): path.read_bytes() for path in moved.out.rglob("*.parquet")}
        return Answer(tuple(told), made)


def never() -> bool:
    """No task is asked to stop on a cluster: it is short, and what it does is kept whole or not at all."""
    return False
