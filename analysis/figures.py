"""Figures: the charts of what every sweep shows: curves, ranks, agreement between conditions, metrics."""

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.charts import (
    Figure,
    as_spec,
    colour,
    ink_on,
    names_axis,
    over,
    series,
    steps,
    tau_colour,
    tau_ink,
    tips,
    words_axis,
)
from analysis.controls import LEAST_RHO
from analysis.findings import Findings
from analysis.metrics import METRICS, split_column
from analysis.portability import DIFFERS, HELD, UNDECIDED, Agreement
from analysis.scores import Study

if TYPE_CHECKING:
    import altair as alt

NOT_COUNTED = "not counted"
VERDICTS = {
    HELD: ("s1", "circle"),
    DIFFERS: ("s2", "diamond"),
    UNDECIDED: ("soft", "square"),
    NOT_COUNTED: ("soft", "cross"),
}

BEHIND_STEPS = (1.0, 2.0, 5.0, 10.0)
"""Where the colour of a rank changes: distance to the best in margins."""

SMALL: dict[str, Any] = {"labelColor": colour("soft"), "labelFontSize": 12}
"""An axis of regions beside a matrix."""

RHO = "'rho ' + datum.label"
"""Expression of a label of regions that stand alone."""

PANEL_PX = 330
"""Width of a small panel's still picture."""

PICKED = "picked"
"""Parameter of charts that draw schedulers: the one that the reader holds out, "" for none."""


def labelled(of: Study) -> dict[str, str]:
    """Return each source's name with its label, unless the name says it: "azure2023 (real)"."""
    return {
        source: source if label in source else f"{source} ({label})" for source, label in of.labels.items()
    }


def curves(of: Findings) -> tuple[Figure, ...]:
    """Return one figure a source: the primary metric over regions with 95 % bands."""
    found = []
    for source, name in labelled(of.study).items():
        found.append(
            Figure(f"curves-{source}", name, _told(of, source), _curves(of, source), PANEL_PX, keyed=True)
        )
    return tuple(found)


def _curves(of: Findings, source: str) -> dict[str, Any]:
    import altair as alt

    rhos = _rhos(of)
    rate = METRICS[split_column(of.study.primary)[0]].kind == "rate"
    looks = series(of.study.schedulers)
    rows = []
    for region in of.study.regions:
        ranking = of.rankings[source, region, of.study.primary]
        rows += [
            {"scheduler": row.scheduler, "rho": rhos[region], "mean": row.mean, "low": row.low,
             "high": row.high, "rank": row.rank, "windows": ranking.windows}
            for row in ranking.rows
        ]  # fmt: skip
    y = alt.Y(
        "mean:Q", title=None, scale=alt.Scale(domain=[0, 1]) if rate else alt.Scale(type="log", nice=False)
    )
    faint = 0.14 if len(looks) <= 6 else 0.0
    mark = alt.Chart()
    made = over(
        mark.mark_area().encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), opacity=_when_picked(0.25, 0.0, faint)),
        mark.mark_line(strokeWidth=2).encode(
            y=y, strokeDash=_look(looks, 1), opacity=_when_picked(1, 0.12, 1)
        ),
        mark.mark_point(filled=True, size=44).encode(
            y=y, shape=_look(looks, 2), opacity=_when_picked(1, 0.12, 1)
        ),
    ).encode(
        x=alt.X(
            "rho:Q", title="offered work / capacity (rho)", scale=alt.Scale(zero=False, padding=12),
            axis=alt.Axis(values=sorted(rhos.values()), format="~g", grid=False, labelOverlap=True,
                          labelFontSize=11),
        ),
        color=_look(looks, 0),
        tooltip=tips("scheduler", ("rho:~g", "rho"), ("mean:.4g", "mean"), ("low:.4g", "95% low"),
                     ("high:.4g", "95% high"), "rank", "windows"),
    )  # fmt: skip
    return as_spec(
        made.add_params(alt.param(name=PICKED, value="")).properties(width="container", height=230), rows
    )


def ranks(of: Findings) -> Figure:
    """Return the map of ranks: schedulers by conditions, coloured by the distance to the best in margins."""
    import altair as alt

    names, rows = labelled(of.study), []
    for source in of.study.sources:
        for region in of.study.regions:
            ranking = of.rankings[source, region, of.study.primary]
            where = {"source": names[source], "region": region, "windows": ranking.windows}
            rows += [
                {**where, "scheduler": row.scheduler, "rank": row.rank, "mean": row.mean, "low": row.low,
                 "high": row.high, "interval": f"{row.rank_low:g} to {row.rank_high:g}",
                 "behind": abs(row.difference) / ranking.margin if row.rank > 1 else 0.0,
                 "top": ("yes" if row.in_top else "no") if ranking.testable else "untestable",
                 "text": f"{row.rank}{'•' if row.in_top and ranking.testable else ''}"}
                for row in ranking.rows
            ]  # fmt: skip
    mark = alt.Chart()
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1.5).encode(
            color=steps(
                "behind", BEHIND_STEPS, ("t7", "t6", "t5", "t4", "t3"), "behind the best, in margins"
            )
        ),
        mark.mark_text(fontSize=12).encode(text=alt.Text("text:N"), color=ink_on("datum.behind < 1")),
    ).encode(
        x=alt.X("region:O", title="rho", sort=list(of.study.regions),
                axis=names_axis("top", **SMALL)),
        y=alt.Y("scheduler:N", title=None, sort=by_mean_rank(of), axis=names_axis()),
        tooltip=tips("scheduler", "source", ("region", "rho"), "rank", ("interval", "rank, 95%"),
                     ("mean:.4g", "mean"), ("low:.4g", "95% low"), ("high:.4g", "95% high"),
                     ("behind:.2f", "behind best, margins"), ("top", "in the top set"), "windows"),
    )  # fmt: skip
    made = made.properties(width=alt.Step(46), height=alt.Step(24)).facet(
        column=alt.Column("source:N", title=None, sort=list(names.values())), spacing=14
    )
    told = f"Ranks of schedulers in every condition by {of.study.primary}; the tables below hold the numbers"
    return Figure("ranks", "Ranks in every condition", told, as_spec(made, rows))


def conditions(of: Findings) -> Figure:
    """Return the matrix of tau-b between every two conditions by the primary metric, ceilings inside."""
    import altair as alt

    names, rows = labelled(of.study), []
    for i, (source_a, region_a) in enumerate(of.matrix_of):
        for j, (source_b, region_b) in enumerate(of.matrix_of):
            value = float(of.matrix[i, j])
            rows.append(
                {"row": names[source_a], "column": names[source_b], "y": region_a,
                 "x": region_b, "tau": value, "what": "noise ceiling (halves)" if i == j else "tau-b",
                 "own": i == j, "text": tau_text(value)}
            )  # fmt: skip
    mark = alt.Chart()
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1).encode(color=tau_colour("tau", "tau-b")),
        mark.mark_rect(filled=False, stroke=colour("ink"), strokeWidth=1.3, strokeDash=[3, 2])
        .transform_filter("datum.own"),
        mark.mark_text(fontSize=10).encode(text=alt.Text("text:N"), color=tau_ink("tau")),
    ).encode(
        x=alt.X("x:O", title=None, sort=list(of.study.regions), axis=names_axis("top", **SMALL)),
        y=alt.Y("y:O", title=None, sort=list(of.study.regions), axis=names_axis("left", **SMALL)),
        tooltip=tips(("row", "condition"), ("y", "at rho"), ("column", "against"), ("x", "at rho "),
                     ("what", "shown"), ("tau:.2f", "value")),
    )  # fmt: skip
    order = list(names.values())
    made = made.properties(width=alt.Step(29), height=alt.Step(23)).facet(
        column=alt.Column("column:N", title=None, sort=order),
        row=alt.Row("row:N", title=None, sort=order),
        spacing=8,
    )
    told = f"tau-b between the orders of schedulers in every two conditions by {of.study.primary}"
    return Figure("conditions", "Every condition against every other", told, as_spec(made, rows))


def agreements(of: Findings) -> tuple[Figure, ...]:
    """Return one figure a pair of sources: agreement by region beside the ceiling, with intervals."""
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary and not np.isnan(one.gap)]
    names, found = labelled(of.study), []
    for pair in combinations(of.study.sources, 2):
        shown = [one for one in primary if {one.a[0], one.b[0]} == set(pair)]
        a, b = (names[source] for source in pair)
        told = f"Agreement of the orders on {a} and {b} beside the noise ceiling, by region"
        if shown:
            name = f"agreement-{pair[0]}-{pair[1]}"
            found.append(Figure(name, f"{a} – {b}", told, _agreement(of, shown), PANEL_PX))
    return tuple(found)


def _agreement(of: Findings, shown: list[Agreement]) -> dict[str, Any]:
    import altair as alt

    rows = [
        {"region": one.a[1], "cross": one.cross, "ceiling": one.ceiling, "gap": one.gap,
         "low": one.ceiling - one.gap_high, "high": one.ceiling - one.gap_low,
         "interval": f"{one.gap_low:.2f} to {one.gap_high:.2f}", "p": of.p_sources.get((one.a, one.b)),
         "verdict": one.verdict if of.comparable(one) else NOT_COUNTED,
         "windows": f"{one.windows[0]} and {one.windows[1]}"}
        for one in shown
    ]  # fmt: skip
    lows = [one.ceiling - one.gap_high for one in shown if not np.isnan(one.gap_high)]
    low = min(0.0, float(np.floor(2 * min(lows, default=-1.0)) / 2))
    kinds = list(VERDICTS)
    hues, marks = [colour(VERDICTS[kind][0]) for kind in kinds], [VERDICTS[kind][1] for kind in kinds]
    by_hue = alt.Color("verdict:N", scale=alt.Scale(domain=kinds, range=hues), legend=None)
    by_mark = alt.Shape("verdict:N", scale=alt.Scale(domain=kinds, range=marks), legend=None)
    x = alt.X(
        "cross:Q", title="tau-b, halves against halves", scale=alt.Scale(domain=[low, 1], clamp=True),
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    mark = alt.Chart()
    made = over(
        mark.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), color=by_hue),
        mark.mark_tick(color=colour("ink"), thickness=2.5, size=16).encode(x=alt.X("ceiling:Q")),
        mark.mark_point(filled=True, size=70, opacity=1).encode(x=x, color=by_hue, shape=by_mark),
    ).encode(
        y=alt.Y("region:O", title=None, sort=list(of.study.regions), axis=names_axis(labelExpr=RHO)),
        tooltip=tips(("region", "rho"), ("cross:.2f", "agreement"), ("ceiling:.2f", "noise ceiling"),
                     ("gap:.2f", "gap"), ("interval", "gap, 95%"), ("p:.2g", "p, corrected"), "verdict",
                     "windows"),
    )  # fmt: skip
    return as_spec(made.properties(width="container", height=24 * len(rows)), rows)


def metric_ranks(of: Findings) -> Figure | None:
    """Return mean ranks by each metric, as ``metric_places`` has them; None for a single metric."""
    import altair as alt

    if len(of.study.metrics) < 2:
        return None
    rows = []
    for column in of.study.metrics:
        places, cells = metric_places(of, column)
        rows += [
            {"scheduler": name, "metric": column, "rank": place, "cells": cells, "of": len(places),
             "share": (place - 1) / max(1, len(places) - 1), "text": f"{place:.1f}"}
            for name, place in places.items()
        ]  # fmt: skip
    mark = alt.Chart()
    shares = (0.125, 0.3, 0.5, 0.7)
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1.5).encode(
            color=steps("share", shares, ("t8", "t7", "t6", "t5", "t4"), None)
        ),
        mark.mark_text(fontSize=12).encode(text=alt.Text("text:N"), color=ink_on("datum.share < 0.3")),
    ).encode(
        x=alt.X("metric:N", title=None, sort=list(of.study.metrics), axis=words_axis(of.study.metrics)),
        y=alt.Y("scheduler:N", title=None, sort=by_mean_rank(of), axis=names_axis()),
        tooltip=tips("scheduler", "metric", ("rank:.2f", "mean rank"), ("of", "of schedulers"),
                     ("cells", "over conditions")),
    ).properties(width=alt.Step(76), height=alt.Step(24))  # fmt: skip
    told = "Mean rank of each scheduler by each metric"
    return Figure("metric-ranks", "Mean rank by metric", told, as_spec(made, rows))


def metric_places(of: Findings, column: str) -> tuple[dict[str, float], int]:
    """Return each scheduler's mean rank by a metric and the number of conditions that it is over.

    Informative conditions at rho >= 0.85, or all informative ones if none of those is.
    """
    rhos = _rhos(of)
    keys = [key for key in of.rankings if key[2] == column and of.rankings[key].informative]
    pressed = [key for key in keys if rhos[key[1]] >= LEAST_RHO - 1e-9]
    found: dict[str, list[float]] = {}
    for key in pressed or keys:
        for row in of.rankings[key].rows:
            found.setdefault(row.scheduler, []).append(row.rank)
    return {name: float(np.mean(places)) for name, places in found.items()}, len(pressed or keys)


def by_mean_rank(of: Findings) -> list[str]:
    """Return the schedulers by mean rank over conditions under the primary metric, best first."""
    places: dict[str, list[int]] = {name: [] for name in of.study.schedulers}
    for key, ranking in of.rankings.items():
        for row in ranking.rows if key[2] == of.study.primary else ():
            places[row.scheduler].append(row.rank)
    return sorted(places, key=lambda name: (np.mean(places[name]) if places[name] else np.inf, name))


def tau_text(value: float) -> str:
    """Return an agreement as a cell shows it: one decimal, a dash where undefined."""
    return "–" if np.isnan(value) else f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")


def _look(looks: dict[str, tuple[str, tuple[int, ...], str]], part: int) -> Any:
    """Return the scale of one look of a scheduler: 0 its colour, 1 its dash, 2 its mark."""
    import altair as alt

    channel = (alt.Color, alt.StrokeDash, alt.Shape)[part]
    looked: list[Any] = [colour(look[0]) if part == 0 else look[part] for look in looks.values()]
    return channel("scheduler:N", scale=alt.Scale(domain=list(looks), range=looked), legend=None)


def _when_picked(held: float, others: float, usual: float) -> "alt.OpacityValue":
    """Return an opacity: ``held`` for the scheduler picked, ``others`` beside it, ``usual`` if none is."""
    import altair as alt

    tests = [
        {"test": f"{PICKED} === datum.scheduler", "value": held},
        {"test": f"{PICKED} === ''", "value": usual},
    ]
    return alt.OpacityValue(value=others, condition=tests)


def _rhos(of: Findings) -> dict[str, float]:
    known = of.study.runs.drop_duplicates("region").set_index("region")["rho"]
    return {region: float(known[region]) for region in of.study.regions}


def _told(of: Findings, source: str) -> str:
    """Say which scheduler is best and worst at the lowest and the highest region."""
    rankings = {region: of.rankings[source, region, of.study.primary] for region in of.study.regions}
    parts = [
        f"at rho {region} best {ranking.rows[0].scheduler} {ranking.rows[0].mean:.3g}, worst "
        f"{ranking.rows[-1].scheduler} {ranking.rows[-1].mean:.3g}"
        for region, ranking in rankings.items()
        if ranking.rows
    ]
    return f"{source}: " + "; ".join([*parts[:1], *parts[-1:]])
