"""Portability: does an order hold in another condition, beside how well it holds against itself?

Reference statistics, sections 2 (tau-b, top-weighted tau) and 3 (the noise ceiling). Two conditions with
the same true order agree below 1 when means are noisy, so agreement is judged against the *noise ceiling*:
halves of one condition's windows against each other. "Not portable" is claimed for the gap between the two,
never for a low tau.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.ranks import LEVEL, rank_vector, tau_b, tau_of_signs
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]
Signs = npt.NDArray[np.int8]

SPLITS = 500
SUBSAMPLES = 100
SUBSPLITS = 20
PERMUTATIONS = 9999
"""So many that the least p, corrected over some hundreds of comparisons, can be below 5 %."""

LEAST_WINDOWS = 8
"""With fewer windows in a condition the gap gets no interval."""

GAP_MARGIN = 0.2
"""A gap whose interval ends below this is "order held", and none below it is "order differs".

At k = 5 one swapped pair moves tau by 0.2.
"""

DIFFERS, HELD, UNDECIDED = "order differs", "order held", "undecided"


class Agreement(NamedTuple):
    """Two conditions compared over the schedulers that both rank; NaN where undefined."""

    a: tuple[str, str, str]  # (source, region, column)
    b: tuple[str, str, str]
    schedulers: int
    windows: tuple[int, int]
    tau: float  # all windows against all windows
    tau_top: float  # weighted towards the top (Vigna)
    within_a: float  # halves of a against each other
    within_b: float
    cross: float  # halves of a against halves of b, disjoint if the windows are the same
    gap: float  # (within_a + within_b) / 2 - cross
    gap_low: float
    gap_high: float
    p_same: float  # permutation test that source labels don't matter
    best_a: str
    best_b: str
    verdict: str

    @property
    def ceiling(self) -> float:
        """Agreement that noise alone would leave, halves against halves."""
        return (self.within_a + self.within_b) / 2


def agree(a: Scores, b: Scores) -> Agreement:
    """Return how far the order of ``a`` is the order of ``b``, with the noise ceiling beside it.

    If both conditions come from one source their windows are the same, and halves are taken disjoint so
    that a window's luck is never on both sides.
    """
    names = [name for name in a.schedulers if name in b.schedulers]
    keys = ((a.source, a.region, a.column), (b.source, b.region, b.column))
    ya, yb = _rows(a, names), _rows(b, names)
    shared = a.source == b.source
    if shared:
        ya, yb = _common(a, ya, b, yb)
    sizes = (ya.shape[1], yb.shape[1])
    nan = float("nan")
    found = Agreement(
        *keys, len(names), sizes, nan, nan, nan, nan, nan, nan, nan, nan, nan, "", "", UNDECIDED
    )  # fmt: skip
    if len(names) < 2 or min(sizes) < 1:
        return found
    ma, mb = ya.mean(axis=1), yb.mean(axis=1)
    found = found._replace(
        tau=float(tau_b(ma, mb)),
        tau_top=_top_weighted(ma, mb),
        best_a=names[int(np.argmax(ma))],
        best_b=names[int(np.argmax(mb))],
    )
    if min(sizes) < 4:
        return found
    strata = (a.strata, a.strata) if shared else (a.strata, b.strata)
    terms = _terms(ya, yb, shared, (_halves(sizes[0], strata[0], 0), _halves(sizes[1], strata[1], 1)))
    within_a, within_b, cross = (_mean(term) for term in terms)
    gap = (within_a + within_b) / 2 - cross
    low, high = _gap_interval(ya, yb, shared, gap)
    return found._replace(
        within_a=within_a,
        within_b=within_b,
        cross=cross,
        gap=gap,
        gap_low=low,
        gap_high=high,
        p_same=_permutation_p(ya, yb, shared),
        verdict=_verdict(gap, low, high),
    )


def corrected(one: Agreement, p: float) -> Agreement:
    """Return a comparison that differs only if its corrected permutation ``p`` says so too."""
    return one._replace(verdict=UNDECIDED) if one.verdict == DIFFERS and not p <= LEVEL else one


def split_half(of: Scores) -> float:
    """Return the mean tau between random halves of a condition's windows: its noise ceiling."""
    if of.values.shape[0] < 2 or of.values.shape[1] < 4:
        return float("nan")
    halves = _halves(of.values.shape[1], of.strata, 0)
    first, second = _half_signs(of.values, halves)
    return float(_mean(tau_of_signs(first, second)))


def tau_matrix(conditions: list[Scores]) -> Floats:
    """Return tau-b between every two conditions over the schedulers that all rank, the split-half tau inside.

    Shape (c, c). The diagonal is not 1 but the noise ceiling: what an order keeps against itself.
    """
    names = [name for name in conditions[0].schedulers if all(name in one.schedulers for one in conditions)]
    if len(names) < 2 or any(not one.windows for one in conditions):
        return np.full((len(conditions), len(conditions)), np.nan)
    means = np.stack([_rows(one, names).mean(axis=1) for one in conditions])
    matrix = tau_b(means[:, None, :], means[None, :, :])
    np.fill_diagonal(matrix, [split_half(one) for one in conditions])
    return matrix


def _verdict(gap: float, low: float, high: float) -> str:
    if np.isnan(low):
        return UNDECIDED
    if high < GAP_MARGIN:
        return HELD
    return DIFFERS if low > 0 and gap >= GAP_MARGIN else UNDECIDED


def _rows(of: Scores, names: list[str]) -> Floats:
    return of.values[[of.schedulers.index(name) for name in names]]


def _common(a: Scores, ya: Floats, b: Scores, yb: Floats) -> tuple[Floats, Floats]:
    both = [name for name in a.windows if name in set(b.windows)]
    return ya[:, [a.windows.index(name) for name in both]], yb[:, [b.windows.index(name) for name in both]]


def _top_weighted(a: Floats, b: Floats) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(stats.weightedtau(a, b).statistic)


@lru_cache(maxsize=64)
def _halves(windows: int, strata: tuple[str, ...], side: int) -> Floats:
    """Return weights of disjoint random halves, shape (splits, 2, windows), balanced within strata.

    The odd window of a stratum joins a pool that is halved too; one left over at the end sits out.
    """
    rng = np.random.default_rng([windows, side])
    groups = [np.flatnonzero(np.asarray(strata) == name) for name in dict.fromkeys(strata)]
    if len(strata) != windows:
        groups = [np.arange(windows)]
    weights = np.zeros((SPLITS, 2, windows))
    for split in weights:
        pool: list[int] = []
        for group in groups:
            mixed = rng.permutation(group)
            half = len(mixed) // 2
            split[0, mixed[:half]] = split[1, mixed[half : 2 * half]] = 1.0
            pool += [int(mixed[-1])] if len(mixed) % 2 else []
        mixed = rng.permutation(np.asarray(pool, np.int64))
        half = len(mixed) // 2
        split[0, mixed[:half]] = split[1, mixed[half : 2 * half]] = 1.0
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float64)


@lru_cache(maxsize=64)
def _nested_halves(windows: int, side: int) -> Floats:
    """Return weights of halves of random half-samples, shape (subsamples * subsplits, 2, windows)."""
    rng = np.random.default_rng([windows, side, 7])
    size = windows // 2
    half = size // 2
    kept = np.argsort(rng.random((SUBSAMPLES, 1, windows)), axis=-1)[..., :size]
    order = np.argsort(rng.random((SUBSAMPLES, SUBSPLITS, size)), axis=-1)
    mixed = np.take_along_axis(np.broadcast_to(kept, (SUBSAMPLES, SUBSPLITS, size)), order, axis=-1)
    mixed = mixed.reshape(-1, size)
    weights = np.zeros((len(mixed), 2, windows))
    np.put_along_axis(weights[:, 0], mixed[:, :half], 1.0 / half, axis=-1)
    np.put_along_axis(weights[:, 1], mixed[:, half : 2 * half], 1.0 / half, axis=-1)
    return weights


def _half_signs(y: Floats, halves: Floats) -> tuple[Signs, Signs]:
    """Return pair signs of the order on either half, shape (splits, pairs) each."""
    upper = np.triu_indices(len(y), 1)
    means = halves @ y.T
    difference = means[..., upper[0]] - means[..., upper[1]]
    tolerance = 1e-9 * np.maximum(np.abs(means[..., upper[0]]), np.abs(means[..., upper[1]]))
    found = np.sign(difference).astype(np.int8) * (np.abs(difference) > tolerance)
    return found[:, 0], found[:, 1]


def _terms(
    ya: Floats, yb: Floats, shared: bool, halves: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return within a, within b and cross, each a mean tau a split; halves of shared windows are the same."""
    a0, a1 = _half_signs(ya, halves[0])
    b0, b1 = _half_signs(yb, halves[0] if shared else halves[1])
    crossed = [tau_of_signs(a0, b1), tau_of_signs(a1, b0)]
    if not shared:
        crossed += [tau_of_signs(a0, b0), tau_of_signs(a1, b1)]
    return tau_of_signs(a0, a1), tau_of_signs(b0, b1), np.mean(crossed, axis=0)


def _gap_interval(ya: Floats, yb: Floats, shared: bool, gap: float) -> tuple[float, float]:
    """Return the 95% interval of the gap: 1.96 standard deviations over half-samples of windows.

    Half-samples are drawn without replacement, and deviations taken from their own mean, since a gap
    shrinks with noise and half-samples are noisier. They need no rescaling: leaving out half of n windows
    is the delete-d jackknife, whose factor (n - d) / d is 1 at d = n / 2; the root of m / n, meant for m
    far below n, would make the variance half of what it is.
    """
    if min(ya.shape[1], yb.shape[1]) < LEAST_WINDOWS:
        return float("nan"), float("nan")
    halves = (_nested_halves(ya.shape[1], 0), _nested_halves(yb.shape[1], 1))
    within_a, within_b, cross = _terms(ya, yb, shared, halves)
    each = ((within_a + within_b) / 2 - cross).reshape(SUBSAMPLES, SUBSPLITS)
    known = np.where(np.isnan(each), 0.0, each).sum(axis=1) / np.maximum(1, (~np.isnan(each)).sum(axis=1))
    reach = float(stats.norm.isf(LEVEL / 2) * known.std(ddof=1))
    return gap - reach, gap + reach


def _permutation_p(ya: Floats, yb: Floats, shared: bool) -> float:
    """Return p that labels don't matter: small if the rankings agree less than after shuffling labels.

    Values are first replaced by within-window ranks so that a difference in scale doesn't decide. Labels are
    shuffled over windows, or swapped inside each window where both conditions share it. The statistic is the
    covariance of the two mean rankings, not their tau: tau forgets sizes, and two halves of a mixture of
    opposite orders are opposite too, so that by tau a full reversal would be as usual as any shuffle.
    """
    ra, rb = -rank_vector(ya.T), -rank_vector(yb.T)
    observed = float(tau_b(ra.mean(axis=0), rb.mean(axis=0)))
    if np.isnan(observed):
        return float("nan")
    na, nb = len(ra), len(rb)
    chosen = _shuffles(na, nb, shared)
    if shared:
        first, second = (chosen @ ra + (1 - chosen) @ rb) / na, (chosen @ rb + (1 - chosen) @ ra) / na
    else:
        pooled = np.concatenate([ra, rb])
        first, second = chosen @ pooled / na, (1 - chosen) @ pooled / nb
    found = _covariance(ra.mean(axis=0), rb.mean(axis=0))
    reached = (_covariance(first, second) <= found + 1e-9).sum()
    return float((1 + reached) / (1 + PERMUTATIONS))


@lru_cache(maxsize=8)
def _shuffles(na: int, nb: int, shared: bool) -> Floats:
    """Return which windows go to the first side: (permutations, na + nb), or (permutations, na) of swaps."""
    rng = np.random.default_rng([na, nb, 11])
    if shared:
        return rng.integers(0, 2, (PERMUTATIONS, na)).astype(np.float64)
    order = np.argsort(rng.random((PERMUTATIONS, na + nb)), axis=-1)
    chosen = np.zeros((PERMUTATIONS, na + nb))
    np.put_along_axis(chosen, order[:, :na], 1.0, axis=-1)
    return chosen


def _covariance(a: Floats, b: Floats) -> Floats:
    left, right = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    return np.asarray((left * right).mean(axis=-1), np.float64)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
