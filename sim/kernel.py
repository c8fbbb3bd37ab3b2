"""The event loop: arrivals in order, engines advanced to the next one, the dispatcher asked in between."""

from math import inf, isnan

from loadgen.result import REJECTED
from schedulers.dispatcher import fewest_requests, lawful
from schedulers.policy import HOLD, REFUSE
from schedulers.policy import TAKE as ACCEPT
from schedulers.view import ARRIVAL, REJECT
from sim.audit import audit
from sim.engine import arrive, form, land
from sim.log import DISPATCHED, record
from sim.memory import end, fail, note_all, stalled, wake_s
from sim.prefix import recall, remember
from sim.queue import remove_at, sort
from sim.reports import look, send
from sim.rig import (
    ACTIVE,
    CLUSTER_ADMIT,
    CLUSTER_ORDER,
    DISPATCH,
    END_S,
    FINE,
    IDLE,
    NO_ENGINE,
    NOT_A_NUMBER,
    REASON_POLICY,
    STALL,
    Rig,
)
from sim.stretch import jump

IDLE_MAX = 1_000_000
"""More wake-ups than this in a row without a token is a stall."""


def advance(rig: Rig, engine: int, until_s: float) -> None:
    """Run one engine to a moment: what ends by then is done, the step that crosses it is left under way."""
    view, plant = rig.known, rig.plant
    flight = plant.flight[engine]
    while plant.error[0] == FINE and view.engines.alive[engine] == 1:
        if flight[ACTIVE] == 1.0:
            if flight[END_S] > until_s:
                return
            land(rig, engine)
        if (
            view.engines.waiting[engine] + view.engines.running[engine] == 0
            or plant.clock_s[engine] >= until_s
        ):
            return
        idle = flight[IDLE]
        if form(rig, engine, plant.clock_s[engine]):
            if rig.rules.audit == 1:
                audit(rig, engine)
            if plant.error[0] == FINE and jump(rig, engine, until_s) == 0:
                flight[ACTIVE] = 1.0
        else:
            flight[IDLE] = idle + 1.0
            sleep(rig, engine, until_s)


def sleep(rig: Rig, engine: int, until_s: float) -> None:
    """Nobody is served: wait for the policy's own time or the next event; if neither comes, it stalled."""
    plant = rig.plant
    wake = wake_s(rig, engine, plant.clock_s[engine])
    moment = min(wake, until_s) if wake > plant.clock_s[engine] else until_s
    busy = rig.known.engines.waiting[engine] + rig.known.engines.running[engine]
    if busy > 0 and (moment == inf or plant.flight[engine, IDLE] > IDLE_MAX):
        stalled(rig, engine)
    plant.clock_s[engine] = moment


def ask(rig: Rig, hook: int, request: int, now_s: float) -> float:
    """Ask the cluster policy about one request; a NaN stops the run."""
    plant = rig.plant
    plant.ids[0] = request
    if hook == DISPATCH:
        rig.hooks.dispatch(rig.board, plant.ids, 1, now_s, plant.keys)
    else:
        rig.hooks.cluster_admit(rig.gate, plant.ids, 1, now_s, plant.keys)
    if isnan(plant.keys[0]):
        fail(rig, NOT_A_NUMBER, hook, request, -1)
    return float(plant.keys[0])


def offer(rig: Rig, request: int, now_s: float) -> bool:
    """Ask the dispatcher about a request; True if it is settled, False if it stays in the centre."""
    plant = rig.plant
    look(rig, now_s)
    knows = rig.rules.cluster_prefix == 1 and rig.rules.trace_tokens > 0
    if knows:
        recall(rig, request)
    new = isnan(plant.dispatched_s[request])  # what was taken once is not refused when its engine is lost
    say = ask(rig, CLUSTER_ADMIT, request, now_s) if new and rig.rules.cluster_admit == 1 else ACCEPT
    if say == REFUSE:
        plant.reason[request] = REASON_POLICY
        end(rig, 0, request, REJECTED, now_s)
        plant.ids[0] = request
        note_all(rig, plant.ids, 1, REJECT, now_s)
        return True
    if say != ACCEPT:
        return False
    answer = float(fewest_requests(rig.board, request))
    if rig.rules.dispatch == 1:
        answer = ask(rig, DISPATCH, request, now_s)
        if not lawful(rig.board, answer):
            fail(rig, NO_ENGINE, DISPATCH, request, -1)
    if answer == HOLD or plant.error[0] != FINE:
        return False
    engine = int(answer)
    if plant.flight[engine, ACTIVE] == 0.0 and plant.clock_s[engine] < now_s:
        plant.clock_s[engine] = now_s
    if knows:
        remember(rig, engine, request)
    arrive(rig, engine, request, now_s)
    record(rig, DISPATCHED, now_s, engine, -1, request)
    send(rig, request, engine, now_s)
    return True


def advance_all(rig: Rig, until_s: float) -> None:
    """Run every engine to a moment, offering held requests again each time a step ends."""
    plant, engines = rig.plant, rig.known.engines.alive.shape[0]
    while plant.held_count[0] > 0 and plant.error[0] == FINE:
        moment = inf
        for engine in range(engines):
            if plant.flight[engine, ACTIVE] == 1.0:
                moment = min(moment, plant.flight[engine, END_S])
        if moment >= until_s:
            break
        for engine in range(engines):
            advance(rig, engine, moment)
        offer_held(rig, moment)
        for engine in range(engines):  # forms the next step, so that there is a next moment
            start(rig, engine, moment)
    if until_s == inf and plant.held_count[0] > 0:
        fail(rig, STALL, DISPATCH, plant.held[0], -1)
    for engine in range(engines):
        advance(rig, engine, until_s)


def start(rig: Rig, engine: int, now_s: float) -> None:
    """Form a step on an engine that stands still with work to do."""
    plant, fleet = rig.plant, rig.known.engines
    idle = plant.flight[engine, ACTIVE] == 0.0 and plant.clock_s[engine] <= now_s and fleet.alive[engine] == 1
    work = fleet.waiting[engine] + fleet.running[engine] > 0
    if idle and work and form(rig, engine, plant.clock_s[engine]):
        plant.flight[engine, ACTIVE] = 1.0


def offer_held(rig: Rig, now_s: float) -> None:
    """Offer the central queue again, in the cluster policy's order."""
    plant = rig.plant
    count = plant.held_count[0]
    for place in range(count):
        plant.order_key[plant.held[place]] = rig.known.requests.arrival_s[plant.held[place]]
    if rig.rules.cluster_order == 1:
        rig.hooks.cluster_order(rig.line, plant.held, count, now_s, plant.keys)
        for place in range(count):
            plant.order_key[plant.held[place]] = plant.keys[place]
            if isnan(plant.keys[place]):
                fail(rig, NOT_A_NUMBER, CLUSTER_ORDER, plant.held[place], -1)
    sort(rig.known.requests, plant.order_key, plant.held, count, plant.spare)
    place = 0
    while place < plant.held_count[0] and plant.error[0] == FINE:
        if offer(rig, plant.held[place], now_s):
            remove_at(plant.held, plant.held_count[0], place)
            plant.held_count[0] -= 1
        else:
            place += 1


def run(rig: Rig) -> None:
    """Play the whole window; faults are left in ``plant.error``."""
    plant, arrivals = rig.plant, rig.known.requests.arrival_s
    for request in range(arrivals.shape[0]):
        now_s = arrivals[request]
        advance_all(rig, now_s)
        if plant.error[0] != FINE:
            return
        if (rig.rules.cluster_watches >> ARRIVAL) & 1:
            plant.ids[0] = request
            rig.hooks.cluster_observe(rig.watcher, plant.ids, 1, ARRIVAL, now_s)
        if not offer(rig, request, now_s) and plant.error[0] == FINE:
            plant.held[plant.held_count[0]] = request
            plant.held_count[0] += 1
            for engine in range(rig.known.engines.alive.shape[0]):
                start(rig, engine, now_s)
    advance_all(rig, inf)
