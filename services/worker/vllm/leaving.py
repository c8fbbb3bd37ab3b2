"""Who has to leave the batch before a step is formed, where the real scheduler's own way would not be the policy's.

vLLM evicts by itself when a running request lacks a block. Two things it does not do: it never displaces a running
request for a waiting one, and when a request has to evict itself it serves nobody behind it.
"""

from collections.abc import Iterator
from functools import cmp_to_key
from itertools import islice
from math import inf
from typing import NamedTuple

from schedulers.cost import blocks_for
from schedulers.policy import REFUSE, TAKE
from services.worker.engine import Key
from services.worker.vllm.shadow import Shadow
from sim.admission import answer, room
from sim.queue import find


class Served(NamedTuple):
    """A running request in the step to come: tokens that it takes, and blocks that it lacks for them."""

    key: Key
    tokens: int
    blocks: int


def share_of(shadow: Shadow, key: Key, budget: int) -> Served:
    """Return what a running request gets of a step that can still carry so many tokens."""
    view, row = shadow.rig.known, shadow.row_of[key]
    tokens = min(shadow.owed(key), budget)
    held = int(view.requests.computed_tokens[row]) + tokens
    return Served(key, tokens, max(0, blocks_for(view, 0, held) - int(view.requests.blocks[row])))


def serve(shadow: Shadow, order: list[Key]) -> tuple[list[Served], bool]:
    """Share the step's tokens among running requests in order; returns the shares and whether memory holds them."""
    budget, shares = shadow.budget, list[Served]()
    for key in order:
        if budget <= 0:
            break
        shares.append(share_of(shadow, key, budget))
        budget -= shares[-1].tokens
    return shares, sum(one.blocks for one in shares) <= int(shadow.rig.known.engines.blocks_free[0])


def for_memory(shadow: Shadow, order: list[Key], held: list[Key], now_s: float) -> list[Key]:
    """Return who leaves for want of blocks, in order, if vLLM's own eviction would stop serving too early.

    ``order`` are the requests to be served, ``held`` those that the policy holds back this step. Empty if memory
    suffices, or if nobody is left unserved behind a request that evicts itself.
    """
    if serve(shadow, order)[1]:
        return []
    free = int(shadow.rig.known.engines.blocks_free[0])
    losers, gone, given = leavers(shadow, [*order, *held], now_s), dict[Key, None](), dict[Key, Served]()
    held_blocks, budget, cut_short = shadow.rig.known.requests.blocks, shadow.budget, False
    for place, key in enumerate(order, 1):
        if key in gone or budget <= 0:
            continue
        share = share_of(shadow, key, budget)
        while share.blocks > free:
            loser = next(losers)
            gone[loser] = None
            back = given.pop(loser, Served(loser, 0, 0))
            free += int(held_blocks[shadow.row_of[loser]]) + back.blocks
            budget += back.tokens
            if loser == key:
                break
        if key in gone:
            behind = islice(order, place, None)
            cut_short = cut_short or (budget > 0 and any(one not in gone for one in behind))
            continue
        given[key] = share
        free -= share.blocks
        budget -= share.tokens
    return list(gone) if cut_short else []


def leavers(shadow: Shadow, keys: list[Key], now_s: float) -> Iterator[Key]:
    """Yield running requests in the order in which they leave for want of memory."""
    yield from sorted(keys, key=cmp_to_key(lambda one, other: -1 if shadow.worse(one, other, now_s) else 1))


def for_others(shadow: Shadow, order: list[Key], now_s: float) -> list[Key]:
    """Displace running requests for waiting ones by the policy's ``preempt``; returns who left, in order.

    The tables are left as they are once these have gone and nobody has been taken yet.
    """
    rig, fleet = shadow.rig, shadow.rig.known.engines
    shares, fits = serve(shadow, order)
    if rig.rules.preempt == 0 or not fits:
        return []
    share = {one.key: one for one in shares}
    budget, free, slots = shadow.budget, int(fleet.blocks_free[0]), int(rig.fabric.slots[0])
    lent = sum(one.blocks for one in shares)
    fleet.blocks_free[0] -= lent
    shadow.budget -= sum(one.tokens for one in shares)
    shadow.open_queue(now_s)
    gone, place = list[Key](), 0
    while place < fleet.waiting[0] and shadow.budget > 0:
        row = int(rig.known.waiting[0, place])
        if rig.plant.order_key[row] == inf:
            break
        chunk = shadow.first_chunk(row)
        fits = rig.rules.chunked == 1 or chunk == shadow.whole(row)
        say = answer(rig, 0, row, chunk, now_s)
        if say == REFUSE:  # the scan that counts says so, too
            place += 1
            continue
        if say == TAKE and fits and room(rig, 0, row, chunk):
            fleet.blocks_free[0] -= blocks_for(rig.known, 0, chunk)
            rig.fabric.slots[0] += 1  # as good as taken: its slot is gone for those behind it
            shadow.budget -= chunk
            place += 1
            continue
        loser = shadow.displaced_by(row, now_s) if fits else None
        if loser is not None:
            gone.append(loser)
            back = share.pop(loser, Served(loser, 0, 0))
            fleet.blocks_free[0] += back.blocks
            shadow.budget += back.tokens
            place = find(rig.known.waiting[0], fleet.waiting[0], row)
            continue
        if rig.rules.skip == 0:
            break
        place += 1
    shadow.budget, rig.fabric.slots[0] = budget, slots
    fleet.blocks_free[0] = free  # the real memory says later what the displaced gave back
    return gone
