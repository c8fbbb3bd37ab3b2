"""Reshaped windows: the traffic of a window made burstier or smoother, longer or shorter, or fewer, by rule.

A change is measured in logarithms of ratios, so that twice and half are equally far. All of it is
deterministic and keeps the order of arrival, each row's luck, and pairs of lengths that were really asked for:
0 gives the window back to the bit, and neighbouring changes differ in few rows (common random numbers).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from loadgen.draws import normals, uniforms
from loadgen.hybrid import made_line
from loadgen.trace import ORPHAN
from loadgen.window import DRAWN, Floats, Ints, Window, named
from schedulers.errors import InputError

HUNTED = "hunted"
"""Label of a window that a hunt has made: an example against a ranking, no sample of any traffic."""

STEEPEST = 12.0
"""Largest exponent that ``tilt`` and ``warp`` try; beyond it one row would be all that is left."""

HALVINGS = 40


class Change(NamedTuple):
    """How far traffic and targets are from what they were: natural logarithms of ratios, 0 for no change."""

    rate: float = 0.0  # of the pressure rho
    burstiness: float = 0.0  # of the gaps' coefficient of variation
    lengths: float = 0.0  # of the mean of prompt + output tokens
    slo: float = 0.0  # of every target, in seconds

    @property
    def distance(self) -> float:
        """Euclidean norm: how mild the change is."""
        return float(np.sqrt(sum(part * part for part in self)))

    @property
    def ratios(self) -> dict[str, float]:
        """The factors themselves, by knob."""
        return {name: float(np.exp(part)) for name, part in self._asdict().items()}


def reshaped(window: Window, change: Change) -> Window:
    """Return the window with other gaps and lengths, its line untouched; rate and SLOs are the plan's to change.

    Prefix ids are dropped where lengths change, since rows that stand in for others would look like repeats.
    """
    made = window
    if change.burstiness:
        made = made._replace(arrival_s=warp(window.arrival_s, change.burstiness))
    if change.lengths:
        rows = tilt(window.prompt_tokens + window.output_tokens, change.lengths)
        made = made._replace(
            prompt_tokens=window.prompt_tokens[rows],
            output_tokens=window.output_tokens[rows],
            kind=None if window.kind is None else window.kind[rows],
            hash_offsets=None,
            hash_ids=None,
        )
    return made


def warp(arrival_s: Floats, burstiness: float) -> Floats:
    """Return arrivals of the same order, number and span whose gaps vary exp(``burstiness``) times as much.

    A Gamma time warp: a gap at rank u is multiplied by Q(u; c') / Q(u; c), quantiles of Gamma distributions of
    mean 1 with the gaps' own coefficient of variation c and another c'; then all are scaled to the old span. So
    gaps that were Gamma stay Gamma, long gaps stay where they were, and bursts get denser in place. c' is chosen
    so that the coefficient of variation comes out as asked, or as near as it gets. Even gaps stay even.
    """
    gaps = np.diff(arrival_s)
    if not burstiness or len(gaps) < 2 or not gaps.std() > 0.0:
        return arrival_s
    cv = float(gaps.std() / gaps.mean())
    place = (np.argsort(np.argsort(gaps, kind="stable"), kind="stable") + 0.5) / len(gaps)
    before = gamma_quantiles(place, cv)

    def warped(exponent: float) -> Floats:
        after = gamma_quantiles(place, cv * float(np.exp(exponent)))
        new = gaps * np.divide(after, before, out=np.zeros_like(after), where=before > 0.0)
        return np.asarray(new / new.sum() * gaps.sum(), np.float64)

    def reached(exponent: float) -> float:
        new = warped(exponent)
        return float(np.log(max(new.std() / new.mean(), 1e-12) / cv))

    new = warped(solve(reached, burstiness, limit=2.0 + abs(burstiness)))
    times = arrival_s[0] + np.concatenate([[0.0], np.cumsum(new)])
    times[-1] = arrival_s[-1]
    return np.asarray(np.minimum(times, arrival_s[-1]), np.float64)


def gamma_quantiles(place: Floats, cv: float) -> Floats:
    """Return quantiles of the Gamma distribution of mean 1 and this coefficient of variation."""
    shape = 1.0 / max(cv, 1e-3) ** 2
    return np.asarray(special.gammaincinv(shape, place) / shape, np.float64)


def tilt(tokens: Ints, lengths: float) -> Ints:
    """Return for each row the row whose lengths it gets, so that mean tokens are exp(``lengths``) times as many.

    Rows are reweighted by tokens^e and each takes the place of equal rank in the reweighted distribution: all
    lengths were asked for before, the longest rows stay the longest, and e is chosen so that the mean comes out
    as asked, or as near as the window's own lengths allow.
    """
    size = np.log(np.maximum(np.asarray(tokens, np.float64), 1.0))
    order = np.argsort(size, kind="stable")
    place = (np.arange(len(order)) + 0.5) / len(order)
    mean = float(np.mean(tokens))

    def drawn(exponent: float) -> Ints:
        weight = np.exp(exponent * (size[order] - size.max()))
        upto = np.cumsum(weight) / weight.sum()
        return np.minimum(np.searchsorted(upto, place, side="right"), len(order) - 1)

    def reached(exponent: float) -> float:
        return float(np.log(np.mean(tokens[order[drawn(exponent)]]) / mean))

    rows = np.empty(len(order), np.int64)
    rows[order] = order[drawn(solve(reached, lengths, limit=STEEPEST))]
    return rows


def solve(reached: Callable[[float], float], wanted: float, limit: float) -> float:
    """Return the exponent in [-limit, limit] at which the rising ``reached`` comes nearest to ``wanted``.

    By halving, since ``reached`` rises in small steps where it counts rows.
    """
    low, high = (0.0, limit) if wanted > 0.0 else (-limit, 0.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if reached(middle) < wanted:
            low = middle
        else:
            high = middle
        if high - low < 1e-4:
            break
    return min((low, high), key=lambda exponent: abs(reached(exponent) - wanted))


def reach(window: Window) -> tuple[Change, Change]:
    """Return the least and the largest change of burstiness and lengths that this window's own rows allow."""
    tokens = window.prompt_tokens + window.output_tokens
    ends = []
    for sign in (-1.0, 1.0):
        rows = tilt(tokens, sign * STEEPEST)
        gaps, new = np.diff(window.arrival_s), np.diff(warp(window.arrival_s, sign * 2.0))
        even = not (len(gaps) > 1 and gaps.std() > 0.0)
        burst = 0.0 if even else float(np.log(max(new.std(), 1e-9 * new.mean()) / gaps.std()))
        ends.append(Change(burstiness=burst, lengths=float(np.log(tokens[rows].mean() / tokens.mean()))))
    return ends[0], ends[1]


def with_luck_of(window: Window, seed: int) -> Window:
    """Return the window with other luck, drawn from (seed, the window's own content, column, row).

    Changed afterwards, it keeps that luck row by row: two changes are compared under the same luck.
    """
    digest, rows = window.line.content_sha256, len(window.arrival_s)
    drawn: dict[str, Any] = {
        name: (normals if name == "forecast_luck" else uniforms)(seed, digest, name, rows) for name in DRAWN
    }
    return window._replace(**drawn)


def take(window: Window, rows: Ints) -> Window:
    """Return only these rows (rising), the first at time 0; a request whose parent is left out is an orphan."""
    rows = np.asarray(rows, np.int64)
    place = np.full(len(window.arrival_s) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    parent = place[window.parent[rows]]
    lost = (window.parent[rows] >= 0) & (parent < 0)
    kept: dict[str, Any] = {
        name: getattr(window, name)[rows]
        for name in ("prompt_tokens", "output_tokens", "session", "source_row", *DRAWN)
    }
    if window.hash_offsets is not None and window.hash_ids is not None:
        starts, ends = window.hash_offsets[rows], window.hash_offsets[rows + 1]
        kept["hash_offsets"] = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)
        parts = [window.hash_ids[low:high] for low, high in zip(starts, ends, strict=True)]
        kept["hash_ids"] = np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int32)
    return window._replace(
        arrival_s=window.arrival_s[rows] - window.arrival_s[rows[0]],
        parent=parent,
        flags=(window.flags[rows] | np.where(lost, ORPHAN, 0)).astype(np.uint8),
        kind=None if window.kind is None else window.kind[rows],
        **kept,
    )


def hunted(window: Window, change: Change, rows: Ints, how: dict[str, Any]) -> Window:
    """Return a reshaped window as one that can be frozen: named, described, labelled HUNTED, with its recipe.

    ``window`` still carries the line of the window it was made from. Raises InputError if it is empty.
    """
    if not len(window.arrival_s):
        raise InputError("an empty window can't be frozen", fix="keep at least one row")
    base = window.line
    recipe = {"base": base.id, "rows": rows.tolist(), "ratios": change.ratios, **how}
    line = replace(
        made_line(window, base, HUNTED, {HUNTED: recipe}),
        source=f"{HUNTED}-{base.source}",
        block_tokens=0 if window.hash_ids is None else base.block_tokens,
    )
    return named(window._replace(line=line))
