"""What the scaler needs of whatever runs workers: see them, start one for an order, end one."""

from typing import NamedTuple, Protocol


class Unit(NamedTuple):
    """A worker as the one who runs it sees it."""

    worker: str  # the id under which it joins the dispatcher
    handle: str  # by which its driver knows it; never given twice
    order: str  # for which it was started; "": somebody else started it
    alive: bool
    age_s: float  # since it started


class DriverError(Exception):
    """The one who runs workers could not do what was asked, or can't be reached."""


class Driver(Protocol):
    """Runs workers. All calls block, and raise DriverError; all may be made from several threads."""

    name: str

    def units(self) -> list[Unit]:
        """All workers of this testbed that there are, whoever started them, and what is left of dead ones."""
        ...

    def start(self, order: str) -> Unit:
        """Start a worker for an order; never a second one for the same."""
        ...

    def stop(self, unit: Unit, grace_s: float) -> bool:
        """End a worker: it is asked, and killed after a grace; returns True if it had to be."""
        ...

    def clear(self, unit: Unit) -> bool:
        """Remove what is left of a dead one; False if there is nothing to remove, or it is still of use."""
        ...

    def close(self) -> None:
        """Let go of what was opened; workers go on."""
        ...
