"""Engines that boot, drain, die and return, and what they cost: billed from the order to the stop."""

from math import inf

from schedulers.lives import BOOTING, DEAD, DRAINING, OFF, SERVING, to_drain, to_serve
from schedulers.view import UNSEEN
from sim.fabric import BOOTS, DEATHS, DIE, DRAIN, DRAINS, NEXT_FAULT, NONE, POSTED, RETURN
from sim.log import (
    DIED,
    DRAINS_OFF,
    MISSED,
    ORDERED,
    SERVES,
    SERVES_ON,
    SWITCHED_OFF,
    record,
)
from sim.memory import evict, leave_queue
from sim.moves import abort, touching
from sim.rig import ACTIVE, THROWN, Rig


def order_engine(rig: Rig, engine: int, now_s: float) -> None:
    """Order an engine: it is billed from now and serves after its boot."""
    fabric = rig.fabric
    fabric.life[engine], fabric.since_s[engine] = BOOTING, now_s
    fabric.due_s[engine] = now_s + rig.terms.boot_s
    rig.board.engines.alive[engine] = 2
    fabric.events[BOOTS] += 1
    record(rig, ORDERED, now_s, engine, -1, -1)


def serve_again(rig: Rig, engine: int, now_s: float) -> None:
    """Let an engine serve: it has booted, or come back, empty."""
    fabric, plant = rig.fabric, rig.plant
    fabric.life[engine], fabric.due_s[engine] = SERVING, inf
    if fabric.since_s[engine] == inf:
        fabric.since_s[engine] = now_s
    for table in (rig.known.engines, rig.board.engines):
        table.alive[engine], table.draining[engine] = 1, 0
    plant.clock_s[engine] = max(plant.clock_s[engine], now_s)
    plant.flight[engine, ACTIVE] = 0.0
    record(rig, SERVES, now_s, engine, -1, -1)


def drain(rig: Rig, engine: int, now_s: float) -> None:
    """Send no more to an engine; it stops when it is empty."""
    fabric = rig.fabric
    if fabric.life[engine] != SERVING:
        return
    fabric.life[engine] = DRAINING
    fabric.events[DRAINS] += 1
    record(rig, DRAINS_OFF, now_s, engine, -1, -1)
    rig.known.engines.draining[engine], rig.board.engines.draining[engine] = 1, 1


def undrain(rig: Rig, engine: int, now_s: float) -> None:
    """Let a draining engine serve on."""
    record(rig, SERVES_ON, now_s, engine, -1, -1)
    rig.fabric.life[engine] = SERVING
    rig.known.engines.draining[engine], rig.board.engines.draining[engine] = 0, 0


def stop_empty(rig: Rig, now_s: float) -> None:
    """Stop engines that drained to the end; the bill ends with their last step."""
    fabric, fleet = rig.fabric, rig.known.engines
    for engine in range(fleet.alive.shape[0]):
        idle = fleet.running[engine] + fleet.waiting[engine] == 0 and not touching(rig, engine)
        if fabric.life[engine] == DRAINING and idle and rig.plant.flight[engine, ACTIVE] == 0.0:
            fabric.life[engine] = OFF
            record(rig, SWITCHED_OFF, now_s, engine, -1, -1)
            close_bill(rig, engine, now_s)
            for table in (fleet, rig.board.engines):
                table.alive[engine], table.draining[engine] = 0, 0


def close_bill(rig: Rig, engine: int, now_s: float) -> None:
    """Bill an engine until now."""
    fabric = rig.fabric
    if fabric.since_s[engine] < inf:
        fabric.billed_s[engine] += max(0.0, now_s - fabric.since_s[engine])
    fabric.since_s[engine] = inf


def die(rig: Rig, engine: int, now_s: float) -> None:
    """An engine dies: the step under way and all KV are lost, its requests wait until the death is noticed."""
    fabric, view, plant = rig.fabric, rig.known, rig.plant
    if fabric.life[engine] == DEAD:
        return
    record(rig, DIED, now_s, engine, -1, -1)
    if (
        fabric.life[engine] != SERVING and fabric.life[engine] != DRAINING
    ):  # off, or booting: it holds nothing
        fabric.life[engine] = DEAD
        close_bill(rig, engine, now_s)
        fabric.due_s[engine] = inf
        rig.board.engines.alive[engine] = 0
        return
    fabric.events[DEATHS] += 1
    other = fabric.origin[engine]
    if other >= 0 and fabric.phase[other] != POSTED:  # it was a destination: the source keeps the request
        abort(rig, other, now_s)
    if fabric.phase[engine] != NONE and fabric.phase[engine] != POSTED:
        abort(rig, engine, now_s)  # what had travelled is lost with the source
    plant.flight[engine, ACTIVE] = 0.0
    while view.engines.running[engine] > 0:
        request = view.running[engine, view.engines.running[engine] - 1]
        evict(rig, engine, request, now_s)
        view.requests.evictions[request] -= 1  # lost, not displaced
    plant.flight[engine, :] = 0.0
    plant.tally[engine, THROWN] = 0.0
    fabric.life[engine] = DEAD
    view.engines.alive[engine] = 0
    close_bill(rig, engine, now_s)
    fabric.due_s[engine] = now_s + rig.terms.detect_s


def notice_death(rig: Rig, engine: int, now_s: float) -> None:
    """The dispatcher learns that an engine is dead: what was sent there goes back to the centre."""
    fabric, view, plant = rig.fabric, rig.known, rig.plant
    fabric.due_s[engine] = inf
    record(rig, MISSED, now_s, engine, -1, -1)
    while view.engines.waiting[engine] > 0:
        request = leave_queue(rig, engine, view.engines.waiting[engine] - 1)
        view.engines.pending_tokens[engine] -= view.requests.prefill_tokens[request]
        view.requests.state[request] = UNSEEN
        view.requests.engine[request] = -1
        plant.held[plant.held_count[0]] = request
        plant.held_count[0] += 1
    board = rig.board.engines  # where the dispatcher sees engines as they are, these are zero already
    board.alive[engine], board.draining[engine], board.running[engine] = 0, 0, 0
    board.waiting[engine], board.queued_blocks[engine], board.pending_tokens[engine] = 0, 0, 0


def change_lives(rig: Rig, now_s: float) -> bool:
    """Carry out the faults, boots and discoveries that are due; True if there was one."""
    fabric = rig.fabric
    changed = False
    while fabric.counter[NEXT_FAULT] < fabric.fault_s.shape[0]:
        place = fabric.counter[NEXT_FAULT]
        if fabric.fault_s[place] > now_s:
            break
        fabric.counter[NEXT_FAULT] += 1
        engine, changed = fabric.fault_engine[place], True
        if fabric.fault_kind[place] == DIE:
            die(rig, engine, now_s)
        elif fabric.fault_kind[place] == DRAIN:
            drain(rig, engine, now_s)
        elif fabric.fault_kind[place] == RETURN and fabric.life[engine] == DEAD:
            serve_again(rig, engine, now_s)
    for engine in range(fabric.life.shape[0]):
        if fabric.due_s[engine] <= now_s:
            changed = True
            if fabric.life[engine] == BOOTING:
                serve_again(rig, engine, now_s)
            elif fabric.life[engine] == DEAD:
                notice_death(rig, engine, now_s)
    return changed


def scale(rig: Rig, change: int, now_s: float) -> None:
    """Carry out a policy's wish: undrain, then order engines; or drain the emptiest, never below the least."""
    fabric = rig.fabric
    for _ in range(max(0, change)):
        chosen = to_serve(fabric.life)
        if chosen >= 0 and fabric.life[chosen] == DRAINING:
            undrain(rig, chosen, now_s)
        elif chosen >= 0:
            order_engine(rig, chosen, now_s)
    for _ in range(max(0, -change)):
        chosen = to_drain(fabric.life, rig.board.engines, rig.terms.least)
        if chosen >= 0:
            drain(rig, chosen, now_s)
