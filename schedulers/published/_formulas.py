"""What the published policies share: estimates, deadlines, the test that a prompt fits, and when hope is given up."""

from math import floor, inf

from schedulers.cost import blocks_for, ranked, token_due_s
from schedulers.policy import Param
from schedulers.view import View

STEP_S = 0.001
"""Seconds a step, as all of these policies think it lasts."""

DRAIN_S = 50.0
"""How long the study's engine ran on after the last arrival: 50,000 steps."""

WATERMARK = 0.01
FORECAST_MAX = 4096

STEPS, RUNNING, USED = 0, 1, 2
"""Memo of an engine: tokens that its batch will hold, and the step and batch size for which they were added up."""

SLACK, FORECAST, GROWTH = 0, 1, 2
"""Places of the parameters that all policies with deadlines have, in front of their own."""


def switch(name: str, meaning: str) -> Param:
    """Return a parameter with two positions: 1 as published, 0 repaired."""
    return Param(name, 1, 0, 1, "switch", meaning)


GROWTH_SWITCH = switch(
    "growth", "1: admission counts tokens without their growth; 0: blocks above a watermark"
)
DEADLINE_PARAMS = (
    Param(
        "slack", 20, 0.0, 1e6, "times", "deadline over estimated service (the study divided it by the load)"
    ),
    switch("forecast_deadline", "1: deadline made of the forecast; 0: the tier's own"),
    GROWTH_SWITCH,
)
SKIP_SWITCH = switch("skip_not_reject", "1: who can't make it stays in the queue; 0: is rejected")


def told_tokens(view: View, request: int) -> float:
    """Forecast of the output as the study rounded it: whole tokens, 1 to 4,096."""
    return float(min(max(floor(view.requests.forecast_tokens[request] + 0.5), 1), FORECAST_MAX))


def est_steps(view: View, request: int) -> float:
    """Estimated service in steps: half a step a prompt token, one an output token."""
    return 0.5 * float(view.requests.prompt_tokens[request]) + told_tokens(view, request)


def due_s(view: View, request: int) -> float:
    """Deadline of a request: arrival + slack * (0.4 ms a prompt token + 20 ms a forecast output token).

    Repaired: that of its tier, end to end, else that of the next token; without any, after all others.
    """
    arrival_s, tier = float(view.requests.arrival_s[request]), view.requests.tier[request]
    if view.params[FORECAST] == 1.0:
        work_s = 0.0004 * view.requests.prompt_tokens[request] + 0.02 * told_tokens(view, request)
        return float(arrival_s + view.params[SLACK] * work_s)
    if view.tiers.e2e_s[tier] < inf:
        return float(arrival_s + view.tiers.e2e_s[tier])
    moment_s = token_due_s(view, request)
    return moment_s if moment_s < inf else ranked(1.0, arrival_s)


def latest_s(view: View, request: int) -> float:
    """Latest moment at which the deadline can be met; laxity is this minus now."""
    return due_s(view, request) - est_steps(view, request) * STEP_S


def kv_tokens(view: View, engine: int) -> float:
    """Tokens that the engine's memory holds."""
    return float(view.engines.blocks_total[engine] * view.engines.block_tokens[engine])


def used_tokens(view: View, engine: int) -> float:
    """Prompt and generated tokens of the batch; added up once a step and again after each take."""
    fleet, memo = view.engines, view.engines.memo[engine]
    if memo[STEPS] != fleet.steps[engine] or memo[RUNNING] != fleet.running[engine]:
        memo[STEPS], memo[RUNNING], memo[USED] = fleet.steps[engine], fleet.running[engine], 0.0
        for place in range(fleet.running[engine]):
            request = view.running[engine, place]
            memo[USED] += view.requests.prompt_tokens[request] + view.requests.generated_tokens[request]
    return float(memo[USED])


def fits(view: View, request: int, tokens: float, growth: float) -> bool:
    """Tell whether a slot and memory for so many prompt tokens are there.

    Published (growth 1): used + tokens within the memory. Repaired: the blocks of all that must be computed
    and one token above the watermark, or the engine is empty. Needs the three memo columns of an engine.
    """
    fleet, engine = view.engines, int(view.requests.engine[request])
    if fleet.running[engine] >= fleet.sequences_max[engine]:
        return False
    if growth == 1.0:
        return bool(used_tokens(view, engine) + tokens <= kv_tokens(view, engine))
    return can_hold(view, engine, int(view.requests.prefill_tokens[request]) + 1)


def can_hold(view: View, engine: int, tokens: int) -> bool:
    """Tell whether the blocks of so many tokens leave the watermark free, or the engine is empty."""
    fleet = view.engines
    spare = fleet.blocks_free[engine] - blocks_for(view, engine, tokens)
    return bool(spare >= floor(WATERMARK * fleet.blocks_total[engine]) or fleet.running[engine] == 0)


def prompt_fits(view: View, request: int, growth: float) -> bool:
    """Tell whether the request fits, by what it must compute before its next token."""
    return fits(view, request, float(view.requests.prefill_tokens[request]), growth)


def given_up_s(view: View, request: int) -> float:
    """Moment at which the study would have ended with this request unserved: its engine idle for 50 s."""
    engine = int(view.requests.engine[request])
    return float(max(view.engines.reported_s[engine], view.requests.enqueued_s[request]) + DRAIN_S)


def abandoned(view: View, request: int, now_s: float) -> bool:
    """Tell whether a skipped request is to be refused, because nothing has run for so long."""
    engine = int(view.requests.engine[request])
    return bool(view.engines.running[engine] == 0 and now_s >= given_up_s(view, request))


def next_moment_s(view: View, engine: int, now_s: float, lead_s: float) -> float:
    """Return when the next waiting request comes within ``lead_s`` of its latest start, or is given up."""
    moment_s, idle = inf, view.engines.running[engine] == 0
    for place in range(view.engines.waiting[engine]):
        request = int(view.waiting[engine, place])
        latest = latest_s(view, request) - lead_s
        if now_s <= latest < moment_s:
            moment_s = latest
        if idle and now_s < given_up_s(view, request) < moment_s:
            moment_s = given_up_s(view, request)
    return float(moment_s)
