"""Components: how much of the differences between schedulers holds in every source and region.

Reference statistics, section 4: a balanced analysis of variance of values centred on their window, solved for
the variance of policies and of their interactions. The *portability share* is the policies' own part.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.answers import Components, Key
from analysis.compare import LEAST_WINDOWS, SPLITS, half_weights
from analysis.ranks import LEVEL
from analysis.scores import Scores, Study

Floats = npt.NDArray[np.float64]

POLICY, BY_SOURCE, BY_LEVEL, BY_BOTH = range(4)
"""Rows of what ``solve`` returns, then policy x window and the residual."""


class Design(NamedTuple):
    """Values (schedulers, sources, levels, windows), higher is better, and the strata of each source."""

    values: Floats
    schedulers: tuple[str, ...]
    cells: tuple[Scores, ...]  # one a source, for its name and strata; windows cut to the common number


def over_regions(of: Study, cells: Mapping[Key, Scores], regions: Sequence[str]) -> Components:
    """Return the components of the primary metric over sources and the regions that may be compared."""
    keys = [[(source, region, of.primary) for region in regions] for source in of.sources]
    axes = ("source", "region")
    if not regions:
        return _nothing(axes, of.primary, "no region was reached alike by all sources")
    built = design(cells, keys)
    if isinstance(built, str):
        return _nothing(axes, of.primary, built)
    return _answer(axes, of.primary, built, tuple(regions))


def over_columns(
    of: Study, cells: Mapping[Key, Scores], regions: Sequence[str], columns: Sequence[str], axis: str
) -> Components:
    """Return the components over sources and metrics, or SLO sets, means over the regions.

    Each column is first scaled to unit variance of policies and their interactions by itself.
    """
    axes = ("source", axis)
    if not regions or len(columns) < 2:
        why = (
            "no region was reached alike by all sources" if len(columns) > 1 else f"there is one {axis} only"
        )
        return _nothing(axes, "", why)
    # Every column must rank the same schedulers on the same windows, so all are laid out as one design.
    places = [(column, region) for column in columns for region in regions]
    built = design(cells, [[(s, region, column) for column, region in places] for s in of.sources])
    if isinstance(built, str):
        return _nothing(axes, "", built)
    p, s, _, w = built.values.shape
    values = built.values.reshape(p, s, len(columns), len(regions), w)
    scaled = []
    for at in range(len(columns)):
        own = solve(features(values[:, :, at]), np.full((1, s, w), 1 / w), w)[: BY_BOTH + 1, 0]
        scale = np.sqrt(np.maximum(own, 0.0).sum())
        scaled.append(values[:, :, at].mean(axis=2) / (scale if scale > 0 else 1.0))
    return _answer(axes, "", built._replace(values=np.stack(scaled, axis=2)), tuple(columns))


def design(cells: Mapping[Key, Scores], keys: Sequence[Sequence[Key]]) -> Design | str:
    """Return the balanced values of ``keys`` (sources, levels), or why there are none.

    Schedulers that some cell doesn't rank are left out; so are windows that some cell of the source lacks,
    and the last windows by name of sources that have more than others.
    """
    all_ = [[cells[key] for key in row] for row in keys]
    names = tuple(
        name for name in all_[0][0].schedulers if all(name in one.schedulers for row in all_ for one in row)
    )
    windows = [
        [name for name in row[0].windows if all(name in one.windows for one in row[1:])] for row in all_
    ]
    common = min(map(len, windows))
    if len(names) < 2:
        return "fewer than two schedulers are ranked in every cell"
    if common < LEAST_WINDOWS:
        return f"{common} common windows a source: at least {LEAST_WINDOWS} are needed"
    values = np.empty((len(names), len(keys), len(keys[0]), common))
    firsts = []
    for at, (row, kept) in enumerate(zip(all_, windows, strict=True)):
        for level, one in enumerate(row):
            rows = [one.schedulers.index(name) for name in names]
            columns = [one.windows.index(name) for name in kept[:common]]
            values[:, at, level] = one.values[np.ix_(rows, columns)]
        strata = dict(zip(row[0].windows, row[0].strata, strict=True))
        firsts.append(
            row[0]._replace(
                windows=tuple(kept[:common]), strata=tuple(strata[name] for name in kept[:common])
            )
        )
    return Design(values, names, tuple(firsts))


class Features(NamedTuple):
    """What sums of squares are made of, linear in the windows' weights."""

    centred: Floats  # (schedulers, sources, levels, windows), centred on each window's mean
    within: Floats  # (sources, windows) levels * sum over schedulers of (mean over levels)^2
    square: Floats  # (sources, windows) sum over schedulers and levels of the square


def features(values: Floats) -> Features:
    """Return the features of values (schedulers, sources, levels, windows)."""
    centred = values - values.mean(axis=0)
    levels = values.shape[2]
    return Features(centred, levels * (centred.mean(axis=2) ** 2).sum(axis=0), (centred**2).sum(axis=(0, 2)))


def solve(of: Features, weights: Floats, windows: int) -> Floats:
    """Return variance components, (6, draws): policy, x source, x level, x both, x window, residual.

    ``weights`` (draws, sources, all windows) sum to 1 a source and draw ``windows`` windows each. Estimates may
    be negative. With one source or one level its interactions can't be told from the rest and are 0.
    """
    p, s, r, _ = of.centred.shape
    w = windows
    means = np.einsum("psrw,bsw->bpsr", of.centred, weights, optimize=True)
    within = w * np.einsum("sw,bsw->b", of.within, weights)
    square = w * np.einsum("sw,bsw->b", of.square, weights)
    by_source, by_level = means.mean(axis=3), means.mean(axis=2)
    policy = by_source.mean(axis=2)
    between = w * r * (by_source**2).sum(axis=(1, 2))
    ms_policy = w * s * r * (policy**2).sum(axis=1) / (p - 1)
    ms_window = (within - between) / ((p - 1) * s * (w - 1))
    ms_rest = np.zeros_like(ms_policy)
    ms_level, ms_both = ms_rest, ms_rest
    if r > 1:
        left = square - within - (w * (means**2).sum(axis=(1, 2, 3)) - between)
        ms_rest = left / ((p - 1) * (r - 1) * s * (w - 1))
        ms_level = w * s * ((by_level - policy[:, :, None]) ** 2).sum(axis=(1, 2)) / ((p - 1) * (r - 1))
        ms_both = ms_rest
    ms_source = ms_window
    if s > 1:
        ms_source = w * r * ((by_source - policy[:, :, None]) ** 2).sum(axis=(1, 2)) / ((p - 1) * (s - 1))
    if s > 1 and r > 1:
        own = means - by_source[..., None] - by_level[:, :, None, :] + policy[:, :, None, None]
        ms_both = w * (own**2).sum(axis=(1, 2, 3)) / ((p - 1) * (s - 1) * (r - 1))
    return np.stack(
        [
            (ms_policy - ms_source - ms_level + ms_both) / (w * s * r),
            (ms_source - ms_both - ms_window + ms_rest) / (w * r),
            (ms_level - ms_both) / (w * s),
            (ms_both - ms_rest) / w,
            (ms_window - ms_rest) / r,
            ms_rest,
        ]
    )


def shares(components: Floats) -> Floats:
    """Return the shares of policy and its interactions, (4, draws), negative variances as 0; NaN if all are."""
    kept = np.maximum(components[: BY_BOTH + 1], 0.0)
    total = kept.sum(axis=0)
    return np.asarray(np.where(total > 0, kept / np.where(total > 0, total, 1.0), np.nan), np.float64)


def _answer(axes: tuple[str, str], column: str, of: Design, levels: tuple[str, ...]) -> Components:
    """Return the components with intervals: 1.96 standard deviations of the shares over half-samples of windows.

    Half-samples, not windows drawn with replacement: those count a window's noise twice and would shift every
    share towards the interactions.
    """
    sources, windows = len(of.cells), of.values.shape[3]
    made = features(of.values)
    whole = solve(made, np.full((1, sources, windows), 1 / windows), windows)
    drawn = np.stack([half_weights(one)[:SPLITS, 0] for one in of.cells], axis=1)
    size = round(1 / float(drawn.max()))
    told = shares(solve(made, drawn, size))
    share = shares(whole)[:, 0]
    reach = stats.norm.isf(LEVEL / 2) * np.nanstd(told, axis=1, ddof=1) * np.sqrt(size / (windows - size))
    low, high = np.clip(share - reach, 0, 1), np.clip(share + reach, 0, 1)
    effects = ("policy", f"policy x {axes[0]}", f"policy x {axes[1]}", f"policy x {axes[0]} x {axes[1]}")
    return Components(
        axes=axes,
        column=column,
        schedulers=len(of.schedulers),
        sources=tuple(one.source for one in of.cells),
        levels=levels,
        windows=windows,
        variances=_named((*effects, "policy x window", "residual"), np.maximum(whole[:, 0], 0.0)),
        shares=_named(effects, share),
        share_low=_named(effects, low),
        share_high=_named(effects, high),
        portability=float(share[POLICY]),
        low=float(low[POLICY]),
        high=float(high[POLICY]),
    )


def _named(names: Sequence[str], values: Floats) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _nothing(axes: tuple[str, str], column: str, why: str) -> Components:
    nan = float("nan")
    return Components(axes, column, 0, (), (), 0, {}, {}, {}, {}, nan, nan, nan, why)
