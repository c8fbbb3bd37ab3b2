"""One engine's continuous batching: form a step, let its time pass, hand out its tokens."""

from math import inf, isnan

from loadgen.result import FINISHED, REJECTED
from schedulers.cost import blocks_for, owed_tokens, step_s
from schedulers.view import ARRIVAL, FINISH, FIRST_TOKEN, REJECT, STEP, TOKEN
from sim.admission import scan_queue
from sim.gaps import bin_of
from sim.memory import charge, end, fail, join_queue, make_room, note, note_all
from sim.prefix import publish_all
from sim.queue import sort
from sim.rig import (
    ACTIVE,
    ARRIVED,
    ATTENTION,
    BATCH_AREA,
    BUDGET,
    BUSY_S,
    DECODED,
    DECODES,
    END_S,
    EVICTED,
    FINE,
    KV,
    KV_AREA,
    KV_PEAK,
    LEAST,
    NOT_A_NUMBER,
    PREFILL,
    PREFILLED,
    QUEUE_PEAK,
    QUEUE_SUM,
    REASON_LENGTH,
    SERVE,
    SLACK,
    START_S,
    THROWN,
    Rig,
)


def arrive(rig: Rig, engine: int, request: int, now_s: float) -> None:
    """A request reaches an engine; a prompt that can never fit is rejected here, with the reason."""
    view, plant = rig.known, rig.plant
    table = view.requests
    table.engine[request] = engine
    if isnan(plant.dispatched_s[request]):
        plant.dispatched_s[request] = now_s
    if table.prompt_tokens[request] + 1 > rig.rules.capacity_tokens:
        plant.reason[request] = REASON_LENGTH
        end(rig, engine, request, REJECTED, now_s)
        note(rig, request, REJECT, now_s)
        return
    # a request whose engine was lost computes again what it had generated, too
    table.prefill_tokens[request] = table.prompt_tokens[request] + table.generated_tokens[request]
    view.engines.pending_tokens[engine] += table.prefill_tokens[request]
    plant.tally[engine, ARRIVED] += 1
    plant.tally[engine, QUEUE_SUM] += view.engines.waiting[engine]
    if (rig.rules.watches >> ARRIVAL) & 1:
        plant.ids[0] = request
        rig.hooks.observe(view, plant.ids, 1, ARRIVAL, now_s)
    join_queue(rig, engine, request, now_s)
    plant.tally[engine, QUEUE_PEAK] = max(plant.tally[engine, QUEUE_PEAK], view.engines.waiting[engine])


def rank_batch(rig: Rig, engine: int, budget: int, now_s: float) -> None:
    """Read the order in which the policy serves the running batch, and bring the batch into it.

    While tokens and blocks reach everybody who isn't held, whoever comes first gets the same: the batch is
    then left as it is.
    """
    view, plant = rig.known, rig.plant
    if rig.rules.serve == 0:
        return  # kept in order of arrival from the start
    table, fleet = view.requests, view.engines
    row, count = view.running[engine], fleet.running[engine]
    rig.hooks.serve(view, row, count, now_s, plant.keys)
    wanted, served = 0, 0
    for place in range(count):
        request, key = row[place], plant.keys[place]
        plant.serve_key[request] = key
        if key < inf:
            wanted += max(1, table.prefill_tokens[request] - table.computed_tokens[request])
            served += 1
        elif isnan(key):
            fail(rig, NOT_A_NUMBER, SERVE, request, engine)
    blocks = blocks_for(view, engine, wanted) + served  # no fewer than any split of the tokens takes
    if wanted > budget or blocks > fleet.blocks_free[engine] or rig.rules.late_key < inf:
        sort(table, plant.serve_key, row, count, plant.spare)


def read_budget(rig: Rig, engine: int, now_s: float) -> int:
    """Tokens that this step may carry: the policy's word, never above the engine's limit."""
    limit = rig.known.engines.budget_max[engine]
    if rig.rules.budget == 0:
        return int(limit)
    plant = rig.plant
    plant.ids[0] = engine
    rig.hooks.budget(rig.known, plant.ids, 1, now_s, plant.keys)
    if isnan(plant.keys[0]):
        fail(rig, NOT_A_NUMBER, BUDGET, -1, engine)
        return 0
    return int(max(0.0, min(float(limit), plant.keys[0])))


def serve_batch(rig: Rig, engine: int, budget: int, late: bool, now_s: float) -> int:
    """Give tokens to running requests in order, those before or those after the waiting; returns the rest."""
    view, plant, rules = rig.known, rig.plant, rig.rules
    table, flight = view.requests, plant.flight[engine]
    row, place, size = view.running[engine], 0, view.engines.block_tokens[engine]
    decodes, kv, least, slack = 0, 0, flight[LEAST], flight[SLACK]  # summed here, charged at the end
    while place < view.engines.running[engine] and budget > 0 and plant.error[0] == FINE:
        request = row[place]
        key = plant.serve_key[request]
        if key == inf or (not late and key >= rules.late_key):  # held, or not yet; the row may be unsorted
            place += 1
            continue
        owed = owed_tokens(view, request)
        chunk = min(owed, budget) if owed > 0 else 1
        if plant.chunk[request] > 0 or (rules.chunked == 0 and 0 < owed > chunk):
            place += 1
            continue
        thrown = flight[EVICTED]
        fits = table.computed_tokens[request] + chunk <= table.blocks[request] * size  # the usual case
        if not fits:
            fits, back = make_room(rig, engine, request, chunk, now_s)
            budget += back
        if fits:
            plant.chunk[request] = chunk
            budget -= chunk
            if owed > 0:
                charge(rig, engine, request, 1)
            else:
                computed = table.computed_tokens[request]
                decodes, kv = decodes + 1, kv + computed + 1
                least = min(least, plant.output_tokens[request] - table.generated_tokens[request] - 1)
                slack = min(slack, table.blocks[request] * size - computed)
        place = place + 1 if flight[EVICTED] == thrown else 0  # an eviction closed a gap
    flight[DECODES] += decodes
    flight[KV] += kv
    flight[LEAST], flight[SLACK] = least, slack
    return int(budget)


def form(rig: Rig, engine: int, now_s: float) -> bool:
    """Form the next step from running and waiting requests; False if nobody gets a token."""
    plant, rules = rig.plant, rig.rules
    plant.flight[engine, :] = 0.0
    plant.flight[engine, LEAST], plant.flight[engine, SLACK] = inf, inf
    budget = read_budget(rig, engine, now_s)
    rank_batch(rig, engine, budget, now_s)
    budget = serve_batch(rig, engine, budget, False, now_s)
    if plant.flight[engine, EVICTED] == 0 and rig.known.engines.waiting[engine] > 0:
        budget = scan_queue(rig, engine, budget, now_s)
    if rules.late_key < inf:
        serve_batch(rig, engine, budget, True, now_s)
    return load(rig, engine, now_s)


def load(rig: Rig, engine: int, now_s: float) -> bool:
    """Say how long the step takes; False if it carries nothing."""
    view, plant = rig.known, rig.plant
    flight = plant.flight[engine]
    if flight[PREFILL] + flight[DECODES] == 0.0:
        return False
    costs = view.costs[engine]
    flight[START_S] = now_s
    usual_s = step_s(costs, flight[PREFILL], flight[ATTENTION], flight[DECODES], flight[KV])
    flight[END_S] = now_s + usual_s * rig.fabric.pace[engine]
    used = view.engines.blocks_total[engine] - view.engines.blocks_free[engine]
    plant.tally[engine, KV_PEAK] = max(plant.tally[engine, KV_PEAK], used)
    return True


def land(rig: Rig, engine: int) -> None:
    """End the step under way: count its tokens, deliver them, let finished requests go."""
    view, plant = rig.known, rig.plant
    fleet, flight, tally = view.engines, plant.flight[engine], plant.tally[engine]
    now_s, duration_s = flight[END_S], flight[END_S] - flight[START_S]
    count = fleet.running[engine]
    tally[BUSY_S] += duration_s
    tally[BATCH_AREA] += duration_s * count
    plant.kv_tokens[engine] += int(flight[PREFILL] + flight[DECODES])
    tally[KV_AREA] += duration_s * plant.kv_tokens[engine]
    tally[PREFILLED] += flight[PREFILL]
    tally[DECODED] += flight[DECODES]
    fleet.steps[engine] += 1
    fleet.prefilled_tokens[engine] += int(flight[PREFILL])
    fleet.pending_tokens[engine] -= int(flight[PREFILL])
    fleet.step_s[engine] = duration_s
    fleet.reported_s[engine] = now_s
    flight[ACTIVE] = 0.0
    plant.clock_s[engine] = now_s
    if deliver(rig, engine, now_s) > 0:
        release(rig, engine, now_s)
    if (rig.rules.watches >> STEP) & 1:
        plant.ids[0] = engine
        rig.hooks.observe(view, plant.ids, 1, STEP, now_s)


def deliver(rig: Rig, engine: int, now_s: float) -> int:
    """Count the chunks of the step as computed and give a token to whoever has its whole prompt in.

    Returns how many requests have all their tokens.
    """
    view, plant = rig.known, rig.plant
    table, row = view.requests, view.running[engine]
    firsts, tokens, full = 0, 0, 0
    usual_s, usual = -1.0, 0  # most gaps of a step are equal: their bin is found once
    watched = ((rig.rules.watches | rig.rules.cluster_watches) >> TOKEN) & 1
    if rig.rules.trace_tokens > 0 and plant.flight[engine, PREFILL] > 0.0:
        publish_all(rig, engine)
    for place in range(view.engines.running[engine]):
        request = row[place]
        if plant.chunk[request] == 0:
            continue
        table.computed_tokens[request] += plant.chunk[request]
        plant.chunk[request] = 0
        if table.computed_tokens[request] < table.prefill_tokens[request]:
            continue
        table.generated_tokens[request] += 1
        plant.tally[engine, THROWN] = 0.0
        if table.generated_tokens[request] >= plant.output_tokens[request]:
            full += 1
        if table.generated_tokens[request] == 1:
            table.first_token_s[request] = now_s
            plant.spare[firsts] = request
            firsts += 1
        else:
            gap_s = now_s - table.last_token_s[request]
            if gap_s != usual_s:
                usual_s, usual = gap_s, bin_of(gap_s)
            plant.gaps[usual] += 1
            if gap_s > plant.longest_gap_s[request]:
                plant.longest_gap_s[request] = gap_s
        table.last_token_s[request] = now_s
        if watched:
            table.fresh_tokens[request] = 1
            plant.ids[tokens] = request
            tokens += 1
    note_all(rig, plant.spare, firsts, FIRST_TOKEN, now_s)
    note_all(rig, plant.ids, tokens, TOKEN, now_s)
    return full


def release(rig: Rig, engine: int, now_s: float) -> None:
    """Let the requests go that have all their tokens."""
    view, plant = rig.known, rig.plant
    row, kept, gone = view.running[engine], 0, 0
    for place in range(view.engines.running[engine]):
        request = row[place]
        if view.requests.generated_tokens[request] < plant.output_tokens[request]:
            row[kept] = request
            kept += 1
        else:
            end(rig, engine, request, FINISHED, now_s)
            plant.ids[gone] = request
            gone += 1
    view.engines.running[engine] = kept
    note_all(rig, plant.ids, gone, FINISH, now_s)
