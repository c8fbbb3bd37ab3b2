"""Last schedulable time: decodes run only when their pace is at risk, prompts fill the rest (arXiv 2508.01002)."""

from math import inf

from schedulers.cost import KV, blocks_for, owed_tokens, ranked
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import TOKEN, View

BUDGET, CAP, OFF_LOW, OFF_HIGH, MARK = 0, 1, 2, 3, 4
LST = 0
"""Memo of a request: the moment by which its next decode must be scheduled."""
MEAN, STEPS, CRITICAL = 0, 1, 2
"""Memo of an engine: mean step time, steps that it covers, decodes that are critical in this step."""

WATERMARK, WEIGHT = 0.01, 0.1
FOREVER_S = 1e5
"""Pace of a tier that has none: longer than any window, and no +inf, which would hold."""


def pace_s(view: View, request: int) -> float:
    """Return the tier's target for the time between tokens."""
    return float(min(view.tiers.tpot_s[view.requests.tier[request]], FOREVER_S))


def learn(view: View, engine: int) -> None:
    """Bring the mean of step times up to date, exponential with weight 0.1, the first step whole.

    Several steps at once were a jump: all decode, each longer than the last by the KV of a token each. Asked
    at each token and before each step, this sees every step, as watching STEP would, which forbids jumps.
    """
    fleet, memo = view.engines, view.engines.memo[engine]
    fresh = int(fleet.steps[engine] - memo[STEPS])
    rise_s = view.costs[engine, KV] * fleet.running[engine]
    for back in range(fresh - 1, -1, -1):
        span_s = fleet.step_s[engine] - rise_s * back
        memo[MEAN] = span_s if memo[MEAN] == 0.0 else memo[MEAN] + WEIGHT * (span_s - memo[MEAN])
    memo[STEPS] = fleet.steps[engine]


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Set the last schedulable time after each token, the one that ends the prompt included."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    learn(view, engine)
    used = 1.0 - fleet.blocks_free[engine] / fleet.blocks_total[engine]
    steps = view.params[OFF_LOW] if used < view.params[MARK] else view.params[OFF_HIGH]
    view.requests.memo[request, LST] = now_s + pace_s(view, request) - steps * fleet.memo[engine, MEAN]


def critical(view: View, request: int, now_s: float) -> bool:
    """Tell whether a running request is a decode that can't wait."""
    return bool(owed_tokens(view, request) == 0 and now_s >= view.requests.memo[request, LST])


def budget(view: View, engine: int, now_s: float) -> float:
    """Cap the step, and count once a step the decodes that can't wait."""
    learn(view, engine)
    view.engines.memo[engine, CRITICAL] = 0.0
    for place in range(view.engines.running[engine]):
        if critical(view, int(view.running[engine, place]), now_s):
            view.engines.memo[engine, CRITICAL] += 1.0
    return float(min(float(view.engines.budget_max[engine]), view.params[BUDGET]))


def earlier(view: View, one: int, other: int) -> bool:
    """Tell whether a decode must be scheduled before another one, ties by arrival and luck."""
    table = view.requests
    if table.memo[one, LST] != table.memo[other, LST]:
        return bool(table.memo[one, LST] < table.memo[other, LST])
    if table.arrival_s[one] != table.arrival_s[other]:
        return bool(table.arrival_s[one] < table.arrival_s[other])
    return bool(table.luck[one] < table.luck[other])


def in_cap(view: View, request: int, now_s: float) -> bool:
    """Tell whether a critical decode is among the first ``decode_cap`` of them."""
    engine, ahead = int(view.requests.engine[request]), 0.0
    if view.engines.memo[engine, CRITICAL] <= view.params[CAP]:
        return True
    for place in range(view.engines.running[engine]):
        other = int(view.running[engine, place])
        if critical(view, other, now_s) and earlier(view, other, request):
            ahead += 1.0
            if ahead >= view.params[CAP]:
                return False
    return True


def serve(view: View, request: int, now_s: float) -> float:
    """Serve critical decodes, started prompts, (the waiting,) other decodes.

    What is critical beyond the cap goes with the others, ahead of them by its time: the paper caps the first
    group only.
    """
    if owed_tokens(view, request) > 0:
        return ranked(1.0, float(view.requests.arrival_s[request]))
    urgent = critical(view, request, now_s) and in_cap(view, request, now_s)
    return ranked(0.0 if urgent else 3.0, float(view.requests.memo[request, LST]))


def order(view: View, request: int, now_s: float) -> float:
    """Return (pace, prompt tokens): a nanosecond of pace weighs as much as a token; ties go by arrival."""
    return pace_s(view, request) * 1e9 + float(view.requests.prompt_tokens[request])


def admit(view: View, request: int, now_s: float) -> float:
    """Take a prompt only if all of it fits above the watermark, or the engine is empty.

    Started prompts come first, so by now they have had their last chunk: nothing else is reserved.
    """
    engine = int(view.requests.engine[request])
    spare = view.engines.blocks_free[engine] - blocks_for(view, engine, view.requests.prefill_tokens[request])
    fits = spare >= WATERMARK * view.engines.blocks_total[engine]
    return TAKE if fits or view.engines.running[engine] == 0 else WAIT


def wake(view: View, engine: int, now_s: float) -> float:
    """Return the next last schedulable time of a decode that the latest step passed over."""
    table, moment_s = view.requests, inf
    for place in range(view.engines.running[engine]):
        request = int(view.running[engine, place])
        held = (
            owed_tokens(view, request) == 0 and table.last_token_s[request] < view.engines.reported_s[engine]
        )
        if held and now_s < table.memo[request, LST] < moment_s:
            moment_s = table.memo[request, LST]
    return float(moment_s)


POLICY = EnginePolicy(
    name="slai",
    order=order,
    admit=admit,
    serve=serve,
    budget=budget,
    observe=observe,
    wake=wake,
    watches=(TOKEN,),
    params=(
        Param("budget_tokens", 512, 64, 65536, "tokens", "tokens that a step may carry"),
        Param("decode_cap", 128, 1, 65536, "requests", "critical decodes that come before prompts"),
        Param("off_low", 5, 0, 1000, "mean steps", "earlier than the pace, while KV is below the mark"),
        Param("off_high", 10, 0, 1000, "mean steps", "the same above the mark"),
        Param("kv_mark", 0.96, 0.0, 1.0, "share", "KV use from which decodes run earlier"),
    ),
    memo=Memo(requests=1, engines=3),
    waiting_rank=2,
    reads=("targets",),
    source="arXiv 2508.01002",
)
