"""Least prefill: the engine that owes the fewest prompt tokens takes the next request."""

from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the least Y + p; luck picks among equals, none serving holds.

    The request's own prompt p is the same everywhere as long as no engine has a part of it cached (h = 0),
    so it is left out.
    """
    chosen, least = -1, 0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and (chosen < 0 or view.engines.pending_tokens[engine] < least):
            chosen, least = engine, int(view.engines.pending_tokens[engine])
    return float(chosen)


POLICY = ClusterPolicy(name="least-prefill", dispatch=dispatch, source="classic")
