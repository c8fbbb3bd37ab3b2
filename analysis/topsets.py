"""Top sets: which schedulers may be the best of a condition, and how far the sets of two conditions overlap.

Reference statistics, sections 2 (RBO, overlap of top sets) and 6.4 (best set).
"""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from arch.bootstrap import MCS

from analysis.answers import TopSet
from analysis.declared import MARGIN_FACTORS
from analysis.ranks import LEVEL, TIE, Ranking, worse_than_best
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]

PERSISTENCE = 0.9
"""RBO's q, fixed beforehand: the first ten places carry most of the weight."""

DRAWS = 1000


def top_set_of(cell: Scores, ranking: Ranking) -> TopSet:
    """Return both top sets of a condition; empty if nobody is ranked."""
    key = (cell.source, cell.region, cell.column)
    if not ranking.rows:
        return TopSet(key, "", (), (), {}, dict.fromkeys(MARGIN_FACTORS, ()))
    p = confidence_p(cell)
    order = [row.scheduler for row in ranking.rows]
    best = int(np.argmax(cell.means))
    gaps = cell.values[best] - cell.values
    worse = {factor: worse_than_best(gaps, best, factor * cell.margin) for factor in MARGIN_FACTORS}
    places = [cell.schedulers.index(name) for name in order]
    return TopSet(
        key=key,
        best=order[0],
        members=tuple(row.scheduler for row in ranking.rows if row.in_top),
        confidence_set=tuple(name for name in order if p[name] > LEVEL),
        confidence_p={name: p[name] for name in order},
        at_margin={
            factor: tuple(name for name, at in zip(order, places, strict=True) if found[at] > LEVEL)
            for factor, found in worse.items()
        },
    )


def confidence_p(cell: Scores) -> dict[str, float]:
    """Return each scheduler's p of the Model Confidence Set (Hansen, Lunde and Nason), by arch.

    Windows were chosen with gaps between them, so they are drawn one by one, not in blocks. Schedulers that
    differ by a constant have no spread to be tested by: the lower is out for certain, equals share a p.
    """
    values, names = cell.values, cell.schedulers
    if len(cell.windows) < 2:
        return dict.fromkeys(names, 1.0)
    kept: list[int] = []
    stands_for: dict[int, int] = {}
    out: dict[str, float] = {}
    for at in sorted(range(len(names)), key=lambda i: (-float(cell.means[i]), i)):
        rival = next((i for i in kept if np.ptp(values[i] - values[at]) <= TIE), None)
        if rival is None:
            kept.append(at)
        elif cell.means[rival] - cell.means[at] <= TIE:
            stands_for[at] = rival
        else:
            out[names[at]] = 0.0
    found = dict.fromkeys((names[at] for at in kept), 1.0)
    if len(kept) > 1:
        seed = zlib.crc32("|".join((cell.source, *cell.windows)).encode())
        models = MCS(-values[kept].T, LEVEL, reps=DRAWS, block_size=1, method="R", seed=seed)
        models.compute()
        p = models.pvalues["Pvalue"]
        places = np.asarray(p.index, np.int64)
        found |= {names[kept[at]]: float(value) for at, value in zip(places, p, strict=True)}
    shared = {names[at]: found[names[rival]] for at, rival in stands_for.items()}
    return found | shared | out


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the overlap of two sets, shared over all; NaN if both are empty."""
    all_ = {*first, *second}
    return len({*first} & {*second}) / len(all_) if all_ else float("nan")


def rbo(first: Sequence[str], second: Sequence[str], q: float = PERSISTENCE) -> float:
    """Return rank-biased overlap of two lists, best first, extrapolated beyond their ends; NaN if one is empty.

    Webber, Moffat and Zobel, TOIS 28 (2010), equation 32: lists may differ in length and members.
    """
    short, long = sorted((first, second), key=len)
    s, n = len(short), len(long)
    if not s:
        return float("nan")
    shared = [float(len({*short[:depth]} & {*long[:depth]})) for depth in range(1, n + 1)]
    at_s, at_n = shared[s - 1], shared[n - 1]
    weighted = sum(count / depth * q**depth for depth, count in enumerate(shared, 1))
    beyond = sum(at_s * (depth - s) / (s * depth) * q**depth for depth in range(s + 1, n + 1))
    return float((1 - q) / q * (weighted + beyond) + ((at_n - at_s) / n + at_s / s) * q**n)
