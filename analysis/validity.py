"""Does the simulator's order hold on a real engine: claims made beforehand, agreement, how far repeats agree.

A value is a run's metric, the larger the better (``analysis.metrics.orient``). A condition is (window, region).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import kendalltau

from analysis.metrics import orient, split_column

Floats = npt.NDArray[np.float64]
Condition = tuple[str, str]
Value = dict[tuple[Condition, str], float]
"""A metric by condition and scheduler."""

REVERSAL, STABLE, BORDERLINE = "reversal", "stable", "borderline"
EFFECT_LEAST = 1.0
"""A verdict needs differences between schedulers at least this many times those between repeats."""

CEILING_LEAST = 0.5
"""A verdict needs repeats whose orders agree at least so well (tau-b)."""


class Pair(NamedTuple):
    """What is claimed before anything is measured: which of two schedulers is better in each condition."""

    kind: str  # REVERSAL: the order differs between two conditions; STABLE: it does not; BORDERLINE: too near to say
    first: str
    second: str
    signs: dict[str, int]  # "window rho": 1 if the first is better in the simulator, -1 if the second
    least_gap: float


class Judged(NamedTuple):
    """What live runs said about one pair: conditions in which the order is as claimed, otherwise, or within noise."""

    pair: Pair
    held: int
    broken: int
    unclear: int


class Verdict(NamedTuple):
    """The answer in numbers and in words."""

    metric: str
    schedulers: int
    conditions: int
    repeats: int
    tau: float  # mean over conditions of Kendall's tau-b between the simulator and the mean of the repeats
    ceiling: (
        float  # mean tau-b between one repeat and the mean of the others: more than that nobody can reach
    )
    noise: float  # standard deviation between repeats of one cell, mean
    effect: float  # standard deviation between schedulers' means within a condition, mean
    drift: float  # largest difference between repeats in the mean over all cells, as a share of the mean
    words: str


def column_of(metric: str) -> str:
    """Return the column of a run's row that holds a metric."""
    return "_".join(filter(None, split_column(metric)))


def values(runs: pd.DataFrame, metric: str) -> Value:
    """Return a metric by condition and scheduler, the larger the better; runs without it are left out."""
    column, found = column_of(metric), {}
    if column not in runs:
        return {}
    for _, row in runs.iterrows():
        value = float(orient(np.array([np.nan if row[column] is None else float(row[column])]), column)[0])
        if np.isfinite(value):
            found[(str(row["window_id"]), str(row["region"])), str(row["scheduler"])] = value
    return found


def register(simulated: Value, most: int = 3) -> list[Pair]:
    """Return the pairs to be claimed: the most dramatic reversals, the surest stable ones and the nearest ones."""
    schedulers = sorted({name for _, name in simulated})
    conditions = sorted({condition for condition, _ in simulated})
    found = []
    for first, second in combinations(schedulers, 2):
        both = [one for one in conditions if (one, first) in simulated and (one, second) in simulated]
        gaps = {one: simulated[one, first] - simulated[one, second] for one in both}
        if not gaps or any(gap == 0.0 for gap in gaps.values()):
            continue
        signs = {name_of(one): 1 if gap > 0.0 else -1 for one, gap in gaps.items()}
        scale = float(np.mean([abs(simulated[one, first]) for one in both])) or 1.0
        turns = len(set(signs.values())) > 1
        size = [abs(gap) / scale for gap in gaps.values()]
        up = [abs(gap) / scale for gap in gaps.values() if gap > 0.0]
        down = [abs(gap) / scale for gap in gaps.values() if gap < 0.0]
        least = min(max(up), max(down)) if turns else min(size)
        found.append(Pair(REVERSAL if turns else STABLE, first, second, signs, least))
    surest = sorted(found, key=lambda pair: (-pair.least_gap, pair.first, pair.second))
    reversals = [pair for pair in surest if pair.kind == REVERSAL][:most]
    stable = [pair for pair in surest if pair.kind == STABLE]
    nearest = [pair._replace(kind=BORDERLINE) for pair in stable[most:][-most:]]
    return [*reversals, *stable[:most], *nearest]


def name_of(condition: Condition) -> str:
    """Return a condition as a word."""
    return f"{condition[0]} {condition[1]}"


def judge(pairs: Sequence[Pair], repeats: Sequence[Value]) -> list[Judged]:
    """Hold claims against repeated live runs; within two standard errors of no difference is unclear."""
    told = []
    for pair in pairs:
        count = {1: 0, -1: 0, 0: 0}
        for condition, sign in pair.signs.items():
            gaps = _gaps(pair, condition, repeats)
            if len(gaps) < 2:
                count[0] += 1
                continue
            error = float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
            mean = float(np.mean(gaps))
            count[0 if abs(mean) <= 2.0 * error or mean == 0.0 else (1 if mean * sign > 0.0 else -1)] += 1
        told.append(Judged(pair, held=count[1], broken=count[-1], unclear=count[0]))
    return told


def _gaps(pair: Pair, condition: str, repeats: Sequence[Value]) -> list[float]:
    found = []
    for repeat in repeats:
        of = {name: value for (where, name), value in repeat.items() if name_of(where) == condition}
        if pair.first in of and pair.second in of:
            found.append(of[pair.first] - of[pair.second])
    return found


def verdict(simulated: Value, repeats: Sequence[Value], metric: str) -> Verdict:
    """Return whether the simulator's orders hold on the real engine, or that repeats are too far apart to say."""
    shared = set.intersection(set(simulated), *map(set, repeats)) if repeats else set()
    conditions = sorted({condition for condition, _ in shared})
    taus, ceilings, noises, effects = [], [], [], []
    for condition in conditions:
        names = sorted(name for where, name in shared if where == condition)
        live = np.array([[repeat[condition, name] for name in names] for repeat in repeats])
        if len(names) < 2:
            continue
        taus.append(_tau(np.array([simulated[condition, name] for name in names]), live.mean(axis=0)))
        ceilings += [
            _tau(live[one], np.delete(live, one, axis=0).mean(axis=0))
            for one in range(len(live))
            if len(live) > 1
        ]
        noises.append(float(np.mean(np.std(live, axis=0, ddof=1))) if len(live) > 1 else np.nan)
        effects.append(float(np.std(live.mean(axis=0), ddof=1)))
    level = [float(np.mean([repeat[one] for one in shared])) for repeat in repeats] if shared else [np.nan]
    mean = abs(float(np.mean(level))) or 1.0
    counted = Verdict(
        metric=metric, schedulers=len({name for _, name in shared}), conditions=len(conditions), repeats=len(repeats),
        tau=_mean(taus), ceiling=_mean(ceilings), noise=_mean(noises), effect=_mean(effects),
        drift=(max(level) - min(level)) / mean, words="",
    )  # fmt: skip
    return counted._replace(words=sentence(counted))


def sentence(of: Verdict) -> str:
    """Say it in words; refuses a verdict where repeats differ more than schedulers do."""
    if not of.conditions or not np.isfinite(of.tau):
        return "No verdict: simulator and engine have no order in common."
    if not np.isfinite(of.noise):
        return "No verdict: without repeats nobody knows how far apart two runs of one cell are."
    if of.effect < EFFECT_LEAST * of.noise:
        return (
            f"No verdict: repeats of one cell lie {of.noise:.3g} apart and schedulers {of.effect:.3g}: "
            "the noise is as large as the effect."
        )
    if of.ceiling < CEILING_LEAST:
        return f"No verdict: two repeats agree only {of.ceiling:.2f} with each other, so nothing could agree well."
    against = f"agreement {of.tau:.2f}, and two repeats agree {of.ceiling:.2f} with each other"
    if of.tau >= of.ceiling - 0.1:
        return f"The simulator's order holds as far as repeats can tell: {against}."
    if of.tau >= 0.5 * of.ceiling:
        return f"The simulator's order holds in part: {against}."
    return f"The simulator's order does not hold on this engine: {against}."


def _tau(one: Floats, other: Floats) -> float:
    return float(kendalltau(one, other).statistic)


def _mean(found: Sequence[float]) -> float:
    known = [value for value in found if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def as_table(of: Verdict, judged: Sequence[Judged], errors: Mapping[str, Any]) -> str:
    """Return the fidelity table as Markdown."""
    lines = [f"**{of.words}**", "", "| what | value |", "|---|---|"]
    rows = of._asdict()
    lines += [f"| {name} | {rows[name]} |" for name in ("metric", "schedulers", "conditions", "repeats")]
    lines += [f"| {name} | {rows[name]:.3g} |" for name in ("tau", "ceiling", "noise", "effect", "drift")]
    for name, error in errors.items():
        parts = f"{error['p50']:.0%}, p90 {error['p90']:.0%}, signed {error['signed_p50']:+.0%}"
        lines.append(f"| {name} of a request, median error | {parts} |")
    lines += ["", "| claimed before | pair | held | broken | unclear |", "|---|---|---|---|---|"]
    for one in judged:
        pair = f"{one.pair.first} and {one.pair.second}"
        lines.append(f"| {one.pair.kind} | {pair} | {one.held} | {one.broken} | {one.unclear} |")
    return "\n".join(lines) + "\n"
