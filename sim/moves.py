"""Live migration between two engines, stage by stage, as in Llumnix (reference/multitier.md section 6).

Reserve at the destination, copy while decoding goes on, stop at a step's end, copy the rest, then commit, or abort
and go on at the source. The reservation binds: its blocks and its slot are nobody else's. A request is in exactly one
batch, or in none while its last blocks travel; its KV counts on both sides until the commit.
"""

from math import inf

from schedulers.cost import blocks_for, owed_tokens
from schedulers.lives import SERVING
from schedulers.migration import decoding
from schedulers.view import MOVING, RUNNING, UNSEEN, WAITING
from sim.fabric import (
    ABORTED,
    COMMITTED,
    COPYING,
    LIVE,
    NONE,
    POSTED,
    STARTED,
    STOPPED,
    STOPPING,
)
from sim.log import BEGUN, HALTED, MOVED, TAKEN_BACK, record
from sim.memory import evict, free_blocks, grow, join_queue, leave_queue
from sim.prefix import publish
from sim.queue import find, insert, remove_at
from sim.rig import ACTIVE, END_S, Rig


def touching(rig: Rig, engine: int) -> bool:
    """True while a request moves from or to an engine."""
    return bool(rig.fabric.request[engine] >= 0 or rig.fabric.origin[engine] >= 0)


def mark(rig: Rig, engine: int, other: int, value: int, pace: float) -> None:
    """Show both ends that a move touches them, or no longer, and let a copy slow their steps."""
    for end in (engine, other):
        rig.known.engines.moving[end], rig.board.engines.moving[end] = value, value
        rig.fabric.pace[end] = pace


def begin(rig: Rig, source: int, target: int, request: int, now_s: float) -> bool:
    """Begin to move a request; False, and nothing done, if the destination has no room or one of them moves."""
    fabric, view = rig.fabric, rig.known
    if touching(rig, source) or touching(rig, target) or source == target or fabric.life[target] != SERVING:
        return False
    if view.requests.state[request] == WAITING:
        fabric.events[STARTED] += 1
        record(rig, BEGUN, now_s, source, target, request)
        post(rig, source, target, request, now_s)
        return True
    if not decoding(view, request) or not reserve(rig, target, request):
        return False
    settle(rig, now_s)
    fabric.events[STARTED] += 1
    record(rig, BEGUN, now_s, source, target, request)
    fabric.seen[source] = view.requests.evictions[request]
    fabric.request[source], fabric.target[source], fabric.origin[target] = request, target, source
    fabric.stage[source], fabric.copied[source], fabric.began_s[source] = 1, 0, now_s
    if rig.terms.mode == LIVE:
        mark(rig, source, target, 1, rig.terms.slowdown)
        copy(rig, source, view.requests.computed_tokens[request], rig.terms.stage_s, now_s)
        fabric.phase[source] = COPYING
    else:
        mark(rig, source, target, 1, 1.0)
        stop_at_step_end(rig, source, now_s)
    share_link(rig, now_s)
    return True


def reserve(rig: Rig, target: int, request: int) -> bool:
    """Keep a slot and blocks at the destination, with one block to grow; False if they are not there."""
    fabric, fleet = rig.fabric, rig.known.engines
    need = blocks_for(rig.known, target, rig.known.requests.computed_tokens[request] + 1)
    if rig.terms.mode != LIVE:
        return True  # computed again there: it queues like anybody
    if fleet.running[target] + fabric.slots[target] >= fleet.sequences_max[target]:
        return False
    if need > fleet.blocks_free[target]:
        return False
    fleet.blocks_free[target] -= need
    fabric.reserved[target] += need
    fabric.slots[target] += 1
    return True


def copy(rig: Rig, source: int, tokens: int, tail_s: float, now_s: float) -> None:
    """Put so many tokens' KV on the wire, with fixed seconds after it."""
    fabric = rig.fabric
    size = float(tokens) * rig.terms.token_bytes
    fabric.left_bytes[source], fabric.tail_s[source] = size, tail_s
    fabric.moved_bytes[0] += size
    fabric.copied[source] += tokens
    fabric.marked_s[source] = now_s


def copies(rig: Rig) -> int:
    """Moves whose bytes are on the wire."""
    count = 0
    for engine in range(rig.fabric.phase.shape[0]):
        if rig.fabric.phase[engine] == COPYING or rig.fabric.phase[engine] == STOPPED:
            count += 1
    return count


def share_link(rig: Rig, now_s: float) -> None:
    """Work out anew when each copy ends: a shared link is divided among the copies that are under way.

    Bytes that went since the last mark are taken off at the rate of that time, which ``settle`` has done.
    """
    fabric = rig.fabric
    rate = rig.terms.bytes_per_s / (max(1, copies(rig)) if rig.terms.shared == 1 else 1)
    for engine in range(fabric.phase.shape[0]):
        if fabric.phase[engine] == COPYING or fabric.phase[engine] == STOPPED:
            fabric.until_s[engine] = now_s + fabric.left_bytes[engine] / rate + fabric.tail_s[engine]


def settle(rig: Rig, now_s: float) -> None:
    """Take off what every copy has sent since its mark; called before the number of copies changes."""
    fabric = rig.fabric
    rate = rig.terms.bytes_per_s / (max(1, copies(rig)) if rig.terms.shared == 1 else 1)
    for engine in range(fabric.phase.shape[0]):
        if fabric.phase[engine] == COPYING or fabric.phase[engine] == STOPPED:
            passed_s = now_s - fabric.marked_s[engine]
            sending_s = min(passed_s, fabric.left_bytes[engine] / rate)
            fabric.left_bytes[engine] -= sending_s * rate
            fabric.tail_s[engine] = max(0.0, fabric.tail_s[engine] - (passed_s - sending_s))
            fabric.marked_s[engine] = now_s


def stop_at_step_end(rig: Rig, source: int, now_s: float) -> None:
    """Wait for the end of the source's step, so that no token is cut."""
    fabric, flight = rig.fabric, rig.plant.flight[source]
    fabric.phase[source] = STOPPING
    fabric.until_s[source] = flight[END_S] if flight[ACTIVE] == 1.0 else now_s


def proceed(rig: Rig, source: int, now_s: float) -> None:
    """A phase of a move has ended: go on to the next."""
    fabric = rig.fabric
    phase, request = fabric.phase[source], fabric.request[source]
    if phase == POSTED:
        deliver_post(rig, source, now_s)
    elif phase == STOPPED:
        commit(rig, source, now_s)
    elif gone(rig, source):
        abort(rig, source, now_s)
    elif phase == COPYING:
        fresh = rig.known.requests.computed_tokens[request] - fabric.copied[source]
        size = rig.known.engines.block_tokens[source]
        last = fabric.stage[source] >= rig.terms.max_stages or fresh <= rig.terms.last_blocks * size
        if not widen(rig, source):
            abort(rig, source, now_s)
        elif last:
            stop_at_step_end(rig, source, now_s)
        else:
            fabric.stage[source] += 1
            dirty = (fresh + size - 1) // size * size  # whole blocks are copied
            copy(rig, source, fresh, rig.terms.stage_s, now_s)
            fabric.left_bytes[source] += (dirty - fresh) * rig.terms.token_bytes
    elif phase == STOPPING:
        if rig.plant.flight[source, ACTIVE] == 1.0:  # a step was formed at this very moment
            stop_at_step_end(rig, source, now_s)
        elif not widen(rig, source):
            abort(rig, source, now_s)
        elif rig.terms.mode == LIVE:
            stop(rig, source, now_s)
        else:
            evict(rig, source, request, now_s)
            rig.known.requests.evictions[request] -= 1  # it moves, nobody displaced it
            post(rig, source, fabric.target[source], request, now_s)


def gone(rig: Rig, source: int) -> bool:
    """True if the request that moves has ended, was evicted, or is no decode any more."""
    request = rig.fabric.request[source]
    evicted = rig.known.requests.evictions[request] != rig.fabric.seen[source]
    return bool(evicted or not decoding(rig.known, request))


def widen(rig: Rig, source: int) -> bool:
    """Grow the reservation to what the request holds by now and its next token; False if there is no room."""
    fabric, fleet = rig.fabric, rig.known.engines
    target = fabric.target[source]
    if rig.terms.mode != LIVE:
        return True
    tokens = rig.known.requests.computed_tokens[fabric.request[source]] + 1
    need = blocks_for(rig.known, target, tokens) - fabric.reserved[target]
    if need > fleet.blocks_free[target]:
        return False
    if need > 0:
        fleet.blocks_free[target] -= need
        fabric.reserved[target] += need
    return True


def stop(rig: Rig, source: int, now_s: float) -> None:
    """Take the request out of the source's batch and copy what is left; its KV there stays until the commit."""
    fabric, view = rig.fabric, rig.known
    request = fabric.request[source]
    row, count = view.running[source], view.engines.running[source]
    remove_at(row, count, find(row, count, request))
    view.engines.running[source] = count - 1
    view.requests.state[request] = MOVING
    fabric.slots[source] += 1
    fabric.phase[source] = STOPPED
    left = view.requests.computed_tokens[request] - fabric.copied[source]
    copy(rig, source, left, rig.terms.downtime_s, now_s)
    record(rig, HALTED, now_s, source, fabric.target[source], request)
    fabric.downtime_s[request] -= now_s  # the commit, or the return, adds its own time


def start_again(rig: Rig, engine: int, request: int, now_s: float) -> None:
    """Put a request that stood still into an engine's batch."""
    view, plant = rig.known, rig.plant
    count = view.engines.running[engine]
    view.requests.state[request] = RUNNING
    if rig.rules.serve == 0:
        plant.serve_key[request] = view.requests.arrival_s[request]
        insert(view.requests, plant.serve_key, view.running[engine], count, request)
    else:
        view.running[engine, count] = request
    view.engines.running[engine] = count + 1
    rig.fabric.downtime_s[request] += now_s
    wake(rig, engine, now_s)


def wake(rig: Rig, engine: int, now_s: float) -> None:
    """Let an engine that stood still look again."""
    if rig.plant.flight[engine, ACTIVE] == 0.0 and rig.plant.clock_s[engine] < now_s:
        rig.plant.clock_s[engine] = now_s


def commit(rig: Rig, source: int, now_s: float) -> None:
    """Hand the request over: the source forgets it, the destination decodes on."""
    fabric, view = rig.fabric, rig.known
    request, target = fabric.request[source], fabric.target[source]
    free_blocks(rig, source, request)
    fabric.slots[source] -= 1
    release(rig, target)
    view.requests.engine[request] = target
    grow(rig, target, request, 0)  # what was reserved is enough
    rig.plant.kv_tokens[target] += view.requests.computed_tokens[request]
    if rig.rules.trace_tokens > 0:  # its blocks can be found here, too
        computed = view.requests.computed_tokens[request]
        view.requests.computed_tokens[request] = 0
        publish(rig, target, request, computed)
        view.requests.computed_tokens[request] = computed
    start_again(rig, target, request, now_s)
    fabric.migrations[request] += 1
    fabric.events[COMMITTED] += 1
    record(rig, MOVED, now_s, source, target, request)
    wake(rig, source, now_s)
    close(rig, source, now_s)


def release(rig: Rig, target: int) -> None:
    """Give back the blocks and the slot that were kept for a request on its way here."""
    rig.known.engines.blocks_free[target] += rig.fabric.reserved[target]
    rig.fabric.reserved[target] = 0
    rig.fabric.slots[target] -= 1


def abort(rig: Rig, source: int, now_s: float) -> None:
    """Give the reservation back; a request that stood still goes on at the source."""
    fabric = rig.fabric
    request, target = fabric.request[source], fabric.target[source]
    if rig.terms.mode == LIVE:
        release(rig, target)
        wake(rig, target, now_s)
    if fabric.phase[source] == STOPPED:
        fabric.slots[source] -= 1
        start_again(rig, source, request, now_s)
    fabric.events[ABORTED] += 1
    record(rig, TAKEN_BACK, now_s, source, target, request)
    close(rig, source, now_s)


def close(rig: Rig, source: int, now_s: float) -> None:
    """Forget a move that is over."""
    fabric = rig.fabric
    target = fabric.target[source]
    settle(rig, now_s)
    fabric.moving_s[0] += now_s - fabric.began_s[source]
    fabric.request[source], fabric.target[source], fabric.origin[target] = -1, -1, -1
    fabric.phase[source], fabric.until_s[source] = NONE, inf
    mark(rig, source, target, 0, 1.0)
    share_link(rig, now_s)


def post(rig: Rig, source: int, target: int, request: int, now_s: float) -> None:
    """Send a request without KV from one queue to another; it is nowhere while the message travels."""
    fabric, view = rig.fabric, rig.known
    place = find(view.waiting[source], view.engines.waiting[source], request)
    leave_queue(rig, source, place)
    view.engines.pending_tokens[source] -= owed_tokens(view, request)
    view.requests.state[request] = MOVING
    if fabric.request[source] < 0:
        fabric.began_s[source] = now_s
    fabric.request[source], fabric.target[source], fabric.origin[target] = request, target, source
    fabric.phase[source], fabric.until_s[source] = POSTED, now_s + rig.terms.link_s
    mark(rig, source, target, 1, 1.0)


def deliver_post(rig: Rig, source: int, now_s: float) -> None:
    """The message arrives: the request queues there, or goes back to the centre if nobody is there."""
    fabric, view = rig.fabric, rig.known
    request, target = fabric.request[source], fabric.target[source]
    if fabric.life[target] == SERVING:
        view.requests.engine[request] = target
        view.engines.pending_tokens[target] += view.requests.prefill_tokens[request]
        join_queue(rig, target, request, now_s)
        wake(rig, target, now_s)
        fabric.migrations[request] += 1
        fabric.events[COMMITTED] += 1
        record(rig, MOVED, now_s, source, target, request)
    else:
        view.requests.state[request], view.requests.engine[request] = UNSEEN, -1
        rig.plant.held[rig.plant.held_count[0]] = request
        rig.plant.held_count[0] += 1
        fabric.events[ABORTED] += 1
        record(rig, TAKEN_BACK, now_s, source, target, request)
    close(rig, source, now_s)
