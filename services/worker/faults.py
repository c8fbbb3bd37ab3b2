"""Faults on command, so that tests can see what the rest of the system makes of them."""

import os
import signal
import time
from typing import Any

import structlog

from schedulers.errors import InputError
from services.worker.link import Link
from services.worker.worker import Worker

log = structlog.get_logger()

PHASES = ("reserve", "copy", "stop", "receive", "commit")
KINDS = (
    "refuse",
    "slow",
    "hang",
    "stall",
    "die",
    "cut",
    "partition",
    "freeze_reports",
    "die_in",
    "skew",
    "none",
)
"""Orders: each with ``seconds``, ``factor``, ``step`` or ``phase`` as ``order`` says."""


class Faults:
    """What is wrong with a worker at the moment."""

    def __init__(self, worker: Worker, link: Link) -> None:
        self.worker, self.link = worker, link
        self.die_at_step = -1
        self.die_in_phase = ""
        worker.before_step = self._count_step

    def order(
        self, kind: str, seconds: float = 0.0, factor: float = 1.0, step: int = -1, phase: str = ""
    ) -> None:
        """Bring a fault about.

        refuse (every new request ends with engine_error, until "none"), slow (steps take ``factor`` times as
        long), hang (the whole process stands still for ``seconds``), stall (steps stand still, the link beats on),
        die (SIGKILL when ``step`` more steps are formed), cut (the connection breaks), partition (nothing is read
        or written for ``seconds``), freeze_reports, die_in (SIGKILL in a ``phase`` of a migration), skew (its
        clock seems ``seconds`` off), none (well again). Raises InputError for others.
        """
        worker, link = self.worker, self.link
        if kind not in KINDS or (kind == "die_in" and phase not in PHASES):
            fix = f"one of {', '.join(KINDS)}; phases {', '.join(PHASES)}"
            raise InputError(f"there is no fault {kind} {phase}".rstrip(), where="chaos", fix=fix)
        log.warning("fault ordered", fault=kind, seconds=seconds, factor=factor, step=step, phase=phase)
        now_s = worker.now_s()
        if kind == "hang":
            time.sleep(seconds)
            worker.engine.postpone(seconds)
        elif kind == "stall":
            worker.paused_until_s = now_s + seconds
        elif kind == "slow":
            worker.engine.pace(factor)
        elif kind == "die":
            self.die_at_step = int(worker.engine.rig.known.engines.steps[0]) + max(0, step)
        elif kind == "die_in":
            self.die_in_phase = phase
        elif kind == "cut":
            link.cut()
        elif kind == "partition":
            link.deaf_until_s = now_s + seconds
        elif kind == "freeze_reports":
            link.mute_until_s = now_s + seconds
        elif kind == "skew":
            worker.offset_s += seconds
        elif kind == "refuse":
            worker.refuses = True
        else:
            self._mend()
        worker.stir()

    def _mend(self) -> None:
        self.die_at_step, self.die_in_phase = -1, ""
        self.worker.refuses, self.worker.paused_until_s = False, 0.0
        self.link.deaf_until_s = self.link.mute_until_s = float("-inf")
        self.worker.engine.pace(1.0)

    def phase(self, name: str) -> None:
        """A migration enters a phase here."""
        if self.die_in_phase == name:
            die()

    def _count_step(self, steps: int) -> None:
        if 0 <= self.die_at_step <= steps:
            die()


def die() -> Any:
    """End this process as the kernel does when memory runs out: at once, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)
