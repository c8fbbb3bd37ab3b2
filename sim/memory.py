"""Paged KV memory of one engine: allocation, eviction with recompute, and the queue to rejoin."""

from math import inf, isnan

from schedulers.cost import blocks_for, owed_tokens
from schedulers.view import DONE, EVICT, WAITING, Ints
from sim.prefix import allot, give_back, keep, look_up
from sim.queue import find, insert, remove_at
from sim.rig import (
    ATTENTION,
    DECODES,
    EVICT_HOOK,
    EVICTED,
    FINE,
    KV,
    NOT_A_NUMBER,
    ORDER,
    PREFILL,
    RECOMPUTED,
    STALL,
    THRASH,
    THROWN,
    WAKE,
    Rig,
)

EVICTIONS_MAX = 10_000
"""More evictions than this without a token is a livelock. Any token is progress: it is never lost again."""


def fail(rig: Rig, code: int, hook: int, request: int, engine: int) -> None:
    """Note the first fault of a run; the kernel stops at it."""
    error = rig.plant.error
    if error[0] == FINE:
        error[0], error[1], error[2], error[3] = code, hook, request, engine


def note_all(rig: Rig, ids: Ints, count: int, event: int, now_s: float) -> None:
    """Tell the policies that watch this event about several requests at once."""
    if count > 0 and (rig.rules.watches >> event) & 1:
        rig.hooks.observe(rig.known, ids, count, event, now_s)
    if count > 0 and (rig.rules.cluster_watches >> event) & 1:
        rig.hooks.cluster_observe(rig.watcher, ids, count, event, now_s)


def note(rig: Rig, request: int, event: int, now_s: float) -> None:
    """Tell the policies that watch this event about one request."""
    if ((rig.rules.watches | rig.rules.cluster_watches) >> event) & 1:
        rig.plant.ids[0] = request
        note_all(rig, rig.plant.ids, 1, event, now_s)


def read_order(rig: Rig, engine: int, request: int, now_s: float) -> None:
    """Read the order key of one waiting request; arrival if the policy has none."""
    plant = rig.plant
    if rig.rules.order == 0:
        plant.order_key[request] = rig.known.requests.arrival_s[request]
        return
    plant.ids[0] = request
    rig.hooks.order(rig.known, plant.ids, 1, now_s, plant.keys)
    plant.order_key[request] = plant.keys[0]
    if isnan(plant.keys[0]):
        fail(rig, NOT_A_NUMBER, ORDER, request, engine)


def join_queue(rig: Rig, engine: int, request: int, now_s: float) -> None:
    """Put a request, new or evicted, into the engine's queue at its place."""
    view = rig.known
    table, fleet = view.requests, view.engines
    table.state[request] = WAITING
    table.enqueued_s[request] = now_s
    if rig.rules.prefix == 1 and rig.rules.trace_tokens > 0:
        look_up(rig, engine, request)
    read_order(rig, engine, request, now_s)
    insert(table, rig.plant.order_key, view.waiting[engine], fleet.waiting[engine], request)
    rig.plant.wake_s[engine] = now_s  # the newcomer may bring an earlier own time
    fleet.waiting[engine] += 1
    fleet.queued_blocks[engine] += blocks_for(view, engine, table.prefill_tokens[request] + 1)
    view.tenants.waiting[table.tenant[request]] += 1


def leave_queue(rig: Rig, engine: int, place: int) -> int:
    """Take the request at this place out of the queue and return it."""
    view = rig.known
    row = view.waiting[engine]
    request = row[place]
    remove_at(row, view.engines.waiting[engine], place)
    view.engines.waiting[engine] -= 1
    view.engines.queued_blocks[engine] -= blocks_for(view, engine, view.requests.prefill_tokens[request] + 1)
    view.tenants.waiting[view.requests.tenant[request]] -= 1
    return int(request)


def free_blocks(rig: Rig, engine: int, request: int) -> None:
    """Give all blocks of a request back, and forget the KV in them that nobody else holds."""
    table, fleet = rig.known.requests, rig.known.engines
    still = give_back(rig, engine, request) if rig.rules.trace_tokens > 0 else 0
    fleet.blocks_free[engine] += table.blocks[request] - still
    rig.plant.kv_tokens[engine] -= table.computed_tokens[request] - still * fleet.block_tokens[engine]
    table.blocks[request] = 0


def grow(rig: Rig, engine: int, request: int, tokens: int) -> bool:
    """Allocate blocks for so many more tokens of a request; False, and nothing done, if they are short."""
    table, fleet = rig.known.requests, rig.known.engines
    held = table.computed_tokens[request] + tokens
    if held <= table.blocks[request] * fleet.block_tokens[engine]:  # the usual case, without a division
        return True
    need = blocks_for(rig.known, engine, held) - table.blocks[request]
    if need > fleet.blocks_free[engine]:
        return False
    if rig.rules.trace_tokens > 0:
        allot(rig, engine, request, need)
    table.blocks[request] += need
    fleet.blocks_free[engine] -= need
    return True


def charge(rig: Rig, engine: int, request: int, sign: int) -> None:
    """Add (or, with sign -1, take back) what a request's chunk puts on the step; sums of halves are exact."""
    flight, chunk = rig.plant.flight[engine], rig.plant.chunk[request]
    computed = rig.known.requests.computed_tokens[request]
    if chunk == 0:
        return
    if owed_tokens(rig.known, request) > 0:
        flight[PREFILL] += sign * chunk
        flight[ATTENTION] += sign * chunk * (computed + chunk / 2.0)
    else:
        flight[DECODES] += sign
        flight[KV] += sign * (computed + 1)


def evict(rig: Rig, engine: int, request: int, now_s: float) -> int:
    """Throw a running request out; returns the tokens of this step that it gives back.

    It loses its KV and recomputes prompt and generated tokens later, but for what the prefix cache still has.
    """
    view, plant = rig.known, rig.plant
    table, fleet = view.requests, view.engines
    row = view.running[engine]
    place = find(row, fleet.running[engine], request)
    remove_at(row, fleet.running[engine], place)
    fleet.running[engine] -= 1
    if rig.rules.trace_tokens > 0:
        keep(rig, engine, request)
    free_blocks(rig, engine, request)
    plant.tally[engine, RECOMPUTED] += table.computed_tokens[request]
    given = plant.chunk[request]
    charge(rig, engine, request, -1)
    fleet.pending_tokens[engine] -= owed_tokens(view, request)
    plant.chunk[request] = 0
    plant.flight[engine, EVICTED] += 1
    table.computed_tokens[request] = 0
    table.prefill_tokens[request] = table.prompt_tokens[request] + table.generated_tokens[request]
    table.evictions[request] += 1
    fleet.pending_tokens[engine] += table.prefill_tokens[request]
    note(rig, request, EVICT, now_s)
    join_queue(rig, engine, request, now_s)
    plant.tally[engine, THROWN] += 1
    if plant.tally[engine, THROWN] > EVICTIONS_MAX:
        fail(rig, THRASH, EVICT_HOOK, request, engine)
    return int(given)


def read_evict(rig: Rig, engine: int, now_s: float) -> None:
    """Read the evict scores of the running batch into ``plant.keys``; arrival if the policy has none."""
    view, plant = rig.known, rig.plant
    row, count = view.running[engine], view.engines.running[engine]
    if rig.rules.evict == 0:
        for place in range(count):
            plant.keys[place] = view.requests.arrival_s[row[place]]
        return
    rig.hooks.evict(view, row, count, now_s, plant.keys)
    for place in range(count):
        if isnan(plant.keys[place]):
            fail(rig, NOT_A_NUMBER, EVICT_HOOK, row[place], engine)


def victim(rig: Rig, engine: int, now_s: float) -> int:
    """The running request with the largest evict score, the newest among equals."""
    view, plant = rig.known, rig.plant
    table, row = view.requests, view.running[engine]
    read_evict(rig, engine, now_s)
    best = 0
    for place in range(1, view.engines.running[engine]):
        here, there = row[place], row[best]
        if plant.keys[place] != plant.keys[best]:
            worse = plant.keys[place] > plant.keys[best]
        elif table.arrival_s[here] != table.arrival_s[there]:
            worse = table.arrival_s[here] > table.arrival_s[there]
        elif table.luck[here] != table.luck[there]:
            worse = table.luck[here] > table.luck[there]
        else:
            worse = here > there
        if worse:
            best = place
    return int(row[best])


def make_room(rig: Rig, engine: int, request: int, tokens: int, now_s: float) -> tuple[bool, int]:
    """Evict until a running request can hold so many more tokens.

    Returns (False if it had to leave itself, tokens of this step that the evicted give back).
    """
    back = 0
    while not grow(rig, engine, request, tokens):
        loser = victim(rig, engine, now_s)
        back += evict(rig, engine, loser, now_s)
        if loser == request or rig.plant.error[0] != FINE:
            return False, back
    return True, back


def end(rig: Rig, engine: int, request: int, outcome: int, now_s: float) -> None:
    """Close a request's account; the caller has taken it off its list."""
    rig.known.requests.state[request] = DONE
    rig.plant.outcome[request] = outcome
    rig.plant.finished_s[request] = now_s
    free_blocks(rig, engine, request)


def wake_s(rig: Rig, engine: int, now_s: float) -> float:
    """Next moment at which an answer of the policy changes by itself; +inf is never."""
    if rig.rules.wake == 0:
        return inf
    rig.plant.ids[0] = engine
    rig.hooks.wake(rig.known, rig.plant.ids, 1, now_s, rig.plant.keys)
    if isnan(rig.plant.keys[0]):
        fail(rig, NOT_A_NUMBER, WAKE, -1, engine)
    return float(rig.plant.keys[0])


def stalled(rig: Rig, engine: int) -> None:
    """Nobody can be served and nothing will change that: the policy's fault."""
    row = rig.known.waiting[engine] if rig.known.engines.waiting[engine] > 0 else rig.known.running[engine]
    fail(rig, STALL, ORDER, row[0], engine)
