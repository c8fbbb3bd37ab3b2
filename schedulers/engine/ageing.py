"""Tiers with ageing: a wait of ``age_s`` is worth one tier, so no tier starves."""

from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return tier * age_s + arrival: ``now_s`` is left out, it would shift all keys alike."""
    return float(view.requests.tier[request] * view.params[0] + view.requests.arrival_s[request])


POLICY = EnginePolicy(
    name="ageing",
    order=order,
    params=(Param("age_s", 10.0, 0.0, 86400.0, "s", "wait that outweighs one tier"),),
    reads=("tier",),
    source="classic",
)
