"""Which waiting requests join the batch in this step: the scan of one engine's queue."""

from math import inf, isnan

from loadgen.result import REJECTED
from schedulers.policy import GIVE_WAY, REFUSE, TAKE, USUAL
from schedulers.view import REJECT, RUNNING
from schedulers.view import TAKE as TAKEN
from sim.memory import charge, end, evict, fail, grow, leave_queue, note, read_evict, wake_s
from sim.prefix import claim, count_live, lacking, look_up
from sim.queue import find, insert, sort
from sim.rig import ADMIT, FINE, NOT_A_NUMBER, ORDER, REASON_POLICY, Rig


def rekey_queue(rig: Rig, engine: int, now_s: float) -> None:
    """Read the order of all waiting requests again and sort them."""
    view, plant = rig.known, rig.plant
    row, count = view.waiting[engine], view.engines.waiting[engine]
    if count == 0 or rig.rules.order == 0:
        return
    if rig.rules.prefix == 1 and rig.rules.trace_tokens > 0 and rig.cache.changed[engine] == 1:
        rig.cache.changed[engine] = 0
        for place in range(count):
            look_up(rig, engine, row[place])
    rig.hooks.order(view, row, count, now_s, plant.keys)
    for place in range(count):
        plant.order_key[row[place]] = plant.keys[place]
        if isnan(plant.keys[place]):
            fail(rig, NOT_A_NUMBER, ORDER, row[place], engine)
    sort(view.requests, plant.order_key, row, count, plant.spare)


def room(rig: Rig, engine: int, request: int, chunk: int) -> bool:
    """True if a slot and the blocks of what is cached and of the first chunk are there."""
    fleet = rig.known.engines
    slot = fleet.running[engine] + rig.fabric.slots[engine] < fleet.sequences_max[engine]
    return bool(slot and lacking(rig, engine, request, chunk) <= fleet.blocks_free[engine])


def default_admit(rig: Rig, engine: int, request: int, chunk: int) -> float:
    """Take it if the first chunk and one token fit above the watermark; an idle engine needs no watermark."""
    fleet = rig.known.engines
    left = fleet.blocks_free[engine] - lacking(rig, engine, request, chunk + 1)
    if fleet.running[engine] == 0 and left >= -1:
        return TAKE
    return TAKE if left >= rig.rules.watermark * fleet.blocks_total[engine] else 0.0


def answer(rig: Rig, engine: int, request: int, chunk: int, now_s: float) -> float:
    """The policy's admit, or the default; a NaN stops the run."""
    plant = rig.plant
    if rig.rules.admit == 0:
        return default_admit(rig, engine, request, chunk)
    plant.ids[0] = request
    rig.hooks.admit(rig.known, plant.ids, 1, now_s, plant.keys)
    if isnan(plant.keys[0]):
        fail(rig, NOT_A_NUMBER, ADMIT, request, engine)
    if plant.keys[0] == USUAL:
        return default_admit(rig, engine, request, chunk)
    return float(plant.keys[0])


def take(rig: Rig, engine: int, place: int, chunk: int, now_s: float) -> None:
    """Move a request from the queue into the batch and give it its first chunk."""
    view, plant = rig.known, rig.plant
    table, fleet = view.requests, view.engines
    request = leave_queue(rig, engine, place)
    table.state[request] = RUNNING
    if rig.rules.trace_tokens > 0:
        claim(rig, engine, request)
    grow(rig, engine, request, chunk)
    plant.chunk[request] = chunk
    charge(rig, engine, request, 1)
    if isnan(plant.started_s[request]):
        plant.started_s[request] = now_s
    count = fleet.running[engine]
    if rig.rules.serve == 0:
        plant.serve_key[request] = table.arrival_s[request]
        insert(table, plant.serve_key, view.running[engine], count, request)
    else:
        view.running[engine, count] = request
    fleet.running[engine] = count + 1
    note(rig, request, TAKEN, now_s)


def refuse(rig: Rig, engine: int, place: int, now_s: float) -> None:
    """Reject a waiting request by the policy's word."""
    request = leave_queue(rig, engine, place)
    rig.known.engines.pending_tokens[engine] -= rig.known.requests.prefill_tokens[request]
    rig.plant.reason[request] = REASON_POLICY
    end(rig, engine, request, REJECTED, now_s)
    note(rig, request, REJECT, now_s)


def displace(rig: Rig, engine: int, request: int, now_s: float) -> int:
    """Evict one running request that the waiting one may displace, worst first.

    Returns the tokens of this step that it gives back, or -1 if nobody may be displaced.
    """
    view, plant = rig.known, rig.plant
    row, count = view.running[engine], view.engines.running[engine]
    read_evict(rig, engine, now_s)
    for place in range(
        count
    ):  # the worst first: negated scores, copied out because eviction reorders the row
        plant.evict_key[row[place]] = -plant.keys[place]
        plant.ids[place] = row[place]
    sort(view.requests, plant.evict_key, plant.ids, count, plant.spare)
    place = rig.hooks.preempt(view, request, plant.ids, count, now_s)
    if place < 0:
        return -1
    return evict(rig, engine, plant.ids[place], now_s)


def closed(rig: Rig, engine: int) -> bool:
    """True if all slots are taken, and nobody would be displaced or refused."""
    full = rig.known.engines.running[engine] >= rig.known.engines.sequences_max[engine]
    return bool(full and rig.rules.preempt == 0 and rig.rules.admit == 0)


def cached(rig: Rig, engine: int, request: int) -> int:
    """Tokens of a waiting request that it need not compute if it is taken now."""
    if rig.rules.trace_tokens == 0:
        return 0
    look_up(rig, engine, request)
    count_live(rig, engine, request)
    return int(rig.cache.hits[request] * rig.known.engines.block_tokens[engine])


def scan_queue(rig: Rig, engine: int, budget: int, now_s: float) -> int:
    """Offer the waiting requests in order; returns the budget that is left."""
    view, rules = rig.known, rig.rules
    table, fleet = view.requests, view.engines
    if budget <= 0 or closed(rig, engine):
        return budget  # nobody can be taken: the order need not be read
    if rules.dynamic == 1 or (rules.wake == 1 and now_s >= rig.plant.wake_s[engine]):
        rekey_queue(rig, engine, now_s)
        rig.plant.wake_s[engine] = wake_s(rig, engine, now_s)
    place, passing = 0, view.tiers.weight.shape[0]  # tiers below this number may still be taken
    while place < fleet.waiting[engine] and budget > 0 and rig.plant.error[0] == FINE:
        if closed(rig, engine):
            break
        request = view.waiting[engine, place]
        if table.tier[request] >= passing:
            place += 1
            continue
        if rig.plant.order_key[request] == inf:
            break  # held, and so is whoever comes behind
        whole = table.prefill_tokens[request] - cached(rig, engine, request)
        chunk = min(whole, budget)
        fits = rules.chunked == 1 or chunk == whole
        say = answer(rig, engine, request, chunk, now_s)
        if say == REFUSE:
            refuse(rig, engine, place, now_s)
            continue
        if say == TAKE and fits and room(rig, engine, request, chunk):
            take(rig, engine, place, chunk, now_s)
            budget -= chunk
            if rules.rekey == 1:
                rekey_queue(rig, engine, now_s)
                place = 0
            continue
        back = displace(rig, engine, request, now_s) if fits and rules.preempt == 1 else -1
        if back >= 0:
            budget += back
            place = find(
                view.waiting[engine], fleet.waiting[engine], request
            )  # the displaced one rejoined too
            continue
        if say == GIVE_WAY:
            passing = table.tier[request]
        elif rules.skip == 0:
            break
        place += 1
    return int(budget)
