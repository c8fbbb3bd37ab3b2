"""Decodes wait until the last moment, prompt chunks fill 512 tokens a step: the study's policy 11, after SLAI.

A step serves critical decodes, then owed prompts, then the waiting, then other decodes while its tokens last. All
requests being of one class, the study gave each 0.5 s a token: with steps of 1 ms hardly a decode is ever critical.
"""

from math import floor, inf

from schedulers.cost import blocks_for, owed_tokens, ranked
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import STEP_S, WATERMARK, can_hold, switch
from schedulers.published._shadow import LEFT, OWED, SHADOW_SWITCH, behind, count_down, counting_s, start
from schedulers.view import EVICT, STEP, TOKEN, View
from schedulers.view import TAKE as TAKEN

SHADOW, FALLBACK, KEEPS, TOKENS, SEQUENCES, CAP, OFF_LOW, OFF_HIGH, MARK = range(9)
LST, TIMED = 1, 2
"""Memo of a request, beside what it is owed: the last schedulable time of its next token, and whether it has one."""

URGENT, OTHERS = 1, 2
"""Memo of an engine, beside the tokens left: critical decodes served, and how many others may be served."""

FALLBACK_S, FOREVER_S = 0.5, 1e5


def pace_s(view: View, request: int) -> float:
    """Return the time between tokens that a request is promised: 0.5 s for all, repaired its tier's."""
    if view.params[FALLBACK] == 1.0:
        return FALLBACK_S
    return float(min(view.tiers.tpot_s[view.requests.tier[request]], FOREVER_S))


def decode(view: View, request: int) -> bool:
    """Tell whether a running request is a decode, by the private count or by the engine's."""
    owed = view.requests.memo[request, OWED] if view.params[SHADOW] == 1.0 else owed_tokens(view, request)
    return bool(owed == 0)


def set_time(view: View, request: int, now_s: float) -> None:
    """Set the last schedulable time, counted from the start of a step."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    used = 1.0 - fleet.blocks_free[engine] / fleet.blocks_total[engine]
    steps = view.params[OFF_LOW] if used < view.params[MARK] else view.params[OFF_HIGH]
    view.requests.memo[request, LST] = now_s + pace_s(view, request) - steps * STEP_S
    view.requests.memo[request, TIMED] = 1.0


def ahead(view: View, request: int, now_s: float) -> float:
    """Count the decodes of the same kind, critical or not, that come before this one by last time."""
    table, engine, count = view.requests, int(view.requests.engine[request]), 0.0
    critical = now_s >= table.memo[request, LST]
    for place in range(view.engines.running[engine]):
        other = int(view.running[engine, place])
        if table.memo[other, TIMED] == 0.0 or (now_s >= table.memo[other, LST]) != critical:
            continue
        tied = table.memo[other, LST] == table.memo[request, LST] and behind(view, request, other)
        if table.memo[other, LST] < table.memo[request, LST] or tied:
            count += 1.0
    return count


def free_blocks(view: View, engine: int) -> float:
    """Return the blocks that are free; as published those beside the prompts alone, whatever was generated."""
    if view.params[KEEPS] == 0.0:
        return float(view.engines.blocks_free[engine])
    free = float(view.engines.blocks_total[engine])
    for place in range(view.engines.running[engine]):
        request = view.running[engine, place]
        free -= blocks_for(view, engine, int(view.requests.prompt_tokens[request]))
    return free


def next_waiting(view: View, engine: int, after: int) -> int:
    """Return the waiting request that comes next after one (-1: the first) by ``order``; -1 if there is none."""
    best = -1
    for place in range(view.engines.waiting[engine]):
        request = int(view.waiting[engine, place])
        if (after < 0 or later(view, request, after)) and (best < 0 or later(view, best, request)):
            best = request
    return best


def later(view: View, one: int, other: int) -> bool:
    """Tell whether a waiting request comes after another one."""
    here, there = order(view, one, 0.0), order(view, other, 0.0)
    return here > there if here != there else behind(view, one, other)


def foresee(view: View, engine: int, left: float) -> float:
    """Return the tokens that newcomers will leave of this step, so that other decodes know their share.

    Whoever the private count would take but the engine's memory can't hold is not a newcomer.
    """
    fleet, real = view.engines, float(view.engines.blocks_free[engine])
    free, running, request = free_blocks(view, engine), float(view.engines.running[engine]), -1
    most = min(view.params[SEQUENCES], float(fleet.sequences_max[engine]))
    while left > 0.0 and running < most:
        request = next_waiting(view, engine, request)
        if request < 0:
            break
        free -= blocks_for(view, engine, int(view.requests.prompt_tokens[request]))
        chunk = min(view.requests.prefill_tokens[request], fleet.budget_max[engine])
        real -= blocks_for(view, engine, int(chunk))
        if real < 0.0 or free < floor(WATERMARK * fleet.blocks_total[engine]):
            break
        left -= min(float(view.requests.prefill_tokens[request]), left)
        running += 1.0
    return left


def budget(view: View, engine: int, now_s: float) -> float:
    """Start a step: time new decodes, count the critical ones, count owed prompts down, foresee the rest."""
    memo, limit = view.engines.memo[engine], float(view.engines.budget_max[engine])
    critical = decodes = 0.0
    for place in range(view.engines.running[engine]):
        request = int(view.running[engine, place])
        if decode(view, request):
            if view.requests.memo[request, TIMED] == 0.0:
                set_time(view, request, now_s)
            decodes += 1.0
            critical += 1.0 if now_s >= view.requests.memo[request, LST] else 0.0
    memo[URGENT] = min(critical, view.params[CAP])
    memo[OTHERS] = view.params[CAP] - memo[URGENT]
    if view.params[SHADOW] == 0.0:
        return float(min(limit, view.params[TOKENS]))
    # count_down charges all decodes a token; here only the critical ones come before prompts
    memo[LEFT] = count_down(view, engine, view.params[TOKENS] + decodes - memo[URGENT], True)
    memo[OTHERS] = min(memo[OTHERS], foresee(view, engine, float(memo[LEFT])))
    return limit


def serve(view: View, request: int, now_s: float) -> float:
    """Serve critical decodes, prompts, (the waiting,) other decodes; hold those beyond the cap and the tokens."""
    memo = view.engines.memo[view.requests.engine[request]]
    if view.requests.memo[request, TIMED] == 0.0 or owed_tokens(view, request) > 0:
        return ranked(1.0, float(view.requests.arrival_s[request]))
    lst = float(view.requests.memo[request, LST])
    if now_s >= lst:
        return ranked(0.0, lst) if ahead(view, request, now_s) < memo[URGENT] else inf
    everybody = float(view.engines.running[view.requests.engine[request]]) <= memo[OTHERS]
    return ranked(3.0, lst) if everybody or ahead(view, request, now_s) < memo[OTHERS] else inf


def order(view: View, request: int, now_s: float) -> float:
    """Return (pace, prompt tokens): a nanosecond of pace outweighs a token."""
    return pace_s(view, request) * 1e9 + float(view.requests.prompt_tokens[request])


def admit(view: View, request: int, now_s: float) -> float:
    """Take prompts in turn while the step has tokens and sequences, and whole prompts have blocks."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    if view.params[SHADOW] == 1.0 and fleet.memo[engine, LEFT] <= 0.0:
        return WAIT
    if fleet.running[engine] >= view.params[SEQUENCES]:
        return WAIT
    if view.params[KEEPS] == 0.0 or fleet.running[engine] == 0:
        return TAKE if can_hold(view, engine, int(view.requests.prefill_tokens[request])) else WAIT
    spare = free_blocks(view, engine) - blocks_for(view, engine, int(view.requests.prompt_tokens[request]))
    return TAKE if spare >= floor(WATERMARK * fleet.blocks_total[engine]) else WAIT


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Open the private count at a take; move the last time on with each token of a decode that has one."""
    table = view.requests
    if event == TOKEN:
        if table.memo[request, TIMED] == 1.0:
            set_time(view, request, now_s - float(view.engines.step_s[table.engine[request]]))
        return
    if (
        event == STEP
    ):  # watched only so that no step is jumped over: free blocks, and with them who runs, move
        return
    table.memo[request, TIMED] = table.memo[request, OWED] = 0.0
    if event == TAKEN and view.params[SHADOW] == 1.0:
        start(view, request)


def wake(view: View, engine: int, now_s: float) -> float:
    """Count at every step while anything is owed; else wait for the next last time of a decode."""
    moment_s = counting_s(view, engine, now_s) if view.params[SHADOW] == 1.0 else inf
    for place in range(view.engines.running[engine]):
        request = int(view.running[engine, place])
        lst = float(view.requests.memo[request, LST])
        if view.requests.memo[request, TIMED] == 1.0 and now_s < lst < moment_s:
            moment_s = lst
    return moment_s


POLICY = EnginePolicy(
    name="slai_faithful@published",
    order=order,
    admit=admit,
    serve=serve,
    budget=budget,
    observe=observe,
    wake=wake,
    watches=(TAKEN, TOKEN, EVICT, STEP),
    params=(
        SHADOW_SWITCH,
        switch(
            "fallback_tbt", "1: 0.5 s between tokens for all, their class being unknown; 0: the tier's target"
        ),
        switch("no_eviction", "1: memory counted by prompts alone; 0: by blocks held, as Sarathi"),
        Param("step_tokens", 512, 1, 1e9, "tokens", "decodes and prompt chunks a step"),
        Param("sequences", 128, 1, 65536, "requests", "running at once, never more than the engine's limit"),
        Param("decode_cap", 128, 1, 65536, "requests", "decodes that a step serves"),
        Param("off_low", 5, 0, 1000, "steps", "earlier than the pace, while KV is below the mark"),
        Param("off_high", 10, 0, 1000, "steps", "the same above the mark"),
        Param("kv_mark", 0.96, 0.0, 1.0, "share", "KV use from which decodes run earlier"),
    ),
    memo=Memo(requests=3, engines=3),
    waiting_rank=2,
    reads=("targets",),
    source="doi 10.5281/zenodo.22306798",
)
