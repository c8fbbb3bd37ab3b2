"""The dispatcher's own judgement, sans input and output: who may serve, where a request goes by default."""

from schedulers.policy import HOLD
from schedulers.view import View

UNANSWERED = -(2.0**60)
"""What stands for the answer of a policy that gave none; no engine has this number."""


def serving(view: View, engine: int) -> bool:
    """True if the engine takes new requests."""
    return bool(view.engines.alive[engine] == 1 and view.engines.draining[engine] == 0)


def fewest_requests(view: View, request: int) -> int:
    """The serving engine with the fewest requests, lowest number first; HOLD if none serves."""
    best, least = int(HOLD), -1
    for engine in range(view.engines.alive.shape[0]):
        load = view.engines.running[engine] + view.engines.waiting[engine]
        if serving(view, engine) and (least < 0 or load < least):
            best, least = engine, load
    return best


def lawful(view: View, answer: float) -> bool:
    """True if a dispatch hook's answer is HOLD or names a serving engine."""
    if answer == HOLD:
        return True
    engine = int(answer)
    return bool(engine == answer and 0 <= engine < view.engines.alive.shape[0] and serving(view, engine))
