"""Does the simulator's order hold on a real engine: claims made beforehand, agreement, how far repeats agree.

A value is a run's metric, the larger the better (``analysis.metrics.orient``): a rate as it is, a latency as minus
its logarithm, so that differences are shares. A condition is (window, region). Repeats took turns, so what drifts
between them is common to all schedulers and does not count as noise of a difference.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import kendalltau
from scipy.stats import t as student

from analysis.metrics import orient, split_column

Floats = npt.NDArray[np.float64]
Condition = tuple[str, str]
Value = dict[tuple[Condition, str], float]
"""A metric by condition and scheduler."""

REVERSAL, STABLE, BORDERLINE = "reversal", "stable", "borderline"
EFFECT_LEAST = 1.0
"""A verdict needs differences between schedulers at least this many times those between repeats."""

CEILING_LEAST = 0.5
"""Repeats whose orders agree less (tau-b) among themselves can't show that an order does not hold."""

CHANCE_MOST = 0.05
"""Most random orders that may agree as well as the simulator's."""

HOLDS, IN_PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "no verdict"
"""What a verdict comes to."""

LEAST = 1.0
"""A pair that is nearer, in units of its condition, is borderline."""

SURE = 0.95
"""Confidence from which on a live difference is clear."""

SHUFFLES = 5000
"""Random orders drawn to tell how often chance agrees as well."""


class Pair(NamedTuple):
    """What is claimed before anything is measured: which of two schedulers is better in each condition."""

    kind: str  # REVERSAL: the order differs between two conditions; STABLE: it does not; BORDERLINE: too near to say
    first: str
    second: str
    signs: dict[
        str, int
    ]  # "window rho": 1 if the first is better in the simulator, -1 if the second; ties left out
    least_gap: float  # in units of what is given to ``register``


class Judged(NamedTuple):
    """What live runs said about one pair: conditions in which the order is as claimed, otherwise, or within noise."""

    pair: Pair
    held: int
    broken: int
    unclear: int

    @property
    def says(self) -> str:
        """Whether the claim as a whole held, in a word: a reversal only if both of its sides did."""
        if self.broken:
            return "broken"
        return "unclear" if self.unclear or not self.held else "held"


class Verdict(NamedTuple):
    """The answer in numbers and in words."""

    metric: str
    schedulers: int
    conditions: int
    repeats: int
    tau: float  # mean over conditions of Kendall's tau-b between the simulator and the mean of the repeats
    ceiling: (
        float  # mean tau-b between one repeat and the mean of the others: how well live runs agree themselves
    )
    chance: float  # share of random orders that agree with the live one as well as the simulator's
    clear: int  # differences of two schedulers in a condition that live repeats show clearly
    same: int  # those of them that the simulator has the same way round
    noise: float  # standard deviation between repeats of one cell, their common drift taken out, mean over conditions
    effect: float  # standard deviation between schedulers' means within a condition, mean
    drift: float  # largest difference between repeats in the mean over all cells, on the compared scale
    says: str  # HOLDS, IN_PART, FAILS or OPEN
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
    """Return the pairs to be claimed: the most dramatic reversals, the surest stable ones and the nearest ones.

    A pair counts by its least gap, of a reversal by the smaller of its two sides. What is nearer than one unit, or
    turns by less, is borderline: the simulator itself can't tell. A reversal claims only conditions beyond one unit.
    """
    schedulers = sorted({name for _, name in simulated})
    conditions = sorted({condition for condition, _ in simulated})
    found = []
    for first, second in combinations(schedulers, 2):
        both = [one for one in conditions if (one, first) in simulated and (one, second) in simulated]
        gaps = {one: simulated[one, first] - simulated[one, second] for one in both}
        signs = {name_of(one): 1 if gap > 0.0 else -1 for one, gap in gaps.items() if gap}
        if not signs:
            continue
        turns = len(set(signs.values())) > 1
        up = [gap for gap in gaps.values() if gap > 0.0]
        down = [-gap for gap in gaps.values() if gap < 0.0]
        least = min(max(up), max(down)) if turns else min(abs(gap) for gap in gaps.values())
        if turns and least >= LEAST:
            signs = {name_of(one): 1 if gap > 0.0 else -1 for one, gap in gaps.items() if abs(gap) >= LEAST}
        found.append(Pair(REVERSAL if turns else STABLE, first, second, signs, least))
    surest = sorted(found, key=lambda pair: (-pair.least_gap, pair.first, pair.second))
    sure = [pair for pair in surest if pair.least_gap >= LEAST]
    reversals = [pair for pair in sure if pair.kind == REVERSAL][:most]
    stable = [pair for pair in sure if pair.kind == STABLE][:most]
    rest = [pair for pair in surest if pair not in reversals and pair not in stable]
    nearest = [pair._replace(kind=BORDERLINE) for pair in rest[-most:]] if most else []
    return [*reversals, *stable, *nearest]


def name_of(condition: Condition) -> str:
    """Return a condition as a word."""
    return f"{condition[0]} {condition[1]}"


class Cells(NamedTuple):
    """Live values of one condition: schedulers by repeats, and what a difference of two means must exceed."""

    names: tuple[str, ...]
    live: Floats  # (schedulers, repeats)
    least: float  # NaN without repeats
    spread: float  # standard deviation of a cell between repeats, their common drift taken out; NaN without repeats


def cells_of(condition: str, repeats: Sequence[Value]) -> Cells:
    """Return the values of schedulers that every repeat has; ``condition`` is as ``name_of`` tells it.

    The noise of a difference is pooled over schedulers, each repeat's common drift taken out: (S-1)(R-1) degrees.
    """
    by_name = [
        {name: value for (where, name), value in one.items() if name_of(where) == condition}
        for one in repeats
    ]
    names = tuple(sorted(set.intersection(*map(set, by_name)))) if by_name else ()
    rows = [[one[name] for one in by_name] for name in names]
    live = np.array(rows, np.float64).reshape(len(names), len(by_name))
    freedom = (live.shape[0] - 1) * (live.shape[1] - 1)
    if freedom < 1:
        return Cells(names, live, float("nan"), float("nan"))
    rest = live - live.mean(axis=1, keepdims=True) - live.mean(axis=0, keepdims=True) + live.mean()
    spread = float(np.sqrt(np.sum(rest**2) / freedom))
    factor = float(student.ppf(0.5 + SURE / 2.0, freedom))
    return Cells(names, live, factor * spread * float(np.sqrt(2.0 / live.shape[1])), spread)


def judge(pairs: Sequence[Pair], repeats: Sequence[Value]) -> list[Judged]:
    """Hold claims against repeated live runs; a difference that noise explains (95 %) is unclear."""
    known: dict[str, Cells] = {}
    told = []
    for pair in pairs:
        count = {1: 0, -1: 0, 0: 0}
        for condition, sign in pair.signs.items():
            cells = known.setdefault(condition, cells_of(condition, repeats))
            count[_sign(cells, pair.first, pair.second) * sign] += 1
        told.append(Judged(pair, held=count[1], broken=count[-1], unclear=count[0]))
    return told


def _sign(cells: Cells, first: str, second: str) -> int:
    """Return which of two schedulers is clearly better live: 1, -1, or 0 if repeats can't tell."""
    if first not in cells.names or second not in cells.names or not np.isfinite(cells.least):
        return 0
    means = cells.live.mean(axis=1)
    gap = float(means[cells.names.index(first)] - means[cells.names.index(second)])
    return 0 if abs(gap) <= cells.least else 1 if gap > 0.0 else -1


def verdict(simulated: Value, repeats: Sequence[Value], metric: str) -> Verdict:
    """Return whether the simulator's orders hold on the real engine, or that repeats are too far apart to say."""
    shared = set.intersection(set(simulated), *map(set, repeats)) if repeats else set()
    conditions = sorted({condition for condition, _ in shared})
    taus, ceilings, noises, effects, clear, same = [], [], [], [], 0, 0
    known = []
    for condition in conditions:
        cells = cells_of(name_of(condition), [{one: repeat[one] for one in shared} for repeat in repeats])
        if len(cells.names) < 2:
            continue
        ours = np.array([simulated[condition, name] for name in cells.names])
        known.append((ours, cells.live.mean(axis=1)))
        taus.append(_tau(*known[-1]))
        ceilings += _against_others(cells.live)
        noises.append(cells.spread)
        effects.append(float(np.std(known[-1][1], ddof=1)))
        for first, second in combinations(range(len(cells.names)), 2):
            sign = _sign(cells, cells.names[first], cells.names[second])
            clear, same = clear + abs(sign), same + int(sign * (ours[first] - ours[second]) > 0.0)
    level = [float(np.mean([repeat[one] for one in shared])) for repeat in repeats] if shared else [np.nan]
    counted = Verdict(
        metric=metric, schedulers=len({name for _, name in shared}), conditions=len(conditions), repeats=len(repeats),
        tau=_mean(taus), ceiling=_mean(ceilings), chance=_chance(known, _mean(taus)), clear=clear, same=same,
        noise=_mean(noises), effect=_mean(effects), drift=max(level) - min(level),
        says=OPEN, words="",
    )  # fmt: skip
    says, words = sentence(counted)
    return counted._replace(says=says, words=words)


def expected(draws: Mapping[tuple[Condition, str], Sequence[float]], condition: Condition) -> float | None:
    """Return how well one simulated draw agrees with the mean of the others: what live repeats may reach at best."""
    matrix = np.array(
        [values for (where, _), values in sorted(draws.items()) if where == condition], np.float64
    )
    found = _mean(_against_others(matrix))
    return found if np.isfinite(found) else None


def _against_others(live: Floats) -> list[float]:
    """Return how well each repeat agrees with the mean of the others; [] without others."""
    count = live.shape[1]
    return [
        _tau(live[:, one], np.delete(live, one, axis=1).mean(axis=1)) for one in range(count) if count > 1
    ]


def _chance(known: Sequence[tuple[Floats, Floats]], tau: float) -> float:
    """Return the share of random orders, drawn within conditions, that agree as well as the simulator's."""
    if not known or not np.isfinite(tau):
        return float("nan")
    random = np.random.Generator(np.random.Philox(1))
    signs = [(np.sign(a[:, None] - a), np.sign(b[:, None] - b)) for a, b in known]
    reached = np.zeros(SHUFFLES)
    counted = 0
    for ours, theirs in signs:
        scale = np.sqrt(np.sum(ours**2) * np.sum(theirs**2))
        if scale == 0.0:
            continue
        counted += 1
        for draw in range(SHUFFLES):
            order = random.permutation(len(ours))
            reached[draw] += np.sum(ours[np.ix_(order, order)] * theirs) / scale
    as_good = np.sum(reached / max(1, counted) >= tau - 1e-12)
    return float((as_good + 1) / (SHUFFLES + 1))


def sentence(of: Verdict) -> tuple[str, str]:
    """Say what it comes to and in words; no verdict where repeats differ more than schedulers do, or chance agrees.

    The order holds as far as repeats can tell only if no difference that they show clearly is the other way round.
    """
    if not of.conditions or not np.isfinite(of.tau):
        return OPEN, "No verdict: simulator and engine have no order in common."
    if not np.isfinite(of.noise):
        return OPEN, "No verdict: without repeats nobody knows how far apart two runs of one cell are."
    if of.effect < EFFECT_LEAST * of.noise:
        return OPEN, (
            f"No verdict: repeats of one cell lie {of.noise:.3g} apart and schedulers {of.effect:.3g}: "
            "the noise is as large as the effect."
        )
    agrees = of.tau >= 0.5 * of.ceiling
    if not of.chance <= CHANCE_MOST and (agrees or of.ceiling < CEILING_LEAST):
        return OPEN, (
            f"No verdict: repeats agree {of.ceiling:.2f} among themselves, and a random order agrees as well "
            f"as the simulator's ({of.tau:.2f}) in {of.chance:.0%} of draws."
        )
    against = (
        f"agreement {of.tau:.2f}, repeats agree {of.ceiling:.2f} among themselves, and of {of.clear} differences "
        f"that live runs show clearly {of.same} are the same way round"
    )
    if of.tau >= of.ceiling - 0.1 and of.same == of.clear:
        return HOLDS, f"The simulator's order holds as far as repeats can tell: {against}."
    if agrees:
        return IN_PART, f"The simulator's order holds in part: {against}."
    return FAILS, f"The simulator's order does not hold on this engine: {against}."


def _tau(one: Floats, other: Floats) -> float:
    return float(kendalltau(one, other).statistic)


def _mean(found: Sequence[float]) -> float:
    known = [value for value in found if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
