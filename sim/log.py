"""What happens in a cluster, event by event, for whoever asked; else an event costs one comparison."""

from sim.fabric import LOGGED
from sim.rig import Rig

(
    DISPATCHED,
    BEGUN,
    HALTED,
    MOVED,
    TAKEN_BACK,
    ORDERED,
    SERVES,
    DRAINS_OFF,
    SERVES_ON,
    DIED,
    MISSED,
    SWITCHED_OFF,
) = range(12)
"""Kinds of event: a request goes to an engine; a move begins, its request stands still, is handed over, is given up;
an engine is ordered, serves, takes no more, takes again, dies, is missed by the dispatcher, is switched off."""

KINDS = (
    "dispatch", "move begins", "stop", "commit", "abort", "order", "serve", "drain", "undrain", "die",
    "missed", "off",
)  # fmt: skip
"""Their names, in that order."""


def record(rig: Rig, kind: int, now_s: float, engine: int, other: int, request: int) -> None:
    """Note an event of an engine: with another engine (a move's target) and a request, or -1.

    What finds no room is counted and not kept; ``crowded`` stops the loop long before, so that somebody makes room.
    """
    log, place = rig.fabric.log, rig.fabric.counter[LOGGED]
    if log.shape[0] == 1:
        return
    rig.fabric.counter[LOGGED] += 1
    if place < log.shape[0]:
        row = log[place]
        row[0], row[1], row[2], row[3], row[4] = now_s, kind, engine, other, request


def crowded(rig: Rig) -> bool:
    """True if the log is half full: time for its reader to take what is there."""
    log = rig.fabric.log
    return bool(log.shape[0] > 1 and 2 * rig.fabric.counter[LOGGED] >= log.shape[0])
