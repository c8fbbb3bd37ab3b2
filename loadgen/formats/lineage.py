"""Who follows whom: parents and sessions from ids, and block ids chained so that they mean prefixes."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.formats.numbers import Ints

Offsets = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]


class Family(NamedTuple):
    """Parents as row numbers, shape (n,): -1 for none; ``orphan`` where the parent is not in the file."""

    parent: npt.NDArray[np.int32]
    session: npt.NDArray[np.int32]
    orphan: npt.NDArray[np.bool_]


def family_tree(request: Ints, parent: Ints) -> Family:
    """Return parents and sessions of rows in time order from their ids and parents' ids (n,), -1 for a root.

    A session is a root with all that follows it; children of one absent parent form one session (Q6). Rows
    without follow-ups are sessions of their own (Q5). A parent that comes later in time is taken as absent.
    """
    n = len(request)
    order = np.argsort(request, kind="stable")
    at = np.searchsorted(request[order], parent)
    found = order[np.minimum(at, n - 1)] if n else order
    known = (parent >= 0) & (at < n)
    known &= request[found] == parent
    known &= found < np.arange(n)
    row = np.where(known, found, -1)
    root = np.where(known, found, np.arange(n))
    while not np.array_equal(root, root[root]):
        root = root[root]
    orphan = (parent >= 0) & ~known
    # The children of one absent parent carry its id, below zero so that it meets no row number.
    key = np.where(orphan[root], -2 - parent[root], root)
    return Family(row.astype(np.int32), in_order_of_sight(key), orphan)


def in_order_of_sight(keys: Ints) -> npt.NDArray[np.int32]:
    """Number keys (n,) 0, 1, 2 ... in the order in which they first occur; -1 stays -1."""
    named = keys != -1
    _, first, inverse = np.unique(keys[named], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    numbers = np.full(len(keys), -1, np.int32)
    numbers[named] = rank[inverse]
    return numbers


def chain(offsets: Offsets, ids: Ints) -> Ids:
    """Replace each block id by the number of its whole prefix, (chain so far, id): so sets and trees work.

    ``offsets`` (n + 1,), ``ids`` flat. Two rows share a chained id exactly if they share every block up to
    it, whether the file's ids stand for a block's own content (Bailian A and B, trap Q2) or already for a
    prefix. Numbers run in the order in which prefixes are first seen, row by row.
    """
    lengths = np.diff(offsets)
    ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)  # small numbers: two fit in 63 bits
    widest = int(ids.max(initial=0)) + 1
    longest_first = np.argsort(-lengths, kind="stable")
    start = offsets[:-1][longest_first]
    ordered = lengths[longest_first]
    chained = np.zeros(len(ids), np.int64)
    before = np.zeros(len(start), np.int64)
    known = 1  # 0 is the empty prefix
    for level in range(int(lengths.max(initial=0))):
        rows = int(np.searchsorted(-ordered, -level, side="left"))  # rows longer than ``level``
        at = start[:rows] + level
        pairs, numbers = np.unique(before[:rows] * widest + ids[at], return_inverse=True)
        before[:rows] = chained[at] = known + numbers
        known += len(pairs)
    return in_order_of_sight(chained)


def coarsen(offsets: Offsets, chained: Ids, factor: int) -> tuple[Offsets, Ids]:
    """Merge ``factor`` consecutive chained blocks to one; a row's last block may be partial.

    A chained id stands for all blocks up to it, so the last id of each group names the group (trap Q7).
    """
    lengths = np.diff(offsets)
    groups = -(-lengths // factor)
    merged = np.r_[0, np.cumsum(groups)]
    place = np.arange(int(merged[-1])) - np.repeat(merged[:-1], groups)
    last = np.minimum((place + 1) * factor, np.repeat(lengths, groups)) - 1
    return merged.astype(np.int64), chained[np.repeat(offsets[:-1], groups) + last]
