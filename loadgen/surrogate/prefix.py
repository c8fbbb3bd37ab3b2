"""Prefix ids: how they are laid out over turns and templates, and how often a cache would meet them."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.surrogate.sampling import Floats, Integers, Stream
from loadgen.surrogate.sessions import Turns
from loadgen.trace import Trace
from schedulers.errors import InputError


class Groups(NamedTuple):
    """Templates that roots of one kind start with.

    ``share`` of the sessions are of this kind. Each starts with one of ``groups`` templates, chosen with
    weight rank^-``zipf``, which covers a share of the prompt that is ``cover`` on average.
    """

    name: str
    share: float
    groups: int
    zipf: float
    cover: float


class Layout(NamedTuple):
    """Where each row's ids come from, rows in session order, shape (rows,) each."""

    blocks: Integers  # ids of the row
    shared: Integers  # ids taken from the parent, or from the template
    template: Integers  # first id of the session's template
    fresh: Integers  # first id that is new with the row


def kinds_of(stream: Stream, kinds: Sequence[Groups], sessions: int) -> npt.NDArray[np.int8]:
    """Return the kind of each session, shape (sessions,)."""
    edges = np.cumsum([kind.share for kind in kinds])
    chosen = np.searchsorted(edges[:-1], stream.uniforms("kind", sessions), side="right")
    return chosen.astype(np.int8)


def templates(stream: Stream, kinds: Sequence[Groups], kind: npt.NDArray[np.int8]) -> tuple[Integers, Floats]:
    """Return each session's template number and the share of the prompt that it covers, shape (sessions,)."""
    luck, cover_luck = stream.uniforms("template", len(kind)), stream.uniforms("template cover", len(kind))
    number, cover = np.zeros(len(kind), np.int64), np.zeros(len(kind))
    offset = 0
    for index, group in enumerate(kinds):
        inside = kind == index
        weights = np.cumsum(np.arange(1, group.groups + 1, dtype=np.float64) ** -group.zipf)
        number[inside] = offset + np.searchsorted(weights / weights[-1], luck[inside])
        offset += group.groups
        # A power of the uniform: mean ``cover``, anything between nothing and the whole prompt.
        power = (1.0 - group.cover) / group.cover
        cover[inside] = cover_luck[inside] ** power
    return number, cover


def lay_out(blocks: Integers, cover: Floats, whole: npt.NDArray[np.bool_], turns: Turns) -> Integers:
    """Return how many ids each row shares, shape (rows,): its parent's, all or (not ``whole``) but one.

    A first turn shares ``cover`` (a share, shape (sessions,)) of its blocks with its template. The last block
    of a row is always its own.
    """
    parent_blocks = np.concatenate([[0], blocks[:-1]])
    shared = parent_blocks - 1 + (whole & (blocks > parent_blocks))
    first = np.floor(cover * blocks[turns.first]).astype(np.int64)
    shared[turns.first] = first
    limited: Integers = np.minimum(shared, blocks - 1)
    return limited


def prefix_ids(kept: Integers, turns: Turns, layout: Layout) -> tuple[Integers, npt.NDArray[np.int32]]:
    """Return offsets, shape (n + 1,), and flat ids of the rows ``kept`` (n,).

    A row's ids are runs: the template's, then of each turn up to its own what later turns still share.
    """
    turn = turns.turn[kept]
    runs = turn + 2
    row = np.repeat(np.arange(len(kept)), runs)
    ends = np.cumsum(runs)
    place = np.arange(len(row)) - np.repeat(ends - runs, runs)
    of_row = kept[row]
    owner = of_row - turn[row] + np.maximum(place - 1, 0)
    start = np.where(place == 0, 0, layout.shared[owner])
    following = layout.shared[np.minimum(owner + 1, len(layout.shared) - 1)]
    stop = np.where(owner == of_row, layout.blocks[of_row], following)
    stop = np.where(place == 0, layout.shared[owner], stop)
    source = np.where(place == 0, layout.template[owner], layout.fresh[owner])
    lengths = stop - start
    flat_ends = np.cumsum(lengths)
    shift = (source - (flat_ends - lengths)).astype(np.int32)
    ids = np.arange(int(flat_ends[-1]), dtype=np.int32)
    ids += np.repeat(shift, lengths)
    offsets = np.concatenate([[0], np.cumsum(layout.blocks[kept])])
    return offsets, ids


def ideal_hit(trace: Trace) -> float:
    """Return the share of prefix blocks that an unlimited cache would hold already.

    Ids must be chained (an id always has the same predecessor), as readers and generators give them.
    """
    ids = ids_of(trace)
    return 1.0 - len(np.unique(ids)) / len(ids)


def lru_hits(trace: Trace, shares: Sequence[float], sample: int = 1) -> list[float]:
    """Return the share of blocks met in an LRU cache of each size, in ``shares`` of the distinct blocks.

    With ``sample`` > 1 about one id in so many is followed, in a cache that is as much smaller (spatial
    sampling). Misses are scaled up and not hits: they are spread over many ids, hits over few hot ones.
    """
    ids = ids_of(trace)
    followed = ids
    if sample > 1:
        # Mixed first (Fibonacci hashing): ids of templates stand at regular distances.
        mixed = ids.astype(np.uint32) * np.uint32(2_654_435_769)
        followed = ids[mixed < np.uint32(2**32 // sample)]
    distinct = len(np.unique(followed))
    touched = followed.tolist()
    missed = [lru_misses(touched, max(1, round(share * distinct))) for share in shares]
    return [1.0 - sample * misses / len(ids) for misses in missed]


def lru_misses(ids: Sequence[int], size: int) -> int:
    """Return how many of ``ids``, met in this order, a cache of the ``size`` last used ids does not hold."""
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for one in ids:
        if one in cache:
            cache.move_to_end(one)
            continue
        misses += 1
        cache[one] = None
        if len(cache) > size:
            cache.popitem(last=False)
    return misses


def ids_of(trace: Trace) -> npt.NDArray[np.int32]:
    """Return the flat prefix ids of ``trace``; raises InputError if it has none."""
    if trace.hash_ids is None or len(trace.hash_ids) == 0:
        raise InputError(
            "this trace has no prefix ids", where=trace.info.file, fix="use a trace that has them"
        )
    return trace.hash_ids
