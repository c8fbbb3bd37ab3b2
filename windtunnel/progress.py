"""What a long command shows on stderr: a live bar on a terminal, a line now and then in a log."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sim.sweep import Step

if TYPE_CHECKING:
    from rich.progress import Task

    from sim.runs import Failure

STAGES = {
    "compile": ("Loading policies, compiled once", "policies"),
    "calibrate": ("Measuring capacity", "windows"),
    "sweep": ("Running", "runs"),
}
LINES = 4
"""How many lines a stage writes to a log that is not a terminal."""


class Rate(ProgressColumn):
    """Things a second."""

    def render(self, task: "Task") -> Text:
        """Return the speed of a task in its own unit, blank while unknown."""
        speed = task.finished_speed or task.speed
        words = "" if speed is None else f"{speed:.1f} {task.fields['unit']}/s"
        return Text(words, style="progress.data.speed")


class Meter:
    """Hears the steps and failures of a sweep and shows them; use as a context."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[name]}", style="dim"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.shown: dict[str, TaskID] = {}
        self.told: dict[str, int] = {}
        self.failed: set[str] = set()
        self.started_s = time.monotonic()

    def __enter__(self) -> "Meter":
        self.bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    def __call__(self, event: "Step | Failure") -> None:
        """Show one event."""
        if isinstance(event, Step):
            self.step(event)
        elif event.scheduler not in self.failed:  # the first of each; all are listed at the end
            self.failed.add(event.scheduler)
            words = f"failed: {event.scheduler} on {event.window} in region {event.region}"
            self.console.print(words, style="red", highlight=False)

    def step(self, step: Step) -> None:
        """Move the bar of a stage, which is made when it is first heard of."""
        words, unit = STAGES[step.stage]
        if not self.console.is_terminal:
            tenth = step.done * LINES // step.total if step.total else LINES
            if tenth != self.told.get(step.stage, -1):
                self.told[step.stage] = tenth
                self.console.print(f"{words}: {step.done} of {step.total} {unit}", highlight=False)
            return
        if step.stage not in self.shown:
            self.shown[step.stage] = self.bar.add_task(
                words, total=step.total, completed=step.done, unit=unit, name=step.name
            )
        self.bar.update(self.shown[step.stage], completed=step.done, total=step.total, name=step.name)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the meter was made."""
        return time.monotonic() - self.started_s
