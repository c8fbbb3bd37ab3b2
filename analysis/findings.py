"""Findings: everything that a sweep shows, computed once and read by the table, the JSON and the report."""

from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.controls import Check, check_controls
from analysis.flags import Flag, find_flags, pressure_table, uneven_pairs
from analysis.metrics import natural
from analysis.portability import Agreement, agree, corrected, split_half, tau_matrix
from analysis.ranks import Ranking, holm, rank
from analysis.scores import Scores, Study, every_score, scores, study

Floats = npt.NDArray[np.float64]
Key = tuple[str, str, str]
"""(source, region, column)."""


class Findings(NamedTuple):
    """A sweep's answers. Agreements carry what changes between their two conditions and nothing else."""

    study: Study
    cells: dict[Key, Scores]
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
    sources = tuple(
        agree(cells[a, region, column], cells[b, region, column])
        for column in of.metrics
        for region in of.regions
        for a, b in combinations(of.sources, 2)
    )
    p_sources = _corrected_p(sources, of.metrics)
    sources = tuple(corrected(one, p_sources[one.a, one.b]) for one in sources)
    pressure = pressure_table(of)
    matrix_of = tuple((source, region) for source in of.sources for region in of.regions)
    return Findings(
        study=of,
        cells=cells,
        rankings=rankings,
        ceilings={key: split_half(cell) for key, cell in cells.items()},
        across_sources=sources,
        across_regions=tuple(
            agree(cells[source, a, of.primary], cells[source, b, of.primary])
            for source in of.sources
            for a, b in combinations(of.regions, 2)
        ),
        across_metrics=tuple(
            agree(cells[source, region, of.primary], cells[source, region, column])
            for source in of.sources
            for region in of.regions
            for column in of.metrics
            if column != of.primary
        ),
        p_sources=p_sources,
        matrix_of=matrix_of,
        matrix=tau_matrix([cells[source, region, of.primary] for source, region in matrix_of]),
        checks=check_controls(of),
        flags=find_flags(of, cells, rankings),
        pressure=pressure,
        uneven=uneven_pairs(pressure),
    )


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


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: NaN and infinities become null, numpy scalars plain."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
