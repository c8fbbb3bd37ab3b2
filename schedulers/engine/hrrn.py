"""Highest response ratio next: prefill done since one came over its own; first come if many wait (SGLang)."""

from schedulers.cost import ranked, uncached_tokens
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, View


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Note how many prefill tokens the engine had done when the request came."""
    view.requests.memo[request, 0] = view.engines.prefilled_tokens[view.requests.engine[request]]


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the ratio over p - h; who owes no prefill goes first; by arrival over ``fcfs_over`` waiting."""
    table, engine = view.requests, int(view.requests.engine[request])
    if view.engines.waiting[engine] > view.params[0]:
        return float(table.arrival_s[request])
    owed = uncached_tokens(view, request)
    if owed == 0:
        return ranked(-1000.0, float(table.arrival_s[request]))
    return -float((view.engines.prefilled_tokens[engine] - table.memo[request, 0]) / owed)


POLICY = EnginePolicy(
    name="hrrn",
    order=order,
    observe=observe,
    watches=(ARRIVAL,),
    params=(Param("fcfs_over", 128, 0, 1e6, "requests", "with more waiting, first come first served"),),
    memo=Memo(requests=1),
    dynamic=True,
    reads=("prefix",),
    source="SGLang",
)
