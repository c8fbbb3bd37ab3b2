"""Portability: a study's matrices and reversals with filters, and down to the windows that make a difference."""

from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.answers import OUTCOMES, Family, Matrix, Statistics
from analysis.charts import Figure, unchecked
from analysis.metrics import natural
from analysis.numerals import plain
from analysis.scores import Scores, scores
from loadgen.result import InputError
from services.analysis.models import (
    HypothesisOut,
    MapOut,
    MapQuery,
    MatrixOut,
    PairOut,
    PairQuery,
    PairSide,
    PairWindow,
)
from services.analysis.shelf import Study

if TYPE_CHECKING:
    from analysis.findings import Findings

FAMILY_OF = {"source": "sources", "region": "regions", "metric": "metrics", "slo": "slo"}
SHOWN = 100
"""Hypotheses a page."""


class Known(NamedTuple):
    """All that is found out about one study by one metric."""

    findings: "Findings"
    stats: Statistics


def learn(study: Study, metric: str) -> Known:
    """Return findings and statistics of a study: seconds of work; raises InputError."""
    from analysis.findings import find  # these bring libraries that take seconds to load
    from analysis.statistics import statistics

    found = find(study.folder, metric)
    return Known(found, statistics(found))


def family_of(known: Known, asked: MapQuery) -> Family | None:
    """Return the family of an axis with the hypotheses that the filters leave, None if there is none."""
    family = next((one for one in known.stats.families if one.name == FAMILY_OF[asked.axis]), None)
    if family is None:
        return None
    table = family.table
    if asked.source:
        table = table[(table["source_x"] == asked.source) | (table["source_y"] == asked.source)]
    if asked.region:
        table = table[(table["region_x"] == asked.region) | (table["region_y"] == asked.region)]
    if asked.scheduler:
        table = table[(table["a"] == asked.scheduler) | (table["b"] == asked.scheduler)]
    if asked.outcome:
        table = table[table["outcome"] == asked.outcome]
    return family._replace(table=table)


def matrices_of(known: Known, asked: MapQuery) -> list[Matrix]:
    """Return the matrices of an axis that the filters leave."""
    return [
        one
        for one in known.stats.matrices
        if one.axis == asked.axis
        and len(one.labels) > 1
        and one.fixed[2] in ("", known.findings.study.primary)
        and (not asked.source or one.fixed[0] in ("", asked.source))
        and (not asked.region or one.fixed[1] in ("", asked.region))
    ]


def figures_of(known: Known, asked: MapQuery) -> tuple[Figure, ...]:
    """Return the matrix and the map of what the filters leave."""
    from analysis.figures import labelled
    from analysis.maps import axis_matrix, reversal_map

    names = labelled(known.findings.study)
    family = family_of(known, asked)
    with unchecked():
        drawn = [axis_matrix(matrices_of(known, asked), asked.axis, names)]
        drawn += [reversal_map(family, names)] if family is not None else []
    return tuple(one for one in drawn if one is not None)


def map_out(study: Study, known: Known, asked: MapQuery) -> MapOut:
    """Return what is shown of a study; raises InputError for a filter that names nothing."""
    from analysis.headline import headline

    of = known.findings.study
    offers = {"source": of.sources, "region": of.regions, "scheduler": of.schedulers, "outcome": OUTCOMES}
    for name, offered in offers.items():
        value = getattr(asked, name)
        if value and value not in offered:
            raise InputError(f"no {name} {value!r} here", where=name, fix=f"one of {', '.join(offered)}")
    family = family_of(known, asked)
    table = pd.DataFrame() if family is None else family.table
    if len(table):
        order = {outcome: place for place, outcome in enumerate(OUTCOMES)}
        table = table.assign(place=table["outcome"].map(order)).sort_values(["place", "q_rev", "a", "b"])
    head = headline(known.findings, known.stats)
    first = (asked.page - 1) * SHOWN
    return MapOut(
        study=study.id,
        metric=of.primary,
        metrics=list(of.metrics),
        sources=of.labels,
        regions=list(of.regions),
        schedulers=list(of.schedulers),
        doubts=list(head.doubts),
        sentences=list(head.sentences),
        matrices=[_matrix(one) for one in matrices_of(known, asked)],
        counts=_counts(family),
        adjustment="" if family is None else family.adjustment,
        total=len(table),
        page=asked.page,
        pages=max(1, ceil(len(table) / SHOWN)),
        hypotheses=[_hypothesis(row) for row in table.iloc[first : first + SHOWN].to_dict("records")],
    )


def _counts(family: Family | None) -> dict[str, int]:
    """Return how many hypotheses have which outcome, {} without a family."""
    if family is None:
        return {}
    return {outcome: int((family.table["outcome"] == outcome).sum()) for outcome in OUTCOMES}


def _matrix(one: Matrix) -> MatrixOut:
    source, region, column = one.fixed
    parts = {name: plain(np.asarray(part).tolist()) for name, part in
             (("agreement", one.cross), ("ceiling", one.ceiling), ("gap", one.gap), ("tau", one.tau))}  # fmt: skip
    return MatrixOut(
        axis=one.axis, source=source, region=region, metric=column, labels=list(one.labels),
        counted=np.asarray(one.counted).tolist(), **parts,
    )  # fmt: skip


def _hypothesis(row: dict[Any, Any]) -> HypothesisOut:
    return HypothesisOut(
        a=row["a"], b=row["b"], outcome=row["outcome"],
        source_x=row["source_x"], region_x=row["region_x"], metric_x=row["column_x"],
        source_y=row["source_y"], region_y=row["region_y"], metric_y=row["column_y"],
        difference_x=plain(row["diff_x"]), difference_y=plain(row["diff_y"]), p_reversal=plain(row["q_rev"]),
    )  # fmt: skip


def pair_out(study: Study, known: Known, asked: PairQuery) -> PairOut:
    """Return two schedulers on every window of two conditions; raises InputError for names that aren't there."""
    of = known.findings.study
    for name in (asked.a, asked.b):
        if name not in of.schedulers:
            raise InputError(f"no ranked scheduler {name!r} here", where="a, b", fix=", ".join(of.schedulers))
    sides = []
    for source, region, metric in ((asked.source_x, asked.region_x, asked.metric_x),
                                   (asked.source_y, asked.region_y, asked.metric_y)):  # fmt: skip
        if source not in of.sources or region not in of.regions:
            raise InputError(f"no condition {source!r}, rho {region!r} here", where="source, region",
                             fix=f"sources {', '.join(of.sources)}; regions {', '.join(of.regions)}")  # fmt: skip
        cell = scores(of, source, region, metric or of.primary)
        sides.append(_side(known, cell, asked))
    return PairOut(study=study.id, a=asked.a, b=asked.b, sides=sides)


def _side(known: Known, cell: Scores, asked: PairQuery) -> PairSide:
    inside = {asked.a, asked.b} <= set(cell.schedulers)
    rows = [cell.values[cell.schedulers.index(name)] for name in (asked.a, asked.b)] if inside else []
    difference = rows[0] - rows[1] if inside else np.zeros(0)
    own = [natural(row, cell.column) for row in rows]
    runs = known.findings.study.runs
    here = runs[(runs["source"] == cell.source) & (runs["region"] == cell.region)]
    ids = {
        (row[0], row[1]): row[2] for row in here[["scheduler", "window_id", "run_id"]].itertuples(index=False)
    }
    windows = [
        PairWindow(
            window_id=window, a=plain(own[0][i]), b=plain(own[1][i]), difference=plain(difference[i]),
            run_a=ids.get((asked.a, window), ""), run_b=ids.get((asked.b, window), ""),
        )
        for i, window in enumerate(cell.windows if inside else ())
    ]  # fmt: skip
    windows.sort(key=lambda one: one.difference if one.difference is not None else 0.0)
    count = len(difference)
    low, high = _interval(difference)
    return PairSide(
        source=cell.source, region=cell.region, metric=cell.column, margin=cell.margin,
        mean=float(difference.mean()) if count else None, low=low, high=high, windows=windows,
    )  # fmt: skip


def _interval(difference: Any) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a mean by Student's t; (None, None) with fewer than two windows."""
    from scipy import stats

    count = len(difference)
    if count < 2:
        return None, None
    reach = float(stats.t.isf(0.025, count - 1) * difference.std(ddof=1) / np.sqrt(count))
    mean = float(difference.mean())
    return mean - reach, mean + reach
