"""Shortest predicted job first, by prompt and forecast output, with a wait after which one goes ahead."""

from math import inf

from schedulers.cost import prefill_s, ranked, remaining_s, token_s
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return the predicted service in seconds, fixed at arrival; after ``max_wait_s`` go ahead by arrival."""
    table, engine = view.requests, int(view.requests.engine[request])
    if now_s >= table.arrival_s[request] + view.params[0]:
        return ranked(-1.0, float(table.arrival_s[request]))
    decode_s = table.forecast_tokens[request] * token_s(view, engine)
    return prefill_s(view, engine, float(table.prompt_tokens[request])) + float(decode_s)


def evict(view: View, request: int, now_s: float) -> float:
    """Evict the longest remaining."""
    return remaining_s(view, request, int(view.requests.engine[request]))


def wake(view: View, engine: int, now_s: float) -> float:
    """Return the next moment at which somebody in the queue has waited too long."""
    moment_s = inf
    if view.params[0] < inf:
        for place in range(view.engines.waiting[engine]):
            late_s = view.requests.arrival_s[view.waiting[engine, place]] + view.params[0]
            if now_s < late_s < moment_s:
                moment_s = late_s
    return float(moment_s)


POLICY = EnginePolicy(
    name="sjf-pred",
    order=order,
    evict=evict,
    wake=wake,
    params=(Param("max_wait_s", inf, 0.0, inf, "s", "a longer wait puts a request in front, by arrival"),),
    reads=("forecast",),
    source="SSJF (arXiv 2404.09508, id unverified)",
)
