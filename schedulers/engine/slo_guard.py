"""Earliest deadline first, with the hopeless rejected and loose paces thinned out by credits (arXiv 2505.23022)."""

from math import ceil, inf

from schedulers.cost import blocks_for, owed_tokens, prefill_rate, prefill_s, ranked, step_s, token_due_s
from schedulers.policy import REFUSE, TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import EVICT, TOKEN, View

SLACK, PHI = 0, 1
CREDIT = 0
"""Memo of a request: steps in which it may be served, saved up."""
AHEAD, MOMENT, MIXED = 0, 1, 2
"""Memo of an engine, while its queue is scanned: prefill tokens ahead of the next request asked; when the first
of those held becomes hopeless; and whether some decode has less than a whole slot."""
BATCH, TIGHTEST, PACE, SLOTS, HELD = 3, 4, 5, 6, 7
"""Memo of an engine, sums over its batch: its size, tightest pace; the pace that slots are counted in, the virtual
batch size in it, and KV tokens."""

WATERMARK, ROUNDING = 0.01, 1e-9
LEAST_SHARE = 1.0 / 64.0
"""Of a slot, for a pace more than 64 times looser than the tightest, or none at all: nobody is held for ever."""


def first_due_s(view: View, request: int) -> float:
    """Return the deadline of the first token, a + F; +inf if there is none."""
    table = view.requests
    return float(table.arrival_s[request] + view.tiers.ttft_s[table.tier[request]])


def pace_s(view: View, request: int) -> float:
    """Return the tier's target for the time between tokens."""
    return float(view.tiers.tpot_s[view.requests.tier[request]])


def share(own_s: float, tightest_s: float) -> float:
    """Return the part of a slot that a pace takes beside the tightest one."""
    if own_s <= tightest_s:
        return 1.0
    return max(LEAST_SHARE, tightest_s / own_s) if own_s < inf else LEAST_SHARE


def sum_up(view: View, engine: int) -> None:
    """Sum up the batch, unless the last sums were of this one: its tightest pace and its KV tokens."""
    table, memo, count = view.requests, view.engines.memo[engine], view.engines.running[engine]
    if memo[BATCH] == count:
        return
    memo[BATCH], memo[TIGHTEST], memo[PACE], memo[HELD] = count, inf, -1.0, 0.0
    for place in range(count):
        request = int(view.running[engine, place])
        memo[TIGHTEST] = min(memo[TIGHTEST], pace_s(view, request))
        memo[HELD] += max(table.computed_tokens[request], table.prefill_tokens[request])


def count_slots(view: View, engine: int, own_s: float) -> None:
    """Count the batch in slots of its tightest pace, or of a candidate's that is tighter; once for each pace."""
    memo = view.engines.memo[engine]
    tightest_s = min(memo[TIGHTEST], own_s)
    if memo[PACE] != tightest_s:
        memo[PACE], memo[SLOTS] = tightest_s, 0.0
        for place in range(view.engines.running[engine]):
            memo[SLOTS] += share(pace_s(view, int(view.running[engine, place])), tightest_s)


def budget(view: View, engine: int, now_s: float) -> float:
    """Once a step give each decode its credit and begin the sums anew; the budget is the engine's."""
    fleet, memo, credit = view.engines, view.engines.memo[engine], view.requests.memo
    tightest_s, ahead, mixed, row = inf, 0.0, 0.0, view.running[engine]
    for place in range(fleet.running[engine]):
        tightest_s = min(tightest_s, pace_s(view, row[place]))
    for place in range(fleet.running[engine]):
        request = row[place]
        owed = owed_tokens(view, request)
        if owed > 0:
            ahead += owed
            continue
        part = share(pace_s(view, request), tightest_s)
        credit[request, CREDIT] += part
        if part < 1.0:
            mixed = 1.0
    memo[BATCH], memo[AHEAD], memo[MOMENT], memo[MIXED] = -1.0, ahead, inf, mixed
    return float(fleet.budget_max[engine])


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Take the price of a decode; the token that ends a prompt is free, as a prompt has saved nothing.

    A jump tells of many tokens at once, and budget was asked once: both count as one step.
    """
    memo = view.requests.memo[request]
    if event == EVICT:
        memo[CREDIT] = 0.0
    elif memo[CREDIT] >= 1.0 - ROUNDING:
        memo[CREDIT] -= 1.0


def order(view: View, request: int, now_s: float) -> float:
    """Return the deadline of the first token; without one, come after all others by arrival."""
    due_s = first_due_s(view, request)
    return due_s if due_s < inf else ranked(1.0, float(view.requests.arrival_s[request]))


def due(view: View, request: int, now_s: float) -> float:
    """Return the deadline of the next token; without one, come after all others by arrival."""
    due_s = token_due_s(view, request)
    return due_s if due_s < inf else ranked(1.0, float(view.requests.arrival_s[request]))


def serve(view: View, request: int, now_s: float) -> float:
    """Serve prompts, and decodes that have saved up a step, by deadline; hold the others."""
    saved = view.requests.memo[request, CREDIT] >= 1.0 - ROUNDING
    return due(view, request, now_s) if saved or owed_tokens(view, request) > 0 else inf


def fits(view: View, request: int, engine: int) -> bool:
    """Tell whether a step with the candidate keeps the tightest pace, and its whole prompt fits in memory.

    A sum of shares that exceeds a whole number by rounding alone is not another slot.
    """
    fleet, memo, pace = view.engines, view.engines.memo[engine], pace_s(view, request)
    tokens = view.requests.prefill_tokens[request]
    spare = fleet.blocks_free[engine] - blocks_for(view, engine, tokens + 1)
    if fleet.running[engine] >= fleet.sequences_max[engine] or spare < WATERMARK * fleet.blocks_total[engine]:
        return False
    sum_up(view, engine)
    count_slots(view, engine, pace)
    slots = float(ceil(memo[SLOTS] + share(pace, memo[PACE]) - ROUNDING))
    span_s = step_s(view.costs[engine], 0.0, 0.0, slots, float(memo[HELD] + tokens))
    return bool(span_s <= view.params[PHI] * memo[PACE])


def admit(view: View, request: int, now_s: float) -> float:
    """Reject what can't make its first token behind the prompts ahead; take what fits, or if nothing runs.

    Requests are asked in order, so the prompts ahead add up from one to the next. An answer that has begun is
    never rejected: its first token is out.
    """
    engine, memo = int(view.requests.engine[request]), view.engines.memo[view.requests.engine[request]]
    owed = float(owed_tokens(view, request))
    if view.requests.generated_tokens[request] == 0:
        queue_s = memo[AHEAD] / prefill_rate(view, engine) + prefill_s(view, engine, owed)
        moment_s = first_due_s(view, request) + view.params[SLACK] - queue_s
        if now_s > moment_s:
            return REFUSE
        memo[MOMENT] = min(memo[MOMENT], moment_s)
    memo[AHEAD] += owed
    return TAKE if view.engines.running[engine] == 0 or fits(view, request, engine) else WAIT


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when the next of the held becomes hopeless; the next step if credits decide who is served."""
    memo = view.engines.memo[engine]
    if memo[MIXED] == 1.0:
        return now_s
    return float(memo[MOMENT]) if view.engines.waiting[engine] > 0 else inf


POLICY = EnginePolicy(
    name="slo-guard",
    order=order,
    admit=admit,
    serve=serve,
    budget=budget,
    evict=due,
    observe=observe,
    wake=wake,
    watches=(TOKEN, EVICT),
    params=(
        Param("slack_s", 0.0, -3600.0, 3600.0, "s", "past the deadline that is still worth a try"),
        Param("phi", 1.0, 0.05, 10.0, "share", "of the tightest time between tokens that a step may fill"),
    ),
    memo=Memo(requests=1, engines=8),
    scan="skip",
    reads=("targets",),
    source="arXiv 2505.23022",
)
