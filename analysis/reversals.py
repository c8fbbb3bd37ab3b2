"""Reversals: does a pair of schedulers change places between two conditions, size and sign tested together?

Reference statistics, section 6.3: an intersection-union test with the margin inside the test, five outcomes,
errors controlled over a declared family; equivalence by two one-sided tests. Gail and Simon's test asks three
or more sources at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.answers import EQUIVALENT, OUTCOMES, REVERSAL, SIGN, STABLE, UNDECIDED, Crossing, Family, Key
from analysis.declared import MARGIN_FACTORS
from analysis.power import detectable_reversal
from analysis.ranks import LEVEL, holm, least_p, one_sided_beyond
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]

HOLM_MOST = 100
"""A planned family of so many is corrected by Holm; larger ones, and all exploratory ones, by
Benjamini-Yekutieli: pairs share schedulers, so the independence of Benjamini-Hochberg isn't given.
"""

KINDS = ("rev", "stable", "sign", "eq")


class PairTests(NamedTuple):
    """Every pair of schedulers in one condition, shape (pairs,); NaN for a pair that isn't ranked there."""

    windows: int
    difference: Floats  # mean of A - B over windows
    error: Floats  # its standard error
    spread: Floats  # standard deviation of A - B over windows
    above: Floats  # (factors, pairs) p that A - B > factor * margin
    below: Floats  # (factors, pairs) p that A - B < -factor * margin
    positive: Floats  # p that A - B > 0
    negative: Floats
    equivalent: Floats  # (factors, pairs) TOST: p that abs(A - B) < factor * margin


class Hypotheses(NamedTuple):
    """A family before its tests: condition x against condition y for every pair of schedulers."""

    name: str
    axis: str
    planned: bool
    declared: bool
    sides: tuple[tuple[Key, Key], ...]
    pairs: tuple[tuple[str, str], ...]
    excluded: int = 0  # left out already


def pair_tests(of: Scores, pairs: Sequence[tuple[str, str]]) -> PairTests:
    """Return the one-sided tests of every pair against 0 and the margin's multiples (section 6.1)."""
    places = {name: at for at, name in enumerate(of.schedulers)}
    known = np.array([a in places and b in places for a, b in pairs], np.bool_) & bool(of.windows)
    kept = [pair for pair, inside in zip(pairs, known, strict=True) if inside]
    first, second = ([places[pair[side]] for pair in kept] for side in (0, 1))
    differences = of.values[first] - of.values[second]
    margins = [factor * of.margin for factor in MARGIN_FACTORS]
    thresholds = (*margins, 0.0, *(-margin for margin in margins))
    up, down = one_sided_beyond(differences, thresholds), one_sided_beyond(-differences, thresholds)
    n, size = len(of.windows), len(margins)
    spread = differences.std(axis=1, ddof=1) if n > 1 else np.full(len(kept), np.nan)

    def everywhere(values: Floats) -> Floats:
        whole = np.full((*values.shape[:-1], len(pairs)), np.nan)
        whole[..., known] = values
        return whole

    return PairTests(
        windows=n,
        difference=everywhere(differences.mean(axis=1) if n else np.zeros(0)),
        error=everywhere(spread / np.sqrt(max(n, 1))),
        spread=everywhere(spread),
        above=everywhere(up[:size]),
        below=everywhere(down[:size]),
        positive=everywhere(up[size]),
        negative=everywhere(down[size]),
        equivalent=everywhere(np.maximum(up[size + 1 :], down[size + 1 :])),
    )


def reversal_p(x: PairTests, y: PairTests, factor: int = 1) -> dict[str, Floats]:
    """Return raw p-values a pair of schedulers, by kind of ``KINDS``; ``factor`` is a row of MARGIN_FACTORS.

    Each orientation is an intersection-union test, the larger of its two p; the smaller orientation counts
    twice.
    """
    a = (x.above[factor], x.below[factor], x.positive, x.negative)
    b = (y.above[factor], y.below[factor], y.positive, y.negative)
    return {
        "rev": _either(np.maximum(a[0], b[1]), np.maximum(a[1], b[0])),
        "stable": _either(np.maximum(a[0], b[0]), np.maximum(a[1], b[1])),
        "sign": _either(np.maximum(a[2], b[3]), np.maximum(a[3], b[2])),
        "eq": _either(x.equivalent[factor], y.equivalent[factor]),
    }


def outcomes(adjusted: Mapping[str, Floats]) -> npt.NDArray[np.object_]:
    """Return the first outcome that holds at 5 % adjusted, of ``OUTCOMES``."""
    holds = [adjusted[kind] <= LEVEL for kind in KINDS]
    return np.select(holds, np.asarray([REVERSAL, STABLE, SIGN, EQUIVALENT], object), UNDECIDED)


def adjust(p: Floats, method: str) -> Floats:
    """Return p-values adjusted over the family by "holm", "fdr_by" or "fdr_bh"; NaN stays."""
    if method == "holm":
        return holm(p)
    adjusted = np.full(len(p), np.nan)
    known = ~np.isnan(p)
    if known.any():
        adjusted[known] = multipletests(p[known], LEVEL, method)[1]
    return adjusted


def family(of: Hypotheses, cells: Mapping[Key, Scores], tested: dict[Key, PairTests] | None = None) -> Family:
    """Return a family's outcomes. Hypotheses of which a scheduler isn't ranked on a side are left out.

    ``tested`` keeps a condition's tests for another family over the same pairs.
    """
    tests = {} if tested is None else tested
    for key in (key for side in of.sides for key in side):
        if key not in tests:
            tests[key] = pair_tests(cells[key], of.pairs)
    sides = [(tests[x], tests[y]) for x, y in of.sides]
    table = _table(of, sides)
    known = table["p_rev"].notna().to_numpy()
    excluded = of.excluded + int((~known).sum())
    table = table[known].reset_index(drop=True)
    method = "holm" if of.planned and len(table) <= HOLM_MOST else "fdr_by"
    adjusted = {kind: adjust(table[f"p_{kind}"].to_numpy(), method) for kind in KINDS}
    for kind in KINDS:
        table[f"q_{kind}"] = adjusted[kind]
    beside = {kind: adjust(table[f"p_{kind}"].to_numpy(), "fdr_bh") for kind in KINDS}
    table["bh_rev"] = beside["rev"]
    table["outcome"] = pd.Series(outcomes(adjusted), dtype=object)
    windows = min((min(x.windows, y.windows) for x, y in sides), default=0)
    spreads = np.concatenate([np.zeros(0), *(np.maximum(x.spread, y.spread) for x, y in sides)])[known]
    spread = float(np.median(spreads)) if len(table) else float("nan")
    margin = max((max(cells[x].margin, cells[y].margin) for x, y in of.sides), default=float("nan"))
    penalty = _penalty(len(table), method)
    return Family(
        name=of.name,
        axis=of.axis,
        planned=of.planned,
        declared=of.declared,
        adjustment=method,
        size=len(table),
        excluded=excluded,
        table=table,
        counts=_counts(table["outcome"].to_numpy(object)),
        counts_bh=_counts(outcomes(beside)),
        by_margin={
            factor: _counts_at(row, sides, known, method) for row, factor in enumerate(MARGIN_FACTORS)
        },
        detectable=detectable_reversal(margin, spread, windows, penalty),
        detectable_alone=detectable_reversal(margin, spread, windows, 1.0),
        least_p=min(1.0, 2 * penalty * least_p(windows, 1)),
    )


def crossing(
    cells: Mapping[Key, Scores], groups: Sequence[Sequence[Key]], pairs: Sequence[tuple[str, str]]
) -> Crossing:
    """Return Gail and Simon's test of every pair over each group: one region's three or more sources."""
    parts = []
    for keys in groups:
        tests = [pair_tests(cells[key], pairs) for key in keys]
        d, s = (np.stack([getattr(one, name) for one in tests]) for name in ("difference", "error"))
        margin = cells[keys[0]].margin
        q, p = gail_simon(d, s)
        nearer = np.sign(d) * np.maximum(np.abs(d) - margin, 0.0)
        parts.append(
            pd.DataFrame(
                {
                    "a": [a for a, _ in pairs],
                    "b": [b for _, b in pairs],
                    "region": keys[0][1],
                    "sources": len(keys),
                    "q": q,
                    "p": p,
                    "p_margin": gail_simon(nearer, s)[1],
                }
            )
        )
    table = pd.concat(parts, ignore_index=True).dropna(subset=["p"], ignore_index=True)
    table["q_by"] = adjust(table["p_margin"].to_numpy(), "fdr_by")
    return Crossing(groups[0][0][2], table)


def gail_simon(differences: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return (Q, p) of the likelihood-ratio test for a qualitative interaction, (groups, ...) -> (...).

    Gail and Simon, Biometrics 41 (1985): Q = min(Q+, Q-), and under no crossing p is the sum over
    h = 1 .. m-1 of Binom(h; m-1, 1/2) P(chi2_h > Q); 1 if all lean to one side.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(differences == 0, 0.0, (differences / errors) ** 2)
    q = np.minimum((share * (differences > 0)).sum(axis=0), (share * (differences < 0)).sum(axis=0))
    q = np.where(np.isnan(differences).any(axis=0), np.nan, q)
    m = len(differences)
    h = np.arange(1, m)
    tail = stats.binom.pmf(h, m - 1, 0.5) @ stats.chi2.sf(np.atleast_1d(q)[None, :], h[:, None])
    p = np.where(np.isnan(q), np.nan, np.where(q > 0, tail.reshape(np.shape(q)), 1.0))
    return np.asarray(q, np.float64), np.asarray(p, np.float64)


def _either(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.minimum(1.0, 2 * np.minimum(first, second)), np.float64)


def _table(of: Hypotheses, sides: Sequence[tuple[PairTests, PairTests]]) -> pd.DataFrame:
    count, size = len(of.sides), len(of.pairs)
    columns: dict[str, Any] = {
        "a": np.tile(np.asarray([a for a, _ in of.pairs], object), count),
        "b": np.tile(np.asarray([b for _, b in of.pairs], object), count),
    }
    for side, letter in enumerate("xy"):
        for part, name in enumerate(("source", "region", "column")):
            told = np.asarray([keys[side][part] for keys in of.sides], object)
            columns[f"{name}_{letter}"] = np.repeat(told, size)
    for side, letter in enumerate("xy"):
        tests = [pair[side] for pair in sides]
        difference = _joined([one.difference for one in tests])
        reach = _joined([stats.t.isf(LEVEL / 2, max(one.windows - 1, 1)) * one.error for one in tests])
        columns[f"diff_{letter}"] = difference
        columns[f"low_{letter}"], columns[f"high_{letter}"] = difference - reach, difference + reach
        columns[f"n_{letter}"] = np.repeat([one.windows for one in tests], size)
        columns[f"equivalent_{letter}"] = _joined([one.equivalent[1] for one in tests]) <= LEVEL
        better = np.where(difference > 0, columns["a"], columns["b"])
        columns[f"winner_{letter}"] = np.where(difference == 0, "", better)
    p = [reversal_p(x, y) for x, y in sides]
    columns |= {f"p_{kind}": _joined([one[kind] for one in p]) for kind in KINDS}
    return pd.DataFrame(columns)


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.asarray(np.concatenate([np.zeros(0), *parts]), np.float64)


def _counts(found: npt.NDArray[np.object_]) -> dict[str, int]:
    return {name: int((found == name).sum()) for name in OUTCOMES}


def _counts_at(
    row: int, sides: Sequence[tuple[PairTests, PairTests]], known: npt.NDArray[np.bool_], method: str
) -> dict[str, int]:
    p = [reversal_p(x, y, row) for x, y in sides]
    return _counts(
        outcomes({kind: adjust(_joined([one[kind] for one in p])[known], method) for kind in KINDS})
    )


def _penalty(size: int, method: str) -> float:
    """Return by how much the least p of a family is multiplied: Holm's or Benjamini-Yekutieli's first step."""
    return float(max(size, 1) * (1.0 if method == "holm" else (1 / np.arange(1, max(size, 1) + 1)).sum()))
