"""Reports: what the dispatcher believes of the engines, as old as their last report, plus what it sent since."""

from math import inf

from schedulers.cost import blocks_for, owed_tokens
from schedulers.usage import tally_use
from sim.fabric import AHEAD, NEXT_ARRIVAL, SENT, SHOWN, SNAPSHOTS
from sim.rig import Rig


def look(rig: Rig, now_s: float) -> None:
    """Bring the dispatcher's belief up to what it may know now; called before each of its decisions."""
    if rig.terms.period_s > 0.0:
        show(rig, now_s)
    elif rig.terms.usage == 1:
        for engine in range(rig.known.engines.alive.shape[0]):
            tally_use(rig.known, engine, rig.known.engines)


def snapshot(rig: Rig, now_s: float) -> None:
    """Every engine reports how it stands."""
    fabric, fleet = rig.fabric, rig.known.engines
    place = fabric.counter[SNAPSHOTS] % fabric.snapshot_s.shape[0]
    fabric.counter[SNAPSHOTS] += 1
    fabric.snapshot_s[place] = now_s
    for engine in range(fleet.alive.shape[0]):
        row = fabric.snapshot[place, engine]
        row[0], row[1] = fleet.waiting[engine], fleet.running[engine]
        row[2], row[3] = fleet.blocks_free[engine], fleet.queued_blocks[engine]
        row[4], row[5], row[6] = (
            fleet.pending_tokens[engine],
            fleet.steps[engine],
            fleet.prefilled_tokens[engine],
        )
        fabric.snapshot_step_s[place, engine] = fleet.step_s[engine]
        if rig.terms.usage == 1:
            tally_use(rig.known, engine, fleet)
            fabric.snapshot_head[place, engine] = fleet.head_blocks[engine]
            for tier in range(fleet.tier_blocks.shape[1]):
                fabric.snapshot_use[place, 0, engine, tier] = fleet.tier_running[engine, tier]
                fabric.snapshot_use[place, 1, engine, tier] = fleet.tier_waiting[engine, tier]
                fabric.snapshot_use[place, 2, engine, tier] = fleet.tier_blocks[engine, tier]
                fabric.snapshot_use[place, 3, engine, tier] = fleet.tier_queued[engine, tier]


def show(rig: Rig, now_s: float) -> None:
    """Let the reports that have arrived be believed: the newest of them, and what was sent after it."""
    fabric = rig.fabric
    newest = -1
    while fabric.counter[SHOWN] < fabric.counter[SNAPSHOTS]:
        place = fabric.counter[SHOWN] % fabric.snapshot_s.shape[0]
        if fabric.snapshot_s[place] + rig.terms.delay_s > now_s:
            break
        newest = place
        fabric.counter[SHOWN] += 1
    if newest < 0:
        return
    for engine in range(rig.board.engines.alive.shape[0]):
        believe(rig, newest, engine)
    size, back = fabric.sent.shape[0], fabric.counter[SENT] - 1
    least = max(0, fabric.counter[SENT] - size)
    while back >= least and fabric.sent_s[back % size] >= fabric.snapshot_s[newest]:
        add(rig, fabric.sent[back % size], fabric.sent_to[back % size])
        back -= 1


def believe(rig: Rig, place: int, engine: int) -> None:
    """Copy one engine's report into the dispatcher's table."""
    fabric, table = rig.fabric, rig.board.engines
    row = fabric.snapshot[place, engine]
    table.waiting[engine], table.running[engine] = row[0], row[1]
    table.blocks_free[engine], table.queued_blocks[engine] = row[2], row[3]
    table.pending_tokens[engine], table.steps[engine], table.prefilled_tokens[engine] = row[4], row[5], row[6]
    table.step_s[engine] = fabric.snapshot_step_s[place, engine]
    table.reported_s[engine] = fabric.snapshot_s[place]
    if rig.terms.usage == 1:
        table.head_blocks[engine] = fabric.snapshot_head[place, engine]
        for tier in range(table.tier_blocks.shape[1]):
            table.tier_running[engine, tier] = fabric.snapshot_use[place, 0, engine, tier]
            table.tier_waiting[engine, tier] = fabric.snapshot_use[place, 1, engine, tier]
            table.tier_blocks[engine, tier] = fabric.snapshot_use[place, 2, engine, tier]
            table.tier_queued[engine, tier] = fabric.snapshot_use[place, 3, engine, tier]


def add(rig: Rig, request: int, engine: int) -> None:
    """Add a request to what the dispatcher believes of an engine, as if it waited there."""
    view, table = rig.known, rig.board.engines
    owed = owed_tokens(view, request)
    blocks = blocks_for(view, engine, view.requests.prefill_tokens[request] + 1)
    if table.waiting[engine] == 0:
        table.head_blocks[engine] = blocks
    table.waiting[engine] += 1
    table.queued_blocks[engine] += blocks
    table.pending_tokens[engine] += owed
    table.tier_waiting[engine, view.requests.tier[request]] += 1
    table.tier_queued[engine, view.requests.tier[request]] += blocks


def send(rig: Rig, request: int, engine: int, now_s: float) -> None:
    """Remember that the dispatcher sent a request to an engine, and believe it."""
    if rig.terms.period_s == 0.0:
        return
    fabric = rig.fabric
    place = fabric.counter[SENT] % fabric.sent.shape[0]
    fabric.sent[place], fabric.sent_to[place], fabric.sent_s[place] = request, engine, now_s
    fabric.counter[SENT] += 1
    add(rig, request, engine)


def report_before(rig: Rig, moment_s: float) -> float:
    """When the newest report that can have arrived by a moment was made; reports are made at whole periods."""
    periods = (moment_s - rig.terms.delay_s) / rig.terms.period_s
    if periods < 0.0:
        return -1.0
    return float(int(periods + 1e-9)) * rig.terms.period_s


def next_snapshot_s(rig: Rig, ticks_s: float, held: int, now_s: float) -> float:
    """When the next report is made that a decision to come will see; reports that nobody sees are left out.

    ``ticks_s`` is the next time at which a policy is asked by the clock. While requests are held in the centre
    every report is seen, since they are offered again when it arrives.
    """
    fabric, arrivals = rig.fabric, rig.known.requests.arrival_s
    ring = fabric.snapshot_s.shape[0]
    made = fabric.counter[SNAPSHOTS]
    last_s = fabric.snapshot_s[(made - 1) % ring] if made > 0 else -1.0
    if held > 0:
        coming = int(max(last_s, now_s) / rig.terms.period_s + 1e-9) + 1
        return float(coming) * rig.terms.period_s
    ahead = max(fabric.counter[AHEAD], fabric.counter[NEXT_ARRIVAL])
    while ahead < arrivals.shape[0] and report_before(rig, arrivals[ahead]) <= last_s:
        ahead += 1
    fabric.counter[AHEAD] = ahead
    nearest = inf
    if ahead < arrivals.shape[0]:
        nearest = report_before(rig, arrivals[ahead])
    if ticks_s < inf and report_before(rig, ticks_s) > last_s:
        nearest = min(nearest, report_before(rig, ticks_s))
    return max(nearest, now_s)
