"""Workers as processes of this machine, beside a testbed that `windtunnel up` started.

What runs is what the system says runs: a worker is a process whose command line names settings in the testbed's
folder, and the order that it was started for stands in those settings, which are written before it starts. So a
scaler that starts anew, even after a crash in the middle of a start, sees every worker that there is.
"""

import fcntl
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from schedulers.errors import InputError
from services.local import SCALER, TEMPLATE, begin, read_state, told_ready, write_state
from services.running import WORKER, Running, age_s, alive, began_of, send, workers_in
from services.scaler.driver import DriverError, Unit

ORDER = "# order "
"""Begins the first line of the settings of a worker that a scaler started."""


class Processes:
    """The workers of one folder, called by names that are never used twice. One scaler a folder: it holds a lock."""

    name = "processes"

    def __init__(self, folder: Path, module: str = "services.worker", python: str = "") -> None:
        self.folder, self.module, self.python = folder.resolve(), module, python or None
        self.lock: IO[bytes] = self._locked()

    def _locked(self) -> IO[bytes]:
        try:
            lock = open(self.folder / "scaler.lock", "ab")  # noqa: SIM115 - held until `close`
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            fix = "end the other scaler, or name the folder of a testbed"
            raise InputError(
                f"can't have the folder alone: {error}", where=str(self.folder), fix=fix
            ) from None
        return lock

    def units(self) -> list[Unit]:
        """Workers that run, and settings without a process: those that died, or were never born."""
        reap()
        running = workers_in(self.folder)
        self._keep_books(running)
        names = sorted({*running, *self._named(".toml")}, key=lambda name: (len(name), name))
        return [self._unit(name, running.get(name)) for name in names]

    def _named(self, suffix: str = "") -> list[str]:
        """Names of workers that files in the folder bear."""
        names = (path.name for path in self.folder.iterdir())
        return [match[1] for name in names if (match := WORKER.fullmatch(name)) and name.endswith(suffix)]

    def _unit(self, name: str, one: Running | None) -> Unit:
        order = ""
        with suppress(OSError):
            first = (self.folder / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
            order = first.removeprefix(ORDER) if first.startswith(ORDER) else ""
        return Unit(name, name, order, one is not None, age_s(one) if one is not None else 0.0)

    def start(self, order: str) -> Unit:
        """Start one, under a name that nobody had in this folder."""
        numbers = [int(name.rpartition("-")[2]) for name in self._named()]
        name = f"worker-{max(numbers, default=-1) + 1}"
        settings = self.folder / f"{name}.toml"
        try:
            text = (self.folder / TEMPLATE).read_text(encoding="utf-8")
            with open(os.open(settings, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
                file.write(f'{ORDER}{order}\nworker_id = "{name}"\n{text}')
            command = [self.module, "--config", str(settings)]
            one = begin(self.folder, name, command, lambda _: None, self.python)
        except OSError as error:
            raise DriverError(f"can't start a worker: {error}") from None
        return self._unit(name, one)

    def stop(self, unit: Unit, grace_s: float) -> bool:
        """SIGTERM, a grace, SIGKILL."""
        one = workers_in(self.folder).get(unit.handle)
        until_s, killed = time.monotonic() + grace_s, False
        if one is not None:
            send(one, signal.SIGTERM)
        while one is not None and alive(one):
            if not killed and time.monotonic() >= until_s:
                killed = True
                send(one, signal.SIGKILL)
            time.sleep(0.02)
        self.clear(unit)
        return killed

    def clear(self, unit: Unit) -> bool:
        """Remove its settings; its log stays."""
        settings = self.folder / f"{unit.handle}.toml"
        there = settings.exists()
        settings.unlink(missing_ok=True)
        return there

    def _keep_books(self, running: dict[str, Running]) -> None:
        """Let ``state.json`` say who runs, for those who look there; no decision is made from it.

        A worker that died and is not cleared yet stays in it, so that `windtunnel status` tells of it; and we stand
        in it ourselves, so that `windtunnel down` finds a scaler that was started anew.
        """
        with suppress(InputError, OSError):
            state = read_state(self.folder)
            if state is None:
                return
            now = {name: told_ready(self.folder, one) for name, one in running.items()}
            settings = set(self._named(".toml"))
            kept = {one.name: one for one in state.workers if one.name in settings}
            workers = tuple((kept | now).values())
            others = [one for one in state.processes[1:] if one.name != SCALER and one not in state.workers]
            me = told_ready(self.folder, Running(SCALER, os.getpid(), began_of(os.getpid())))
            changed = replace(state, processes=(state.dispatcher, *workers, *others, me))
            if changed != state:
                write_state(self.folder, changed)

    def close(self) -> None:
        """Give the lock back."""
        self.lock.close()


def reap() -> None:
    """Let go of children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
