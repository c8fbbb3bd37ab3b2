"""Ranks in one condition: order by mean over windows, with window-level bootstrap intervals and the top set.

Reference statistics, sections 2 (ties, within-window ranks), 5 (margins), 6.1 (one pair against a margin),
6.4 (top set) and 7 (what could have been detected). Windows are the unit of replication; requests are never
resampled.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.metrics import natural
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]

DRAWS = 2000
"""Bootstrap draws."""

LEVEL = 0.05
"""Errors are controlled at this level, intervals cover the rest."""

TIE = 1e-9
"""Means this close, relatively, are tied."""

EXACT_WINDOWS, FLIPS = 12, 9999
"""Up to so many windows every pattern of signs is tried, beyond that so many random ones."""

FLIPS_AT_ONCE = 256
"""So few that what is at work stays in a core's cache."""

T_WINDOWS = 30
"""With as many windows the paired test is Student's t, with fewer a sign-flip permutation."""


class Row(NamedTuple):
    """One scheduler in one condition; values in the metric's unit, differences on the compared scale."""

    scheduler: str
    rank: int  # 1 is best; tied means share the least
    rank_low: float
    rank_high: float
    mean: float
    low: float
    high: float
    difference: float  # to the best, <= 0 (a logarithm for latencies and throughput)
    difference_low: float
    difference_high: float
    p_worse: float  # that it is worse than the best by more than the margin, Holm over schedulers
    in_top: bool


class Ranking(NamedTuple):
    """A condition's order, best first, and how far to trust it."""

    rows: tuple[Row, ...]
    windows: int
    margin: float
    informative: bool
    window_rank_tau: float  # agreement with the order by mean within-window rank; < 0.9: few windows dominate
    detectable: float  # true difference shown beyond the margin with power 0.8, median over schedulers
    least_p: float = 1.0  # least adjusted p that the test can give with so many windows
    windows_needed: int = 0  # with which one scheduler could be shown worse at all

    @property
    def testable(self) -> bool:
        """Whether any scheduler could be shown worse than the best, however far behind it is."""
        return self.least_p <= LEVEL


def rank(of: Scores) -> Ranking:
    """Return the ranking of a condition; empty rows if it has no scheduler or no window."""
    count, windows = of.values.shape
    if not count or not windows:
        return Ranking((), windows, of.margin, False, float("nan"), float("nan"))
    means = of.means
    best = int(np.argmax(means))
    drawn = bootstrap_means(of)
    ranks = rank_vector(means, tied="min")
    rank_low, rank_high = np.quantile(
        rank_vector(drawn), [LEVEL / 2, 1 - LEVEL / 2], axis=0, method="inverted_cdf"
    )
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2], axis=0)
    behind = drawn - drawn[:, [best]]
    behind_low, behind_high = np.quantile(behind, [LEVEL / 2, 1 - LEVEL / 2], axis=0)
    gaps = of.values[best] - of.values
    p_worse = worse_than_best(gaps, best, of.margin)
    interval = np.sort(natural(np.stack([low, high]), of.column), axis=0)
    own = natural(means, of.column)
    rows = [
        Row(
            name, int(ranks[i]), float(rank_low[i]), float(rank_high[i]), float(own[i]),
            float(interval[0, i]), float(interval[1, i]), float(means[i] - means[best]),
            float(behind_low[i]), float(behind_high[i]), float(p_worse[i]), bool(p_worse[i] > LEVEL),
        )
        for i, name in enumerate(of.schedulers)
    ]  # fmt: skip
    rows.sort(key=lambda row: (row.rank, row.scheduler))
    spread = (
        np.delete(gaps, best, axis=0).std(axis=1, ddof=1) if windows > 1 and count > 1 else np.array([np.nan])
    )
    within = rank_vector(of.values.T).mean(axis=0)
    return Ranking(
        rows=tuple(rows),
        windows=windows,
        margin=of.margin,
        informative=of.informative,
        window_rank_tau=float(tau_b(means, -within)),
        detectable=_detectable(float(np.median(spread)), windows, count - 1, of.margin),
        least_p=least_p(windows, count - 1),
        windows_needed=next(n for n in range(2, T_WINDOWS + 1) if least_p(n, count - 1) <= LEVEL),
    )


def least_p(windows: int, comparisons: int) -> float:
    """Return the least Holm-adjusted p of the top-set test: by sign flips comparisons / 2^windows."""
    if windows >= T_WINDOWS:
        return 0.0
    if windows < 2:
        return 1.0
    return min(1.0, max(1, comparisons) * (2.0**-windows if windows <= EXACT_WINDOWS else 1 / (1 + FLIPS)))


def _detectable(spread: float, windows: int, comparisons: int, margin: float) -> float:
    """Return the true difference to the best that the top-set test finds with power 0.8; NaN if none can be.

    The first step of Holm, which every scheduler may have to pass, needs p <= 5 % / comparisons that the
    difference is beyond the margin. With few windows Student's quantiles stand for those of sign flips.
    """
    if windows < 2 or least_p(windows, comparisons) > LEVEL:
        return float("nan")
    reach = stats.t.isf(LEVEL / max(1, comparisons), windows - 1) + stats.t.isf(0.2, windows - 1)
    return float(margin + reach * spread / np.sqrt(windows))


def bootstrap_means(of: Scores, draws: int = DRAWS) -> Floats:
    """Return means over windows drawn with replacement, shape (draws, schedulers); the same draws each
    call.
    """
    windows = of.values.shape[1]
    return np.asarray(_window_counts(of.source, of.windows, draws) @ of.values.T / windows, np.float64)


@lru_cache(maxsize=16)
def _window_counts(source: str, windows: tuple[str, ...], draws: int) -> Floats:
    """Return how often each draw takes each window, (draws, windows); alike in every region and metric."""
    seed = zlib.crc32("|".join((source, *windows)).encode())
    size = len(windows)
    counts = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=draws)
    return np.asarray(counts, np.float64)


def rank_vector(means: Floats, tied: str = "average") -> Floats:
    """Return ranks along the last axis, 1 for the highest; ties take their average, or the least ("min")."""
    size = np.abs(means)
    better, equal = np.zeros(means.shape), np.zeros(means.shape)
    for at in range(means.shape[-1]):  # one rival at a time, so that what is at work stays in the cache
        ahead = means[..., [at]] - means
        limit = TIE * np.maximum(size[..., [at]], size)
        better += ahead > limit
        equal += np.abs(ahead) <= limit
    return 1.0 + better + (0.5 * (equal - 1.0) if tied == "average" else 0.0)


def signs(means: Floats) -> npt.NDArray[np.int8]:
    """Return the sign of every difference mean[i] - mean[j], shape (..., k, k), 0 for ties."""
    left, right = means[..., :, None], means[..., None, :]
    difference = left - right
    tolerance = TIE * np.maximum(np.abs(left), np.abs(right))
    return np.asarray(np.sign(difference) * (np.abs(difference) > tolerance), np.int8)


def tau_b(a: Floats, b: Floats) -> Floats:
    """Return Kendall's tau-b between goodness vectors along the last axis (broadcasts); NaN if one is
    all ties.
    """
    k = a.shape[-1]
    upper = np.triu_indices(k, 1)
    first, second = signs(a)[..., *upper], signs(b)[..., *upper]
    return tau_of_signs(first, second)


def tau_of_signs(first: npt.NDArray[np.int8], second: npt.NDArray[np.int8]) -> Floats:
    """Return tau-b of two arrays of pair signs, pairs along the last axis."""
    left, right = first.astype(np.float32), second.astype(np.float32)
    agreed = (left * right).sum(axis=-1)
    size = np.sqrt(np.abs(left).sum(axis=-1) * np.abs(right).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(size > 0, agreed / size, np.nan), np.float64)


def worse_than_best(gaps: Floats, best: int, margin: float) -> Floats:
    """Return Holm-adjusted p-values that each scheduler trails the best by more than the margin.

    ``gaps`` (schedulers, windows) are paired: best minus scheduler. The best itself gets 1. One-sided t on
    the mean with 30 windows or more, else sign flips of (gap - margin).
    """
    p = one_sided(gaps - margin)
    p[best] = np.nan
    return np.where(np.isnan(p), 1.0, holm(p))


def one_sided(differences: Floats) -> Floats:
    """Return p-values that each row's mean is above 0, shape (rows,); 1 with fewer than two windows."""
    return np.asarray(one_sided_beyond(differences, (0.0,))[0], np.float64)


def one_sided_beyond(differences: Floats, thresholds: Sequence[float]) -> Floats:
    """Return p-values that each row's mean is above each threshold, (thresholds, rows).

    Rows are paired differences a window. Student's t with 30 windows or more, else sign flips of what is left
    above the threshold; 1 with fewer than two windows.
    """
    rows, n = differences.shape
    beyond = np.asarray(thresholds, np.float64)[:, None]
    if n < 2:
        return np.ones((len(beyond), rows))
    means = differences.mean(axis=1) - beyond
    if n >= T_WINDOWS:
        error = differences.std(axis=1, ddof=1) / np.sqrt(n)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(error > 0, means / error, np.sign(means) * np.inf)
        return np.asarray(np.where(np.isnan(t), 1.0, special.stdtr(n - 1, -t)), np.float64)
    flips, exact = _flips(n)
    leaning = flips.mean(axis=1)
    bars = (means - 1e-12 * np.abs(means))[..., None]
    reached = np.zeros(means.shape, np.int64)
    for low in range(0, len(flips), FLIPS_AT_ONCE):
        some = slice(low, low + FLIPS_AT_ONCE)
        flipped = differences @ flips[some].T / n
        for at, delta in enumerate(beyond[:, 0]):
            reached[at] += np.count_nonzero(flipped - delta * leaning[some] >= bars[at], axis=1)
    p = reached / len(flips) if exact else (1 + reached) / (1 + len(flips))
    return np.asarray(p, np.float64)


def holm(p: Floats) -> Floats:
    """Return Holm's step-down adjusted p-values; NaN stands for "not in the family" and stays."""
    adjusted = np.full(len(p), np.nan)
    order = [int(i) for i in np.argsort(p) if not np.isnan(p[i])]
    running = 0.0
    for step, i in enumerate(order):
        running = max(running, min(1.0, float(p[i]) * (len(order) - step)))
        adjusted[i] = running
    return adjusted


@lru_cache(maxsize=32)
def _flips(n: int) -> tuple[Floats, bool]:
    """Return sign patterns (patterns, n), and whether they are all there are (12 windows or fewer)."""
    if n <= EXACT_WINDOWS:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return np.where(bits == 1, -1.0, 1.0), True
    return np.random.default_rng(n).choice([-1.0, 1.0], size=(FLIPS, n)), False
