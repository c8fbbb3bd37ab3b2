"""Least memory: the engine whose KV blocks, held and asked for by its queue, are the smallest share."""

from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def share(view: View, engine: int) -> float:
    """Blocks that are held or that the queue asks for, as a share of all. [(U + D)/M]"""
    fleet = view.engines
    used = fleet.blocks_total[engine] - fleet.blocks_free[engine]
    return float((used + fleet.queued_blocks[engine]) / fleet.blocks_total[engine])


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the least share; luck picks among equals, none serving holds."""
    chosen, least = -1, 0.0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and (chosen < 0 or share(view, engine) < least):
            chosen, least = engine, share(view, engine)
    return float(chosen)


POLICY = ClusterPolicy(name="least-kv", dispatch=dispatch, source="classic")
