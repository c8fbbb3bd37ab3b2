"""Attribution: which axis of the traffic, arrivals, lengths, tenants or SLOs, moves an order between sources.

Reference statistics, section 9 (with 2, 3 and 5). All mixtures of two sources' axes have been run; the distance
of a mixture from the base is 1 - tau minus the noise floor, and an axis' part in it is its Shapley value: the
mean, over orders in which axes may be swapped, of what its swap adds. Parts sum to the whole distance.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.metrics import METRICS, natural, split_column
from analysis.ranks import LEVEL, signs, tau_b, tau_of_signs
from loadgen.result import InputError

Floats = npt.NDArray[np.float64]
Subset = frozenset[str]

FILE = "attribution.json"
SCHEMA = 1

SPLITS = 500
DRAWS, DRAW_SPLITS = 400, 40
"""Random halves behind the point estimate; bootstrap draws of windows, and halves in each."""

LEAST_WINDOWS = 4
"""Pairs of windows without which no half can be compared with another."""


class Mixtures(NamedTuple):
    """The scores of every mixture: ``values[taken]`` (schedulers, pairs), ``taken`` from the other source."""

    sources: tuple[str, str]
    axes: tuple[str, ...]
    schedulers: tuple[str, ...]
    column: str
    margin: float
    values: Mapping[Subset, Floats]


class Estimate(NamedTuple):
    """A value with its 95% interval over windows."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """One axis' part of the distance."""

    axis: str
    part: Estimate
    share: float  # of the whole; NaN where the whole is not above 0 beyond noise
    alone: float  # distance when only this axis is swapped
    last: float  # distance lost when only this axis is not


class Swing(NamedTuple):
    """One axis' part of the swing of a pair of schedulers, from D on the base to D on the other."""

    axis: str
    part: Estimate
    share: float
    alone_flips: bool  # swapped alone, it turns the sign
    needed: bool  # all others swapped without it, the sign is the base's


class Reversal(NamedTuple):
    """A pair of schedulers whose order differs between the sources; D is better_on_base minus the other."""

    better_on_base: str
    better_on_other: str
    base: Estimate
    other: Estimate
    material: bool  # both beyond the margin, as point estimates
    sure: bool  # both intervals on their side of 0
    swings: tuple[Swing, ...]  # largest part first
    cause: str  # the axis of the largest part; "" where its lead is within the margin or within noise


class Mixture(NamedTuple):
    """One mixture's distance from the base, its tau (all windows) and its means in the metric's unit."""

    taken: tuple[str, ...]
    distance: float
    tau: float
    means: dict[str, float]


class Attribution(NamedTuple):
    """What moves the order from one source to the other."""

    within: float  # split-half tau of the base; the noise floor is 1 - within
    distance: Estimate
    tau: float
    shares: tuple[Share, ...]  # in the order of the axes
    mixtures: tuple[Mixture, ...]
    reversals: tuple[Reversal, ...]  # largest swing first
    windows: int


def attribute(of: Mixtures) -> Attribution:
    """Return the parts of each axis in the distance between the orders, and in each reversed pair.

    Distances are means over random halves: tau of half the pairs on the mixture against the *other* half on
    the base, so that no window's luck is on both sides; the base itself is at 0 exactly, and its floor is the
    split-half tau. Raises InputError for fewer than two schedulers or four pairs.
    """
    base, whole = of.values[frozenset()], of.values[frozenset(of.axes)]
    k, n = base.shape
    refuse_few(k, n)
    rng = np.random.default_rng([n, k])
    crossed = cross_taus(of, np.ones((1, n)), halves(n, SPLITS, rng))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float64)
    drawn = distances(cross_taus(of, counts, halves(n, DRAW_SPLITS, rng)))
    found = distances(crossed)
    end = frozenset(of.axes)
    distance = centred(float(found[end][0]), drawn[end])
    parts, drawn_parts = shapley(of.axes, found), shapley(of.axes, drawn)
    beyond = distance.low > 0
    shares = tuple(
        Share(
            axis,
            centred(float(parts[axis][0]), drawn_parts[axis]),
            float(parts[axis][0]) / distance.value if beyond else float("nan"),
            float(found[frozenset({axis})][0]),
            float(found[end][0] - found[end - {axis}][0]),
        )
        for axis in of.axes
    )
    mixtures = tuple(
        Mixture(
            tuple(axis for axis in of.axes if axis in taken),
            float(found[taken][0]),
            float(tau_b(values.mean(axis=1), base.mean(axis=1))),
            dict(zip(of.schedulers, natural(values.mean(axis=1), of.column).tolist(), strict=True)),
        )
        for taken, values in of.values.items()
    )
    return Attribution(
        within=float(crossed[frozenset()][0]),
        distance=distance,
        tau=float(tau_b(whole.mean(axis=1), base.mean(axis=1))),
        shares=shares,
        mixtures=mixtures,
        reversals=reversals(of, counts),
        windows=n,
    )


def refuse_few(schedulers: int, windows: int) -> None:
    """Raise InputError for fewer than two schedulers or ``LEAST_WINDOWS`` pairs of windows."""
    if schedulers < 2 or windows < LEAST_WINDOWS:
        raise InputError(
            f"{schedulers} schedulers on {windows} pairs of windows can't be compared",
            where="--windows",
            fix=f"use a sweep with two schedulers and {LEAST_WINDOWS} windows of each source, or more",
        )


def shapley(axes: Sequence[str], worth: Mapping[Subset, Floats]) -> dict[str, Floats]:
    """Return each axis' Shapley value under ``worth``, arrays of one shape; they sum to worth(all) - worth(none).

    An axis whose swap changes nothing in any company gets 0 exactly.
    """
    m = len(axes)
    found = {}
    for axis in axes:
        others = [one for one in axes if one != axis]
        total = np.zeros_like(worth[frozenset()])
        for size in range(m):
            weight = factorial(size) * factorial(m - size - 1) / factorial(m)
            for company in combinations(others, size):
                without = frozenset(company)
                total = total + weight * (worth[without | {axis}] - worth[without])
        found[axis] = total
    return found


def halves(windows: int, splits: int, rng: np.random.Generator) -> Floats:
    """Return 0/1 masks of disjoint random halves, shape (splits, 2, windows); an odd one sits out."""
    order = np.argsort(rng.random((splits, windows)), axis=1)
    masks = np.zeros((splits, 2, windows))
    half = windows // 2
    np.put_along_axis(masks[:, 0], order[:, :half], 1.0, axis=1)
    np.put_along_axis(masks[:, 1], order[:, half : 2 * half], 1.0, axis=1)
    return masks


def cross_taus(of: Mixtures, counts: Floats, masks: Floats) -> dict[Subset, Floats]:
    """Return the mean tau between halves of each mixture and the other halves of the base, shape (draws,).

    ``counts`` (draws, pairs) says how often a draw holds each pair of windows. Copies of one stay on one side
    of every split, or the same luck would be on both.
    """
    base = of.values[frozenset()]
    pairs = np.triu_indices(len(base), 1)
    found = {taken: np.full(len(counts), np.nan) for taken in of.values}
    for draw, count in enumerate(counts):
        weights = count * masks
        weights = weights[(weights.sum(axis=-1) > 0).all(axis=-1)]  # a half may hold none of what was drawn
        if not len(weights):
            continue
        weights = weights / weights.sum(axis=-1, keepdims=True)
        own = signs(weights @ base.T)[..., *pairs]
        for taken, values in of.values.items():
            theirs = signs(weights @ values.T)[..., *pairs]
            taus = tau_of_signs(theirs, own[:, ::-1])
            known = taus[~np.isnan(taus)]
            found[taken][draw] = known.mean() if len(known) else np.nan
    return found


def distances(crossed: Mapping[Subset, Floats]) -> dict[Subset, Floats]:
    """Return (1 - cross) - (1 - within): the distance from the base, less what noise alone would leave."""
    within = crossed[frozenset()]
    return {taken: within - cross for taken, cross in crossed.items()}


def centred(value: float, drawn: Floats) -> Estimate:
    """Return the value with 1.96 bootstrap standard deviations around it.

    Percentiles of a bootstrapped tau are biased towards 0 (reference statistics, section 3): only its spread
    is used. A value without spread, such as the 0 of an axis that both sources share, has no width.
    """
    known = drawn[~np.isnan(drawn)]
    reach = float(stats.norm.isf(LEVEL / 2) * known.std(ddof=1)) if len(known) > 1 else float("nan")
    return Estimate(value, value - reach, value + reach)


def reversals(of: Mixtures, counts: Floats) -> tuple[Reversal, ...]:
    """Return the pairs whose order differs between base and other, with each axis' part in the swing."""
    n = of.values[frozenset()].shape[1]
    end = frozenset(of.axes)
    found = []
    for one, two in combinations(range(len(of.schedulers)), 2):
        gaps = {taken: values[one] - values[two] for taken, values in of.values.items()}
        sign = float(np.sign(gaps[frozenset()].mean()))
        if sign * gaps[end].mean() >= 0 or sign == 0:
            continue
        first, second = (one, two) if sign > 0 else (two, one)
        gaps = {taken: sign * gap for taken, gap in gaps.items()}
        means = {taken: np.array([gap.mean()]) for taken, gap in gaps.items()}
        drawn = {taken: np.asarray(counts @ gap / n, np.float64) for taken, gap in gaps.items()}
        found.append(
            _reversal(of, (of.schedulers[first], of.schedulers[second]), means, drawn),
        )
    return tuple(sorted(found, key=lambda one: one.other.value - one.base.value))


def _reversal(
    of: Mixtures, names: tuple[str, str], means: dict[Subset, Floats], drawn: dict[Subset, Floats]
) -> Reversal:
    none, end = frozenset[str](), frozenset(of.axes)
    base, other = (centred(float(means[taken][0]), drawn[taken]) for taken in (none, end))
    parts, drawn_parts = shapley(of.axes, means), shapley(of.axes, drawn)
    swing = other.value - base.value
    swings = sorted(
        (
            Swing(
                axis,
                centred(float(parts[axis][0]), drawn_parts[axis]),
                float(parts[axis][0]) / swing,
                bool(means[frozenset({axis})][0] < 0),
                bool(means[end - {axis}][0] > 0),
            )
            for axis in of.axes
        ),
        key=lambda one: one.part.value,
    )
    drawn_lead = drawn_parts[swings[1].axis] - drawn_parts[swings[0].axis]
    lead = centred(swings[1].part.value - swings[0].part.value, drawn_lead)
    return Reversal(
        *names, base, other,
        material=base.value > of.margin and other.value < -of.margin,
        sure=base.low > 0 and other.high < 0,
        swings=tuple(swings),
        cause=swings[0].axis if lead.low > 0 and lead.value > of.margin else "",
    )  # fmt: skip


def as_json(of: Mixtures, found: Attribution) -> dict[str, Any]:
    """Return an attribution as the object of attribution.json, without what only the runs know."""
    s, t = of.sources

    def told(one: Estimate) -> dict[str, float]:
        return one._asdict()

    return {
        "sources": [s, t],
        "metric": of.column,
        "unit": METRICS[split_column(of.column)[0]].unit,
        "margin": of.margin,
        "windows": found.windows,
        "schedulers": list(of.schedulers),
        "axes": list(of.axes),
        "within": found.within,
        "floor": 1 - found.within,
        "distance": told(found.distance),
        "tau": found.tau,
        "shares": [
            {"axis": one.axis, **told(one.part), "share": one.share, "alone": one.alone, "last": one.last}
            for one in found.shares
        ],
        "hybrids": [
            {"from_b": list(one.taken), "distance": one.distance, "tau": one.tau, "means": one.means}
            for one in found.mixtures
        ],
        "pairs": len(of.schedulers) * (len(of.schedulers) - 1) // 2,
        "reversals": [
            {
                "better_on_a": one.better_on_base,
                "better_on_b": one.better_on_other,
                "d_a": told(one.base),
                "d_b": told(one.other),
                "material": one.material,
                "sure": one.sure,
                "axes": [
                    {
                        "axis": part.axis, **told(part.part), "share": part.share,
                        "alone_flips": part.alone_flips, "needed": part.needed,
                    }
                    for part in one.swings
                ],
                "cause": one.cause,
            }
            for one in found.reversals
        ],
    }  # fmt: skip


def read_attributions(folder: Path) -> list[dict[str, Any]]:
    """Return the attributions of a sweep's folder, [] if nobody asked for one; raises InputError if damaged."""
    path = Path(folder) / FILE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["schema"] != SCHEMA or not all(isinstance(one, dict) for one in table["attributions"]):
            raise ValueError
        return list(table["attributions"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError):
        fix = "delete it and run `windtunnel attribute` again; its runs are kept"
        raise InputError("the attributions are damaged", where=str(path), fix=fix) from None


def replaced(listed: Sequence[dict[str, Any]], new: dict[str, Any]) -> dict[str, Any]:
    """Return attribution.json's object with ``new`` among ``listed``, in place of an older one of its kind."""

    def kind(one: dict[str, Any]) -> tuple[Any, ...]:
        return (one["sources"], one["region"], one["metric"], one["slo"]["mode"])

    kept = [one for one in listed if kind(one) != kind(new)]
    return {"schema": SCHEMA, "attributions": sorted([*kept, new], key=kind)}
