"""Invariants E1, E2 and E6 at the forming of a step, asserted where a run is audited."""

from schedulers.cost import blocks_for, owed_tokens
from sim.fabric import STOPPED
from sim.memory import fail
from sim.prefix import find_block, name_of
from sim.rig import ATTENTION, BROKEN, DECODES, KV, PREFILL, Rig


def audit(rig: Rig, engine: int) -> None:
    """Check that blocks add up, caps hold and all work is charged; the first fault stops the run."""
    view, plant = rig.known, rig.plant
    table, fleet, row = view.requests, view.engines, view.running[engine]
    blocks, tokens, held = 0, 0, 0
    prefill, attention, kv = 0.0, 0.0, 0.0
    count = with_leaving(rig, engine)
    for place in range(count):
        request = row[place]
        tokens += plant.chunk[request]
        blocks += table.blocks[request]
        chunk, computed = plant.chunk[request], table.computed_tokens[request]
        held += computed
        if owed_tokens(view, request) > 0:
            prefill += chunk
            attention += chunk * (computed + chunk / 2.0)
        elif chunk > 0:
            kv += computed + 1
        if table.blocks[request] != blocks_for(
            view, engine, table.computed_tokens[request] + plant.chunk[request]
        ):
            fail(rig, BROKEN, 1, request, engine)
    used = fleet.blocks_total[engine] - fleet.blocks_free[engine]
    distinct = blocks if rig.rules.trace_tokens == 0 else audit_cache(rig, engine)
    if distinct + rig.fabric.reserved[engine] != used or fleet.blocks_free[engine] < 0:
        fail(rig, BROKEN, 1, -1, engine)
    places = fleet.running[engine] + rig.fabric.slots[engine]
    if places > fleet.sequences_max[engine] or tokens > fleet.budget_max[engine]:
        fail(rig, BROKEN, 2, -1, engine)
    flight = plant.flight[engine]
    if flight[PREFILL] != prefill or flight[ATTENTION] != attention or flight[KV] != kv:
        fail(rig, BROKEN, 6, -1, engine)
    held -= (blocks - distinct) * fleet.block_tokens[engine]  # a shared block is full, and counts once
    if flight[PREFILL] + flight[DECODES] != tokens or plant.kv_tokens[engine] != held:
        fail(rig, BROKEN, 6, -1, engine)


def with_leaving(rig: Rig, engine: int) -> int:
    """Return the size of the batch with the request whose last blocks travel, which is put behind it in the row."""
    count = rig.known.engines.running[engine]
    if rig.fabric.phase[engine] == STOPPED:
        rig.known.running[engine, count] = rig.fabric.request[engine]
        return int(count + 1)
    return int(count)


def audit_cache(rig: Rig, engine: int) -> int:
    """Return how many blocks the batch holds, each counted once.

    Checks that each is counted by its holders, that full shared ones can be found by their name, that all before
    a block that can be found can be found too, and that nobody was credited with its last token.
    """
    view, cache = rig.known, rig.cache
    table, row, count = view.requests, view.running[engine], with_leaving(rig, engine)
    distinct, size = 0, view.engines.block_tokens[engine]
    for place in range(count):
        start = cache.first[row[place]]
        for spot in range(start, start + table.blocks[row[place]]):
            cache.seen[cache.held[spot]] = 0
    for place in range(count):
        start = cache.first[row[place]]
        for spot in range(start, start + table.blocks[row[place]]):
            block = cache.held[spot]
            distinct += 1 if cache.seen[block] == 0 else 0
            cache.seen[block] += 1
    for place in range(count):
        request = row[place]
        for spot in range(table.blocks[request]):
            block = cache.held[cache.first[request] + spot]
            name = name_of(rig, engine, request, spot)
            shared = name < cache.oldest.shape[1] and (spot + 1) * size <= table.computed_tokens[request]
            named = cache.name[engine, block] == name if shared else cache.name[engine, block] in (-1, name)
            if cache.holders[engine, block] != cache.seen[block] or not named:
                fail(rig, BROKEN, 1, request, engine)
        if table.cached_tokens[request] >= table.prefill_tokens[request]:
            fail(rig, BROKEN, 6, request, engine)
    for place in range(view.engines.waiting[engine]):
        request, broken = view.waiting[engine, place], False
        for spot in range((table.prefill_tokens[request] - 1) // size):
            found = find_block(rig, engine, request, spot) >= 0
            if found and broken:
                fail(rig, BROKEN, 1, request, engine)
            broken = not found
    return distinct
