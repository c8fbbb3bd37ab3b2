"""Freeness by tier: the engine with the most blocks that this request's tier may call free, a request of its rank."""

from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy
from schedulers.usage import tier_freeness
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine freest to the request's tier; luck picks among equals, none serving holds.

    Memory of lower tiers counts as free, so it belongs with an engine policy that evicts by tier, and memory
    that is set aside for higher tiers (``Engines.reserve``) and not used yet counts as taken.
    """
    chosen, most, tier = -1, 0.0, int(view.requests.tier[request])
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0:
            free = tier_freeness(view, engine, tier)
            if chosen < 0 or free > most:
                chosen, most = engine, free
    return float(chosen)


POLICY = ClusterPolicy(
    name="tier-freeness",
    dispatch=dispatch,
    reads=("tier", "usage"),
    source="arXiv 2406.03243 with freeness by tier, reference/policies.md 4.4",
)
