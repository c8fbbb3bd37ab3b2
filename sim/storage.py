"""The tables of the prefix caches before the first request comes: every block is free and holds nothing."""

from typing import TYPE_CHECKING

import numpy as np

from loadgen.prefixes import Prefixes
from schedulers.view import Ints
from sim.rig import Cache

if TYPE_CHECKING:
    from sim.run import Setup


def empty_cache(prefixes: Prefixes | None, longest_tokens: Ints, setup: "Setup") -> Cache:
    """Return the tables for requests that come to hold so many tokens, shape (n,); of one place if nothing is cached.

    Blocks are used in the order of their numbers as long as none has been given back.
    """
    if prefixes is None:
        single, square = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
        return Cache(*(single if name in FLAT else square for name in Cache._fields))
    requests, engines, size = len(longest_tokens), setup.engines, setup.block_tokens
    blocks = int(np.max(setup.blocks))
    fits = longest_tokens <= setup.capacity_tokens
    own = np.where(fits, -(-longest_tokens // size), 0)
    parts = -(-prefixes.block_tokens // size)

    def squares(width: int, fill: int = 0) -> Ints:
        return np.full((engines, width), fill, np.int64) if fill else np.zeros((engines, width), np.int64)

    ring = np.arange(blocks + 1, dtype=np.int64)
    after, before = np.tile(np.roll(ring, -1), (engines, 1)), np.tile(np.roll(ring, 1), (engines, 1))
    for engine, own_blocks in enumerate(
        np.broadcast_to(setup.blocks, engines)
    ):  # a smaller engine's ring is shorter
        after[engine, own_blocks - 1], before[engine, blocks] = blocks, own_blocks - 1
    return Cache(
        after=after,
        before=before,
        holders=squares(blocks),
        name=squares(blocks, -1),
        twin_after=squares(blocks),
        twin_before=squares(blocks),
        oldest=squares(prefixes.distinct * parts),
        first=np.concatenate([[0], np.cumsum(own)]).astype(np.int64),
        held=np.zeros(int(own.sum()) + 1, np.int64),
        prefix=prefixes.offsets,
        ids=prefixes.ids,
        changed=np.zeros(engines, np.int64),
        hits=np.zeros(requests, np.int64),
        live=np.zeros(requests, np.int64),
        found_tokens=np.full(requests, -1, np.int64),
        sent_at=squares(prefixes.distinct),
        sent_tokens=np.zeros(engines, np.int64),
        seen=np.zeros(blocks, np.int64),
    )


FLAT = ("first", "held", "prefix", "ids", "changed", "hits", "live", "found_tokens", "sent_tokens", "seen")
"""Tables of one dimension; the others have a row an engine."""
