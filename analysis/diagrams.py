"""Diagrams: critical differences, how many windows are enough, what could be found, what is portable, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.answers import Components, Key, Omnibus, Power, Recovery
from analysis.charts import (
    NARROW,
    Figure,
    Spec,
    as_spec,
    choice,
    colour,
    ink_on,
    names_axis,
    over,
    steps,
    tips,
)
from analysis.figures import PANEL_PX, SMALL
from analysis.maps import SHOWN
from analysis.metrics import METRICS, split_column
from analysis.numerals import number, share, tau

SIDE = 0.52
"""Room for names on either side of a critical-difference diagram, in lengths of its axis."""

ROW_PX = 19

DEPTHS = ("s6", "s1", "s7", "s4", "s2", "s5", "s3", "s8")
"""Colours of regions by rising pressure."""

SHARE_HUES = ("s1", "s2", "s5", "s4")
"""Colours of variance components, the portable part first."""

DETECTABLE_STEPS = (1.0, 2.0, 3.0, 5.0)


def critical_differences(
    of: Mapping[Key, Omnibus], source: str, title: str, regions: Sequence[str]
) -> Figure | None:
    """Return one source's critical-difference diagram with a menu of regions, the first one shown."""
    import altair as alt

    shown = [
        one for region in regions for key, one in of.items() if key[:2] == (source, region) and one.windows
    ]
    shown = [one for one in shown if len(one.schedulers) > 1]
    if not shown:
        return None
    rows = [row for one in shown for row in _critical(one)]
    most = max(len(one.schedulers) for one in shown)
    low, high = min(row["y"] for row in rows), max(row["y"] for row in rows)
    sides = [1 - SIDE * (most - 1), most + SIDE * (most - 1)]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=sides, nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[low - 0.6, high + 0.5], nice=False))
    mark = alt.Chart()
    hover = tips("scheduler", ("rank:.2f", "mean rank"), "windows", ("alike", "not told apart from"))
    made = over(
        mark.mark_line(color=colour("ink"), strokeWidth=1.2).transform_filter("datum.kind === 'axis'")
        .encode(x=x, y=y),
        mark.mark_line(color=colour("soft"), strokeWidth=1).transform_filter("datum.kind === 'stem'")
        .encode(x=x, y=y, detail=alt.Detail("scheduler:N"), order=alt.Order("order:Q")),
        mark.mark_line(color=colour("ink"), strokeWidth=4, strokeCap="round")
        .transform_filter("datum.kind === 'clique'").encode(x=x, y=y, detail=alt.Detail("scheduler:N"), tooltip=tips(
            ("scheduler", "not told apart"))),
        mark.mark_line(color=colour("s2"), strokeWidth=2).transform_filter("datum.kind === 'cd'")
        .encode(x=x, y=y),
        mark.mark_text(color=colour("soft"), fontSize=11).transform_filter("datum.kind === 'tick'")
        .encode(x=x, y=y, text=alt.Text("text:N")),
        mark.mark_text(align="left", color=colour("s2"), fontSize=11, dx=6)
        .transform_filter("datum.kind === 'cd' && datum.order === 1").encode(x=x, y=y, text=alt.Text("text:N")),
        mark.mark_text(align="left", color=colour("soft"), fontSize=11)
        .transform_filter("datum.kind === 'note'").encode(x=x, y=y, text=alt.Text("text:N")),
        mark.mark_text(align="right", fontSize=12, dx=-5).transform_filter("datum.kind === 'left'")
        .encode(x=x, y=y, text=alt.Text("text:N"), tooltip=hover),
        mark.mark_text(align="left", fontSize=12, dx=5).transform_filter("datum.kind === 'right'")
        .encode(x=x, y=y, text=alt.Text("text:N"), tooltip=hover),
    ).transform_filter(f"datum.shown === {SHOWN}")  # fmt: skip
    options = [f"rho {one.key[1]}" for one in shown]
    made = made.add_params(choice(SHOWN, options, "Condition"))
    made = made.properties(width=470, height=round(ROW_PX * (high - low + 1.1)))
    told = f"Critical-difference diagram of schedulers on {title}"
    return Figure(f"critical-{source}", title, told, as_spec(made, rows), 0, tuple(options))


def _critical(of: Omnibus) -> list[dict[str, Any]]:
    """Return the strokes and texts of one diagram: best on the left, names on both sides, cliques as bars."""
    ranks = {name: float(rank) for name, rank in zip(of.schedulers, of.mean_ranks, strict=True)}
    k, shown = len(ranks), f"rho {of.key[1]}"
    cliques = [one for one in of.cliques if len(one) > 1]
    first = -0.7 - 0.5 * len(cliques)
    rows: list[dict[str, Any]] = [
        {"kind": "axis", "x": 1.0, "y": 0.0}, {"kind": "axis", "x": float(k), "y": 0.0},
        {"kind": "note", "x": 1.0, "y": 3.2, "text": f"Friedman p {number(of.p, 2)}, Kendall W {tau(of.kendall_w)}, "
         f"{of.windows} windows"},
    ]  # fmt: skip
    rows += [{"kind": "tick", "x": float(at), "y": 0.75, "text": str(at)} for at in range(1, k + 1)]
    if np.isfinite(of.critical_difference):
        told = f"critical difference {of.critical_difference:.2f} (Nemenyi, for the picture)"
        for order, x in enumerate((1.0, 1.0 + of.critical_difference)):
            rows.append({"kind": "cd", "x": x, "y": 2.0, "order": order, "text": told})
    for place, clique in enumerate(cliques):
        y, ends = -0.55 - 0.5 * place, [ranks[name] for name in clique]
        told = ", ".join(clique)
        rows += [{"kind": "clique", "x": x, "y": y, "scheduler": told} for x in
                 (min(ends) - 0.04, max(ends) + 0.04)]  # fmt: skip
    half = (k + 1) // 2
    for place, (name, rank) in enumerate(ranks.items()):
        left = place < half
        y = first - 0.5 - (place if left else k - 1 - place)
        side = 1.0 - 0.04 * (k - 1) if left else k + 0.04 * (k - 1)
        alike = sorted({other for clique in cliques if name in clique for other in clique} - {name})
        stem = {"kind": "stem", "scheduler": name}
        rows += [{**stem, "x": rank, "y": 0.0, "order": 0}, {**stem, "x": rank, "y": y, "order": 1},
                 {**stem, "x": side, "y": y, "order": 2},
                 {"kind": "left" if left else "right", "x": side, "y": y, "scheduler": name, "rank": rank,
                  "text": f"{name}  {rank:.1f}" if left else f"{rank:.1f}  {name}", "windows": of.windows,
                  "alike": ", ".join(alike) or "nobody"}]  # fmt: skip
    return [{**row, "shown": shown} for row in rows]


RECOVERY = {"tau": "Order: tau-b of two sets", "best_kept": "Best of one in the top set of the other"}
"""What is shown by number of windows, and the words for it."""


def recoveries(of: Mapping[Key, Recovery], names: Mapping[str, str]) -> tuple[Figure, ...]:
    """Return two figures a source: agreement, and how often the best is kept, by number of windows."""
    found = []
    for field, told in RECOVERY.items():
        for source, name in names.items():
            mine = {key[1]: one for key, one in of.items() if key[0] == source and len(one.sizes) > 1}
            if mine:
                at = f"recovery-{field.replace('_', '-')}-{source}"
                title = f"{told}, by number of windows, on {name}"
                found.append(Figure(at, f"{name}: {told.lower()}", title, _recovery(mine, field), PANEL_PX))
    return tuple(found)


def _recovery(mine: Mapping[str, Recovery], field: str) -> Spec:
    import altair as alt

    rows = [
        {"region": region, "m": size, "value": float(value), "enough": size == one.enough,
         "told": one.enough or f"more than {one.sizes[-1]}"}
        for region, one in mine.items()
        for size, value in zip(one.sizes, getattr(one, field), strict=True)
    ]  # fmt: skip
    hues = [colour(DEPTHS[place % len(DEPTHS)]) for place in range(len(mine))]
    sizes = sorted({size for one in mine.values() for size in one.sizes})
    low = min(0.0, *(float(getattr(one, field).min()) for one in mine.values()))
    mark = alt.Chart()
    made = over(
        mark.mark_line(strokeWidth=2),
        mark.mark_point(filled=True, size=30, opacity=1),
        mark.mark_point(filled=False, size=150, strokeWidth=2).transform_filter("datum.enough"),
    ).encode(
        x=alt.X("m:Q", title="windows in each set", scale=alt.Scale(zero=False, padding=10),
                axis=alt.Axis(values=sizes, grid=False, format="d", labelOverlap=True)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(domain=[low, 1])),
        color=alt.Color("region:N", title="rho", sort=list(mine), scale=alt.Scale(domain=list(mine), range=hues),
                        legend=alt.Legend(orient="bottom", columns=3)),
        tooltip=tips(("region", "rho"), ("m:d", "windows in each set"), ("value:.2f", RECOVERY[field].lower()),
                     ("told", "enough windows")),
    ).properties(width="container", height=190)  # fmt: skip
    return as_spec(made, rows)


def detectable(
    of: Mapping[Key, Power], names: Mapping[str, str], regions: Sequence[str], margin: float
) -> Figure | None:
    """Return the least true difference that each condition would have shown beyond the margin, as a map."""
    import altair as alt

    percent = bool(of) and METRICS[split_column(next(iter(of))[2])[0]].kind != "rate"
    rows = [
        {"source": names[key[0]], "region": key[1], "least": one.beyond_margin, "margins": one.beyond_margin / margin,
         "text": (share(one.beyond_margin) if percent else number(one.beyond_margin, 2)), "windows": one.windows,
         "spread": number(one.spread), "difference": number(one.difference), "corrected": number(one.corrected),
         "effect": number(one.effect)}
        for key, one in of.items()
    ]  # fmt: skip
    if not rows:
        return None
    mark = alt.Chart()
    made = over(
        mark.mark_rect(stroke=colour("box"), strokeWidth=1.5).encode(color=steps(
            "margins", DETECTABLE_STEPS, ("t8", "t7", "t6", "t5", "t3"), "in margins")),
        mark.mark_text(fontSize=12).encode(text=alt.Text("text:N"), color=ink_on("datum.margins < 2")),
    ).encode(
        x=alt.X("region:N", title="rho", sort=list(regions), axis=names_axis("top", **SMALL)),
        y=alt.Y("source:N", title=None, sort=list(names.values()), axis=names_axis()),
        tooltip=tips("source", ("region", "rho"), "windows", ("text", "shown beyond the margin, power 0.8"),
                     ("margins:.1f", "in margins"), ("difference", "told from 0, power 0.8"),
                     ("corrected", "told from 0 after Bonferroni over pairs"), ("spread", "sd of paired differences"),
                     ("effect", "least standardised difference")),
    ).properties(width=alt.Step(64), height=alt.Step(28))  # fmt: skip
    told = "Least true difference between two schedulers that would be shown beyond the margin with power 0.8"
    return Figure("detectable", "Minimum detectable effect", told, as_spec(made, rows))


def components(of: Sequence[Components]) -> Figure | None:
    """Return the shares of variance: how much of the differences between schedulers travels, and what undoes it."""
    import altair as alt

    rows, order = [], []
    for one in of:
        bar = f"sources and {PLURALS[one.axes[1]]}" if not one.why_not else ""
        order += [bar] if bar else []
        start = 0.0
        for place, (name, value) in enumerate(one.shares.items() if bar else ()):
            kind = PARTS[place] if place < len(PARTS) else name
            rows.append(
                {"bar": bar, "part": kind, "name": name.replace("policy", "scheduler"), "from": start,
                 "to": start + value, "middle": start + value / 2, "text": share(value) if value >= 0.06 else "",
                 "interval": f"{share(one.share_low[name])} to {share(one.share_high[name])}", "value": share(value),
                 "dark": place == 0, "low": one.low if place == 0 else None, "high": one.high if place == 0 else None}
            )  # fmt: skip
            start += value
    if not rows:
        return None
    mark = alt.Chart()
    hues = [colour(hue) for hue in ("t8", "t2", "sign", "equivalent")]
    made = over(
        mark.mark_bar(stroke=colour("box"), height=24).encode(
            x=alt.X("from:Q", title="share of the variance between schedulers", scale=alt.Scale(domain=[0, 1]),
                    axis=alt.Axis(format="%")),
            x2=alt.X2("to:Q"),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(PARTS), range=hues),
                            legend=alt.Legend(title=None, orient="top", symbolType="square", symbolSize=140,
                                              columns=alt.ExprRef(NARROW))),
        ),
        mark.mark_text(fontSize=12, fontWeight=600).encode(
            x=alt.X("middle:Q"), text=alt.Text("text:N"), color=ink_on("datum.dark")),
        mark.mark_rule(color=colour("ink"), strokeWidth=2, yOffset=17).transform_filter("datum.low !== null")
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
    ).encode(
        y=alt.Y("bar:N", title=None, sort=order, axis=names_axis(labelFontSize=11)),
        tooltip=tips(("bar", "axes"), ("name", "part"), ("value", "share"), ("interval", "95%")),
    ).properties(width="container", height=46 * len(order))  # fmt: skip
    told = "Variance between schedulers, split into what is portable and what each axis moves"
    return Figure("components", "What is portable", told, as_spec(made, rows), 760)


PLURALS = {"region": "regions", "metric": "metrics", "slo": "SLO sets"}

PARTS = (
    "portable: the scheduler alone",
    "moves with the source",
    "moves with the second axis",
    "moves with both",
)
"""The components as told: those of policy, policy x first axis, policy x second axis, and all three."""


def attribution(of: Mapping[str, Any], name: str) -> Figure:
    """Return what each axis of the traffic adds to the distance between two sources' orders, with intervals."""
    import altair as alt

    total = of["distance"]
    rows = [{"axis": "all together", **total, "share": "", "alone": "", "last": "", "kind": "all"}]
    rows += [
        {"axis": one["axis"], "value": one["value"], "low": one["low"], "high": one["high"], "kind": "axis",
         "share": "" if one["share"] is None else share(one["share"]), "alone": number(one["alone"], 2),
         "last": number(one["last"], 2)}
        for one in of["shares"]
    ]  # fmt: skip
    mark = alt.Chart()
    made = over(
        mark.mark_bar(height=14).encode(
            x=alt.X("value:Q", title="distance between the orders, 1 - tau above noise",
                    axis=alt.Axis(tickCount=5)),
            color=alt.Color("kind:N", legend=None, scale=alt.Scale(
                domain=["all", "axis"], range=[colour("soft"), colour("t7")])),
        ),
        mark.mark_rule(color=colour("ink"), strokeWidth=2).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
    ).encode(
        y=alt.Y("axis:N", title=None, sort=[row["axis"] for row in rows], axis=names_axis()),
        tooltip=tips("axis", ("value:.2f", "distance"), ("low:.2f", "95% low"), ("high:.2f", "95% high"), "share",
                     ("alone", "when only this axis is swapped"), ("last", "when only this axis is given back")),
    ).properties(width="container", height=26 * len(rows))  # fmt: skip
    told = f"Parts of arrivals, lengths and SLOs in the distance between orders, {name}"
    at = "-".join(
        ["attribution", *of["sources"], str(of["region"]), str(of["slo"]["mode"]).replace(":", "-")]
    )
    return Figure(at, name, told, as_spec(made, rows), PANEL_PX)
