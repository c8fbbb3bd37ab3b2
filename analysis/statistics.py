"""Statistics: everything that a report says beyond the rankings, from findings, each part timed.

Reference statistics defines each part; ``analysis.answers`` holds the types.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from analysis.answers import (
    OUTCOMES,
    STABLE,
    UNDECIDED,
    Components,
    Crossing,
    Family,
    Flags,
    Key,
    Matrix,
    Statistics,
)
from analysis.bayes import bayes_of
from analysis.compare import compare
from analysis.components import over_columns, over_regions
from analysis.effects import effects_of
from analysis.findings import Findings, Group, groups, plain, top_set
from analysis.omnibus import concordance, omnibus_of
from analysis.panel import panel_of
from analysis.power import power_of
from analysis.ranks import Ranking, rank
from analysis.recovery import recovery_of
from analysis.reversals import Hypotheses, PairTests, crossing, family
from analysis.scores import Scores, scores
from analysis.topsets import jaccard, rbo, top_set_of

Floats = npt.NDArray[np.float64]
Part = TypeVar("Part")

SHOWN_MOST = 500
"""Rows of a family's table in the JSON: the reversals, equivalences and sign changes, most significant first."""


class _Ground(NamedTuple):
    """Findings, and the cells under other SLO sets than the primary metric's beside theirs."""

    of: Findings
    cells: dict[Key, Scores]
    rankings: dict[Key, Ranking]
    pairs: tuple[tuple[str, str], ...]

    def cells_of(self, column: str) -> dict[Key, Scores]:
        """Return the cells of one column."""
        return {key: cell for key, cell in self.cells.items() if key[2] == column}


def statistics(of: Findings) -> Statistics:
    """Return every statistic of a sweep: seconds of work for 20,000 runs."""
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Part]) -> Part:
        begun = perf_counter()
        found = make()
        seconds[name] = perf_counter() - begun
        return found

    ground = timed("cells", lambda: _ground(of))
    primary = ground.cells_of(of.study.primary)
    return Statistics(
        matrices=timed("matrices", lambda: tuple(_matrices(ground))),
        top_sets=timed(
            "top sets", lambda: {key: top_set_of(cell, ground.rankings[key]) for key, cell in primary.items()}
        ),
        omnibus=timed("omnibus", lambda: {key: omnibus_of(cell) for key, cell in primary.items()}),
        effects=timed("effects", lambda: {key: effects_of(cell) for key, cell in primary.items()}),
        bayes=timed("bayes", lambda: {key: bayes_of(cell) for key, cell in primary.items()}),
        components=timed("components", lambda: _components(ground)),
        families=timed("reversals", lambda: _families(ground)),
        crossings=timed("crossings", lambda: _crossings(ground)),
        recovery=timed("recovery", lambda: {key: recovery_of(cell) for key, cell in primary.items()}),
        power=timed("power", lambda: {key: power_of(cell) for key, cell in primary.items()}),
        panel=timed("panel", lambda: panel_of(of.study.metrics, of.cells, of.matrix_of)),
        seconds=seconds,
    )


def compared_regions(of: Findings) -> tuple[str, ...]:
    """Return the regions in which no two sources were pushed unevenly."""
    return tuple(region for region in of.study.regions if not any(one[0] == region for one in of.uneven))


def _ground(of: Findings) -> _Ground:
    cells, rankings = dict(of.cells), dict(of.rankings)
    for source, region in of.matrix_of:
        for column in of.study.slo_columns:
            key = (source, region, column)
            if key not in cells:
                cells[key] = scores(of.study, *key)
                rankings[key] = rank(cells[key])
    return _Ground(of, cells, rankings, tuple(combinations(of.study.schedulers, 2)))


def _matrices(ground: _Ground) -> Iterator[Matrix]:
    of = ground.of
    labels = {"source": 0, "region": 1, "metric": 2, "slo": 2}
    wanted: dict[Group, tuple[Key, ...]] = groups(of.study)
    if len(of.study.slo_columns) > 1:
        for source, region in of.matrix_of:
            wanted["slo", source, region, ""] = tuple((source, region, c) for c in of.study.slo_columns)
    halved: dict[Key, npt.NDArray[np.int8]] = {}
    for group, keys in wanted.items():
        axis, *fixed = group
        cells = [ground.cells[key] for key in keys]
        found = of.compared.get(group) or compare(cells, halved)
        orders = [[row.scheduler for row in ground.rankings[key].rows] for key in keys]
        tops = [top_set(ground.rankings[key]) for key in keys]
        yield Matrix(
            axis=axis,
            fixed=(fixed[0], fixed[1], fixed[2]),
            labels=tuple(key[labels[axis]] for key in keys),
            tau=found.tau,
            tau_low=found.tau_low,
            tau_high=found.tau_high,
            top=found.top,
            top_low=found.top_low,
            top_high=found.top_high,
            rbo=_each(orders, rbo),
            ceiling=found.ceiling,
            cross=found.cross,
            gap=found.gap,
            gap_low=found.gap_low,
            gap_high=found.gap_high,
            jaccard=_each(tops, jaccard),
            concordance=concordance(cells),
            counted=_counted(ground, keys),
        )


def _each(lists: list[Any], measure: Callable[[Any, Any], float]) -> Floats:
    return np.array([[measure(a, b) for b in lists] for a in lists], np.float64)


def _counted(ground: _Ground, keys: tuple[Key, ...]) -> Flags:
    """Return which pairs can show an order on both sides and, if of two sources, were pushed alike."""
    informative = [ground.cells[key].informative for key in keys]
    return np.array(
        [
            [informative[i] and informative[j] and _alike(ground.of, a, b) for j, b in enumerate(keys)]
            for i, a in enumerate(keys)
        ],
        np.bool_,
    )


def _alike(of: Findings, a: Key, b: Key) -> bool:
    return a[0] == b[0] or (a[1], *sorted((a[0], b[0]))) not in of.uneven


def _components(ground: _Ground) -> tuple[Components, ...]:
    of, regions = ground.of, compared_regions(ground.of)
    metrics = tuple(dict.fromkeys(of.study.metrics))
    return (
        over_regions(of.study, ground.cells, regions),
        over_columns(of.study, ground.cells, regions, metrics, "metric"),
        over_columns(of.study, ground.cells, regions, of.study.slo_columns, "slo"),
    )


def _families(ground: _Ground) -> tuple[Family, ...]:
    """Return the declared families, then those that the plan doesn't declare; see ``Family.declared``."""
    of, study = ground.of, ground.of.study
    declared = study.declared
    found = []
    if declared.planned_pairs:
        found.append(family(_planned(ground), ground.cells))
    tested: dict[Key, PairTests] = {}
    for name, axis in (("sources", "source"), ("regions", "region"), ("metrics", "metric"), ("slo", "slo")):
        sides = _sides(ground, axis)
        kept = tuple((x, y) for x, y in sides if _alike(of, x, y))
        if kept:
            left = (len(sides) - len(kept)) * len(ground.pairs)
            hypotheses = Hypotheses(name, axis, False, name in declared.families, kept, ground.pairs, left)
            found.append(family(hypotheses, ground.cells, tested))
    return tuple(found)


def _sides(ground: _Ground, axis: str) -> tuple[tuple[Key, Key], ...]:
    """Return the pairs of conditions along an axis: the primary metric against others, else all by it."""
    of = ground.of.study
    if axis == "slo":
        cells = [[(s, r, c) for c in of.slo_columns] for s, r in ground.of.matrix_of]
        return tuple(
            pair for keys in cells for pair in combinations(keys, 2) if of.primary in (pair[0][2], pair[1][2])
        )
    return tuple(
        (x, y)
        for group, keys in groups(of).items()
        if group[0] == axis and (axis != "source" or group[3] == of.primary)
        for x, y in combinations(keys, 2)
        if axis != "metric" or x[2] == of.primary
    )


def _planned(ground: _Ground) -> Hypotheses:
    """Return the pairs named beforehand, across sources in the regions named; merged twins by their first."""
    study = ground.of.study
    declared = study.declared
    first = {name: one for one, others in study.twins.items() for name in others}
    pairs = {tuple(first.get(name, name) for name in pair) for pair in declared.planned_pairs}
    named = tuple(sorted((a, b) for a, b in pairs if a != b))
    sides = tuple(
        (x, y)
        for x, y in _sides(ground, "source")
        if not declared.planned_regions or x[1] in declared.planned_regions
    )
    kept = tuple((x, y) for x, y in sides if _alike(ground.of, x, y))
    return Hypotheses("planned", "source", True, True, kept, named, (len(sides) - len(kept)) * len(named))


def _crossings(ground: _Ground) -> tuple[Crossing, ...]:
    """Return Gail and Simon's test over all sources, where there are three or more and all were pushed alike."""
    study = ground.of.study
    regions = compared_regions(ground.of)
    if len(study.sources) < 3 or not regions or not ground.pairs:
        return ()
    keys = [[(source, region, study.primary) for source in study.sources] for region in regions]
    return (crossing(ground.cells, keys, ground.pairs),)


def statistics_json(of: Statistics) -> dict[str, Any]:
    """Return the statistics as plain JSON; of a family's table only the rows that say something."""
    return {
        "matrices": [_plain(one) for one in of.matrices],
        "top_sets": [_plain(one) for one in of.top_sets.values()],
        "omnibus": [_plain(one) for one in of.omnibus.values()],
        "effects": [_plain(one) for one in of.effects.values()],
        "bayes": [_plain(one) for one in of.bayes.values()],
        "components": [_plain(one) for one in of.components],
        "families": [_family_json(one) for one in of.families],
        "crossings": [
            {"column": one.column, "table": plain(one.table.to_dict("records"))} for one in of.crossings
        ],
        "recovery": [_plain(one) for one in of.recovery.values()],
        "power": [_plain(one) for one in of.power.values()],
        "panel": _plain(of.panel),
        "outcomes": list(OUTCOMES),
    }


def _family_json(one: Family) -> dict[str, Any]:
    told = one.table[~one.table["outcome"].isin([STABLE, UNDECIDED])].sort_values("q_rev", kind="stable")
    fields = {name: value for name, value in one._asdict().items() if name != "table"}
    fields["by_margin"] = {f"{factor:g}": counts for factor, counts in one.by_margin.items()}
    return {
        **plain(fields),
        "rows": plain(told.head(SHOWN_MOST).to_dict("records")),
        "rows_left": max(0, len(told) - SHOWN_MOST),
    }


def _plain(one: Any) -> dict[str, Any]:
    return {
        name: plain(value.tolist() if isinstance(value, np.ndarray) else value)
        for name, value in one._asdict().items()
    }
