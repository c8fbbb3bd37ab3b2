"""The event loop of a cluster: arrivals, reports, moves, boots, deaths and the policies' own ticks, in order of time.

One engine without any of these needs only ``sim.kernel``; the engines themselves are the same code. At one moment
deaths and boots come first, then moves, reports, held requests, the policies' ticks, and the arrival last.
"""

from math import inf, isnan

from loadgen.result import FAILED
from schedulers.lives import BOOTING, DEAD, OFF, SERVING
from schedulers.migration import movable
from schedulers.policy import HOLD
from schedulers.view import ARRIVAL, Ints
from sim.fabric import (
    MIGRATE_TICKS,
    NEXT_ARRIVAL,
    NEXT_FAULT,
    NONE,
    NOW,
    OVER,
    PAUSE,
    REFUSALS,
    SCALE_TICKS,
)
from sim.kernel import advance, advance_all, offer, offer_held, start
from sim.life import change_lives, close_bill, scale, stop_empty
from sim.log import crowded
from sim.memory import end, fail
from sim.moves import begin, proceed, settle, share_link, touching
from sim.queue import before
from sim.reports import look, next_snapshot_s, snapshot
from sim.rig import DISPATCH, FINE, MIGRATE, NO_ENGINE, NOT_A_NUMBER, PICK, REASON_LOST, SCALE, STALL, Rig

REFUSALS_MAX = 10_000
"""More moments than this in a row at which requests are held and no engine works are a stall."""


def run_cluster(rig: Rig) -> None:
    """Play a window on a cluster, to its end or to a pause; faults are left in ``plant.error``.

    A pause lies between two moments and touches nothing, so a run with pauses is the run without them.
    """
    at = rig.fabric.moment_s
    now_s = at[NOW]
    while rig.plant.error[0] == FINE:
        moment_s = next_moment_s(rig, now_s)
        if moment_s > at[PAUSE] or crowded(rig):
            rig.fabric.counter[OVER] = int(moment_s == inf)
            return
        if moment_s == inf:
            break
        now_s = max(now_s, moment_s)
        at[NOW] = now_s
        advance_engines(rig, now_s)
        happen(rig, now_s)
        watch_for_stall(rig)
    if rig.plant.error[0] == FINE:
        advance_engines(rig, inf)
        close_bills(rig)
    rig.fabric.counter[OVER] = 2


def advance_engines(rig: Rig, until_s: float) -> None:
    """Run every engine to a moment. A dispatcher that sees engines as they are offers held requests at step ends."""
    if rig.terms.period_s == 0.0 and (until_s < inf or rig.plant.held_count[0] > 0):
        advance_all(rig, until_s)
        return
    for engine in range(rig.fabric.life.shape[0]):
        advance(rig, engine, until_s)


def tick_s(rig: Rig, place: int, period_s: float) -> float:
    """Next time at which a policy is asked by the clock; inf for one that isn't."""
    return float(rig.fabric.counter[place] + 1) * period_s if period_s > 0.0 else inf


def busy(rig: Rig) -> bool:
    """True while there is, or will be, something to serve."""
    if (
        rig.fabric.counter[NEXT_ARRIVAL] < rig.known.requests.arrival_s.shape[0]
        or rig.plant.held_count[0] > 0
    ):
        return True
    fleet = rig.known.engines
    for engine in range(fleet.alive.shape[0]):
        if fleet.running[engine] + fleet.waiting[engine] > 0 or rig.fabric.phase[engine] != NONE:
            return True
    return False


def next_moment_s(rig: Rig, now_s: float) -> float:
    """When something happens next beside the engines' steps; inf if nothing will."""
    fabric, arrivals = rig.fabric, rig.known.requests.arrival_s
    if not busy(rig):
        return inf
    ticks_s = inf
    if rig.terms.migrate == 1:
        ticks_s = tick_s(rig, MIGRATE_TICKS, rig.terms.migrate_period_s)
    if rig.terms.scale == 1:
        ticks_s = min(ticks_s, tick_s(rig, SCALE_TICKS, rig.terms.scale_period_s))
    nearest_s = ticks_s
    if fabric.counter[NEXT_ARRIVAL] < arrivals.shape[0]:
        nearest_s = min(nearest_s, arrivals[fabric.counter[NEXT_ARRIVAL]])
    if fabric.counter[NEXT_FAULT] < fabric.fault_s.shape[0]:
        nearest_s = min(nearest_s, fabric.fault_s[fabric.counter[NEXT_FAULT]])
    for engine in range(fabric.life.shape[0]):
        nearest_s = min(nearest_s, fabric.until_s[engine], fabric.due_s[engine])
    if rig.terms.period_s > 0.0:
        fabric.report_due_s[0] = next_snapshot_s(rig, ticks_s, rig.plant.held_count[0], now_s)
        nearest_s = min(nearest_s, fabric.report_due_s[0])
    return float(nearest_s)


def happen(rig: Rig, now_s: float) -> None:
    """Do all that is due at a moment up to which every engine has run."""
    fabric, arrivals = rig.fabric, rig.known.requests.arrival_s
    changed = change_lives(rig, now_s)
    for source in range(fabric.phase.shape[0]):
        if fabric.phase[source] != NONE and fabric.until_s[source] <= now_s:
            settle(rig, now_s)
            proceed(rig, source, now_s)
            share_link(rig, now_s)
            changed = True
    stop_empty(rig, now_s)
    if rig.terms.period_s > 0.0 and fabric.report_due_s[0] <= now_s:
        snapshot(rig, now_s)
    if rig.plant.held_count[0] > 0 and (changed or rig.terms.period_s > 0.0):
        offer_again(rig, now_s)
    tick(rig, now_s)
    while (
        fabric.counter[NEXT_ARRIVAL] < arrivals.shape[0] and arrivals[fabric.counter[NEXT_ARRIVAL]] <= now_s
    ):
        fabric.counter[NEXT_ARRIVAL] += 1
        welcome(rig, fabric.counter[NEXT_ARRIVAL] - 1, now_s)


def offer_again(rig: Rig, now_s: float) -> None:
    """Offer what is held in the centre; what nobody will ever serve has failed."""
    if abandoned(rig):
        give_up(rig, now_s)
        return
    offer_held(rig, now_s)


def watch_for_stall(rig: Rig) -> None:
    """Stop a run in which requests are held in the centre, no engine works, and nothing changes that.

    An arrival or a fault to come does: however long dead engines take to return, held requests may wait for them.
    """
    idle = (
        rig.plant.held_count[0] > 0
        and rig.fabric.counter[NEXT_ARRIVAL] >= rig.known.requests.arrival_s.shape[0]
        and rig.fabric.counter[NEXT_FAULT] >= rig.fabric.fault_s.shape[0]
    )
    for engine in range(rig.fabric.life.shape[0]):
        if rig.known.engines.running[engine] + rig.known.engines.waiting[engine] > 0:
            idle = False
        if rig.fabric.phase[engine] != NONE or rig.fabric.life[engine] == BOOTING:
            idle = False
    rig.fabric.counter[REFUSALS] = rig.fabric.counter[REFUSALS] + 1 if idle else 0
    if rig.fabric.counter[REFUSALS] > REFUSALS_MAX:
        fail(rig, STALL, DISPATCH, rig.plant.held[0], -1)


def abandoned(rig: Rig) -> bool:
    """True if no engine serves and none will: no boot under way, no return to come, nobody to order one."""
    if rig.fabric.counter[NEXT_FAULT] < rig.fabric.fault_s.shape[0]:
        return False
    for engine in range(rig.fabric.life.shape[0]):
        life = rig.fabric.life[engine]
        orderable = rig.terms.scale == 1 and life != DEAD
        if life in (SERVING, BOOTING) or orderable:
            return False
    return True


def give_up(rig: Rig, now_s: float) -> None:
    """Let every held request fail: all engines are lost."""
    plant = rig.plant
    for place in range(plant.held_count[0]):
        request = plant.held[place]
        plant.reason[request] = REASON_LOST
        end(rig, 0, request, FAILED, now_s)
    plant.held_count[0] = 0


def welcome(rig: Rig, request: int, now_s: float) -> None:
    """A request arrives at the dispatcher."""
    plant = rig.plant
    if (rig.rules.cluster_watches >> ARRIVAL) & 1:
        plant.ids[0] = request
        rig.hooks.cluster_observe(rig.watcher, plant.ids, 1, ARRIVAL, now_s)
    if offer(rig, request, now_s) or plant.error[0] != FINE:
        return
    plant.held[plant.held_count[0]] = request
    plant.held_count[0] += 1
    if rig.terms.period_s == 0.0:
        for engine in range(rig.fabric.life.shape[0]):
            start(rig, engine, now_s)
        if abandoned(rig):
            give_up(rig, now_s)


def tick(rig: Rig, now_s: float) -> None:
    """Ask the policies that are asked by the clock."""
    fabric, terms = rig.fabric, rig.terms
    if terms.migrate == 1 and tick_s(rig, MIGRATE_TICKS, terms.migrate_period_s) <= now_s:
        fabric.counter[MIGRATE_TICKS] += 1
        look(rig, now_s)
        for source in range(fabric.life.shape[0]):
            if rig.plant.error[0] == FINE:
                migrate(rig, source, now_s)
    if terms.scale == 1 and tick_s(rig, SCALE_TICKS, terms.scale_period_s) <= now_s:
        fabric.counter[SCALE_TICKS] += 1
        look(rig, now_s)
        rig.plant.ids[0] = -1
        rig.hooks.scale(rig.scaler, rig.plant.ids, 1, now_s, rig.plant.keys)
        if isnan(rig.plant.keys[0]):
            fail(rig, NOT_A_NUMBER, SCALE, -1, -1)
            return
        scale(rig, int(rig.plant.keys[0]), now_s)


def migrate(rig: Rig, source: int, now_s: float) -> None:
    """Ask where one engine should give a request to, and which one; begin the move if there is room."""
    fabric, plant = rig.fabric, rig.plant
    if touching(rig, source) or (fabric.life[source] == OFF or fabric.life[source] == DEAD):
        return
    plant.ids[0] = source
    rig.hooks.migrate(rig.mover, plant.ids, 1, now_s, plant.keys)
    answer = plant.keys[0]
    if isnan(answer):
        fail(rig, NOT_A_NUMBER, MIGRATE, -1, source)
        return
    if answer == HOLD:
        return
    if answer == source:
        return
    if answer < 0 or answer >= fabric.life.shape[0] or answer != int(answer):
        fail(rig, NO_ENGINE, MIGRATE, -1, source)
        return
    view = rig.known
    best, key = -1, inf
    best, key = choose(rig, view.running[source], view.engines.running[source], now_s, best, key)
    if rig.terms.pick == 1:
        best, key = choose(rig, view.waiting[source], view.engines.waiting[source], now_s, best, key)
    if best >= 0 and plant.error[0] == FINE:
        begin(rig, source, int(answer), best, now_s)


def choose(rig: Rig, row: Ints, count: int, now_s: float, best: int, key: float) -> tuple[int, float]:
    """Return the request of least key among these and the best so far; the newest among equals."""
    plant = rig.plant
    if rig.terms.pick == 1:
        rig.hooks.pick(rig.mover, row, count, now_s, plant.keys)
    for place in range(count):
        request = row[place]
        here = plant.keys[place] if rig.terms.pick == 1 else movable(rig.known, request)
        if isnan(here):
            fail(rig, NOT_A_NUMBER, PICK, request, -1)
            return best, key
        if here == inf:
            continue
        plant.evict_key[request] = 0.0
        if (
            best < 0
            or here < key
            or (here == key and before(rig.known.requests, plant.evict_key, best, request))
        ):
            best, key = request, here
    return best, key


def close_bills(rig: Rig) -> None:
    """Bill every engine that still serves until the last request ended."""
    last_s = 0.0
    for request in range(rig.plant.finished_s.shape[0]):
        if rig.plant.finished_s[request] > last_s:
            last_s = rig.plant.finished_s[request]
    for engine in range(rig.fabric.life.shape[0]):
        close_bill(rig, engine, last_s)
