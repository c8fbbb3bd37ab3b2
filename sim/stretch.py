"""Jump over a stretch of pure decode: many steps of an unchanged batch in closed form.

Between two changes of a batch nothing can be decided, and step time is affine in the step number, so k steps
take ``k*first + rise*k*(k-1)/2``. A jump stops one step before the first request ends, before memory runs
out, before the next arrival could be seen, and at the policy's own wake time.
"""

from math import inf, sqrt

from schedulers.cost import KV as KV_COST
from schedulers.view import STEP, TOKEN
from sim.admission import closed
from sim.gaps import bin_of, count_stretch
from sim.memory import grow, note_all, wake_s
from sim.prefix import plain_blocks
from sim.rig import (
    BATCH_AREA,
    BUSY_S,
    DECODED,
    DECODES,
    END_S,
    EVICTED,
    KV_AREA,
    KV_PEAK,
    LEAST,
    PREFILL,
    SLACK,
    START_S,
    Rig,
)

STEPS_MAX = 1 << 40


def span_s(first_s: float, rise_s: float, steps: float) -> float:
    """Seconds of so many steps."""
    return first_s * steps + rise_s * steps * (steps - 1.0) / 2.0


def steps_within(first_s: float, rise_s: float, limit_s: float) -> int:
    """Most steps whose span is at most the limit."""
    if limit_s == inf:
        return STEPS_MAX
    if limit_s < first_s:
        return 0
    slope_s = (
        first_s - rise_s / 2.0
    )  # the root of slope*k + rise*k*k/2 = limit, in the form that divides by no 0
    steps = int(min(2.0 * limit_s / (slope_s + sqrt(slope_s * slope_s + 2.0 * rise_s * limit_s)), 1e12))
    while steps > 0 and span_s(first_s, rise_s, steps) > limit_s:
        steps -= 1
    while span_s(first_s, rise_s, steps + 1.0) <= limit_s:
        steps += 1
    return steps


def pure(rig: Rig, engine: int) -> bool:
    """True if the step just formed decodes every running request and does nothing else."""
    flight = rig.plant.flight[engine]
    whole = flight[DECODES] == rig.known.engines.running[engine]
    watched = (rig.rules.watches >> STEP) & 1
    return bool(
        rig.rules.jump == 1 and whole and flight[PREFILL] == 0 and flight[EVICTED] == 0 and watched == 0
    )


def steps_free(rig: Rig, engine: int) -> int:
    """Most steps before a request gets its last token or blocks could run out."""
    fleet, flight = rig.known.engines, rig.plant.flight[engine]
    free, batch, size = fleet.blocks_free[engine], fleet.running[engine], fleet.block_tokens[engine]
    if rig.rules.trace_tokens > 0 and fleet.waiting[engine] > 0 and not closed(rig, engine):
        # what the waiting would find in the cache must not change
        most = batch * int(min(flight[LEAST], float(STEPS_MAX)) // size + 2)
        free = min(free, plain_blocks(rig, engine, most))
    whole = free // batch * size
    return int(
        min(flight[LEAST], max(flight[SLACK], float(whole)))
    )  # each may take so many tokens' blocks more


def jump(rig: Rig, engine: int, until_s: float) -> int:
    """Do as many of the coming steps at once as is safe; returns how many (0: do the one step as usual)."""
    if not pure(rig, engine):
        return 0
    flight = rig.plant.flight[engine]
    start_s = flight[START_S]
    first_s = flight[END_S] - start_s
    rise_s = rig.known.costs[engine, KV_COST] * flight[DECODES] * rig.fabric.pace[engine]
    if start_s + first_s > until_s:
        return 0
    steps = steps_free(rig, engine)
    if steps < 1:
        return 0
    steps = min(steps, steps_within(first_s, rise_s, until_s - start_s))
    if rig.rules.wake == 1 and steps > 1:
        wake = wake_s(rig, engine, start_s)
        if wake < inf:
            limit_s = max(0.0, wake - start_s)
            within = steps_within(first_s, rise_s, limit_s)
            at_once = (
                span_s(first_s, rise_s, within) == limit_s
            )  # the step that begins at wake itself is asked
            steps = min(steps, within if at_once else within + 1)
    if steps < 1:
        return 0
    leap(rig, engine, steps, first_s, rise_s)
    return steps


def leap(rig: Rig, engine: int, steps: int, first_s: float, rise_s: float) -> None:
    """Let so many decode steps pass for the whole batch."""
    view, plant = rig.known, rig.plant
    fleet, flight, tally = view.engines, plant.flight[engine], plant.tally[engine]
    batch, last_s = fleet.running[engine], first_s + rise_s * (steps - 1.0)
    start_s, length_s = flight[START_S], span_s(first_s, rise_s, float(steps))
    now_s = start_s + length_s
    carry(rig, engine, steps, start_s + first_s, last_s, now_s)
    count_stretch(plant.gaps, first_s, rise_s, steps, batch)
    pairs, squares = steps * (steps - 1.0) / 2.0, (steps - 1.0) * steps * (2.0 * steps - 1.0) / 6.0
    held = float(plant.kv_tokens[engine] + batch)  # during the first of the steps
    plant.kv_tokens[engine] += batch * steps
    tally[BUSY_S] += length_s
    tally[BATCH_AREA] += length_s * batch
    tally[KV_AREA] += (
        held * first_s * steps + (held * rise_s + batch * first_s) * pairs + batch * rise_s * squares
    )
    tally[DECODED] += batch * steps
    tally[KV_PEAK] = max(tally[KV_PEAK], fleet.blocks_total[engine] - fleet.blocks_free[engine])
    fleet.steps[engine] += steps
    fleet.step_s[engine] = last_s
    fleet.reported_s[engine] = now_s
    plant.clock_s[engine] = now_s
    tell(rig, engine, now_s)


def carry(rig: Rig, engine: int, steps: int, first_end_s: float, last_s: float, now_s: float) -> None:
    """Move each request of the batch on by so many tokens, their gaps and blocks included."""
    view, plant = rig.known, rig.plant
    table, row = view.requests, view.running[engine]
    usual_s, usual = -1.0, 0
    for place in range(view.engines.running[engine]):
        request = row[place]
        plant.chunk[request] = 0
        gap_s = first_end_s - table.last_token_s[request]
        if gap_s != usual_s:
            usual_s, usual = gap_s, bin_of(gap_s)
        plant.gaps[usual] += 1
        if steps > 1 and last_s > gap_s:
            gap_s = last_s
        if gap_s > plant.longest_gap_s[request]:
            plant.longest_gap_s[request] = gap_s
        table.last_token_s[request] = now_s
        table.computed_tokens[request] += steps
        table.generated_tokens[request] += steps
        table.fresh_tokens[request] = steps
        grow(rig, engine, request, 0)


def tell(rig: Rig, engine: int, now_s: float) -> None:
    """Tell the policy of the tokens of the stretch; ``fresh_tokens`` says how many each request got."""
    if ((rig.rules.watches | rig.rules.cluster_watches) >> TOKEN) & 1:
        note_all(rig, rig.known.running[engine], rig.known.engines.running[engine], TOKEN, now_s)
