"""Gain density: by deadline while all can be served, else the rest by weight a second (arXiv 2512.12928)."""

from math import inf

from schedulers.cost import (
    RANK_S,
    forecast_tokens,
    owed_tokens,
    prefill_rate,
    ranked,
    remaining_s,
    token_due_s,
)
from schedulers.peak import KEY, SIZE, at_once, jot, sort_rows
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import View

SHORT, LATEST = (
    0,
    1,
)  # engine memo: 1 if demand exceeds supply; the last deadline of the share that goes by deadline


def owed_by(view: View, request: int, until_s: float) -> float:
    """Return the tokens that a request is owed before a moment: its prefill, then one each time between tokens."""
    due_s, tier = token_due_s(view, request), int(view.requests.tier[request])
    if due_s >= until_s:
        return 0.0
    left = forecast_tokens(view, request) - float(view.requests.generated_tokens[request])
    pace_s, tokens = float(view.tiers.tpot_s[tier]), left
    if pace_s < inf and pace_s > 0.0:
        tokens = min(left, (until_s - due_s) // pace_s + 1.0)
    elif pace_s == inf and view.tiers.e2e_s[tier] == inf:
        tokens = 1.0  # a first-token target only; where there is an end, all is due by then
    owed = owed_tokens(view, request)
    return float(owed + tokens - 1.0 if owed > 0 else tokens)


def one_of(view: View, engine: int, place: int) -> int:
    """Return the request at a place of the batch followed by the queue."""
    count = int(view.engines.running[engine])
    return int(view.running[engine, place] if place < count else view.waiting[engine, place - count])


def last_deadline(view: View, engine: int, tokens: float) -> float:
    """Return the deadline of the last request, by deadline, that so many tokens of a step reach."""
    count, limit = 0, float(view.engines.budget_max[engine])
    for place in range(view.engines.running[engine] + view.engines.waiting[engine]):
        request = one_of(view, engine, place)
        due_s = token_due_s(view, request)
        if due_s < inf:
            jot(view, count, -due_s, min(limit, max(1.0, float(owed_tokens(view, request)))))
            count += 1
    sort_rows(view, count)
    memo, latest_s, given = view.requests.memo, -inf, 0.0
    for place in range(count):
        if given >= tokens:
            break
        given += memo[place, SIZE]
        latest_s = -memo[place, KEY]
    return float(latest_s)


def budget(view: View, engine: int, now_s: float) -> float:
    """Weigh demand against supply over the horizon, once a step and before any key is read."""
    horizon_s, demand = view.params[0], 0.0
    for place in range(view.engines.running[engine] + view.engines.waiting[engine]):
        demand += owed_by(view, one_of(view, engine, place), now_s + horizon_s)
    supply, limit = horizon_s * prefill_rate(view, engine), float(view.engines.budget_max[engine])
    memo = view.engines.memo
    memo[engine, SHORT] = 1.0 if demand > supply else 0.0
    if demand > supply:
        memo[engine, LATEST] = last_deadline(view, engine, limit * supply / demand)
    return limit


def key(view: View, request: int, now_s: float) -> float:
    """Return the deadline of the next token; under shortage, past the share, remaining service over weight."""
    table, engine, due_s = view.requests, int(view.requests.engine[request]), token_due_s(view, request)
    memo = view.engines.memo
    if memo[engine, SHORT] == 0.0:
        return due_s if due_s < inf else ranked(1.0, float(table.arrival_s[request]))
    if due_s <= memo[engine, LATEST]:
        return due_s
    weight = max(1e-9, view.tiers.weight[table.tier[request]])
    return ranked(1.0, min(remaining_s(view, request, engine) / weight, RANK_S / 4.0))


POLICY = EnginePolicy(
    name="proserve",
    order=key,
    serve=key,
    budget=budget,
    wake=at_once,
    params=(
        Param("horizon_s", 1.0, 0.001, 3600.0, "s", "over which what is owed is weighed against supply"),
    ),
    memo=Memo(requests=2, engines=2),
    dynamic=True,
    reads=("forecast", "targets", "tier"),
    source="ProServe, arXiv 2512.12928",
)
