"""Counter-based uniforms and inverse distribution functions: what every surrogate is drawn with.

A draw is the inverse distribution function of a uniform that depends on (generator version, name, seed,
column, row) alone (reference/traces.md section 6), so a longer trace starts with the shorter one.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.special import gammaincinv, ndtri

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]

GENERATOR = "surrogate/1"
"""Version of the generators: raised whenever any of them draws another row for the same seed."""

DAY_S = 86_400.0
MICROSECOND_NS = 1_000


class Stream(NamedTuple):
    """The uniforms of one trace: each column is a Philox stream of its own, its row is the counter."""

    name: str
    seed: int

    def uniforms(self, column: str, rows: int) -> Floats:
        """Return ``rows`` uniforms inside (0, 1), shape (rows,); row i is the same for any ``rows``."""
        text = "\0".join((GENERATOR, self.name, str(int(self.seed)), column))
        key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        words = np.random.Philox(key=key).random_raw(rows) >> np.uint64(12)
        # 52 bits and a half: the middle of a cell is exact, so neither 0 nor 1 can come out.
        uniforms: Floats = (words.astype(np.float64) + 0.5) * 2.0**-52
        return uniforms

    def normals(self, column: str, rows: int) -> Floats:
        """Return ``rows`` standard normals, shape (rows,)."""
        normals: Floats = ndtri(self.uniforms(column, rows))
        return normals


class Quantiles(NamedTuple):
    """A quantile function, log-linear between its points (``Q[u: values]`` of reference/traces.md 6)."""

    levels: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, uniforms: Floats) -> Floats:
        """Return the quantiles of ``uniforms``, same shape."""
        drawn: Floats = np.exp(np.interp(uniforms, self.levels, np.log(self.values)))
        return drawn


class Knots(NamedTuple):
    """A quantile function whose logarithm is linear in the normal score between knots.

    ``scores`` ascend. Below the first knot, usually the median, the slope is ``below``; above the
    last it stays what it was, up to ``cap`` (reference/traces.md 6.2).
    """

    scores: tuple[float, ...]
    values: tuple[float, ...]
    cap: float
    below: float = 0.9

    def at(self, scores: Floats) -> Floats:
        """Return the values at normal ``scores``, same shape, in [1, cap]."""
        x, y = np.array(self.scores, np.float64), np.log(np.array(self.values, np.float64))
        last = (y[-1] - y[-2]) / (x[-1] - x[-2])
        inside = np.asarray(np.interp(scores, x, y), np.float64)
        below, above = np.minimum(scores - x[0], 0.0), np.maximum(scores - x[-1], 0.0)
        drawn: Floats = np.clip(np.exp(inside + self.below * below + last * above), 1.0, self.cap)
        return drawn


def gamma_gaps(uniforms: Floats, shape: float) -> Floats:
    """Return Gamma gaps of mean 1 and ``shape``, same shape as ``uniforms``."""
    return np.asarray(gammaincinv(shape, uniforms) / shape, np.float64)


def ticks(gaps: Callable[[int], Floats], until: float) -> Floats:
    """Return the ticks of a renewal process up to ``until``, shape (n,).

    ``gaps(n)`` gives the first n gaps, of mean 1; more gaps must start with the fewer.
    """
    drawn = int(until + 4.0 * np.sqrt(until)) + 64
    while True:
        reached = np.cumsum(gaps(drawn))
        if reached[-1] > until:
            return np.asarray(reached[reached <= until], np.float64)
        drawn *= 2


def autoregressive(normals: Floats, sd: float, rho: float) -> Floats:
    """Return a stationary AR(1) of standard deviation ``sd`` and lag-1 correlation ``rho``, shape (n,)."""
    if normals.size == 0:
        return normals
    noise = normals * (sd * np.sqrt(1.0 - rho * rho))
    noise[0] = normals[0] * sd
    drifting: Floats = lfilter([1.0], [1.0, -rho], noise)
    return drifting


def warp(operational: Floats, rates: Callable[[int], Floats], width_s: float) -> Floats:
    """Return the seconds at which the integral of a rate reaches each value of ``operational``, same shape.

    ``rates(bins)`` gives the rate, per second, of the first ``bins`` bins of ``width_s`` seconds; more bins
    must start with the fewer. ``operational`` ascends and is in units of mean gaps.
    """
    needed = float(operational[-1]) if operational.size else 0.0
    bins = 1024
    while True:
        passed = np.concatenate([[0.0], np.cumsum(rates(bins) * width_s)])
        if passed[-1] > needed:
            break
        bins *= 2
    seconds: Floats = np.interp(operational, passed, width_s * np.arange(bins + 1))
    return seconds


def tokens(values: Floats) -> Tokens:
    """Return token counts: ``values`` rounded to the nearest whole number, at least 1."""
    whole: Tokens = np.maximum(np.rint(values), 1.0).astype(np.int32)
    return whole


def nanoseconds(seconds: Floats) -> Integers:
    """Return ``seconds`` as integer ns rounded to 1 us, so that last bits cannot change a digest."""
    whole: Integers = np.rint(seconds * 1e6).astype(np.int64) * MICROSECOND_NS
    return whole
