"""Bayes: how likely one scheduler beats another by more than the margin, or equals it within the margin.

Reference statistics, section 6.1. The signed-rank test on the Dirichlet process of Benavoli and others (ICML
2014), as ``baycomp.SignedRankTest`` has it, for all pairs of a condition at once: baycomp loops over posterior
draws in Python, which for all pairs of a study takes an hour.
"""

from itertools import combinations

import numpy as np
import numpy.typing as npt

from analysis.answers import Bayes
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]

PRIOR = 0.5
"""Weight of the pseudo-window at difference 0, as in baycomp."""

DRAWS = 1000
"""A probability is off by 0.016 at most, one standard error."""


def bayes_of(cell: Scores) -> Bayes:
    """Return probabilities of every pair of one condition; NaN with fewer than two windows."""
    k, n = cell.values.shape
    better, equivalent = np.zeros((k, k)), np.eye(k)
    pairs = list(combinations(range(k), 2))
    if n < 2:
        better[:], equivalent[:] = np.nan, np.nan
    elif pairs:
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        win, same, lose = signed_rank(cell.values[first] - cell.values[second], cell.margin)
        better[first, second], better[second, first] = win, lose
        equivalent[first, second] = equivalent[second, first] = same
    return Bayes((cell.source, cell.region, cell.column), cell.schedulers, cell.margin, better, equivalent)


def signed_rank(differences: Floats, rope: float, draws: int = DRAWS) -> tuple[Floats, Floats, Floats]:
    """Return P(above rope), P(within), P(below -rope) of rows of paired differences, (rows,) each.

    A draw weighs the windows, and one more of difference 0, by a Dirichlet; each pair of windows votes by its
    mean, and the draw goes to the region with most votes.
    """
    rows, n = differences.shape
    rng = np.random.default_rng(n)
    shape = np.ones(n + 1)
    shape[0] = PRIOR
    weights = rng.dirichlet(shape, draws).astype(np.float32)
    found = np.empty((3, rows))
    for row, difference in enumerate(differences):
        z = np.concatenate([[0.0], difference])
        sums = z[:, None] + z[None, :]
        above, below = _votes(weights, sums, 2 * rope)
        most = np.argmax(np.stack([below, 1 - above - below, above]), axis=0)
        found[:, row] = np.bincount(most, minlength=3)[::-1] / draws
    return found[0], found[1], found[2]


def _votes(weights: npt.NDArray[np.float32], sums: Floats, limit: float) -> npt.NDArray[np.float32]:
    """Return the weight of window pairs with sums above limit, and below -limit, (2, draws); at it, half."""
    sides = [(side > limit) + 0.5 * (side == limit) for side in (sums, -sums)]
    heard = weights @ np.concatenate(sides, axis=1).astype(np.float32)
    return np.asarray((heard.reshape(len(weights), 2, -1) * weights[:, None]).sum(axis=2).T, np.float32)
