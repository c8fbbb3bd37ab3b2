"""Progress of a live replay: one line that is rewritten on a terminal, one line now and then elsewhere."""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

    from loadgen.replay.run import Tick

PLAIN_S = 10.0
"""Between two lines where nothing can be rewritten."""


class Ticker:
    """Shows ticks on stderr; ``mode`` is live, plain, none, or auto: live on a terminal, else plain."""

    def __init__(self, title: str, mode: str) -> None:
        self.title = title
        self.mode = ("live" if sys.stderr.isatty() else "plain") if mode == "auto" else mode
        self._status: Status | None = None
        self._told_s = 0.0

    def __enter__(self) -> "Ticker":
        if self.mode == "live":
            from rich.console import Console

            self._status = Console(stderr=True).status(self.title)
            self._status.start()
        elif self.mode == "plain":
            sys.stderr.write(f"{self.title}\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, tick: "Tick") -> None:
        """Show how far it is."""
        words = line(tick)
        if self._status is not None:
            self._status.update(f"{self.title}  {words}")
        elif self.mode == "plain" and time.monotonic() - self._told_s >= PLAIN_S:
            self._told_s = time.monotonic()
            sys.stderr.write(f"  {words}\n")
            sys.stderr.flush()


def line(tick: "Tick") -> str:
    """A tick in words: how far, how fast, how many under way, attainment a tier so far."""
    shares = " ".join(
        f"tier {tier} {'-' if share is None else f'{share:.0%}'}" for tier, share in enumerate(tick.attained)
    )
    return (
        f"{tick.elapsed_s:6.1f} s  {tick.sent}/{tick.total} sent  {tick.per_s:.1f}/s  {tick.open} in flight  "
        f"{tick.ended} ended  met: {shares}"
    )
