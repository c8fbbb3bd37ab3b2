"""Equal stamps made finer: rows that share a coarse stamp are spread over its period, in their order."""

import numpy as np
import numpy.typing as npt

from loadgen.draws import uniforms
from loadgen.formats.numbers import Ints

SEED = 0
"""The spread is a fixed part of reading a file, so that the same file gives the same times everywhere."""


def tie_sizes(stamp_ns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return for sorted stamps (n,): each row's place in its tie, the tie's size, the next other stamp."""
    first = (
        np.flatnonzero(np.r_[True, stamp_ns[1:] != stamp_ns[:-1]]) if len(stamp_ns) else np.zeros(0, np.int64)
    )
    sizes = np.diff(np.r_[first, len(stamp_ns)])
    place = np.arange(len(stamp_ns)) - np.repeat(first, sizes)
    following = np.r_[stamp_ns[first[1:]], np.iinfo(np.int64).max][: len(first)]
    return place, np.repeat(sizes, sizes), np.repeat(following, sizes)


def dither(stamp_ns: Ints, step_ns: int, belongs_to: str, seed: int = SEED) -> Ints:
    """Spread row i of k with one stamp to stamp + (i + u) / k of ``step_ns`` (trap B2).

    ``stamp_ns`` (n,) is sorted. Order is kept, and floor to ``step_ns`` gives the raw stamp again.
    """
    place, size, _ = tie_sizes(stamp_ns)
    luck = uniforms(seed, belongs_to, "dither", len(stamp_ns))
    offset = np.floor((place + luck) / size * step_ns).astype(np.int64)
    spread: Ints = stamp_ns + np.minimum(offset, step_ns - 1)
    return spread


def scatter(stamp_ns: Ints, period_ns: int, belongs_to: str, seed: int = SEED) -> Ints:
    """Spread the rows of each batch uniformly over the period it was gathered in (trap M1).

    ``stamp_ns`` (n,) is sorted. Rows keep their order; a batch never reaches into the next one.
    """
    _, _, following = tie_sizes(stamp_ns)
    width = np.minimum(period_ns, following - stamp_ns)
    luck = uniforms(seed, belongs_to, "spread", len(stamp_ns))
    within: npt.NDArray[np.intp] = np.lexsort((luck, stamp_ns))  # sorts the draws inside each batch
    spread: Ints = stamp_ns + np.floor(luck[within] * width).astype(np.int64)
    return spread
