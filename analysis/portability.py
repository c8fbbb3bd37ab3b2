"""Portability: does an order hold in another condition, beside how well it holds against itself?

Reference statistics, sections 2 (tau-b, top-weighted tau) and 3 (the noise ceiling). Two conditions with
the same true order agree below 1 when means are noisy, so agreement is judged against the *noise ceiling*:
halves of one condition's windows against each other. "Not portable" is claimed for the gap between the two,
never for a low tau.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.compare import LEAST_HALVED, Comparison, compare, in_common, pair_signs, taus
from analysis.ranks import LEVEL, rank_vector, tau_b
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]

PERMUTATIONS = 9999
"""So many that the least p, corrected over some hundreds of comparisons, can be below 5 %."""

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
    return agreement(a, b, compare([a, b]), 0, 1)


def agreement(a: Scores, b: Scores, compared: Comparison, i: int, j: int) -> Agreement:
    """Return what a comparison, of which ``a`` is condition i and ``b`` condition j, says about the two."""
    first, second = in_common(a, b)
    ya, yb = first.values, second.values
    sizes = (len(first.windows), len(second.windows))
    any_ = bool(ya.size and yb.size)
    gap, low, high = (float(part[i, j]) for part in (compared.gap, compared.gap_low, compared.gap_high))
    return Agreement(
        a=(a.source, a.region, a.column),
        b=(b.source, b.region, b.column),
        schedulers=len(first.schedulers),
        windows=sizes,
        tau=float(compared.tau[i, j]),
        tau_top=float(compared.top[i, j]),
        within_a=float(compared.within[i, j]),
        within_b=float(compared.within[j, i]),
        cross=float(compared.cross[i, j]),
        gap=gap,
        gap_low=low,
        gap_high=high,
        p_same=_permutation_p(first, second) if any_ and min(sizes) >= LEAST_HALVED else float("nan"),
        best_a=first.schedulers[int(np.argmax(first.means))] if any_ and len(ya) > 1 else "",
        best_b=second.schedulers[int(np.argmax(second.means))] if any_ and len(yb) > 1 else "",
        verdict=_verdict(gap, low, high),
    )


def corrected(one: Agreement, p: float) -> Agreement:
    """Return a comparison that differs only if its corrected permutation ``p`` says so too."""
    return one._replace(verdict=UNDECIDED) if one.verdict == DIFFERS and not p <= LEVEL else one


def split_half(of: Scores) -> float:
    """Return the mean tau between random halves of a condition's windows: its noise ceiling."""
    return float(compare([of]).within[0, 0])


def tau_matrix(conditions: Sequence[Scores], ceilings: Sequence[float]) -> Floats:
    """Return tau-b between every two conditions over the schedulers that all rank, ``ceilings`` inside.

    Shape (c, c). The diagonal is not 1 but the noise ceiling: what an order keeps against itself.
    """
    names = [name for name in conditions[0].schedulers if all(name in one.schedulers for one in conditions)]
    if len(names) < 2 or any(not one.windows for one in conditions):
        return np.full((len(conditions), len(conditions)), np.nan)
    rows = [[one.schedulers.index(name) for name in names] for one in conditions]
    matrix = taus(pair_signs(np.stack([one.means[at] for one, at in zip(conditions, rows, strict=True)])))
    np.fill_diagonal(matrix, ceilings)
    return matrix


def _verdict(gap: float, low: float, high: float) -> str:
    if np.isnan(low):
        return UNDECIDED
    if high < GAP_MARGIN:
        return HELD
    return DIFFERS if low > 0 and gap >= GAP_MARGIN else UNDECIDED


def _permutation_p(a: Scores, b: Scores) -> float:
    """Return p that labels don't matter: small if the rankings agree less than after shuffling labels.

    Values are first replaced by within-window ranks so that a difference in scale doesn't decide. Labels are
    shuffled over windows, or swapped inside each window where both conditions share it. The statistic is the
    covariance of the two mean rankings, not their tau: tau forgets sizes, and two halves of a mixture of
    opposite orders are opposite too, so that by tau a full reversal would be as usual as any shuffle.
    """
    ra, rb = -rank_vector(a.values.T), -rank_vector(b.values.T)
    if np.isnan(tau_b(ra.mean(axis=0), rb.mean(axis=0))):
        return float("nan")
    na, nb = len(ra), len(rb)
    shared = a.source == b.source
    chosen = _shuffles(na, nb, shared, _blocks(a, b))
    if shared:
        moved = chosen @ (ra - rb).astype(np.float32) / np.float32(na)
        first, second = rb.mean(axis=0) + moved, ra.mean(axis=0) - moved
    else:
        moved = chosen @ np.concatenate([ra, rb]).astype(np.float32)
        first, second = moved / na, (ra.sum(axis=0) + rb.sum(axis=0) - moved) / nb
    found = _covariance(ra.mean(axis=0), rb.mean(axis=0))
    reached = (_covariance(first, second) <= found + 1e-5).sum()
    return float((1 + reached) / (1 + PERMUTATIONS))


def _blocks(a: Scores, b: Scores) -> tuple[int, ...]:
    """Return each window's stratum as a number, a's then b's; all 0 if the sources' strata don't match."""
    names = sorted(set(a.strata))
    matched = set(b.strata) == set(names) and len(a.strata) == len(a.windows) and a.source != b.source
    strata = (*a.strata, *b.strata) if matched else (names[0],) * (len(a.windows) + len(b.windows))
    return tuple(names.index(name) for name in strata)


@lru_cache(maxsize=8)
def _shuffles(na: int, nb: int, shared: bool, blocks: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return which windows go to the first side: (permutations, na + nb), or (permutations, na) of swaps.

    Windows change sides within their block, each side keeping its number of windows there.
    """
    rng = np.random.default_rng([na, nb, 11])
    if shared:
        return rng.integers(0, 2, (PERMUTATIONS, na)).astype(np.float32)
    block = np.asarray(blocks)
    order = np.argsort(block + rng.random((PERMUTATIONS, na + nb)), axis=-1)
    firsts = np.concatenate(
        [np.flatnonzero(np.sort(block) == one)[: (block[:na] == one).sum()] for one in np.unique(block)]
    )
    chosen = np.zeros((PERMUTATIONS, na + nb), np.float32)
    np.put_along_axis(chosen, order[:, firsts], 1.0, axis=-1)
    return chosen


def _covariance(a: Floats, b: Floats) -> Floats:
    left, right = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    return np.asarray((left * right).mean(axis=-1), np.float64)
