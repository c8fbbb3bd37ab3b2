"""INFaaS++ as in Llumnix's artifact: the engine with the most free blocks, less the queue's, a request it holds."""

from math import inf

from schedulers.fleet import held, in_turn
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def load(view: View, engine: int) -> float:
    """Minus the blocks left a request; without a request -inf. [-(f - D)/(n + m)]"""
    left = view.engines.blocks_free[engine] - view.engines.queued_blocks[engine]
    requests = held(view, engine)
    return -float(left / requests) if requests > 0 else -inf


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the least load; luck picks among equals, none serving holds."""
    chosen, least = -1, 0.0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and (chosen < 0 or load(view, engine) < least):
            chosen, least = engine, load(view, engine)
    return float(chosen)


POLICY = ClusterPolicy(name="infaas", dispatch=dispatch, source="arXiv 2406.03243 (artifact)")
