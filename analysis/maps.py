"""Maps: agreement matrices along each axis, and what became of every pair of schedulers when it changes."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.answers import EQUIVALENT, OUTCOMES, REVERSAL, SIGN, STABLE, UNDECIDED, Family, Matrix
from analysis.charts import (
    NARROW,
    Figure,
    as_spec,
    choice,
    colour,
    ink_on,
    names_axis,
    over,
    tau_colour,
    tau_ink,
    tips,
    words_axis,
)
from analysis.figures import SMALL
from analysis.metrics import split_column
from analysis.numerals import interval, tau, tau_interval

LOOKS = {
    REVERSAL: ("reversal", "R"),
    STABLE: ("stable", "S"),
    SIGN: ("sign", "±"),
    EQUIVALENT: ("equivalent", "="),
    UNDECIDED: ("undecided", "·"),
}
"""Colour and letter of each outcome."""

SHOWN = "shown"
"""Parameter that holds the condition chosen from a chart's menu."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

MEDIAN = "median over conditions"

MOST_COLUMNS = 72
"""A reversal map has no more columns than this; a larger family is told by counts and a table."""

BROKEN = "split(datum.label, ' – ')"
"""Expression that breaks the name of a pair over two lines."""

FAMILIES = {
    "sources": "between sources",
    "regions": "between regions",
    "metrics": "between metrics",
    "slo": "between SLO sets",
    "planned": "pairs named beforehand, between sources",
}
"""Families in words."""

AXIS_COLUMNS = {"source": "rho", "region": "rho", "metric": "metrics, rho", "slo": "SLO sets, rho"}

AXIS_TITLES = {
    "source": "Between sources",
    "region": "Between regions",
    "metric": "Between metrics",
    "slo": "Between SLO sets",
}


def axis_matrix(matrices: Sequence[Matrix], axis: str, names: Mapping[str, str]) -> Figure | None:
    """Return the agreement matrix along one axis with a menu of conditions; None if there is nothing to show.

    ``names`` are sources as shown. The primary metric alone where the axis isn't metrics: the first column
    that the matrices of the axis hold.
    """
    import altair as alt

    of = [one for one in matrices if one.axis == axis and len(one.labels) > 1]
    of = [one for one in of if one.fixed[2] == of[0].fixed[2]]
    if not of:
        return None
    options = (
        [MEDIAN, *(fixed_words(one, names) for one in of)] if len(of) > 1 else [fixed_words(of[0], names)]
    )
    labels = _shown_labels(of[0], names)
    rows = _median_rows(of, labels) if len(of) > 1 else []
    for one in of:
        rows += _matrix_rows(one, _shown_labels(one, names), fixed_words(one, names))
    mark = alt.Chart()
    top = words_axis(labels) if axis == "metric" else names_axis("top", **SMALL)
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1.5).encode(
            color=tau_colour("value", "tau-b, halves against halves"),
            opacity=alt.condition("datum.counted", alt.value(1), alt.value(0.35)),
        ),
        mark.mark_rect(filled=False, stroke=colour("ink"), strokeWidth=1.3, strokeDash=[3, 2])
        .transform_filter("datum.own"),
        mark.mark_text(fontSize=12, fontWeight=600, dy=-5).encode(text=alt.Text("text:N"), color=_ink()),
        mark.mark_text(fontSize=9.5, dy=9).encode(text=alt.Text("beside:N"), color=_ink()),
    ).encode(
        x=alt.X("x:N", title="rho" if axis == "region" else None, sort=labels, axis=top),
        y=alt.Y("y:N", title=None, sort=labels, axis=names_axis("left", **SMALL)),
        tooltip=tips(("shown", "where"), ("y", "condition"), ("x", "against"), ("text", "agreement, halves"),
                     ("ceiling", "noise ceiling"), ("gap", "gap, 95%"), ("tau", "tau-b, all windows, 95%"),
                     ("top", "top-weighted tau"), ("rbo", "rank-biased overlap"),
                     ("jaccard", "overlap of top sets"), ("says", "counted")),
    )  # fmt: skip
    menu = choice(SHOWN, options, "Condition")
    step = {"source": 124, "region": 62, "metric": 76, "slo": 66}[axis]
    made = made.transform_filter(f"datum.shown === {SHOWN}").add_params(menu)
    made = made.properties(width=alt.Step(step), height=alt.Step(38))
    told = f"{AXIS_TITLES[axis]}: agreement of orders, with the noise ceiling below each number"
    return Figure(f"matrix-{axis}", AXIS_TITLES[axis], told, as_spec(made, rows), 0, tuple(options))


def _shown_labels(of: Matrix, names: Mapping[str, str]) -> list[str]:
    if of.axis == "slo":
        return [split_column(label)[1] or label for label in of.labels]
    return [names.get(label, label) for label in of.labels]


def fixed_words(one: Matrix, names: Mapping[str, str]) -> str:
    """Return what stays the same in a matrix: "azure2023 (real), rho 0.95"."""
    source, region, column = one.fixed
    parts = [
        names.get(source, source),
        f"rho {region}" if region else "",
        column if one.axis == "slo" else "",
    ]
    return ", ".join(part for part in parts if part) or column


def outcome_counts(of: Family) -> Figure:
    """Return how many hypotheses of a family have which outcome, by correction and margin."""
    import altair as alt

    name = {"holm": "Holm", "fdr_by": "BY"}.get(of.adjustment, of.adjustment)
    bars = [(f"{name}, margin x {scale:g}", counts) for scale, counts in sorted(of.by_margin.items())]
    if 1.0 not in of.by_margin:
        bars.insert(0, (f"{name}, margin x 1", of.counts))
    bars.append(("BH, margin x 1", of.counts_bh))
    rows = []
    for bar, counts in bars:
        start = 0
        for outcome in OUTCOMES:
            count = int(counts.get(outcome, 0))
            rows.append({"bar": bar, "o": LOOKS[outcome][1], "outcome": outcome, "count": count, "from": start,
                         "to": start + count, "middle": start + count / 2,
                         "text": f"{count:,}" if count >= 0.025 * max(1, of.size) else "",
                         "strong": outcome == REVERSAL})  # fmt: skip
            start += count
    mark = alt.Chart()
    made = over(
        mark.mark_bar(stroke=colour("box")).encode(
            x=alt.X(
                "from:Q",
                title="pairs of schedulers and conditions",
                scale=alt.Scale(nice=False),
                axis=alt.Axis(tickCount=8),
            ),
            x2=alt.X2("to:Q"),
            color=_outcome_colour("o", NARROW),
        ),
        mark.mark_text(fontSize=11).encode(
            x=alt.X("middle:Q"), text=alt.Text("text:N"), color=ink_on("datum.strong")
        ),
    ).encode(
        y=alt.Y("bar:N", title=None, sort=[bar for bar, _ in bars], axis=names_axis(labelFontSize=11)),
        tooltip=tips(("bar", "correction"), "outcome", ("count:,", "how many")),
    )
    told = "Outcomes of the family " + of.name + ": " + ", ".join(f"{n} {o}" for o, n in of.counts.items())
    made = made.properties(width="container", height=26 * len(bars))
    return Figure(
        f"outcomes-{of.name}", f"Outcomes, {FAMILIES.get(of.name, of.name)}", told, as_spec(made, rows), 760
    )


def reversal_map(of: Family, names: Mapping[str, str]) -> Figure | None:
    """Return the map of a family, pairs of schedulers by pairs of conditions; None if too wide or empty."""
    import altair as alt

    table = of.table
    if not len(table):
        return None
    groups, columns = _columns(of, names)
    if len(set(zip(groups, columns, strict=True))) > MOST_COLUMNS:
        return None
    pairs = [f"{a} : {b}" for a, b in zip(table["a"], table["b"], strict=True)]
    rows = [
        _hypothesis(row, {"p": pair, "g": group, "c": column})
        for row, pair, group, column in zip(table.to_dict("records"), pairs, groups, columns, strict=True)
    ]
    weight = dict(zip(OUTCOMES, (1000, 0, 30, 0, 0), strict=True))
    worth: dict[str, int] = {}
    for row, outcome in zip(rows, table["outcome"], strict=True):
        worth[row["p"]] = worth.get(row["p"], 0) + weight[outcome]
    order = sorted(worth, key=lambda pair: (-worth[pair], pair))
    letters = {letter: outcome for outcome, (_, letter) in LOOKS.items()}
    mark = alt.Chart()
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1).encode(color=_outcome_colour("o")),
        mark.mark_text(fontSize=10.5, fontWeight=600).encode(text=alt.Text("o:N"), color=ink_on("datum.o === 'R'")),
    ).encode(
        x=alt.X("c:N", title=AXIS_COLUMNS[of.axis], sort=sorted(set(columns), key=_by_load),
                axis=names_axis("top", **SMALL)),
        y=alt.Y("p:N", title=None, sort=order, axis=names_axis(labelFontSize=10.5)),
        tooltip=tips(("p", "A : B"), ("g", "between"), ("c", AXIS_COLUMNS[of.axis]), ("words", "outcome"),
                     ("x", "A - B in the first, 95%"), ("y", "A - B in the second, 95%"), ("n", "windows"),
                     ("q", "adjusted p: reversal, stable, sign, equivalent"), ("e", "equivalent in (x first)")),
    ).transform_calculate(words=f"({json.dumps(letters)})[datum.o]")  # fmt: skip
    step = 40 if of.axis == "source" else 58
    made = made.properties(width=alt.Step(step), height=alt.Step(17)).facet(
        column=alt.Column("g:N", title=None, sort=sorted(set(groups)), header=alt.Header(labelExpr=BROKEN)),
        spacing=12,
    )
    told = f"Outcome of every pair of schedulers in every pair of conditions, family {of.name}"
    return Figure(
        f"reversals-{of.name}", f"Reversal map, {FAMILIES.get(of.name, of.name)}", told, as_spec(made, rows)
    )


def where_words(row: Mapping[str, Any], side: str, names: Mapping[str, str], axis: str) -> str:
    """Return one condition of a hypothesis; the metric is told where the axis changes it."""
    source, region, column = (str(row[f"{part}_{side}"]) for part in ("source", "region", "column"))
    told = f"{names.get(source, source)}, rho {region}"
    return f"{told}, {column}" if axis in ("metric", "slo") else told


def _columns(of: Family, names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the group (a facet) and the column of each hypothesis."""
    x, y = (
        [of.table[f"{part}_{side}"].astype(str) for part in ("source", "region", "column")] for side in "xy"
    )
    several = of.table["column_x"].nunique() > 1 and of.axis in ("source", "region")
    groups, columns = [], []
    for sx, rx, cx, sy, ry, cy in zip(*x, *y, strict=True):
        sources = f"{names.get(sx, sx)} – {names.get(sy, sy)}" if of.axis == "source" else names.get(sx, sx)
        groups.append(f"{sources}, {cx}" if several else sources)
        told = {"source": rx, "region": f"{rx}–{ry}"}.get(of.axis, f"{cx}–{cy} {rx}")
        columns.append(told)
    return groups, columns


def _by_load(column: str) -> tuple[float, ...]:
    """Return the regions in a column's name, by which columns are ordered."""
    return tuple(float(part) for part in _NUMBER.findall(column))


def _hypothesis(row: Mapping[Any, Any], where: dict[str, str]) -> dict[str, Any]:
    q = ", ".join(f"{row[f'q_{kind}']:.2g}" for kind in ("rev", "stable", "sign", "eq"))
    alike = [side for side in "xy" if row[f"equivalent_{side}"]]
    return {
        **where,
        "o": LOOKS[row["outcome"]][1],
        "x": f"{row['diff_x']:.3f} ({interval(row['low_x'], row['high_x'])})",
        "y": f"{row['diff_y']:.3f} ({interval(row['low_y'], row['high_y'])})",
        "n": f"{row['n_x']:g} and {row['n_y']:g}",
        "q": f"{q}; reversal by BH {row['bh_rev']:.2g}",
        "e": " and ".join(alike) or "neither",
    }


def _outcome_colour(field: str, columns: str = "") -> Any:
    """Return the colour of an outcome's letter, with a legend that says what letters mean.

    ``columns`` is the expression of how many stand side by side, all if empty.
    """
    import altair as alt

    told = {letter: f"{letter}  {outcome}" for outcome, (_, letter) in LOOKS.items()}
    legend = alt.Legend(
        title=None,
        orient="top",
        symbolType="square",
        symbolSize=140,
        columns=alt.ExprRef(columns) if columns else alt.Undefined,
        labelExpr=f"({json.dumps(told)})[datum.label]",
    )
    scale = alt.Scale(
        domain=[LOOKS[one][1] for one in OUTCOMES], range=[colour(LOOKS[one][0]) for one in OUTCOMES]
    )
    return alt.Color(f"{field}:N", scale=scale, legend=legend)


def _matrix_rows(of: Matrix, labels: Sequence[str], shown: str) -> list[dict[str, Any]]:
    rows = []
    for i, y in enumerate(labels):
        for j, x in enumerate(labels[: i + 1]):
            own = i == j
            value = of.ceiling[i, j] if own else of.cross[i, j]
            rows.append(
                {"shown": shown, "y": y, "x": x, "value": float(value), "own": own, "text": tau(float(value)),
                 "counted": bool(own or of.counted[i, j]), "beside": "ceiling" if own else _of(of.ceiling[i, j]),
                 "ceiling": tau(of.ceiling[i, j]), "says": "yes" if own or of.counted[i, j] else "no",
                 "gap": "" if own else f"{tau(of.gap[i, j])} ({tau_interval(of.gap_low[i, j], of.gap_high[i, j])})",
                 "tau": f"{tau(of.tau[i, j])} ({tau_interval(of.tau_low[i, j], of.tau_high[i, j])})",
                 "top": tau(of.top[i, j]), "rbo": tau(of.rbo[i, j]), "jaccard": tau(of.jaccard[i, j])}
            )  # fmt: skip
    return rows


def _median_rows(of: Sequence[Matrix], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of medians over the conditions that are counted; only matrices with the same labels."""
    same = [one for one in of if one.labels == of[0].labels]
    parts = {name: np.stack([getattr(one, name) for one in same]) for name in ("cross", "ceiling", "tau", "gap",
                                                                              "top", "rbo", "jaccard")}  # fmt: skip
    counted = np.stack([one.counted for one in same])
    rows = []
    for i, y in enumerate(labels):
        for j, x in enumerate(labels[: i + 1]):
            own = i == j
            kept = np.ones(len(same), np.bool_) if own else counted[:, i, j]
            mid = {name: _median(part[kept, i, j]) for name, part in parts.items()}
            value = mid["ceiling"] if own else mid["cross"]
            rows.append(
                {"shown": MEDIAN, "y": y, "x": x, "value": value, "own": own, "text": tau(value),
                 "counted": bool(kept.any()), "beside": "ceiling" if own else _of(mid["ceiling"]),
                 "ceiling": tau(mid["ceiling"]), "gap": "" if own else tau(mid["gap"]), "tau": tau(mid["tau"]),
                 "top": tau(mid["top"]), "rbo": tau(mid["rbo"]), "jaccard": tau(mid["jaccard"]),
                 "says": f"{int(kept.sum())} of {len(same)} conditions"}
            )  # fmt: skip
    return rows


def _median(values: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN is NaN, no fault
        return float(np.nanmedian(values)) if len(values) else float("nan")


def _of(ceiling: float) -> str:
    return f"of {tau(ceiling)}"


def _ink() -> Any:
    return tau_ink("value")


def worst_rows(of: Family, most: int = 60) -> pd.DataFrame:
    """Return a family's reversals, material ones first, then in sign only, each by adjusted p."""
    kinds = {REVERSAL: 0, SIGN: 1}
    found = of.table[of.table["outcome"].isin(kinds)]
    order = found.assign(kind=found["outcome"].map(kinds)).sort_values(["kind", "q_rev", "q_sign"])
    return order.drop(columns="kind").head(most)
