"""One run from its facts: attainment and latencies by tier, and how both went over time."""

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.charts import Figure, as_spec, colour, over, series, tips, unchecked
from analysis.metrics import met, summarise
from loadgen.result import (
    EXPIRED,
    FAILED,
    FINISHED,
    GAP_BINS,
    REJECTED,
    Facts,
    InputError,
    Totals,
    scored_rows,
)

Flags = npt.NDArray[np.bool_]

BINS = 40
"""Stretches of equal length into which a timeline is cut, at most."""

LEAST_A_BIN = 5
"""Arrivals a stretch has on average, at least."""

WIDTH_PX = 760

OUTCOMES = {"finished": FINISHED, "rejected": REJECTED, "expired": EXPIRED, "failed": FAILED}
MEASURES = ("ttft_p50_s", "ttft_p95_s", "tpot_p95_s", "e2e_p95_s", "longest_gap_p95_s")
"""Latencies told a tier, of requests that finished."""


class Targets(NamedTuple):
    """A tier as a run was made with: targets in seconds, infinite for none."""

    name: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    weight: float


class TierShare(NamedTuple):
    """What became of one tier's scored arrivals; None where nobody finished or nobody came."""

    tier: int
    targets: Targets
    arrivals: int
    ends: dict[str, int]
    attainment: float | None  # by the tier's own targets
    latencies: dict[str, float | None]


class Stretch(NamedTuple):
    """A piece of a run's time, of all arrivals in it; ``attained`` is None for a tier in which nobody came."""

    begin_s: float
    end_s: float
    arrivals: tuple[int, ...]  # a tier
    attained: tuple[float | None, ...]  # a tier
    open: int  # requests that had come and not ended, at its end


def targets_of(text: str) -> tuple[Targets, ...]:
    """Return the tiers that a run's ``tiers`` column holds."""
    return tuple(
        Targets(
            str(one.get("name", number)),
            ttft_s=_limit(one, "ttft_s"),
            tpot_s=_limit(one, "tpot_s"),
            e2e_s=_limit(one, "e2e_s"),
            weight=float(one.get("weight", 1.0)),
        )
        for number, one in enumerate(json.loads(text or "[]"))
    )


def _limit(tier: Mapping[str, Any], name: str) -> float:
    return inf if tier.get(name) is None else float(tier[name])


def scored_part(facts: Facts, window_id: str) -> Facts:
    """Return the facts of the requests whose results count; the kind of a window is told by its id.

    Raises InputError for an id that tells none.
    """
    try:
        low, high = scored_rows(window_id.rsplit("-", 2)[1], len(facts.arrival_s))
    except (KeyError, IndexError):
        fix = "windows of `windtunnel windows freeze` have ids that do"
        raise InputError("its id does not tell its kind", where=f"window {window_id}", fix=fix) from None
    return Facts._make(column[low:high] for column in facts)


def by_tier(facts: Facts, tiers: Sequence[Targets]) -> tuple[TierShare, ...]:
    """Return what became of each tier's arrivals in ``facts``, most important first."""
    found = []
    for number, targets in enumerate(tiers):
        part = Facts._make(column[facts.tier == number] for column in facts)
        count = len(part.arrival_s)
        told = summarise(part, _NOTHING, (0, count), _limits(tiers), ("tier",)) if count else {}
        ends = {name: int((part.outcome == code).sum()) for name, code in OUTCOMES.items()}
        latencies = {name: told.get(name) for name in MEASURES}
        found.append(TierShare(number, targets, count, ends, told.get("attainment_tier"), latencies))
    return tuple(found)


def timeline(facts: Facts, tiers: Sequence[Targets]) -> tuple[Stretch, ...]:
    """Return the run cut into stretches by arrival, the unscored beginning and end included."""
    count = len(facts.arrival_s)
    if not count:
        return ()
    pieces = int(np.clip(count // LEAST_A_BIN, 1, BINS))
    begin_s, end_s = float(facts.arrival_s.min()), float(facts.arrival_s.max())
    edges = np.linspace(begin_s, end_s, pieces + 1)
    at = np.clip(np.searchsorted(edges, facts.arrival_s, side="right") - 1, 0, pieces - 1)
    good = met("tier", facts, _limits(tiers))
    came = np.zeros((len(tiers), pieces), np.int64)
    well = np.zeros((len(tiers), pieces), np.int64)
    np.add.at(came, (facts.tier, at), 1)
    np.add.at(well, (facts.tier, at), good)
    left_s = np.where(np.isnan(facts.finished_s), np.inf, facts.finished_s)
    ended = facts.outcome != FINISHED  # when those ended is not recorded: they count while they are looked at
    return tuple(
        Stretch(
            float(edges[i]),
            float(edges[i + 1]),
            tuple(int(n) for n in came[:, i]),
            tuple(float(m / n) if n else None for m, n in zip(well[:, i], came[:, i], strict=True)),
            int(((facts.arrival_s <= edges[i + 1]) & (left_s > edges[i + 1]) & ~ended).sum()),
        )
        for i in range(pieces)
    )


def timeline_figures(stretches: Sequence[Stretch], tiers: Sequence[str]) -> tuple[Figure, ...]:
    """Return attainment and arrivals over time, a line a tier; none for a run without stretches."""
    if not stretches:
        return ()
    names = [f"{number} {name}" for number, name in enumerate(tiers)]
    rows = [
        {"tier": name, "at": (one.begin_s + one.end_s) / 2, "from": one.begin_s, "to": one.end_s,
         "attained": one.attained[number], "arrivals": one.arrivals[number],
         "rate": one.arrivals[number] / max(one.end_s - one.begin_s, 1e-9)}
        for number, name in enumerate(names) for one in stretches
    ]  # fmt: skip
    with unchecked():
        return (
            lines("attained", "Attainment over time, by arrival", rows, names, "attained"),
            lines("rate", "Arrivals a second", rows, names, "rate"),
        )


def lines(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str], field: str
) -> Figure:
    """Return a figure of a line a tier over seconds; a share's axis ends at 0 and 1."""
    import altair as alt

    looks = series(names)
    shared: dict[str, Any] = {
        "legend": alt.Legend(title="tier", orient="top", symbolType="stroke", symbolStrokeWidth=3)
    }
    domain = list(looks)
    scale = alt.Scale(domain=[0, 1]) if field == "attained" else alt.Scale(zero=True)
    mark = alt.Chart()
    made = over(
        mark.mark_line(strokeWidth=2).encode(
            strokeDash=alt.StrokeDash(
                "tier:N", scale=alt.Scale(domain=domain, range=[list(look[1]) for look in looks.values()]), **shared
            )
        ),
        mark.mark_point(filled=True, size=26),
    ).encode(
        x=alt.X("at:Q", title="seconds", axis=alt.Axis(grid=False, labelOverlap=True)),
        y=alt.Y(f"{field}:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5)),
        color=alt.Color(
            "tier:N", scale=alt.Scale(domain=domain, range=[colour(look[0]) for look in looks.values()]), **shared
        ),
        tooltip=tips("tier", ("from:.1f", "from, s"), ("to:.1f", "to, s"), ("arrivals:d", "arrivals"),
                     (f"{field}:.3f", title)),
    ).properties(width="container", height=200)  # fmt: skip
    told = f"{title}, a line a tier; the table below holds the numbers"
    return Figure(f"time-{name}", title, told, as_spec(made, rows), WIDTH_PX)


_NOTHING = Totals._make(np.zeros(GAP_BINS, np.int64) if name == "gaps" else 0 for name in Totals._fields)
"""Nobody is asked what the engines did: one tier's share of that is not known."""


def _limits(tiers: Sequence[Targets]) -> list[tuple[float, float, float, float]]:
    return [(one.ttft_s, one.tpot_s, one.e2e_s, one.weight) for one in tiers]
