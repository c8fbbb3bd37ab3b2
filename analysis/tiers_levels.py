"""How many tiers: what one more adds, which numbers of tiers may be the best, and whether that answer travels.

Reference multitier, section 9. The best number is a set: all that are not shown worse than the best by more than the
margin. Sets of two conditions are compared by halves of their windows, beside halves of one condition.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.ranks import LEVEL, holm, least_p, one_sided, worse_than_best
from analysis.tiers_effects import Effect, effect_of, effects_of, intervals
from analysis.tiers_results import MARGIN, Results, Setting, aligned
from analysis.topsets import jaccard

Floats = npt.NDArray[np.float64]

SYSTEMS = {
    "queue order": "tiered:order=1+least-kv",
    "all mechanisms": "tiered:order=1,headroom=1+tier-freeness+rebalance",
    "strict (vLLM priority)": "strict-tiers+least-kv",
    "deadlines (edf)": "edf+least-kv",
    "weighted deadlines": "tiered:order=3+least-kv",
}
"""What the number of tiers is asked of: schedulers that ran at several, by the names used in words."""

SPLITS = 24
"""Random halves that agreement of sets is averaged over."""


class Step(NamedTuple):
    """From some number of tiers to the next that was run."""

    below: int
    above: int
    effect: Effect

    @property
    def verdict(self) -> str:
        """ "gains", "loses", "adds nothing" (within the margin) or "undecided"."""
        if self.effect.mean > 0 and self.effect.shown == "gain":
            return "gains" if not self.effect.equivalent else "adds nothing"
        if self.effect.shown == "loss" and not self.effect.equivalent:
            return "loses"
        return "adds nothing" if self.effect.equivalent else "undecided"


class Levels(NamedTuple):
    """How many tiers, of one scheduler in one setting by one metric."""

    setting: Setting
    system: str
    metric: str
    levels: tuple[int, ...]
    means: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    p_worse: tuple[float, ...]  # than the best by more than the margin, Holm
    survivors: tuple[int, ...]
    steps: tuple[Step, ...]
    against_one: dict[int, Effect]  # what so many tiers gain over one
    windows: int
    informative: bool  # levels differ by more than the margin

    @property
    def least(self) -> int:
        """K*: the fewest tiers that are not shown worse than the best."""
        return min(self.survivors)

    @property
    def testable(self) -> bool:
        """Whether so many windows can show a number of tiers to be worse at all."""
        return least_p(self.windows, len(self.levels) - 1) <= LEVEL

    @property
    def best(self) -> int:
        """The number of tiers with the highest mean."""
        return self.levels[int(np.argmax(self.means))]


class Travel(NamedTuple):
    """Agreement of the sets of surviving numbers of tiers along an axis; halves against halves."""

    axis: str
    system: str
    metric: str
    pairs: int
    overlap: float  # mean Jaccard of two conditions
    ceiling: float  # of two halves of one condition
    inside: float  # mean share in which K* of one is in the set of the other
    inside_ceiling: float
    gap_low: float  # interval of ceiling - overlap, over pairs of conditions
    gap_high: float
    testable: bool = True  # whether halves have windows enough to show any number of tiers to be worse


def levels_of(of: Results, setting: Setting, system: str, metric: str) -> Levels | None:
    """Return what is known of the number of tiers; None if the scheduler ran at fewer than two."""
    spec = SYSTEMS.get(system, system)
    ran = of.levels(setting, spec)
    cells = [cell for k in ran if (cell := of.cell(of.told(setting, k), spec)) is not None]
    if len(cells) < 2:
        return None
    windows, values = aligned(cells, metric)
    if not windows:
        return None
    p = surviving_p(values)
    singles = intervals(values)
    every = effects_of(np.concatenate([np.diff(values, axis=0), values[1:] - values[0]]))
    further, gains = every[: len(ran) - 1], every[len(ran) - 1 :]
    means = values.mean(axis=1)
    return Levels(
        setting=setting, system=system, metric=metric, levels=ran,
        means=tuple(float(mean) for mean in means),
        low=tuple(one[1] for one in singles), high=tuple(one[2] for one in singles),
        p_worse=tuple(float(one) for one in p),
        survivors=tuple(k for k, one in zip(ran, p, strict=True) if one > LEVEL),
        steps=tuple(Step(a, b, one) for (a, b), one in zip(pairwise(ran), further, strict=True)),
        against_one=dict(zip(ran[1:], gains, strict=True)) if ran[0] == 1 else {},
        windows=len(windows), informative=bool(np.ptp(means) > MARGIN),
    )  # fmt: skip


def surviving_p(values: Floats) -> Floats:
    """Return p that each row trails the best row by more than the margin, Holm over rows; (rows, windows) in."""
    best = int(np.argmax(values.mean(axis=1)))
    return worse_than_best(values[best] - values, best, MARGIN)


def every_level(of: Results, metric: str, systems: Sequence[str] = ()) -> list[Levels]:
    """Return the levels of each system in each setting of the plan's fleet in which it ran at several."""
    found = []
    home = of.home
    settings = sorted(
        {at._replace(tiers=home.tiers) for at, _ in of.cells
         if (at.engines, at.start, at.boot_s) == (home.engines, home.start, home.boot_s)
         and at.mix not in ("shuffled", "misdeclared")},
        key=lambda at: (at.source, float(at.region), at.mix, at.chain, at.ladder),
    )  # fmt: skip
    for system in systems or SYSTEMS:
        for setting in settings:
            one = levels_of(of, setting, system, metric)
            if one is not None and len(one.levels) > 2:
                found.append(one)
    return found


AXES: dict[str, Callable[[Setting], tuple[object, ...]]] = {
    "source": lambda at: (at.region, at.mix, at.chain, at.ladder),
    "region": lambda at: (at.source, at.mix, at.chain, at.ladder),
    "mix": lambda at: (at.source, at.region, at.chain, at.ladder),
    "chain": lambda at: (at.source, at.region, at.mix, at.ladder),
    "ladder": lambda at: (at.source, at.region, at.mix, at.chain),
}
"""What stays the same while one axis changes."""


def travels(of: Results, found: Sequence[Levels], axis: str) -> Travel | None:
    """Return how far the surviving sets of one system and metric agree along an axis; None without pairs."""
    alike = AXES[axis]
    pairs = [
        (a, b) for a, b in combinations(found, 2)
        if alike(a.setting) == alike(b.setting) and getattr(a.setting, axis) != getattr(b.setting, axis)
    ]  # fmt: skip
    return _travel(of, axis, pairs)


def across_metrics(of: Results, one: Sequence[Levels], other: Sequence[Levels]) -> Travel | None:
    """Return how far the sets by two metrics agree in the same settings."""
    by_setting = {(at.setting, at.system): at for at in other}
    pairs = [(at, by_setting[at.setting, at.system]) for at in one if (at.setting, at.system) in by_setting]
    return _travel(of, "metric", pairs)


def _travel(of: Results, axis: str, pairs: Sequence[tuple[Levels, Levels]]) -> Travel | None:
    if not pairs:
        return None
    halves: dict[int, list[tuple[frozenset[int], frozenset[int]]]] = {}
    for one in {id(level): level for pair in pairs for level in pair}.values():
        halves[id(one)] = halved(of, one)
    rows = []
    for a, b in pairs:
        mine, yours = halves[id(a)], halves[id(b)]
        crossed = [(x[0], y[1]) for x, y in zip(mine, yours, strict=True)]
        within = [*mine, *yours]
        rows.append((*_agreement(crossed), *_agreement(within)))
    table = np.array(rows)
    gap = table[:, 2] - table[:, 0]
    spread = effect_of(gap)
    means = table.mean(axis=0)
    a = pairs[0][0]
    return Travel(
        axis, a.system, a.metric, len(pairs), float(means[0]), float(means[2]), float(means[1]), float(means[3]),
        spread.low, spread.high,
        all(least_p(one.windows // 2, len(one.levels) - 1) <= LEVEL for pair in pairs for one in pair),
    )  # fmt: skip


def _agreement(sets: Sequence[tuple[frozenset[int], frozenset[int]]]) -> tuple[float, float]:
    """Return mean Jaccard, and the mean share in which the fewest of one is in the other, both ways."""
    overlap = float(np.mean([jaccard(sorted(map(str, x)), sorted(map(str, y))) for x, y in sets]))
    return overlap, float(np.mean([((min(x) in y) + (min(y) in x)) / 2 for x, y in sets]))


def halved(of: Results, one: Levels) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Return the surviving sets on random disjoint halves of a condition's windows, the same halves in a source."""
    spec = SYSTEMS.get(one.system, one.system)
    cells = [cell for k in one.levels if (cell := of.cell(of.told(one.setting, k), spec)) is not None]
    windows, values = aligned(cells, one.metric)
    rng = np.random.default_rng([len(windows), *one.setting.source.encode()])
    half = max(1, len(windows) // 2)
    sides = []
    for _ in range(SPLITS):
        order = rng.permutation(len(windows))
        sides += [values[:, order[:half]], values[:, order[-half:]]]
    gaps = []
    for side in sides:
        best = int(np.argmax(side.mean(axis=1)))
        gaps.append(side[best] - side - MARGIN)
    p = one_sided(np.concatenate(gaps)).reshape(len(sides), -1)  # all halves at once: they have one size
    sets = []
    for side, each in zip(sides, p, strict=True):
        each[int(np.argmax(side.mean(axis=1)))] = np.nan
        adjusted = holm(each)
        sets.append(frozenset(k for k, one_p in zip(one.levels, adjusted, strict=True) if not one_p <= LEVEL))
    return list(zip(sets[::2], sets[1::2], strict=True))


def placebo(of: Results, metric: str = "U") -> list[tuple[Setting, str, Effect]]:
    """Return what tiers that say nothing of importance gain over one tier: it should be nothing."""
    found = []
    for setting, spec in sorted(of.cells, key=lambda key: (key[0].source, float(key[0].region), *key[0][2:])):
        if setting.mix != "shuffled" or setting.tiers == 1:
            continue
        base = of.cell(setting.untiered, spec)
        if base is not None:
            _, values = aligned([of.cells[setting, spec], base], metric)
            found.append((setting, spec, effect_of(values[0] - values[1])))
    return found
