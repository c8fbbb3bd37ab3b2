"""Prefix cache of one engine, block by block, by the rules of vLLM V1's prefix caching design.

Only full blocks are kept, each under a name that stands for all tokens up to its end. Blocks are counted by who
holds them; one that nobody holds is free but can still be found until it is needed: the least recently used
goes first, and of one request the last block before the earlier ones. So whoever finds a block finds all before
it, and a search may halve. At least the last token is computed, and what is found is looked up at each
(re)admission. Names are numbers: a shared prefix has the same name for all, any other block one of its own,
which only the request itself can find again after an eviction. Unlike in vLLM a block can be found once the
step that computes it has ended, not already by another request of that step.
"""

from schedulers.cost import blocks_for
from sim.rig import CACHED, Rig


def name_of(rig: Rig, engine: int, request: int, place: int) -> int:
    """Return the name of a request's block at a place, from 0."""
    cache, trace, size = rig.cache, rig.rules.trace_tokens, rig.known.engines.block_tokens[engine]
    end = (place + 1) * size
    block = (end - 1) // trace
    spot = cache.prefix[request] + block
    if spot < cache.prefix[request + 1] and end <= rig.known.requests.prompt_tokens[request]:
        parts = (trace + size - 1) // size  # most blocks that end in one of the trace
        return int(cache.ids[spot] * parts + place - block * trace // size)
    return int(cache.oldest.shape[1] + cache.first[request] + place)


def find_block(rig: Rig, engine: int, request: int, place: int) -> int:
    """Return the block that holds these tokens already, the oldest of several; -1 if none does."""
    cache, name = rig.cache, name_of(rig, engine, request, place)
    if name < cache.oldest.shape[1]:
        return int(cache.oldest[engine, name]) - 1
    block = cache.held[cache.first[request] + place]
    return int(block) if cache.name[engine, block] == name else -1


def look_up(rig: Rig, engine: int, request: int) -> None:
    """Note how much of a waiting request the cache holds, all but the last token at most."""
    table, cache, size = rig.known.requests, rig.cache, rig.known.engines.block_tokens[engine]
    low, high = 0, (table.prefill_tokens[request] - 1) // size
    while low < high:
        middle = (low + high + 1) // 2
        if find_block(rig, engine, request, middle - 1) >= 0:
            low = middle
        else:
            high = middle - 1
    cache.hits[request] = low
    table.cached_tokens[request] = low * size


def count_live(rig: Rig, engine: int, request: int) -> None:
    """Note how many of the blocks found others hold: taking those costs no free block."""
    cache, live = rig.cache, 0
    for place in range(cache.hits[request]):
        if cache.holders[engine, find_block(rig, engine, request, place)] > 0:
            live += 1
    cache.live[request] = live


def lacking(rig: Rig, engine: int, request: int, tokens: int) -> int:
    """Free blocks that a waiting request needs to hold what was found and so many tokens more."""
    if rig.rules.trace_tokens == 0:
        return blocks_for(rig.known, engine, tokens)
    found = rig.cache.hits[request]
    return int(found + blocks_for(rig.known, engine, tokens) - rig.cache.live[request])


def claim(rig: Rig, engine: int, request: int) -> None:
    """Let a request that is taken hold the blocks found for it; their tokens count as computed."""
    table, fleet, cache = rig.known.requests, rig.known.engines, rig.cache
    count, size = cache.hits[request], fleet.block_tokens[engine]
    for place in range(count):
        block = find_block(rig, engine, request, place)
        if cache.holders[engine, block] == 0:
            unlink(rig, engine, block)
            fleet.blocks_free[engine] -= 1
            rig.plant.kv_tokens[engine] += size
        cache.holders[engine, block] += 1
        cache.held[cache.first[request] + place] = block
    tokens = count * size
    table.blocks[request] = count
    table.computed_tokens[request] = tokens
    table.cached_tokens[request] = tokens
    fleet.pending_tokens[engine] -= tokens
    rig.plant.tally[engine, CACHED] += tokens
    if cache.found_tokens[request] < 0:
        cache.found_tokens[request] = tokens


def allot(rig: Rig, engine: int, request: int, count: int) -> None:
    """Give a request so many more blocks, the least recently used; what they held can't be found any more."""
    cache, last = rig.cache, rig.cache.after.shape[1] - 1
    spot = cache.first[request] + rig.known.requests.blocks[request]
    for more in range(count):
        block = cache.after[engine, last]
        unlink(rig, engine, block)
        forget(rig, engine, block)
        cache.holders[engine, block] = 1
        cache.held[spot + more] = block


def give_back(rig: Rig, engine: int, request: int) -> int:
    """Let go of all blocks of a request, the last one first; return how many others still hold."""
    cache, still, last = rig.cache, 0, rig.cache.after.shape[1] - 1
    spot = cache.first[request]
    for place in range(rig.known.requests.blocks[request] - 1, -1, -1):
        block = cache.held[spot + place]
        cache.holders[engine, block] -= 1
        if cache.holders[engine, block] > 0:
            still += 1
            continue
        newest = cache.before[engine, last]
        cache.after[engine, newest], cache.before[engine, block] = block, newest
        cache.after[engine, block], cache.before[engine, last] = last, block
    return still


def unlink(rig: Rig, engine: int, block: int) -> None:
    """Take a block out of the ring of free ones."""
    after, before = rig.cache.after, rig.cache.before
    older, newer = before[engine, block], after[engine, block]
    after[engine, older], before[engine, newer] = newer, older


def publish_all(rig: Rig, engine: int) -> None:
    """Name the shared blocks that the step that ends has filled, so that others find them."""
    view, chunk = rig.known, rig.plant.chunk
    for place in range(view.engines.running[engine]):
        request = view.running[engine, place]
        if (
            chunk[request] > 0
            and view.requests.computed_tokens[request] < view.requests.prompt_tokens[request]
        ):
            publish(rig, engine, request, chunk[request])


def publish(rig: Rig, engine: int, request: int, chunk: int) -> None:
    """Name the shared blocks that a chunk has filled."""
    table, cache = rig.known.requests, rig.cache
    size, computed = rig.known.engines.block_tokens[engine], table.computed_tokens[request]
    spot = cache.first[request]
    for place in range(computed // size, (computed + chunk) // size):
        name, block = name_of(rig, engine, request, place), cache.held[spot + place]
        if name >= cache.oldest.shape[1]:
            return  # neither is any later one shared
        cache.name[engine, block] = name
        cache.changed[engine] = 1
        head = cache.oldest[engine, name] - 1
        if head < 0:
            cache.oldest[engine, name] = block + 1
            cache.twin_after[engine, block] = cache.twin_before[engine, block] = block
        else:
            tail = cache.twin_before[engine, head]
            cache.twin_after[engine, tail], cache.twin_before[engine, block] = block, tail
            cache.twin_after[engine, block], cache.twin_before[engine, head] = head, block


def keep(rig: Rig, engine: int, request: int) -> None:
    """Name the full blocks of a request that is evicted, so that it finds them again itself."""
    table, cache = rig.known.requests, rig.cache
    spot, full = (
        cache.first[request],
        table.computed_tokens[request] // rig.known.engines.block_tokens[engine],
    )
    for place in range(full - 1, -1, -1):
        block = cache.held[spot + place]
        if cache.name[engine, block] >= 0:
            return  # shared, and so are all before it
        cache.name[engine, block] = name_of(rig, engine, request, place)


def forget(rig: Rig, engine: int, block: int) -> None:
    """Take the name off a block."""
    cache, name = rig.cache, rig.cache.name[engine, block]
    cache.name[engine, block] = -1
    if name >= 0:
        cache.changed[engine] = 1
    if name < 0 or name >= cache.oldest.shape[1]:
        return
    older, newer = cache.twin_before[engine, block], cache.twin_after[engine, block]
    if newer == block:
        cache.oldest[engine, name] = 0
        return
    cache.twin_after[engine, older], cache.twin_before[engine, newer] = newer, older
    if cache.oldest[engine, name] == block + 1:
        cache.oldest[engine, name] = newer + 1


def plain_blocks(rig: Rig, engine: int, most: int) -> int:
    """Count the free blocks, up to so many, that can be used before one that somebody else could find."""
    cache, count, last = rig.cache, 0, rig.cache.after.shape[1] - 1
    block = cache.after[engine, last]
    while count < most and block != last and cache.name[engine, block] < 0:
        count += 1
        block = cache.after[engine, block]
    return count


def recall(rig: Rig, request: int) -> None:
    """Tell the cluster policy how much of a prompt each engine was sent before, as far as it may still hold it.

    What went to an engine counts until as many new tokens as its memory holds have gone there after it.
    """
    cache, fleet, trace = rig.cache, rig.board.engines, rig.rules.trace_tokens
    prompt, start = rig.board.requests.prompt_tokens[request], cache.prefix[request]
    for engine in range(fleet.alive.shape[0]):
        size = fleet.block_tokens[engine]
        oldest = cache.sent_tokens[engine] - fleet.blocks_total[engine] * size
        low, high = 0, cache.prefix[request + 1] - start
        while low < high:
            middle = (low + high + 1) // 2
            if cache.sent_at[engine, cache.ids[start + middle - 1]] > max(0, oldest):
                low = middle
            else:
                high = middle - 1
        rig.board.sent[engine, request] = min(low * trace, prompt - 1) // size * size


def remember(rig: Rig, engine: int, request: int) -> None:
    """Note that a prompt goes to an engine."""
    cache = rig.cache
    cache.sent_tokens[engine] += rig.board.requests.prompt_tokens[request] - rig.board.sent[engine, request]
    for spot in range(cache.prefix[request], cache.prefix[request + 1]):
        cache.sent_at[engine, cache.ids[spot]] = cache.sent_tokens[engine]
