"""Longest prefix match: who has most in the prefix cache is next, who could share with one ahead waits (SGLang)."""

from schedulers.cost import RANK_S
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View

FCFS_OVER, PROBE = 0, 1


def ahead(view: View, other: int, request: int) -> bool:
    """True if the other request came first."""
    table = view.requests
    if table.arrival_s[other] != table.arrival_s[request]:
        return bool(table.arrival_s[other] < table.arrival_s[request])
    if table.luck[other] != table.luck[request]:
        return bool(table.luck[other] < table.luck[request])
    return other < request


def behind(view: View, request: int) -> bool:
    """True if one ahead in the queue begins alike and neither is cached: computed once, it serves both."""
    table, engine = view.requests, view.requests.engine[request]
    if table.head[request] < 0 or table.cached_tokens[request] > view.params[PROBE]:
        return False
    for place in range(view.engines.waiting[engine]):
        other = view.waiting[engine, place]
        alike = table.head[other] == table.head[request] and table.cached_tokens[other] <= view.params[PROBE]
        if alike and ahead(view, other, request):
            return True
    return False


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the cached tokens; whoever is behind goes last; all by arrival over ``fcfs_over`` waiting."""
    if view.engines.waiting[view.requests.engine[request]] > view.params[FCFS_OVER]:
        return float(view.requests.arrival_s[request])
    return RANK_S if behind(view, request) else -float(view.requests.cached_tokens[request])


POLICY = EnginePolicy(
    name="lpm",
    order=order,
    params=(
        Param("fcfs_over", 128, 0, 1e6, "requests", "with more waiting, first come first served"),
        Param(
            "probe",
            32,
            0,
            1e6,
            "tokens",
            "with more cached a request is not kept behind one that begins alike",
        ),
    ),
    dynamic=True,
    reads=("prefix",),
    source="SGLang",
)
