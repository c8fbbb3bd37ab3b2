"""Luck: columns of random numbers that depend on what they belong to and never on the order of calls.

A column is a stream of its own, keyed by sha256(seed, what it belongs to, column's name); row i is the
i-th word of a Philox counter stream (numpy keeps that stream stable across versions). So asking for fewer
rows, asking twice or asking for another column first changes nothing (reference/traces.md 7.3,
statistics.md section 1).
"""

import hashlib
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NORMAL_DIGITS = 9
"""Decimals kept of a normal draw: the last bits of a machine's logarithm must not change a digest."""


def words(seed: int, belongs_to: str, column: str, rows: int) -> npt.NDArray[np.uint64]:
    """Return ``rows`` words of 53 random bits each, shape (rows,); row i does not depend on ``rows``."""
    text = "\0".join((str(int(seed)), belongs_to, column))
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    drawn: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(rows) >> np.uint64(11)
    return drawn


def uniforms(seed: int, belongs_to: str, column: str, rows: int) -> Floats:
    """Return ``rows`` uniforms in [0, 1), shape (rows,).

    ``belongs_to`` is the content digest of what the rows are, ``column`` the name of the column.
    """
    return words(seed, belongs_to, column, rows).astype(np.float64) * 2.0**-53


def normals(seed: int, belongs_to: str, column: str, rows: int) -> Floats:
    """Return ``rows`` standard normals, shape (rows,): the quantile of one uniform each."""
    middle = (words(seed, belongs_to, column, rows).astype(np.float64) + 0.5) * 2.0**-53
    inverse = NormalDist().inv_cdf
    top = 1.0 - 2.0**-53
    return np.array([round(inverse(min(u, top)), NORMAL_DIGITS) for u in middle.tolist()], np.float64)
