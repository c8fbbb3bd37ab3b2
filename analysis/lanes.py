"""Timeline of one run: engines as lanes with memory, batch, lives and moves as arrows; the queue by tier beneath."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from analysis.charts import NARROW, Figure, as_spec, colour, config, over, tips, unchecked
from analysis.page import chart_script, environment, stylesheet
from analysis.tables import Table

LOOKS_MAX = 240
"""Points of a curve; more are thinned, keeping the highest of each stretch."""

MOVES_MAX = 400
"""Arrows that are drawn; of more, the longest standing still."""

LANE_PX, LANES_PX, AXIS_PX = 62, 900, 58
"""Height of a lane, and of all of them together at most; room for names, the same in both charts."""

LIFE_HUES = {"booting": "s5", "draining": "s4", "off": "line", "dead": "s2"}
"""Colours behind a lane while its engine does not serve."""

TIER_HUES = ("s2", "s5", "s1", "s3", "s4", "s7", "s6", "s8", "t2", "t6")
"""Colours of tiers, the most important first."""


class Span(NamedTuple):
    """A stretch of an engine's life that is not serving."""

    engine: int
    life: str
    from_s: float
    to_s: float


class Move(NamedTuple):
    """A request goes from one engine to another."""

    request: int
    source: int
    target: int
    began_s: float
    stopped_s: float
    ended_s: float
    committed: bool


class Lanes(NamedTuple):
    """A timeline for the picture: k looks at e engines, t tiers."""

    at_s: Sequence[float]
    memory: Any  # (k, e) share of KV blocks held by requests
    reserved: Any  # (k, e) share of KV blocks kept for requests on their way
    batch: Any  # (k, e) requests in the batch
    waiting: Any  # (k, t) requests that wait, in the engines' queues and in the centre
    engines: tuple[str, ...]
    tiers: tuple[str, ...]
    spans: tuple[Span, ...]
    moves: tuple[Move, ...]


def thinned(values: Any, most: int = LOOKS_MAX) -> Any:
    """Return the places of at most about ``most`` rows: the largest by sum of each stretch, and both ends."""
    rows = len(values)
    if rows <= most:
        return np.arange(rows)
    sums = np.asarray(values, float).reshape(rows, -1).sum(axis=1)
    edges = np.linspace(0, rows, most - 1).astype(int)
    peaks = [low + int(np.argmax(sums[low:high])) for low, high in pairwise(edges) if high > low]
    return np.unique([0, *peaks, rows - 1])


def figures(of: Lanes) -> tuple[Figure, Figure]:
    """Return the two charts: lanes, and the queue by tier, on the same axis of time."""
    with unchecked():
        return lanes(of), queue(of)


def time_axis(of: Lanes, title: str | None) -> Any:
    """Return the axis of time, the same for both charts."""
    import altair as alt

    domain = [0.0, max(float(of.at_s[-1]), 1e-9)]
    axis = alt.Axis(title=title, grid=False, tickCount=8)
    return alt.X("at:Q", axis=axis, scale=alt.Scale(domain=domain, nice=False, clamp=True))


def lanes(of: Lanes) -> Figure:
    """Return the engines as lanes: memory as area, batch as line, lives behind, moves as arrows."""
    import altair as alt

    count = len(of.engines)
    x, rows = time_axis(of, None), lane_rows(of)
    labels = json.dumps(list(of.engines))
    axis = alt.Axis(
        title=None, values=[engine + 0.5 for engine in range(count)], grid=False, domain=False, ticks=False,
        labelExpr=f"{labels}[floor(datum.value)]", labelColor=colour("ink"), labelLimit=130,
        minExtent=AXIS_PX,
    )  # fmt: skip
    scale = alt.Scale(domain=[count, 0], nice=False)
    y, y2, x2 = alt.Y("y:Q", axis=axis, scale=scale), alt.Y2("y2:Q"), alt.X2("to:Q")
    lane = alt.Detail("lane:N")
    mark = alt.Chart()
    areas = ("kv", "s1", 0.75), ("kept", "s5", 0.9)
    drawn = [
        mark.mark_rect(opacity=0.28).transform_filter(of_kind("life")).encode(
            x=x, x2=x2, y=y, y2=y2, color=life_colour(),
            tooltip=tips("engine", "state", ("at:.2f", "from s"), ("to:.2f", "to s"))),
        mark.mark_rule(color=colour("line")).transform_filter(of_kind("floor")).encode(y=y),
        *(
            mark.mark_area(color=colour(hue), opacity=opacity, interpolate="step-after", line=False)
            .transform_filter(of_kind(kind)).encode(x=x, y=y, y2=y2, detail=lane)
            for kind, hue, opacity in areas
        ),
        mark.mark_line(color=colour("ink"), strokeWidth=1, opacity=0.8, interpolate="step-after")
        .transform_filter(of_kind("batch")).encode(x=x, y=y, detail=lane),
        mark.mark_rule(strokeWidth=1.2, opacity=0.75).transform_filter(of_kind("move"))
        .encode(x=x, x2=x2, y=y, y2=y2, color=move_colour(), tooltip=move_tips()),
        mark.mark_point(filled=True, size=38, opacity=0.9).transform_filter(of_kind("tip"))
        .encode(x=x, y=y, color=move_colour(), shape=alt.Shape("way:N", scale=None), tooltip=move_tips()),
        mark.mark_point(size=160, opacity=0, filled=True).transform_filter(of_kind("hover"))
        .encode(x=x, y=y, tooltip=tips("engine", ("at:.2f", "s"), ("share:.0%", "memory"), ("requests", "in batch"))),
    ]  # fmt: skip
    made = over(*drawn).resolve_scale(color="independent", shape="independent").properties(
        width="container", height=round(min(LANE_PX * count, max(LANES_PX, 12 * count)))
    )  # fmt: skip
    told = (
        f"Timeline of {count} engines over {of.at_s[-1]:.0f} seconds: memory in use, batch, and "
        f"{len(of.moves)} moves as arrows"
    )
    return Figure("lanes", "Engines over time", told, as_spec(made, rows), 1000)


def of_kind(kind: str) -> str:
    """Return the Vega expression that keeps the rows of one kind."""
    return f"datum.kind === '{kind}'"


def life_colour() -> Any:
    """Return the colours of what an engine does when it does not serve."""
    import altair as alt

    names = list(LIFE_HUES)
    scale = alt.Scale(domain=names, range=[colour(LIFE_HUES[name]) for name in names])
    return alt.Color("state:N", scale=scale, legend=None)


def move_colour() -> Any:
    """Return the colours of moves: handed over, or given up."""
    import altair as alt

    scale = alt.Scale(domain=["handed over", "given up"], range=[colour("s2"), colour("s8")])
    return alt.Color("end:N", scale=scale, legend=None)


def move_tips() -> Any:
    """Return what a move says of itself."""
    return tips("request", "source", "target", "end", ("began:.3f", "from s"), ("ms:.1f", "standstill ms"))


def lane_rows(of: Lanes) -> list[dict[str, Any]]:
    """Return the rows of the lanes' chart; lane e lies between e and e + 1, and grows upwards from its floor."""
    at_s, rows = (
        np.asarray(of.at_s, float),
        [{"kind": "floor", "y": engine + 0.94} for engine in range(len(of.engines))],
    )
    most = max(1, int(np.max(of.batch, initial=1)))
    for engine, name in enumerate(of.engines):
        floor, tall = engine + 0.94, 0.86
        load = np.stack([of.memory[:, engine], of.reserved[:, engine]], axis=1)
        for look in thinned(np.concatenate([load, of.batch[:, engine : engine + 1] / most], axis=1)):
            held, kept, batch = float(load[look, 0]), float(load[look, 1]), int(of.batch[look, engine])
            place = {"at": float(at_s[look]), "lane": engine}
            top = floor - tall * held
            rows += [
                {"kind": "kv", **place, "y": top, "y2": floor},
                {"kind": "batch", **place, "y": floor - tall * batch / most},
                {"kind": "hover", **place, "y": engine + 0.5, "engine": name, "share": held, "requests": str(batch)},
            ]  # fmt: skip
            if of.reserved[:, engine].any():
                rows.append({"kind": "kept", **place, "y": top - tall * kept, "y2": top})
    for span in of.spans:
        rows.append(
            {"kind": "life", "at": span.from_s, "to": span.to_s, "y": span.engine + 0.04, "y2": span.engine + 0.96,
             "state": span.life, "engine": of.engines[span.engine]}
        )  # fmt: skip
    return rows + move_rows(of)


def move_rows(of: Lanes) -> list[dict[str, Any]]:
    """Return the rows of the arrows: a line from where the move began to where it ended, and its head."""
    rows: list[dict[str, Any]] = []
    for move in sorted(of.moves, key=lambda one: one.stopped_s - one.ended_s)[:MOVES_MAX]:
        told = {
            "request": str(move.request), "source": of.engines[move.source], "target": of.engines[move.target],
            "end": "handed over" if move.committed else "given up", "began": move.began_s,
            "ms": (move.ended_s - move.stopped_s) * 1e3,
        }  # fmt: skip
        way = "triangle-down" if move.target > move.source else "triangle-up"
        line = {"at": move.began_s, "to": move.ended_s, "y": move.source + 0.5, "y2": move.target + 0.5}
        rows.append({"kind": "move", **told, **line})
        rows.append(
            {
                "kind": "tip",
                **told,
                "at": move.ended_s,
                "y": move.target + 0.5,
                "way": way if move.committed else "stroke",
            }
        )
    return rows


def queue(of: Lanes) -> Figure:
    """Return the requests that wait, by tier, stacked."""
    import altair as alt

    waiting = np.asarray(of.waiting)
    rows = [
        {"at": float(of.at_s[look]), "tier": name, "order": tier, "waiting": int(waiting[look, tier])}
        for look in thinned(waiting)
        for tier, name in enumerate(of.tiers)
    ]
    hues = [colour(TIER_HUES[tier % len(TIER_HUES)]) for tier in range(len(of.tiers))]
    scale = alt.Scale(domain=list(of.tiers), range=hues)
    legend = alt.Legend(title=None, orient="top", columns=alt.ExprRef(NARROW), symbolType="square")
    y = alt.Y(
        "waiting:Q",
        title=None,
        stack="zero",
        axis=alt.Axis(tickCount=4, tickMinStep=1, minExtent=AXIS_PX),
    )
    made = over(
        alt.Chart().mark_area(interpolate="step-after", opacity=0.85).encode(
            x=time_axis(of, "seconds"), y=y, color=alt.Color("tier:N", scale=scale, legend=legend),
            order=alt.Order("order:Q"), tooltip=tips(("at:.2f", "s"), "tier", ("waiting", "waiting")),
        )
    ).properties(width="container", height=170)  # fmt: skip
    told = f"Requests that wait over time, by {len(of.tiers)} tiers; at most {int(waiting.sum(axis=1).max())}"
    return Figure("queue", "Queue by tier: requests that wait", told, as_spec(made, rows), 1000)


def page(of: Lanes, title: str, facts: Sequence[str], tables: Sequence[Table]) -> str:
    """Return the HTML page of a timeline: self-contained, and forbidden the network by its own policy."""
    drawn = figures(of)
    specs = json.dumps(
        {"config": config(), "charts": {one.name: one.spec for one in drawn}}, separators=(",", ":")
    ).replace("<", "\\u003c")
    lives = sorted({span.life for span in of.spans}, key=list(LIFE_HUES).index)
    return environment().get_template("timeline.html.j2").render(
        title=title, facts=facts, figures=drawn, tables=tables, specs=specs, script=chart_script(),
        style=stylesheet(), lives=[(life, LIFE_HUES[life]) for life in lives], moves=len(of.moves),
        drawn=min(len(of.moves), MOVES_MAX),
        given_up=sum(not move.committed for move in of.moves), reserved=bool(np.any(of.reserved)),
        most=int(np.max(of.batch, initial=0)),
    )  # fmt: skip
