"""Figures: coordinates of the report's charts, which templates draw as SVG in the page's own colours."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.findings import Findings
from analysis.metrics import METRICS, split_column
from analysis.portability import DIFFERS, HELD, Agreement
from analysis.ranks import Ranking

SERIES = 8
"""So many schedulers get a colour, a dash and a mark of their own; the rest share the last."""

DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "6 2 1 2 1 2")


class Axis(NamedTuple):
    """A scale from values to pixels, logarithmic if so."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value, held inside the axis."""
        low, high, x = (np.log(v) for v in (self.low, self.high, max(value, self.low))) if self.log else (
            self.low, self.high, value
        )  # fmt: skip
        share = min(1.0, max(0.0, (x - low) / (high - low))) if high > low else 0.5
        return round(float(self.start + share * (self.end - self.start)), 1)


class Tick(NamedTuple):
    """A place on an axis and its text."""

    at: float
    text: str


class Line(NamedTuple):
    """One scheduler in one panel."""

    series: int  # 1 to SERIES
    dash: str
    name: str
    path: str  # points "x,y x,y ..."
    band: str  # polygon of the interval
    marks: tuple[tuple[float, float], ...]


class Panel(NamedTuple):
    """One source's curves over regions."""

    source: str
    label: str
    width: float
    height: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    told: str  # the panel in a sentence, for those who can't see it


class Cell(NamedTuple):
    """One square of the heat map."""

    x: float
    y: float
    tau: float
    text: str
    kind: str  # "same" on the diagonal, "up", "down", "none"
    opacity: float
    title: str


class Heat(NamedTuple):
    """Agreement between every two conditions."""

    size: float
    left: float
    top: float
    width: float
    height: float
    cells: tuple[Cell, ...]
    rows: tuple[Tick, ...]
    groups: tuple[tuple[float, float, str], ...]  # start, length, source


class Bar(NamedTuple):
    """One comparison of the gap chart."""

    y: float
    text: str
    x: float
    low: float
    high: float
    kind: str  # "differs" | "held" | "open" | "out"
    says: str
    beside: tuple[str, str]  # noise ceiling and agreement, as text


class Gaps(NamedTuple):
    """Gaps below the noise ceiling, one bar a comparison."""

    width: float
    height: float
    left: float
    right: float
    zero: float
    ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...]


def series_of(of: Findings) -> dict[str, int]:
    """Return each ranked scheduler's series, 1 to SERIES, in the order of names so that pictures agree."""
    return {name: min(place, SERIES) for place, name in enumerate(of.study.schedulers, 1)}


def curves(of: Findings) -> tuple[Panel, ...]:
    """Return one panel a source: the primary metric over regions with bootstrap bands."""
    rhos = of.study.runs.drop_duplicates("region").set_index("region")["rho"]
    values = [
        (row.low, row.high) for key, r in of.rankings.items() if key[2] == of.study.primary for row in r.rows
    ]
    rate = METRICS[split_column(of.study.primary)[0]].kind == "rate"
    low, high = (
        (0.0, 1.0)
        if rate
        else (min((v[0] for v in values), default=1.0), max((v[1] for v in values), default=2.0))
    )
    width, height = 380.0, 262.0
    x = Axis(float(rhos.min()), float(rhos.max()), 48, width - 16)
    y = Axis(low, high, height - 44, 12, log=not rate)
    y_at = (0, 0.2, 0.4, 0.6, 0.8, 1.0) if rate else _log_ticks(low, high)
    panels = []
    for source in of.study.sources:
        rankings = {region: of.rankings[source, region, of.study.primary] for region in of.study.regions}
        lines = tuple(
            _line(of, name, rankings, {r: x.at(float(rhos[r])) for r in rankings}, y)
            for name in of.study.schedulers
        )
        panels.append(
            Panel(
                source, of.study.labels[source], width, height,
                tuple(Tick(x.at(float(rhos[region])), region) for region in of.study.regions),
                tuple(Tick(y.at(float(value)), f"{value:g}") for value in y_at),
                tuple(line for line in lines if line.path), _told(source, rankings),
            )
        )  # fmt: skip
    return tuple(panels)


def heat(of: Findings) -> Heat:
    """Return the heat map of tau-b between conditions under the primary metric, ceilings on the diagonal."""
    count, size, left, top = len(of.matrix_of), 34.0, 74.0, 66.0
    cells = []
    for i, (source_a, region_a) in enumerate(of.matrix_of):
        for j, (source_b, region_b) in enumerate(of.matrix_of):
            tau = float(of.matrix[i, j])
            kind = "same" if i == j else "none" if np.isnan(tau) else "up" if tau >= 0 else "down"
            what = "noise ceiling (halves) of" if i == j else "tau between"
            pair = f"{source_a} {region_a}" + ("" if i == j else f" and {source_b} {region_b}")
            blank = np.isnan(tau) or (
                i == j and tau <= 0
            )  # no ceiling: the order doesn't hold against itself
            text = "–" if blank else f"{tau:.1f}".replace("-0.0", "0.0")
            opacity = 0.0 if np.isnan(tau) else round(0.06 + 0.64 * abs(tau), 2)
            title = f"{what} {pair}: {tau:.2f}"
            cells.append(Cell(left + j * size, top + i * size, tau, text, kind, opacity, title))
    rows = tuple(Tick(place * size + size / 2, region) for place, (_, region) in enumerate(of.matrix_of))
    span = len(of.study.regions) * size
    groups = tuple((place * span, span, source) for place, source in enumerate(of.study.sources))
    width, height = left + count * size + 8, top + count * size + 8
    return Heat(size, left, top, width, height, tuple(cells), rows, groups)


def gaps(of: Findings, agreements: Sequence[Agreement]) -> Gaps:
    """Return the gap chart of some comparisons: zero is "the same order as far as noise allows"."""
    shown = [one for one in agreements if not np.isnan(one.gap)]
    known = [v for one in shown for v in (one.gap, one.gap_low, one.gap_high) if not np.isnan(v)]
    low, high = min([-0.25, *known]), max([0.5, *known])
    left, right, width, step = 292.0, 720.0, 900.0, 22.0
    x = Axis(low, high, left, right)
    bars = []
    for place, one in enumerate(shown):
        kind = (
            "out" if not of.comparable(one) else {DIFFERS: "differs", HELD: "held"}.get(one.verdict, "open")
        )
        ends = (one.gap_low, one.gap_high) if not np.isnan(one.gap_low) else (one.gap, one.gap)
        says = f"gap {one.gap:.2f} ({one.gap_low:.2f} to {one.gap_high:.2f}), {one.verdict}"
        text = f"rho {one.a[1]}: {one.a[0]} – {one.b[0]}"
        beside = (f"{one.ceiling:.2f}" if one.ceiling > 0 else "–", f"{one.cross:.2f}".replace("-", "−"))
        place_y = 34 + place * step
        bars.append(Bar(place_y, text, x.at(one.gap), x.at(ends[0]), x.at(ends[1]), kind, says, beside))
    apart = 0.25 if high - low < 1.6 else 0.5
    marks = np.arange(np.ceil(low / apart), np.floor(high / apart) + 1) * apart
    ticks = tuple(Tick(x.at(float(mark)), f"{mark + 0.0:g}".replace("-", "−")) for mark in marks)
    return Gaps(width, 34 + len(shown) * step + 34, left, right, x.at(0.0), ticks, tuple(bars))


def _line(of: Findings, name: str, rankings: dict[str, Ranking], places: dict[str, float], y: Axis) -> Line:
    series = series_of(of)[name]
    points, lower, upper = [], [], []
    for region, ranking in rankings.items():
        for row in ranking.rows:
            if row.scheduler == name:
                points.append((places[region], y.at(row.mean)))
                lower.append((places[region], y.at(row.low)))
                upper.append((places[region], y.at(row.high)))
    return Line(
        series, DASHES[series - 1], name, _points(points), _points(upper + lower[::-1]), tuple(points)
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _told(source: str, rankings: dict[str, Ranking]) -> str:
    """Say which scheduler is best and worst at the lowest and the highest region."""
    parts = [
        f"at rho {region} best {ranking.rows[0].scheduler} {ranking.rows[0].mean:.3g}, worst "
        f"{ranking.rows[-1].scheduler} {ranking.rows[-1].mean:.3g}"
        for region, ranking in rankings.items()
        if ranking.rows
    ]
    return f"{source}: " + "; ".join([*parts[:1], *parts[-1:]])


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    return found if len(found) >= 2 else [low, high]
