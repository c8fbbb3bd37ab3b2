"""Urgency scores behind a guard that throttles under pressure: the study's policy 13, which it did not rank."""

from math import floor

from schedulers.policy import REFUSE, TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import (
    DEADLINE_PARAMS,
    GROWTH,
    SKIP_SWITCH,
    abandoned,
    kv_tokens,
    latest_s,
    next_moment_s,
    prompt_fits,
    told_tokens,
    used_tokens,
)
from schedulers.view import TAKE as TAKEN
from schedulers.view import View

SKIPS, KV_MARK, BATCH_MARK, QUEUE_MARK, LONG = 3, 4, 5, 6, 7
SPENT, GUARD, FULL, PRESSURE, TAKES = 3, 4, 5, 6, 7
"""Memo of an engine, beside the used tokens: credits below the most; whether the guard is on, and memory over its
mark; share of slots that decode; requests that this step may still take."""

CREDIT_MOST, CREDIT_STEP = 4.0, 2.0
AGE, PENALTY = 0.05, 0.35
URGENT_S, LEAST_S = 0.5, 1e-9


def laxity_s(view: View, request: int, now_s: float) -> float:
    """Return what is left until the latest start. The study's second test, by the prompt alone, is implied."""
    return latest_s(view, request) - now_s


def budget(view: View, engine: int, now_s: float) -> float:
    """Take stock once a step in which somebody waits: credits, pressures, and from them the guard."""
    fleet, memo = view.engines, view.engines.memo[engine]
    limit = float(fleet.budget_max[engine])
    if fleet.waiting[engine] == 0:
        return limit
    memo[SPENT] = max(memo[SPENT] - CREDIT_STEP, 0.0)
    hopeful, total_s = 0.0, 0.0
    for place in range(fleet.waiting[engine]):
        left_s = laxity_s(view, int(view.waiting[engine, place]), now_s)
        if left_s >= 0.0:
            hopeful, total_s = hopeful + 1.0, total_s + left_s
    slots = float(fleet.sequences_max[engine])
    full = used_tokens(view, engine) / kv_tokens(view, engine) >= view.params[KV_MARK]
    memo[PRESSURE] = fleet.running[engine] / slots
    queue = fleet.waiting[engine] / slots >= view.params[QUEUE_MARK]
    late = hopeful > 0.0 and total_s < 0.0  # never so: only requests with laxity >= 0 are counted
    guard = full or memo[PRESSURE] >= view.params[BATCH_MARK] or queue or late
    memo[GUARD], memo[FULL] = (1.0 if guard else 0.0), (1.0 if full else 0.0)
    memo[TAKES] = max(1.0, floor(CREDIT_MOST - memo[SPENT]))
    return limit


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the score: urgency, priority 1, age, less a penalty for long decodes under the guard."""
    memo, age_s = view.engines.memo[view.requests.engine[request]], now_s - view.requests.arrival_s[request]
    score = 1.0 / max(laxity_s(view, request, now_s), LEAST_S) + 1.0 + AGE * age_s
    if memo[GUARD] == 1.0:
        score -= PENALTY * told_tokens(view, request) * memo[PRESSURE]
    return float(-score)


def admit(view: View, request: int, now_s: float) -> float:
    """Take what fits and can make it; under the guard only so many, and no long answers into a full memory."""
    left_s, memo = laxity_s(view, request, now_s), view.engines.memo[view.requests.engine[request]]
    if left_s < 0.0:
        return REFUSE if view.params[SKIPS] == 0.0 or abandoned(view, request, now_s) else WAIT
    if memo[GUARD] == 1.0:
        long = told_tokens(view, request) > view.params[LONG] and left_s >= URGENT_S
        if memo[TAKES] < 1.0 or (memo[FULL] == 1.0 and long):
            return WAIT
    return TAKE if prompt_fits(view, request, view.params[GROWTH]) else WAIT


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Pay for a take under the guard."""
    memo = view.engines.memo[view.requests.engine[request]]
    if memo[GUARD] == 1.0:
        memo[TAKES] -= 1.0
        memo[SPENT] = min(memo[SPENT] + 1.0, CREDIT_MOST)


def wake(view: View, engine: int, now_s: float) -> float:
    """Look at every step while somebody waits: scores, credits and laxities move with time."""
    if view.engines.running[engine] > 0 and view.engines.waiting[engine] > 0:
        return now_s
    return next_moment_s(view, engine, now_s, 0.0)


POLICY = EnginePolicy(
    name="scorpio_style_slo_guard@published",
    order=order,
    admit=admit,
    budget=budget,
    observe=observe,
    wake=wake,
    watches=(TAKEN,),
    scan="skip",
    dynamic=True,
    params=(
        *DEADLINE_PARAMS,
        SKIP_SWITCH,
        Param("kv_mark", 0.65, 0.0, 1.0, "share", "memory use from which the guard is on"),
        Param("batch_mark", 0.7, 0.0, 1.0, "share", "slots in use from which the guard is on"),
        Param("queue_mark", 3.0, 0.0, 1e6, "times", "waiting requests over slots from which the guard is on"),
        Param("long_tokens", 256, 1, 4096, "tokens", "longer forecasts don't enter a full memory"),
    ),
    memo=Memo(engines=8),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
