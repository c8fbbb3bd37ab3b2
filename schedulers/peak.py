"""How much KV memory a batch will come to hold: the arithmetic that memory-aware admission shares.

The peak needs a sorted list, and hooks may not allocate: the first two columns of the request memo are its
scratch, a row a place of the list and not a row a request. They hold nothing from one call to the next.
"""

from math import inf

from schedulers.cost import blocks_for
from schedulers.view import View

KEY, SIZE = 0, 1
"""Scratch columns of ``Requests.memo``; a policy that uses them keeps its own columns behind them."""

WATERMARK = 0.01
"""Share of KV blocks that stays free when a request joins, as in the default admission."""


def jot(view: View, place: int, key: float, size: float) -> None:
    """Write one row of the list; there are never more rows than requests."""
    view.requests.memo[place, KEY] = key
    view.requests.memo[place, SIZE] = size


def sort_rows(view: View, count: int) -> None:
    """Sort the first rows of the list by key, the largest first (shell sort: in place, no worst case of note)."""
    memo, gap = view.requests.memo, count // 2
    while gap > 0:
        for place in range(gap, count):
            key, size, slot = memo[place, KEY], memo[place, SIZE], place
            while slot >= gap and memo[slot - gap, KEY] < key:
                memo[slot, KEY], memo[slot, SIZE] = memo[slot - gap, KEY], memo[slot - gap, SIZE]
                slot -= gap
            memo[slot, KEY], memo[slot, SIZE] = key, size
        gap = gap * 5 // 11 if gap > 2 else gap // 2


def peak_tokens(view: View, count: int) -> float:
    """Most KV tokens that the listed requests will hold together; key = tokens left, size = tokens held.

    All grow by a token a step, so the peak comes just before one of them ends: the largest over i of
    left_i * i + held_1 + ... + held_i, those with most left first. Source: arXiv 2507.10150 (LightLLM).
    """
    sort_rows(view, count)
    memo, held, peak = view.requests.memo, 0.0, 0.0
    for place in range(count):
        held += memo[place, SIZE]
        peak = max(peak, held + memo[place, KEY] * (place + 1.0))
    return float(peak)


def held_tokens(view: View, request: int) -> float:
    """KV tokens that a request holds or has been promised: its whole prefill counts from the start."""
    table = view.requests
    return float(max(table.prefill_tokens[request], table.computed_tokens[request]))


def room_tokens(view: View, engine: int) -> float:
    """KV tokens that an engine can hold. [M*b]"""
    return float(view.engines.blocks_total[engine] * view.engines.block_tokens[engine])


def whole_fits(view: View, request: int, engine: int) -> bool:
    """Tell whether the whole prefill and one token fit above the watermark now."""
    spare = view.engines.blocks_free[engine] - blocks_for(
        view, engine, view.requests.prefill_tokens[request] + 1
    )
    return bool(spare >= WATERMARK * view.engines.blocks_total[engine])


def reserved_blocks(view: View, request: int, engine: int, limit_tokens: float) -> int:
    """KV blocks of a prompt and the longest allowed output; of what was generated and one more once that is more."""
    output = max(limit_tokens, view.requests.generated_tokens[request] + 1.0)
    return blocks_for(view, engine, int(view.requests.prompt_tokens[request] + output))


def limit_fits(view: View, request: int, engine: int, limit_tokens: float) -> bool:
    """Tell whether the batch and one more can all be given their reservations."""
    blocks = reserved_blocks(view, request, engine, limit_tokens)
    for place in range(view.engines.running[engine]):
        blocks += reserved_blocks(view, int(view.running[engine, place]), engine, limit_tokens)
    return bool(blocks <= view.engines.blocks_total[engine])


def at_once(view: View, engine: int, now_s: float) -> float:
    """A ``wake``: while somebody waits and a slot is free each token may change an answer, so no step is jumped.

    With all slots taken nobody can join before somebody ends, which is an event.
    """
    fleet = view.engines
    free = fleet.running[engine] < fleet.sequences_max[engine]
    return now_s if free and fleet.waiting[engine] > 0 else inf
