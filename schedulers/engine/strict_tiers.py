"""Strict tiers: a more important tier always goes first, arrival within a tier (vLLM's priority policy)."""

from schedulers.cost import ranked
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def importance(view: View, request: int, now_s: float) -> float:
    """Return tier, then arrival."""
    return ranked(float(view.requests.tier[request]), float(view.requests.arrival_s[request]))


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """With ``preempt=1`` displace whoever comes later by tier and arrival, the last of them first."""
    ahead = importance(view, waiting, now_s) < importance(view, running, now_s)
    return 1.0 if view.params[0] == 1.0 and ahead else 0.0


POLICY = EnginePolicy(
    name="strict-tiers",
    order=importance,
    serve=importance,
    evict=importance,
    preempt=preempt,
    params=(Param("preempt", 0, 0, 1, "switch", "1: a waiting request may displace a less important one"),),
    reads=("tier",),
    source="vLLM priority",
)
