"""Charts: Vega-Lite specifications in the page's own colours, which the page draws and files are made of."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import altair as alt

Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]

COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#12161c"), "box": ("#ffffff", "#161b22"), "wash": ("#f4f6f9", "#1d242e"),
    "ink": ("#1b2430", "#e7ebf0"), "soft": ("#5a6675", "#a3afbd"), "line": ("#d5dbe3", "#333c48"),
    "good": ("#00674f", "#5fd3b0"), "bad": ("#a63a00", "#ff9d6b"), "open": ("#6b5200", "#e3c566"),
    "note": ("#2b5c99", "#8dbcf2"), "strong": ("#ffffff", "#0d1117"),
    "s1": ("#0072b2", "#56b4e9"), "s2": ("#d55e00", "#ff8c42"), "s3": ("#007a5a", "#3fcf9f"),
    "s4": ("#b0508a", "#e79ac5"), "s5": ("#a97400", "#f0c04a"), "s6": ("#3a9bd0", "#a7dcf7"),
    "s7": ("#5b4b9a", "#b7a8f0"), "s8": ("#5a6675", "#a3afbd"),
    "t1": ("#bd4f00", "#ff8c42"), "t2": ("#f0b184", "#8a4a1f"), "t3": ("#f7f7f5", "#20272f"),
    "t4": ("#e3eef7", "#1e3347"), "t5": ("#c3dcee", "#20466a"), "t6": ("#93c2e2", "#255d8f"),
    "t7": ("#2b76ad", "#4b9cdb"), "t8": ("#084f86", "#8cc8f5"),
    "reversal": ("#c04a00", "#ff8c42"), "stable": ("#9cc9e6", "#255d8f"), "sign": ("#f2c14e", "#7d5c0a"),
    "equivalent": ("#bfe3d4", "#1f5a48"), "undecided": ("#eceff3", "#262d36"),
}  # fmt: skip
"""Name -> (light, dark). Okabe and Ito's hues, shifted until text and lines read on their paper.

``s1`` to ``s8`` tell schedulers apart, ``t1`` to ``t8`` go from disagreement (orange) over nothing to
agreement (blue), ``strong`` is text on ``t1``, ``t7``, ``t8`` and ``reversal``.
"""

DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down")
HUES = 8

FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
"""Of one width everywhere, so that still pictures, measured without a browser, fit as live ones do."""

TAU_STEPS = (-0.5, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the colour of an agreement changes; eight colours, t1 to t8."""

NARROW = "width < 380 ? 1 : width < 700 ? 2 : 0"
"""Expression of the columns of a legend on top (0: all in a row), fewer on a phone."""

STRONG_TAU = (-0.5, 0.7)
"""Below the first and from the second on, cells are so dark that text on them is ``strong``."""

KEY_PX = 150
"""Room for a key beside a still picture."""

_VARIABLE = re.compile(r"var\(--([a-z0-9]+)\)")


class Figure(NamedTuple):
    """One chart of the report. ``spec`` has colours as CSS variables and no configuration."""

    name: str  # its id in the page and its file's name
    title: str
    told: str  # what it shows, in a sentence, for those who can't see it
    spec: Spec
    width: int = 0  # of its still picture; 0: its own, and in the page it scrolls in its box
    choices: tuple[str, ...] = ()  # values of its menu, the shown one first
    keyed: bool = False  # in the page its colours are told beside it, once for several charts


def colour(name: str) -> str:
    """Return the CSS variable of a colour of ``COLOURS``; raises KeyError for an unknown one."""
    if name not in COLOURS:
        raise KeyError(name)
    return f"var(--{name})"


def config() -> Spec:
    """Return the Vega-Lite configuration that every chart shares."""
    ink, soft, line = colour("ink"), colour("soft"), colour("line")
    axis = {"labelColor": soft, "titleColor": soft, "gridColor": line, "domainColor": line, "tickColor": line}
    sizes = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": {"left": 6, "right": 6, "top": 4, "bottom": 4},
        "view": {"stroke": None},
        "axis": {**axis, **sizes, "labelLimit": 240, "titlePadding": 8},
        "legend": {"labelColor": ink, "titleColor": soft, **sizes, "symbolStrokeWidth": 0, "labelLimit": 240},
        "header": {"labelColor": ink, "titleColor": soft, "labelFontSize": 12, "labelFontWeight": 600},
        "title": {"color": ink, "fontSize": 12, "fontWeight": 600, "anchor": "start"},
        "text": {"color": ink, "fontSize": 11},
        "mark": {"aria": False},
    }


def series(names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Return each scheduler's colour, dash and mark, no two alike for up to 32, by its place in ``names``."""
    return {
        name: (f"s{i % HUES + 1}", DASHES[(i // HUES + i) % len(DASHES)], SHAPES[i % len(SHAPES)])
        for i, name in enumerate(names)
    }


def unchecked() -> AbstractContextManager[None]:
    """Return a context in which Altair checks nothing against its schema, which takes seconds a report.

    Tests check every chart that a report holds.
    """
    from altair.utils.schemapi import debug_mode

    return debug_mode(False)


def as_spec(made: Any, rows: Rows) -> Spec:
    """Return the Vega-Lite specification of an Altair chart made with ``over``, with its rows written into it.

    Without schema address and configuration; NaN becomes null.
    """
    spec: Spec = made.to_dict(validate=False)
    for name in ("$schema", "config"):
        spec.pop(name, None)
    spec["data"] = {"values": [{key: _plain(value) for key, value in row.items()} for row in rows]}
    if spec.get("width") == "container":
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def choice(name: str, options: Sequence[str], label: str) -> Any:
    """Return a menu of the page that sets a parameter of a chart, its first option shown."""
    import altair as alt

    menu = alt.binding_select(options=list(options), name=label + " ")
    return alt.param(name=name, value=options[0], bind=menu)


def still(figure: Figure, chosen: str = "") -> Spec:
    """Return the specification of a figure's still picture on light paper, complete.

    ``chosen`` is a choice of its menu other than the first.
    """
    spec: Spec = json.loads(json.dumps(figure.spec))
    if figure.width:
        spec["width"] = figure.width
    for one in spec.get("params", ()) if chosen else ():
        if one.get("bind"):
            one["value"] = chosen
    if figure.keyed:
        _add_key(spec)
        spec["width"] = figure.width + KEY_PX
    spec["config"] = config() | {"background": COLOURS["paper"][0]}
    return in_colours(spec)


def _add_key(spec: Spec) -> None:
    """Give a chart whose key is the page's a legend of its own: one for colour, dash and mark together."""
    for part in (spec, *spec.get("layer", ())):
        for channel in ("color", "strokeDash", "shape"):
            if channel in part.get("encoding", {}):
                part["encoding"][channel] |= {"legend": {"symbolOpacity": 1}, "title": None}


def in_colours(spec: Spec) -> Spec:
    """Return a specification with CSS variables replaced by the colours of light paper."""
    found: Spec = json.loads(_VARIABLE.sub(lambda match: COLOURS[match[1]][0], json.dumps(spec)))
    return found


def tips(*fields: str | tuple[str, str]) -> "list[alt.Tooltip]":
    """Return tooltips: "field" or ("field", "title"), or ("field:.2f", "title") for a number in that format."""
    import altair as alt

    found = []
    for one in fields:
        told, title = (one, one) if isinstance(one, str) else one
        field, _, form = told.partition(":")
        kind: dict[str, Any] = {"type": "quantitative", "format": form} if form else {"type": "nominal"}
        found.append(alt.Tooltip(field, title=title, **kind))
    return found


def steps(
    field: str, at: Sequence[float], names: Sequence[str], title: str | None, label: str = "datum.label"
) -> "alt.Color":
    """Return a colour scale in steps: ``names`` of colours, one more than ``at``; no legend without a title.

    ``label`` is the expression of what the legend writes at a step.
    """
    import altair as alt

    scale = alt.Scale(type="threshold", domain=list(at), range=[colour(name) for name in names])
    legend = (
        alt.Legend(
            title=title, orient="bottom", direction="horizontal", gradientLength=300, gradientThickness=10,
            gradientStrokeColor=colour("line"), gradientStrokeWidth=1, format="~g",
            labelExpr=label,
        )
        if title
        else None
    )  # fmt: skip
    return alt.Color(f"{field}:Q", scale=scale, legend=legend)


def ink_on(test: str) -> Any:
    """Return the colour of text on cells: ``strong`` where the Vega expression ``test`` holds, else ink."""
    import altair as alt

    return alt.condition(test, alt.value(colour("strong")), alt.value(colour("ink")))


def names_axis(orient: Literal["left", "top"] = "left", **settings: Any) -> "alt.Axis":
    """Return an axis of names beside cells: no line, no ticks, text in ink."""
    import altair as alt

    usual = {
        "domain": False,
        "ticks": False,
        "labelColor": colour("ink"),
        "labelFontSize": 13,
        "labelAngle": 0,
        "titleAnchor": "start",
    }
    return alt.Axis(orient=orient, **{**usual, **settings})


def words_axis(labels: Sequence[str]) -> "alt.Axis":
    """Return an axis of metrics on top of cells, a word a line."""
    lines = max((label.count("_") for label in labels), default=0)
    look = {"labelLineHeight": 13, "labelFontSize": 11, "labelColor": colour("soft")}
    return names_axis("top", labelExpr="split(datum.label, '_')", labelPadding=6 + 13 * lines, **look)


def tau_colour(field: str, title: str | None) -> "alt.Color":
    """Return the colour scale of agreements: orange disagrees, blue agrees, in eight steps."""
    names = [f"t{i}" for i in range(1, len(TAU_STEPS) + 2)]
    crowded = f"abs(datum.value - ({TAU_STEPS[1]})) < 1e-9 ? '' : datum.label"  # no room for the second
    return steps(field, TAU_STEPS, names, title, crowded)


def tau_ink(field: str) -> Any:
    """Return the colour of text on a cell coloured by ``tau_colour``."""
    low, high = STRONG_TAU
    return ink_on(f"datum.{field} !== null && (datum.{field} < {low} || datum.{field} >= {high})")


def over(*layers: Any) -> Any:
    """Return Altair layers over the same rows, which ``as_spec`` writes in: each step of Altair copies its data."""
    import altair as alt

    return alt.layer(*layers, data=alt.NamedData(name="rows"))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, 5) if np.isfinite(value) else None
    return value
