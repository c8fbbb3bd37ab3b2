"""Prefixes that prompts share: which blocks of a window's prompts stand in more than one of them.

A trace tells prefixes in blocks of its own (16 tokens in Bailian, 512 in Mooncake), an engine caches blocks of
another size. A block of the engine counts as shared if the trace's block that holds its last token is: never
too much, and exact where the sizes are equal. Sharing that ends inside a trace block can't be seen, so coarse
ids lose some (reference/traces.md, trap Q7).
"""

from typing import NamedTuple

import numpy as np

from schedulers.view import Ints

HEAD_TOKENS = 32
"""Prompts begin alike if they share so many tokens (SGLang's threshold for sharing inside a batch)."""


class Prefixes(NamedTuple):
    """The shared beginning of each prompt, as numbers of prefixes.

    Row r shares the prefixes ``ids[offsets[r]:offsets[r + 1]]``, one a block and each longer than the one
    before; two rows share a number exactly if they share every token up to the end of that block.
    """

    block_tokens: int  # tokens of a block of the trace
    offsets: Ints  # (n + 1,)
    ids: Ints  # flat, 0 .. distinct - 1
    distinct: int


def shared(offsets: Ints, chained: Ints, block_tokens: int) -> Prefixes:
    """Return what rows share, from chained ids (n + 1,) and flat: see ``loadgen.formats.lineage.chain``.

    A prefix that one row alone has is left out; so are all longer ones of that row, which are its own too.
    """
    _, place, counts = np.unique(chained, return_inverse=True, return_counts=True)
    common = counts[place] > 1
    number = np.cumsum(counts > 1) - 1
    before = np.concatenate([[0], np.cumsum(common)])
    return Prefixes(
        block_tokens, before[offsets].astype(np.int64), number[place][common].astype(np.int64),
        int(np.sum(counts > 1)),
    )  # fmt: skip


def heads(prefixes: Prefixes, prompt_tokens: Ints) -> Ints:
    """Return a number a row, shape (n,): equal ones exactly where the first HEAD_TOKENS tokens are; -1: too short."""
    rows = len(prompt_tokens)
    spot = prefixes.offsets[:-1] + (HEAD_TOKENS - 1) // prefixes.block_tokens
    known = spot < prefixes.offsets[1:]
    number = prefixes.distinct + np.arange(rows)  # nobody else's
    number[known] = prefixes.ids[spot[known]]
    return np.where(prompt_tokens >= HEAD_TOKENS, number, -1).astype(np.int64)


def some(prefixes: Prefixes, rows: Ints) -> Prefixes:
    """Return the prefixes of some rows, given by number, in that order."""
    starts, lengths = prefixes.offsets[:-1][rows], np.diff(prefixes.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    spots = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1] - starts, lengths)
    return prefixes._replace(offsets=offsets, ids=prefixes.ids[spots])
