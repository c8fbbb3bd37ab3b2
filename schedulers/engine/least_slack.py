"""Least slack first: who can least afford to wait, by deadline minus predicted remaining service (classic)."""

from math import inf

from schedulers.cost import end_due_s, owed_tokens, ranked, remaining_s
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def latest_start_s(view: View, request: int) -> float:
    """Return dE - R, the slack plus now: the moment at which the slack is used up; +inf without a deadline."""
    return end_due_s(view, request) - remaining_s(view, request, int(view.requests.engine[request]))


def order(view: View, request: int, now_s: float) -> float:
    """Return the latest start; the late go last if ``late_last``, those without a deadline after the others."""
    start_s = latest_start_s(view, request)
    if start_s == inf:  # +inf would hold it for ever
        return ranked(1.0, float(view.requests.arrival_s[request]))
    return ranked(2.0 if view.params[0] == 1.0 and now_s > start_s else 0.0, start_s)


def serve(view: View, request: int, now_s: float) -> float:
    """Serve decodes first, none before another but by arrival; then started prompts by slack."""
    if owed_tokens(view, request) == 0:
        return ranked(-1.0, float(view.requests.arrival_s[request]))
    return order(view, request, now_s)


def evict(view: View, request: int, now_s: float) -> float:
    """Evict the most slack, prompts before decodes; late or not, as lateness is the least slack."""
    start_s = latest_start_s(view, request)
    rank = 2.0 if owed_tokens(view, request) > 0 else 0.0
    if start_s == inf:
        return ranked(rank + 1.0, float(view.requests.arrival_s[request]))
    return ranked(rank, start_s)


def wake(view: View, engine: int, now_s: float) -> float:
    """Return the next moment at which somebody in the queue becomes late, if that matters."""
    moment_s = inf
    if view.params[0] == 1.0:
        for place in range(view.engines.waiting[engine]):
            start_s = latest_start_s(view, int(view.waiting[engine, place]))
            if now_s <= start_s < moment_s:
                moment_s = start_s
    return float(moment_s)


POLICY = EnginePolicy(
    name="least-slack",
    order=order,
    serve=serve,
    evict=evict,
    wake=wake,
    params=(Param("late_last", 0, 0, 1, "0 or 1", "1: requests that can't make it go behind all others"),),
    scan="skip",
    reads=("forecast", "targets"),
    source="classic (least laxity first)",
)
