"""Policies that use what no shipped policy uses yet: memo, events, ranks, own time, refusal, displacement."""

from math import inf

from schedulers.cost import forecast_tokens, owed_tokens, prefill_s, ranked, remaining_s
from schedulers.policy import REFUSE, TAKE, WAIT, EnginePolicy, Memo
from schedulers.view import ARRIVAL, EVICT, FINISH, FIRST_TOKEN, STEP, TOKEN, View
from schedulers.view import TAKE as TAKEN


def poorest(view: View, request: int, now_s: float) -> float:
    """Key of the tenant that has had the least service."""
    return view.tenants.memo[view.requests.tenant[request], 0]


def account(view: View, request: int, event: int, now_s: float) -> None:
    """Charge prompts when taken and tokens when delivered; lift a tenant that comes back."""
    tenant = view.requests.tenant[request]
    memo = view.tenants.memo
    if event == TAKEN and view.requests.evictions[request] == 0:
        memo[tenant, 0] += view.requests.prompt_tokens[request]
    elif event == TOKEN:
        memo[tenant, 0] += 2.0 * view.requests.fresh_tokens[request]
    elif event == ARRIVAL and view.tenants.waiting[tenant] == 0:
        least = inf
        for other in range(view.tenants.waiting.shape[0]):
            if view.tenants.waiting[other] > 0 and memo[other, 0] < least:
                least = memo[other, 0]
        if least < inf and memo[tenant, 0] < least:
            memo[tenant, 0] = least


def at_once(view: View, engine: int, now_s: float) -> float:
    """While somebody waits, each token may change the answer."""
    return now_s if view.engines.waiting[engine] > 0 else inf


FAIR = EnginePolicy(
    name="fair",
    order=poorest,
    evict=poorest,
    observe=account,
    watches=(ARRIVAL, TAKEN, TOKEN),
    memo=Memo(tenants=1),
    dynamic=True,
    rekey=True,
    wake=at_once,  # each token moves the accounts, so another head may come up, and fit
    reads=("tenant",),
)


def pace(view: View, request: int, event: int, now_s: float) -> None:
    """Note when each decode must run again, from a running mean of step time."""
    if event == STEP:
        mean = view.engines.memo[request, 0]
        view.engines.memo[request, 0] = 0.9 * mean + 0.1 * view.engines.step_s[request]
    else:
        engine = view.requests.engine[request]
        target_s = view.tiers.tpot_s[view.requests.tier[request]]
        view.requests.memo[request, 0] = now_s + target_s - 2.0 * view.engines.memo[engine, 0]


def in_three_ranks(view: View, request: int, now_s: float) -> float:
    """Decodes that are due, then started prompts, then (after the waiting) the other decodes."""
    due_s = view.requests.memo[request, 0]
    if owed_tokens(view, request) > 0:
        return ranked(1.0, view.requests.arrival_s[request])
    return ranked(0.0 if now_s >= due_s else 3.0, due_s)


PACED = EnginePolicy(
    name="paced",
    serve=in_three_ranks,
    observe=pace,
    watches=(TOKEN, STEP),
    memo=Memo(requests=1, engines=1),
    waiting_rank=2,
    reads=("targets", "tier"),
)


def hold_early(view: View, request: int, now_s: float) -> float:
    """Serve decodes only in the second half of each tenth of a second."""
    if owed_tokens(view, request) > 0 or (now_s * 10.0) % 1.0 >= 0.5:
        return view.requests.arrival_s[request]
    return inf


def next_half(view: View, engine: int, now_s: float) -> float:
    """The next moment at which ``hold_early`` changes its mind."""
    return (now_s * 20.0 // 1.0 + 1.0) / 20.0 + 1e-9


PULSED = EnginePolicy(name="pulsed", serve=hold_early, wake=next_half)


def hopeful(view: View, request: int, now_s: float) -> float:
    """Refuse what can't make its first token; wait while the forecast peak doesn't fit."""
    engine = view.requests.engine[request]
    tier = view.requests.tier[request]
    owed_s = prefill_s(view, engine, float(owed_tokens(view, request)))
    late = now_s + owed_s > view.requests.arrival_s[request] + view.tiers.ttft_s[tier]
    if late and view.requests.generated_tokens[request] == 0:
        return REFUSE
    tokens = view.requests.prefill_tokens[request] + forecast_tokens(view, request)
    for place in range(view.engines.running[engine]):
        running = view.running[engine, place]
        tokens += view.requests.computed_tokens[running] + forecast_tokens(view, running)
        tokens -= view.requests.generated_tokens[running]
    room = view.engines.blocks_total[engine] * view.engines.block_tokens[engine]
    return TAKE if tokens <= room or view.engines.running[engine] == 0 else WAIT


GUARD = EnginePolicy(name="guard", admit=hopeful, wake=at_once, scan="skip", reads=("targets", "forecast"))


def remaining(view: View, request: int, now_s: float) -> float:
    """Predicted remaining service."""
    return remaining_s(view, request, view.requests.engine[request])


def shorter_and_early(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace only what is under half way."""
    early = view.requests.generated_tokens[running] < 0.5 * view.requests.forecast_tokens[running]
    return 1.0 if early and remaining(view, waiting, now_s) < remaining(view, running, now_s) else 0.0


EAGER = EnginePolicy(
    name="eager",
    order=remaining,
    serve=remaining,
    evict=remaining,
    preempt=shorter_and_early,
    scan="skip",
    dynamic=True,
    reads=("forecast",),
)


def slack_fills(view: View, engine: int, now_s: float) -> float:
    """Half the budget while more than four run."""
    return view.engines.budget_max[engine] / (2.0 if view.engines.running[engine] > 4 else 1.0)


def tally(view: View, request: int, event: int, now_s: float) -> None:
    """Count every event that a request sees, each in its own column, and takes in a step that evicted."""
    memo = view.engines.memo[view.requests.engine[request]]
    if event == EVICT:
        memo[0] = now_s
    elif event == TAKEN and memo[0] == now_s:
        memo[1] += 1.0
    view.requests.memo[request, event] += view.requests.fresh_tokens[request] if event == TOKEN else 1.0


COUNTING = EnginePolicy(
    name="counting",
    budget=slack_fills,
    observe=tally,
    watches=(ARRIVAL, TAKEN, FIRST_TOKEN, TOKEN, FINISH, EVICT),
    memo=Memo(requests=8, engines=2),
)


def not_from_four_to_six(view: View, request: int, now_s: float) -> float:
    """Serve nobody in the seconds [4, 6)."""
    return inf if 4.0 <= now_s < 6.0 else 0.0


def next_pause(view: View, engine: int, now_s: float) -> float:
    """Second 4, then second 6, then never."""
    return 4.0 if now_s < 4.0 else 6.0 if now_s < 6.0 else inf


PAUSED = EnginePolicy(name="paused", serve=not_from_four_to_six, wake=next_pause)


def patience_s(view: View, request: int) -> float:
    """When a request loses patience: the shorter its prompt, the sooner."""
    return view.requests.arrival_s[request] + 0.004 * view.requests.prompt_tokens[request]


def impatient_first(view: View, request: int, now_s: float) -> float:
    """Longest prompts first, but whoever has lost patience goes before all."""
    late = now_s >= patience_s(view, request)
    return ranked(0.0 if late else 1.0, -0.001 * view.requests.prompt_tokens[request])


def next_out_of_patience(view: View, engine: int, now_s: float) -> float:
    """The next moment at which somebody who waits loses patience."""
    soonest = inf
    for place in range(view.engines.waiting[engine]):
        moment = patience_s(view, view.waiting[engine, place])
        if now_s < moment < soonest:
            soonest = moment
    return soonest


IMPATIENT = EnginePolicy(name="impatient", order=impatient_first, wake=next_out_of_patience)

ALL = (FAIR, PACED, PULSED, GUARD, EAGER, COUNTING, IMPATIENT)
