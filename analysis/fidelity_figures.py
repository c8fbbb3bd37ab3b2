"""The chart of a fidelity study: what the simulator says of each scheduler, beside every live run of it."""

from collections.abc import Mapping
from typing import Any

from analysis.charts import NARROW, Figure, as_spec, colour, names_axis, over, tips
from analysis.fidelity_words import short
from analysis.metrics import METRICS, split_column

SIMULATED, SHAKEN, LIVE = "simulated, mean", "arrivals shaken", "live run"
LOOKS = {SIMULATED: ("s1", "diamond", 130), SHAKEN: ("s1", "cross", 34), LIVE: ("s2", "circle", 50)}
"""Colour, mark and size of each."""

ROW_PX = 26
"""Height of a scheduler."""

PANEL_PX = 360
"""Width of a panel's still picture."""


def figures(of: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Return a figure a condition: schedulers from the simulator's best down, simulated value and live runs."""
    return tuple(_figure(one, of["metric"]) for one in of["conditions"])


def _figure(one: Mapping[str, Any], metric: str) -> Figure:
    import altair as alt

    rows, names = [], [short(row["scheduler"]) for row in one["schedulers"]]
    for row in one["schedulers"]:
        shared = {"scheduler": short(row["scheduler"]), "mean": row["mean"],
                  "places": f"{row['rank_simulated']} simulated, {row['rank_live']} live"}  # fmt: skip
        rows.append({**shared, "what": SIMULATED, "value": row["simulated"]})
        rows += [{**shared, "what": SHAKEN, "value": value} for value in one["draws"][row["scheduler"]]]
        rows += [
            {**shared, "what": LIVE, "value": value, "repeat": str(number)}
            for number, value in enumerate(row["live"], 1)
        ]
    rows = [{**row, "size": LOOKS[row["what"]][2]} for row in rows]
    rate = METRICS[split_column(metric)[0]].kind == "rate"
    scale = alt.Scale(zero=False, nice=True) if rate else alt.Scale(type="log", nice=False, padding=12)
    looks = alt.Scale(domain=list(LOOKS), range=[colour(look[0]) for look in LOOKS.values()])
    marks = alt.Scale(domain=list(LOOKS), range=[look[1] for look in LOOKS.values()])
    legend = alt.Legend(title=None, orient="top", columns=alt.ExprRef(expr=NARROW))
    mark = alt.Chart()
    made = over(
        mark.mark_rule(color=colour("line")).encode(x=alt.X("min(value):Q"), x2=alt.X2("max(value):Q")),
        mark.mark_point(filled=True, opacity=0.9).encode(
            x=alt.X("value:Q", title=metric, scale=scale, axis=alt.Axis(grid=True, labelFontSize=11)),
            color=alt.Color("what:N", scale=looks, legend=legend),
            shape=alt.Shape("what:N", scale=marks, legend=legend),
            size=alt.Size("size:Q", scale=None, legend=None),
            tooltip=tips("scheduler", "what", "repeat", ("value:.4g", metric), ("mean:.4g", "live mean"),
                         ("places", "place")),
        ),
    ).encode(y=alt.Y("scheduler:N", title=None, sort=names, axis=names_axis())).properties(
        width="container", height=ROW_PX * len(names)
    )  # fmt: skip
    title = f"{one['window']}, rho {one['region']}"
    name = f"fidelity-{one['window']}-{one['region']}".replace(".", "-")
    return Figure(name, title, _told(one, metric), as_spec(made, rows), PANEL_PX)


def _told(one: Mapping[str, Any], metric: str) -> str:
    """Say it to those who can't see it."""
    said = "; ".join(
        f"{short(row['scheduler'])} {row['simulated']:.3g} simulated, {row['mean']:.3g} live"
        for row in one["schedulers"]
    )
    return f"{metric} on {one['window']} at rho {one['region']}: {said}"
