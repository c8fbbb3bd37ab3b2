"""Prompts counted down privately, beside the engine's own work: what three of the published policies share."""

from math import inf

from schedulers.published._formulas import switch
from schedulers.view import View

LEFT = 0
"""Memo of an engine: tokens that the private count has left in this step."""

OWED = 0
"""Memo of a request: prompt tokens that are still owed by the private count."""

SHADOW_SWITCH = switch(
    "shadow_prefill", "1: prompts counted down beside the engine's work; 0: the engine's count"
)


def behind(view: View, one: int, other: int) -> bool:
    """Tell whether a request comes after another one: by arrival, then luck, then number."""
    table = view.requests
    if table.arrival_s[one] != table.arrival_s[other]:
        return bool(table.arrival_s[one] > table.arrival_s[other])
    if table.luck[one] != table.luck[other]:
        return bool(table.luck[one] > table.luck[other])
    return one > other


def next_in_line(view: View, engine: int, after: int) -> int:
    """Return the running request that comes next after one (-1: the first of all); -1 if there is none."""
    best = -1
    for place in range(view.engines.running[engine]):
        request = int(view.running[engine, place])
        if (after < 0 or behind(view, request, after)) and (best < 0 or behind(view, best, request)):
            best = request
    return best


def pay(view: View, request: int, left: float) -> float:
    """Count a chunk of an owed prompt down, as large as the tokens left allow; return what is left then."""
    chunk = min(float(view.requests.memo[request, OWED]), max(left, 0.0))
    view.requests.memo[request, OWED] -= chunk
    return left - chunk


def count_down(view: View, engine: int, tokens: float, decodes_first: bool) -> float:
    """Pass over the running requests: a token a decode, a chunk an owed prompt; return the tokens left.

    In order of arrival, and no further than the tokens last; ``decodes_first`` lets decodes go before.
    """
    demand, decodes = 0.0, 0.0
    for place in range(view.engines.running[engine]):
        owed = view.requests.memo[view.running[engine, place], OWED]
        demand += max(owed, 1.0)
        if owed == 0.0:
            decodes += 1.0
    if demand <= tokens:  # then the order does not matter
        for place in range(view.engines.running[engine]):
            view.requests.memo[view.running[engine, place], OWED] = 0.0
        return tokens - demand
    left = max(tokens - decodes, 0.0) if decodes_first else tokens
    request = next_in_line(view, engine, -1)
    while request >= 0 and left > 0.0:
        if view.requests.memo[request, OWED] > 0.0:
            left = pay(view, request, left)
        elif not decodes_first:
            left -= 1.0
        request = next_in_line(view, engine, request)
    return left


def start(view: View, request: int) -> None:
    """Note that a request was taken: its first chunk is counted down, the rest is owed."""
    engine = int(view.requests.engine[request])
    view.requests.memo[request, OWED] = float(view.requests.prefill_tokens[request])
    view.engines.memo[engine, LEFT] = pay(view, request, float(view.engines.memo[engine, LEFT]))


def counting_s(view: View, engine: int, now_s: float) -> float:
    """Return now while a running request is owed something by the private count: it changes at every step."""
    for place in range(view.engines.running[engine]):
        if view.requests.memo[view.running[engine, place], OWED] > 0.0:
            return now_s
    return inf
