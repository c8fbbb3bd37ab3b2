"""Admit while the predicted peak of KV memory fits, from past output lengths (Past-Future, arXiv 2507.10150)."""

from math import inf

from schedulers.peak import held_tokens, jot, peak_tokens, room_tokens, whole_fits
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import FINISH, View

HISTORY, WARM, COLD, RESERVE = 0, 1, 2, 3
LONGEST = 1000
COUNT, NEXT, RING, SORTED = 0, 1, 2, 2 + LONGEST
"""Memo of an engine: lengths kept, place of the next one, the lengths as they came, and the same in order."""


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Put a finished length in the ring and in its place among the sorted, in the stead of the oldest."""
    memo, length = view.engines.memo[view.requests.engine[request]], view.requests.generated_tokens[request]
    size, place = int(memo[COUNT]), int(memo[NEXT])
    if size >= int(view.params[HISTORY]):
        slot = SORTED + longer_than(view, int(view.requests.engine[request]), memo[RING + place] - 0.5)
        while slot < SORTED + size - 1:
            memo[slot] = memo[slot + 1]
            slot += 1
        size -= 1
    slot = SORTED + size
    while slot > SORTED and memo[slot - 1] > length:
        memo[slot] = memo[slot - 1]
        slot -= 1
    memo[slot] = memo[RING + place] = length
    memo[COUNT] = size + 1
    memo[NEXT] = (place + 1) % int(view.params[HISTORY])


def longer_than(view: View, engine: int, tokens: float) -> int:
    """Return how many of the sorted lengths are at most so many tokens: the place of the first longer one."""
    memo, low = view.engines.memo[engine], 0
    high = int(memo[COUNT])
    while low < high:
        middle = (low + high) // 2
        if memo[SORTED + middle] > tokens:
            high = middle
        else:
            low = middle + 1
    return low


def left_tokens(view: View, request: int, engine: int) -> float:
    """Return how many tokens are predicted to come, at least 1.

    The length is the request's own quantile (its luck) of past lengths beyond what it has generated. The paper
    draws anew in each step; one draw a request makes the same admissions compiled, live and in every policy.
    """
    generated, memo = float(view.requests.generated_tokens[request]), view.engines.memo[engine]
    if memo[COUNT] < min(view.params[WARM], view.params[HISTORY] // 1.0):  # a short ring is warm when full
        return float(max(1.0, view.params[COLD] - generated))
    first = longer_than(view, engine, generated)
    longer = memo[COUNT] - first
    if longer == 0:
        return max(1.0, generated)  # a length of twice what it has
    place = first + int(view.requests.luck[request] * longer)
    return float(max(1.0, memo[SORTED + place] - generated))


def admit(view: View, request: int, now_s: float) -> float:
    """Take the head if the peak fits, and the whole prompt above the watermark; always on an empty engine."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    if fleet.running[engine] == 0:
        return TAKE
    if fleet.running[engine] >= fleet.sequences_max[engine] or not whole_fits(view, request, engine):
        return WAIT
    for place in range(fleet.running[engine]):
        running = int(view.running[engine, place])
        jot(view, place, left_tokens(view, running, engine), held_tokens(view, running))
    jot(view, int(fleet.running[engine]), left_tokens(view, request, engine), held_tokens(view, request))
    peak = peak_tokens(view, int(fleet.running[engine]) + 1)
    return TAKE if peak <= (1.0 - view.params[RESERVE]) * room_tokens(view, engine) else WAIT


def wake(view: View, engine: int, now_s: float) -> float:
    """Look again at each step while somebody waits for memory: the batch nears its ends, the peak falls."""
    fleet = view.engines
    free = fleet.running[engine] < fleet.sequences_max[engine]
    return now_s if free and fleet.waiting[engine] > 0 else inf


POLICY = EnginePolicy(
    name="kv-peak",
    admit=admit,
    observe=observe,
    wake=wake,
    watches=(FINISH,),
    params=(
        Param("history", 1000, 1, LONGEST, "requests", "finished lengths that are remembered"),
        Param("warm", 32, 1, LONGEST, "requests", "finished lengths before they are believed"),
        Param("cold_tokens", 1024, 1, 131072, "tokens", "length believed before"),
        Param("reserve", 0.05, 0.0, 0.9, "share", "KV memory that the predicted peak leaves free"),
    ),
    memo=Memo(requests=2, engines=2 + 2 * LONGEST),  # the former are the scratch of schedulers.peak
    source="arXiv 2507.10150",
)
