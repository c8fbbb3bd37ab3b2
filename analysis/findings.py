"""Findings: everything that a sweep shows, computed once and read by the table, the JSON and the report."""

from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compare import Comparison, compare
from analysis.controls import Check, check_controls
from analysis.flags import Flag, find_flags, pressure_table, uneven_pairs
from analysis.metrics import natural
from analysis.numerals import plain as plain
from analysis.portability import Agreement, agreement, corrected, tau_matrix
from analysis.ranks import Ranking, holm, rank
from analysis.scores import Scores, Study, every_score, scores, study

Floats = npt.NDArray[np.float64]
Key = tuple[str, str, str]
"""(source, region, column)."""

Group = tuple[str, str, str, str]
"""(what changes: "source", "region" or "metric"; source, region, column, the one that changes being "")."""


class Findings(NamedTuple):
    """A sweep's answers. Agreements carry what changes between their two conditions and nothing else."""

    study: Study
    cells: dict[Key, Scores]
    compared: dict[Group, Comparison]  # the keys of each as ``groups`` has them
    rankings: dict[Key, Ranking]
    ceilings: dict[Key, float]  # split-half tau of each cell
    across_sources: tuple[Agreement, ...]  # same region and metric
    across_regions: tuple[Agreement, ...]  # same source, primary metric
    across_metrics: tuple[Agreement, ...]  # same source and region, primary against another
    p_sources: dict[
        tuple[Key, Key], float
    ]  # permutation p of source comparisons, Holm over those by one metric
    matrix_of: tuple[tuple[str, str], ...]  # (source, region) a row of ``matrix``
    matrix: Floats  # tau-b under the primary metric, ceilings on the diagonal
    checks: tuple[Check, ...]
    flags: tuple[Flag, ...]
    pressure: pd.DataFrame
    uneven: set[tuple[str, str, str]]  # (region, source, source) not to be compared

    def comparable(self, one: Agreement) -> bool:
        """Whether both cells can show an order and were pushed alike; only such count in the summary."""
        if not (self.cells[one.a].informative and self.cells[one.b].informative):
            return False
        return one.a[0] == one.b[0] or (one.a[1], *sorted((one.a[0], one.b[0]))) not in self.uneven


def find(folder: Path, primary: str = "") -> Findings:
    """Return what the sweep in ``folder`` shows, ranked by ``primary`` ("" for the plan's metric).

    Raises InputError for a folder without results, damaged shards, or an unknown metric.
    """
    of = study(folder, primary)
    cells = every_score(of)
    rankings = {key: rank(cell) for key, cell in cells.items()}
    halved: dict[Key, npt.NDArray[np.int8]] = {}
    grouped = groups(of)
    compared = {group: compare([cells[key] for key in keys], halved) for group, keys in grouped.items()}
    ceilings = _ceilings(of, compared)
    across = {axis: _agreements(of, cells, compared, axis) for axis in ("source", "region", "metric")}
    p_sources = _corrected_p(across["source"], of.metrics)
    pressure = pressure_table(of)
    matrix_of = tuple((source, region) for source in of.sources for region in of.regions)
    return Findings(
        study=of,
        cells=cells,
        compared=compared,
        rankings=rankings,
        ceilings=ceilings,
        across_sources=tuple(corrected(one, p_sources[one.a, one.b]) for one in across["source"]),
        across_regions=across["region"],
        across_metrics=across["metric"],
        p_sources=p_sources,
        matrix_of=matrix_of,
        matrix=tau_matrix(
            [cells[source, region, of.primary] for source, region in matrix_of],
            [ceilings[source, region, of.primary] for source, region in matrix_of],
        ),
        checks=check_controls(of),
        flags=find_flags(of, cells, rankings),
        pressure=pressure,
        uneven=uneven_pairs(pressure),
    )


def groups(of: Study) -> dict[Group, tuple[Key, ...]]:
    """Return which conditions are compared: between sources by every metric, between regions by the primary
    one, and between metrics in every cell (the primary first).
    """
    found: dict[Group, tuple[Key, ...]] = {}
    for column in of.metrics:
        for region in of.regions:
            found["source", "", region, column] = tuple((source, region, column) for source in of.sources)
    for source in of.sources:
        found["region", source, "", of.primary] = tuple((source, at, of.primary) for at in of.regions)
        for region in of.regions:
            found["metric", source, region, ""] = tuple((source, region, column) for column in of.metrics)
    return found


def _agreements(
    of: Study, cells: dict[Key, Scores], compared: dict[Group, Comparison], axis: str
) -> tuple[Agreement, ...]:
    """Return the agreements along one axis; metrics are held against the primary one only."""
    return tuple(
        agreement(cells[keys[i]], cells[keys[j]], compared[group], i, j)
        for group, keys in groups(of).items()
        if group[0] == axis
        for i, j in combinations(range(len(keys)), 2)
        if axis != "metric" or keys[i][2] == of.primary
    )


def _ceilings(of: Study, compared: dict[Group, Comparison]) -> dict[Key, float]:
    """Return every cell's split-half tau, over all schedulers that it ranks."""
    return {
        key: float(compared[group].within[at, at])
        for group, keys in groups(of).items()
        if group[0] == "metric"
        for at, key in enumerate(keys)
    }


def _corrected_p(sources: tuple[Agreement, ...], metrics: tuple[str, ...]) -> dict[tuple[Key, Key], float]:
    """Return Holm-adjusted permutation p-values; comparisons by one metric are a family."""
    found: dict[tuple[Key, Key], float] = {}
    for column in metrics:
        family = [one for one in sources if one.a[2] == column]
        adjusted = holm(np.asarray([one.p_same for one in family], np.float64))
        found |= {(one.a, one.b): float(p) for one, p in zip(family, adjusted, strict=True)}
    return found


def top_set(ranking: Ranking) -> tuple[str, ...]:
    """Return the schedulers not shown worse than the best by more than the margin, best first."""
    return tuple(row.scheduler for row in ranking.rows if row.in_top)


def control_mean(of: Findings, key: Key, control: str) -> float:
    """Return a control's mean in one condition, in the metric's unit; NaN where undefined."""
    cell = scores(of.study, *key, (control,))
    return float(natural(cell.means[0], key[2])) if cell.schedulers and cell.windows else float("nan")


def place_comparisons(of: Findings) -> tuple[Agreement, ...]:
    """Return comparisons by the primary metric, between sources and between regions, that can be counted."""
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary]
    return tuple(one for one in (*primary, *of.across_regions) if of.comparable(one))


def best_changes(of: Findings, agreements: tuple[Agreement, ...]) -> tuple[list[Agreement], list[Agreement]]:
    """Return comparisons whose best scheduler changes, and those of them where that is more than noise.

    More than noise: the best of one side is outside the top set of the other.
    """
    changed = [one for one in agreements if one.best_a != one.best_b]
    beyond = [
        one
        for one in changed
        if one.best_a not in top_set(of.rankings[one.b]) or one.best_b not in top_set(of.rankings[one.a])
    ]
    return changed, beyond


def as_json(of: Findings) -> dict[str, Any]:
    """Return the findings as plain JSON: numbers, texts, null where undefined."""
    return {
        "primary": of.study.primary,
        "metrics": list(of.study.metrics),
        "sources": of.study.labels,
        "regions": list(of.study.regions),
        "schedulers": list(of.study.schedulers),
        "controls": list(of.study.controls),
        "merged_duplicates": {name: list(others) for name, others in of.study.twins.items()},
        "rankings": [
            {
                "source": source,
                "region": region,
                "metric": column,
                "ceiling": plain(of.ceilings[source, region, column]),
                "left_out": of.cells[source, region, column].left_out,
                "failed": {one.scheduler: one.words for one in of.cells[source, region, column].failed},
                **{name: plain(value) for name, value in ranking._asdict().items() if name != "rows"},
                "rows": [plain(row._asdict()) for row in ranking.rows],
            }
            for (source, region, column), ranking in of.rankings.items()
        ],
        "agreement": {
            "sources": [_agreement(of, one) for one in of.across_sources],
            "regions": [_agreement(of, one) for one in of.across_regions],
            "metrics": [_agreement(of, one) for one in of.across_metrics],
        },
        "runs": {"stored": int(of.study.runs["run_id"].nunique()), "expected": of.study.expected or None},
        "incomplete": bool(of.study.incomplete),
        "failures": [run._asdict() for run in of.study.failures],
        "controls_checked": [check._asdict() for check in of.checks],
        "flags": [flag._asdict() for flag in of.flags],
    }


def _agreement(of: Findings, one: Agreement) -> dict[str, Any]:
    return {
        **{name: plain(value) for name, value in one._asdict().items()},
        "ceiling": plain(one.ceiling),
        "comparable": of.comparable(one),
        "p_holm": plain(of.p_sources.get((one.a, one.b), float("nan"))),
    }
