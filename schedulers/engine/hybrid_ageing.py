"""Deadline plus weighted work, chunks as large as slack allows, hopeless requests set aside (arXiv 2503.22562)."""

from math import inf, sqrt

from schedulers.cost import (
    ATTENTION,
    BASE,
    DECODE,
    FLOOR,
    JOINT,
    KV,
    PREFILL,
    end_due_s,
    owed_tokens,
    prefill_s,
    ranked,
    remaining_s,
    token_due_s,
)
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View

ALPHA, MIN_CHUNK = 0, 1


def timely(view: View, request: int) -> bool:
    """Tell whether the request's tier has a target for the first token."""
    return bool(view.tiers.ttft_s[view.requests.tier[request]] < inf)


def due_s(view: View, request: int) -> float:
    """Return dF: the deadline of the first token, of the whole answer where a tier has no other; else +inf."""
    table = view.requests
    if timely(view, request):
        return float(table.arrival_s[request] + view.tiers.ttft_s[table.tier[request]])
    return end_due_s(view, request)


def owed_s(view: View, request: int) -> float:
    """Return Pre(P), the seconds that the owed prompt takes."""
    return prefill_s(view, int(view.requests.engine[request]), float(owed_tokens(view, request)))


def relegated(view: View, request: int, now_s: float, start_s: float) -> bool:
    """Tell whether a request can't make its deadline, starting after ``start_s`` = dF - Pre(P), or didn't.

    Read from the clock and the owed prompt each time, so that a request comes back if after a chunk it can make
    it again. Once the first token is out, its own moment says whether it was late.
    """
    if timely(view, request) and view.requests.generated_tokens[request] > 0:
        return bool(view.requests.first_token_s[request] > due_s(view, request))
    return bool(now_s > start_s)


def order(view: View, request: int, now_s: float) -> float:
    """Return dF + alpha * W; those without a deadline after them; then the relegated, larger weight first."""
    table, deadline_s = view.requests, due_s(view, request)
    if deadline_s == inf:
        return ranked(1.0, float(table.arrival_s[request]))
    prompt_s = work_s = owed_s(view, request)
    if not timely(view, request):
        work_s = remaining_s(view, request, int(table.engine[request]))
    rank, tier = 0.0, table.tier[request]
    if relegated(view, request, now_s, deadline_s - prompt_s):
        rank = 2.0
        for other in range(len(view.tiers.weight)):
            if view.tiers.weight[other] > view.tiers.weight[tier]:
                rank += 1.0
    return ranked(rank, deadline_s + view.params[ALPHA] * work_s)


def serve(view: View, request: int, now_s: float) -> float:
    """Serve decodes first, by arrival; then started prompts as they wait."""
    if owed_tokens(view, request) == 0:
        return ranked(-1.0, float(view.requests.arrival_s[request]))
    return order(view, request, now_s)


def tokens_within(linear_s: float, square_s: float, room_s: float) -> float:
    """Return the largest n with linear * n + square * n * n / 2 <= room, in the form that divides by no 0."""
    if room_s <= 0.0:
        return 0.0
    slope_s = linear_s + sqrt(linear_s * linear_s + 2.0 * square_s * room_s)
    return 2.0 * room_s / slope_s if slope_s > 0.0 else inf


def budget(view: View, engine: int, now_s: float) -> float:
    """Fill the time until the first decode is due with prompt; at least ``min_chunk`` tokens, so that it goes on.

    The relegated are left out: nothing slows down for who is late already. The attention work is that of a
    prompt's first chunk, as nobody knows yet whose chunk it will be.
    """
    table, costs, limit = view.requests, view.costs[engine], float(view.engines.budget_max[engine])
    decodes, kv, room_s = 0.0, 0.0, inf
    for place in range(view.engines.running[engine]):
        request = int(view.running[engine, place])
        if owed_tokens(view, request) == 0:
            decodes += 1.0
            kv += table.computed_tokens[request] + 1.0
            if not relegated(view, request, now_s, due_s(view, request)):
                room_s = min(room_s, token_due_s(view, request) - now_s)
    if room_s == inf:
        return limit
    room_s -= costs[DECODE] * decodes + costs[KV] * kv
    chunk = tokens_within(costs[PREFILL], costs[ATTENTION], room_s - costs[BASE] - costs[JOINT] * decodes)
    if costs[FLOOR] > 0.0:  # a step is as long as the longer of its floor and its work
        chunk = min(chunk, tokens_within(0.0, costs[ATTENTION], room_s - costs[FLOOR]))
    return float(min(limit, max(chunk, view.params[MIN_CHUNK]) + decodes))


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when the next in the queue can't make it any more.

    At each step while a slot is free: the chunk follows the clock, and a smaller chunk may fit in memory.
    """
    moment_s = inf
    if view.engines.waiting[engine] > 0 and view.engines.running[engine] < view.engines.sequences_max[engine]:
        return now_s
    for place in range(view.engines.waiting[engine]):
        request = int(view.waiting[engine, place])
        late = timely(view, request) and view.requests.generated_tokens[request] > 0
        start_s = due_s(view, request) - owed_s(view, request)
        if not late and now_s <= start_s < moment_s:
            moment_s = start_s
    return float(moment_s)


POLICY = EnginePolicy(
    name="hybrid-ageing",
    order=order,
    serve=serve,
    evict=order,
    budget=budget,
    wake=wake,
    params=(
        Param("alpha", 1.0, 0.0, 8.0, "s/s", "seconds of deadline that a second of work weighs"),
        Param("min_chunk", 128, 1, 65536, "tokens", "prompt tokens a step, however late the decodes"),
    ),
    reads=("forecast", "targets", "tier"),
    source="arXiv 2503.22562",
)
