"""Degrading by tier: past saturation lower tiers wait in the centre, where higher ones pass them; none is refused."""

from schedulers.cost import ranked
from schedulers.dispatcher import serving
from schedulers.policy import TAKE, WAIT, ClusterPolicy, Param
from schedulers.view import View

HOLD_M = 0


def shortest_queue(view: View) -> int:
    """Requests in the shortest queue of an engine that serves; -1 if none does."""
    least = -1
    for engine in range(len(view.engines.alive)):
        if serving(view, engine) and (least < 0 or view.engines.waiting[engine] < least):
            least = int(view.engines.waiting[engine])
    return least


def admit(view: View, request: int, now_s: float) -> float:
    """Hold a tier while every engine has a queue: the last tier from ``hold_m`` on, each higher one that much later.

    Tier 0 is never held. What is held is asked about again as queues change, and an engine without a queue takes
    anybody: nobody waits in the centre while somebody could serve him.
    """
    tier, tiers = int(view.requests.tier[request]), len(view.tiers.weight)
    if tier == 0:
        return TAKE
    return WAIT if shortest_queue(view) >= view.params[HOLD_M] * (tiers - tier) else TAKE


def order(view: View, request: int, now_s: float) -> float:
    """Offer by tier, then by arrival."""
    return ranked(float(view.requests.tier[request]), float(view.requests.arrival_s[request]))


POLICY = ClusterPolicy(
    name="tier-degrade",
    admit=admit,
    order=order,
    params=(
        Param(
            "hold_m",
            1.0,
            1.0,
            10000.0,
            "requests",
            "in every engine's queue from which the last tier is held",
        ),
    ),
    reads=("tier",),
    source="central holding, reference/policies.md 4.1",
)
