"""What a dispatcher decides about a request, and the limits by which it decides without asking a policy."""

from math import inf
from typing import NamedTuple

from schedulers.view import Floats

SEND, REFUSED, EXPIRED, LOST, STALLED, MOVE, SCALE = (
    "send",
    "refuse",
    "expire",
    "lost",
    "stall",
    "move",
    "scale",
)
"""Kinds of decisions. LOST: no engine may try it again; STALLED: the engine is to drop it, it is offered anew."""

ORDER, DRAIN, UNDRAIN, STOP = "order", "drain", "undrain", "stop"
"""Kinds of decisions about an engine, which follow a SCALE: one more is to boot; it takes nothing new; it serves on;
it is empty and may end, or (reason boot_timeout) its order is given up."""

OF_FLEET = SCALE, ORDER, DRAIN, UNDRAIN, STOP
"""Kinds of decisions about no request."""


class Decision(NamedTuple):
    """What is to be done about a request (or, for SCALE, about the fleet: ``number`` is the change)."""

    kind: str
    number: int
    engine: int = -1
    reason: str = ""
    sequence: int = 0  # of the sending, for SEND
    source: int = -1  # engine that gives it away, for MOVE


class Bounds(NamedTuple):
    """Limits by which the dispatcher itself refuses or gives up; infinite ones never do. Seconds."""

    queue_max: Floats  # (tiers,) requests of a tier that have no token yet
    rows_max: int = 65_536
    queue_s: float = inf  # without a first token since arrival
    first_token_s: float = inf  # since it was sent to an engine
    between_tokens_s: float = inf
    attempts_max: int = 3
    busy_s: float = inf  # an engine whose report is older takes nothing new
    failures_max: int = 3  # in a row; then the engine rests
    rest_s: float = 5.0
    least: int = 1  # engines that scaling leaves, and orders where they are missing
    most: int = 0  # engines that scaling may have there, on order, draining or serving; 0: it changes nothing
    boot_s: float = inf  # an order that took longer is given up
    settle_s: float = 0.0  # after the start the fleet is left alone so long: engines come back
