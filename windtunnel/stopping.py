"""How a command is stopped: Ctrl-C and SIGTERM alike end it in good order, with exit codes that differ."""

import signal
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what a supervisor or a batch system sends where a person presses Ctrl-C."""


def heed_termination() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what is done gets saved, and the command says so."""
    signal.signal(signal.SIGTERM, _terminate)


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return what a shell makes of the signal: 128 and its number."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
