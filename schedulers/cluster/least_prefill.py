"""Least prefill: the engine that will owe the fewest prompt tokens, cached ones left out, takes the next request."""

from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the least Y + p - h_e; luck picks among equals, none serving holds.

    The prompt p is the same everywhere, so it is left out.
    """
    chosen, least = -1, 0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0:
            owed = int(view.engines.pending_tokens[engine] - view.sent[engine, request])
            if chosen < 0 or owed < least:
                chosen, least = engine, owed
    return float(chosen)


POLICY = ClusterPolicy(name="least-prefill", dispatch=dispatch, reads=("prefix",), source="classic")
