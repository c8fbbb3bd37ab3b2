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
