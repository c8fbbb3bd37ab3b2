"""Effects: how large the differences between schedulers are, beside how sure they are.

Reference statistics, section 6.1: mean paired difference, standardised, matched-pairs rank-biserial
correlation, P(A > B), and Cliff's delta.
"""

from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.answers import Effects
from analysis.ranks import LEVEL
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]


def effects_of(cell: Scores) -> Effects:
    """Return the effect sizes of every pair of one condition; NaN without windows, no interval with one."""
    key, names, n = (cell.source, cell.region, cell.column), cell.schedulers, len(cell.windows)
    k = len(names)
    pairs = list(combinations(range(k), 2))
    if not n or not pairs:
        return Effects(key, names, *(np.full((k, k), np.nan) for _ in range(7)))
    first, second = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    differences = cell.values[first] - cell.values[second]
    mean = differences.mean(axis=1)
    spread = differences.std(axis=1, ddof=1) if n > 1 else np.full(len(pairs), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        standardised = np.where(mean == 0, 0.0, mean / spread)
    reach = float(stats.t.isf(LEVEL / 2, n - 1)) * spread / np.sqrt(n) if n > 1 else spread
    cliff = np.array([cliffs_delta(cell.values[i], cell.values[j]) for i, j in pairs])

    def square(values: Floats, mirrored: Floats | None = None, own: float = 0.0) -> Floats:
        whole = np.full((k, k), own)
        whole[first, second] = values
        whole[second, first] = -values if mirrored is None else mirrored
        return whole

    wins = (differences > 0).mean(axis=1) + 0.5 * (differences == 0).mean(axis=1)
    return Effects(
        key=key,
        schedulers=names,
        difference=square(mean),
        low=square(mean - reach, -mean - reach),
        high=square(mean + reach, -mean + reach),
        standardised=square(standardised),
        rank_biserial=square(rank_biserial(differences)),
        wins=square(wins, 1 - wins, 0.5),
        cliff=square(cliff),
    )


def rank_biserial(differences: Floats) -> Floats:
    """Return the matched-pairs rank-biserial correlation of each row, -1 to 1; zeros are left out, 0 if all are."""
    found = np.zeros(len(differences))
    for row, values in enumerate(differences):
        told = values[values != 0]
        if len(told):
            ranks = stats.rankdata(np.abs(told))
            found[row] = (ranks * np.sign(told)).sum() / ranks.sum()
    return found


def cliffs_delta(a: Floats, b: Floats) -> float:
    """Return P(a > b) - P(a < b) over all pairs of values of the two samples."""
    return float(np.sign(a[:, None] - b[None, :]).mean())
