"""Omnibus: whether the schedulers of a condition differ at all, and which pairs do.

Reference statistics, section 6.2: Friedman over windows, then pairwise Wilcoxon with Holm; Nemenyi's critical
difference for the picture only, since its verdict on two schedulers depends on who else is in the pool.
"""

from collections.abc import Sequence
from itertools import combinations

import choix
import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.answers import Omnibus
from analysis.ranks import LEVEL, holm, rank_vector
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]


def omnibus_of(cell: Scores) -> Omnibus:
    """Return Friedman's test, Kendall's W, mean ranks, pairwise tests and cliques of one condition."""
    ranks = rank_vector(cell.values.T)
    n, k = ranks.shape
    mean_ranks = ranks.mean(axis=0) if n else np.full(k, np.nan)
    order = sorted(range(k), key=lambda at: (float(mean_ranks[at]), cell.schedulers[at]))
    names = tuple(cell.schedulers[at] for at in order)
    chi2, p = _friedman(ranks[:, order])
    p_pairs = wilcoxon_holm(cell.values[order])
    return Omnibus(
        key=(cell.source, cell.region, cell.column),
        schedulers=names,
        mean_ranks=mean_ranks[order],
        windows=n,
        chi2=chi2,
        p=p,
        kendall_w=chi2 / (n * (k - 1)) if n and k > 1 else float("nan"),
        critical_difference=critical_difference(k, n),
        p_pairs=p_pairs,
        cliques=cliques(names, p_pairs),
        worth=_worth(ranks[:, order]),
    )


def critical_difference(schedulers: int, windows: int, level: float = LEVEL) -> float:
    """Return Nemenyi's critical difference of mean ranks (Demsar, JMLR 7, 2006); NaN without two to rank."""
    if schedulers < 2 or windows < 1:
        return float("nan")
    q = stats.studentized_range.isf(level, schedulers, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(schedulers * (schedulers + 1) / (6 * windows)))


def wilcoxon_holm(values: Floats) -> Floats:
    """Return two-sided signed-rank p of every pair of rows, Holm over pairs, (k, k); 1 on the diagonal."""
    k, n = values.shape
    found = np.eye(k)
    pairs = list(combinations(range(k), 2))
    if not pairs or n < 2:
        return np.ones((k, k))
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    differences = values[first] - values[second]
    p = np.ones(len(pairs))
    sizes = np.sort(np.abs(differences), axis=1)
    clean = (sizes[:, 0] > 0) & (np.diff(sizes, axis=1) > 0).all(axis=1)
    if clean.any():
        p[clean] = stats.wilcoxon(differences[clean], axis=1).pvalue
    # Exact tables know neither zeros nor ties; where all are equal there is nothing to test.
    mixed = ~clean & (sizes[:, -1] > 0)
    if mixed.any():
        p[mixed] = stats.wilcoxon(differences[mixed], axis=1, method="approx").pvalue
    found[first, second] = found[second, first] = holm(p)
    return found


def concordance(cells: Sequence[Scores]) -> float:
    """Return Kendall's W of the orders of several conditions by mean, ties corrected; NaN if not all rank alike.

    The mean Spearman correlation of m orders without ties is (m W - 1) / (m - 1).
    """
    if len({one.schedulers for one in cells}) != 1 or len(cells) < 2 or any(not one.windows for one in cells):
        return float("nan")
    ranks = rank_vector(np.stack([one.means for one in cells]))
    return _friedman(ranks)[0] / (len(cells) * (ranks.shape[1] - 1)) if ranks.shape[1] > 1 else float("nan")


def cliques(names: tuple[str, ...], p_pairs: Floats) -> tuple[tuple[str, ...], ...]:
    """Return maximal runs of neighbours, in the order given, in which no pair is told apart at 5 %."""
    found: list[tuple[int, int]] = []
    for low in range(len(names)):
        high = low
        while high + 1 < len(names) and bool((p_pairs[low : high + 2, low : high + 2] > LEVEL).all()):
            high += 1
        if high > low and not any(a <= low and high <= b for a, b in found):
            found.append((low, high))
    return tuple(names[low : high + 1] for low, high in found)


def _friedman(ranks: Floats) -> tuple[float, float]:
    n, k = ranks.shape
    if n < 2 or k < 3 or not (np.ptp(ranks, axis=1) > 0).any():
        return float("nan"), float("nan")
    found = stats.friedmanchisquare(*ranks.T)
    return float(found.statistic), float(found.pvalue)


PRIORS = (0.01, 0.1, 1.0)
"""Strengths of the prior under Plackett-Luce worths, tried in turn (choix's ``alpha``)."""


def _worth(ranks: Floats) -> Floats:
    """Return Plackett-Luce worths of the windows' orders, summing to 1; ties are broken by lot.

    By row they would always fall to the same scheduler, and equals would differ a thousandfold.

    Orders that hardly differ between windows have no finite worths: then the prior is raised until there are some,
    and they are undefined (NaN) if none of ``PRIORS`` is enough.
    """
    n, k = ranks.shape
    if n < 2 or k < 2:
        return np.full(k, np.nan)
    lot = np.random.default_rng(n * k).uniform(0.0, 1e-6, ranks.shape)
    orders = np.argsort(ranks + lot, axis=1, kind="stable")
    for prior in PRIORS:
        try:
            with np.errstate(all="ignore"):
                log_worth = choix.ilsr_rankings(k, orders.tolist(), alpha=prior)
        except (RuntimeError, ValueError, np.linalg.LinAlgError):  # it does not converge, or is not a number
            continue
        if np.isfinite(log_worth).all():
            worth = np.exp(log_worth - log_worth.max())
            return np.asarray(worth / worth.sum(), np.float64)
    return np.full(k, np.nan)
