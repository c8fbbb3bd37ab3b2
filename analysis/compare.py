"""Comparison of several conditions at once: order against order, halves against halves, with intervals.

Reference statistics, sections 2 (tau-b, top-weighted tau) and 3 (ceiling, cross, gap). Conditions that are
compared share their halves' draws, so that all terms of a gap are resampled together.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from analysis.ranks import LEVEL, TIE, rank_vector
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Signs = npt.NDArray[np.int8]
Key = tuple[str, str, str]

SPLITS = 500
SUBSAMPLES = 100
SUBSPLITS = 20

LEAST_WINDOWS = 8
"""With fewer windows in a condition nothing gets an interval."""

LEAST_HALVED = 4
"""With fewer windows a condition isn't halved."""

BLOCK = 100_000
"""Signs of pairs made at a time: so few that they stay in a core's cache, ten times faster than all at once."""


class Comparison(NamedTuple):
    """c conditions against each other, arrays (c, c), symmetric but ``within``; NaN where undefined.

    Each pair is compared over the schedulers that both rank, and over common windows where both come from
    one source.
    """

    schedulers: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]  # of the row's condition
    tau: Floats
    tau_low: Floats
    tau_high: Floats
    top: Floats
    top_low: Floats
    top_high: Floats
    within: Floats  # split-half tau of the row's condition
    cross: Floats
    gap: Floats
    gap_low: Floats
    gap_high: Floats

    @property
    def ceiling(self) -> Floats:
        """Agreement that noise alone would leave, halves against halves."""
        return np.asarray((self.within + self.within.T) / 2, np.float64)


def compare(group: Sequence[Scores], halved: dict[Key, Signs] | None = None) -> Comparison:
    """Return the comparison of every two conditions of a group, and of each with itself.

    ``halved`` keeps what one condition's halves say, so that it isn't found again in another group.
    """
    if _aligned(group):
        return _compare(group, {} if halved is None else halved)
    size = len(group)
    whole = [np.full((size, size), np.nan) for _ in Comparison._fields]
    for i, first in enumerate(group):
        for into, alone in zip(whole, _compare([first], {}), strict=True):
            into[i, i] = alone[0, 0]
        for j in range(i):
            for into, pair in zip(whole, _compare(in_common(first, group[j]), {}), strict=True):
                into[i, j], into[j, i] = pair[0, 1], pair[1, 0]
    return Comparison(whole[0].astype(np.int64), whole[1].astype(np.int64), *whole[2:])


def in_common(a: Scores, b: Scores) -> list[Scores]:
    """Return two conditions over the schedulers that both rank, and common windows if of one source."""
    names = [name for name in a.schedulers if name in b.schedulers]
    windows = {*a.windows} & {*b.windows} if a.source == b.source else None
    return [_only(one, names, windows) for one in (a, b)]


def _aligned(group: Sequence[Scores]) -> bool:
    """Whether all rank the same schedulers, those of one source on the same windows."""
    windows: dict[str, tuple[str, ...]] = {}
    return all(
        one.schedulers == group[0].schedulers and windows.setdefault(one.source, one.windows) == one.windows
        for one in group
    )


def _only(of: Scores, names: Sequence[str], windows: set[str] | None) -> Scores:
    rows = [of.schedulers.index(name) for name in names]
    columns = [at for at, name in enumerate(of.windows) if windows is None or name in windows]
    strata = of.strata if len(of.strata) == len(of.windows) else ("",) * len(of.windows)
    return of._replace(
        schedulers=tuple(names),
        windows=tuple(of.windows[at] for at in columns),
        strata=tuple(strata[at] for at in columns),
        values=of.values[np.ix_(rows, columns)],
    )


def _compare(group: Sequence[Scores], halved: dict[Key, Signs]) -> Comparison:
    size, count = len(group), len(group[0].schedulers)
    windows = np.array([len(one.windows) for one in group])
    nan = np.full((size, size), np.nan)
    found = Comparison(
        np.full((size, size), count),
        np.broadcast_to(windows[:, None], (size, size)).copy(),
        *(nan.copy() for _ in range(11)),
    )
    if count < 2 or windows.min() < 1:
        return found
    means = np.stack([one.means for one in group])
    found = found._replace(tau=taus(pair_signs(means).astype(np.float64)), top=_top(means))
    if windows.min() < LEAST_HALVED:
        return found
    for one in group:
        key = (one.source, one.region, one.column)
        if key not in halved:
            halved[key] = _halved(one)
    signs = [halved[one.source, one.region, one.column] for one in group]
    names = np.array([one.source for one in group])
    shared = np.asarray(names[:, None] == names[None, :], np.bool_)
    within, cross = _terms(signs, shared)
    found = found._replace(
        within=np.broadcast_to(_mean(within[:SPLITS])[:, None], (size, size)).copy(),
        cross=_mean(cross[:SPLITS]),
    )
    found = found._replace(gap=np.where(np.eye(size, dtype=bool), 0.0, found.ceiling - found.cross))
    if windows.min() < LEAST_WINDOWS:
        return found
    return _with_intervals(found, group, within[SPLITS:], cross[SPLITS:])


def _with_intervals(found: Comparison, group: Sequence[Scores], within: Floats, cross: Floats) -> Comparison:
    """Return the comparison with 95 % intervals: 1.96 standard deviations over half-samples of windows.

    Half-samples are drawn without replacement, and deviations taken from their own mean, since agreement
    shrinks with noise and half-samples are noisier. They need no rescaling: leaving out half of n windows
    is the delete-d jackknife, whose factor (n - d) / d is 1 at d = n / 2; the root of m / n, meant for m
    far below n, would make the variance half of what it is.
    """
    size = len(group)
    each = (within[:, :, None] + within[:, None, :]) / 2 - cross
    known = _mean(each.reshape(SUBSAMPLES, SUBSPLITS, size, size).swapaxes(0, 1))
    kept = [half_weights(one)[SPLITS::SUBSPLITS].mean(axis=1) for one in group]
    means = np.stack([at @ one.values.T for at, one in zip(kept, group, strict=True)], axis=1)
    smaller = min(len(one.windows) for one in group)
    drawn = smaller // 2 // 2 * 2
    factor = float(stats.norm.isf(LEVEL / 2) * np.sqrt(drawn / (smaller - drawn)))
    other = ~np.eye(size, dtype=bool)
    reach = factor * known.std(axis=0, ddof=1) * other
    tau = factor * _spread(taus(pair_signs(means))) * other
    top = factor * _spread(_top(means)) * other
    return found._replace(
        gap_low=found.gap - reach,
        gap_high=found.gap + reach,
        tau_low=np.maximum(found.tau - tau, -1.0),
        tau_high=np.minimum(found.tau + tau, 1.0),
        top_low=np.maximum(found.top - top, -1.0),
        top_high=np.minimum(found.top + top, 1.0),
    )


def _spread(draws: Floats) -> Floats:
    """Return the standard deviation over the first axis, undefined draws left out."""
    return np.sqrt(_mean((draws - _mean(draws)) ** 2) * len(draws) / (len(draws) - 1))


def _halved(of: Scores) -> Signs:
    """Return the signs of all pairs of schedulers on either half, (splits + nested splits, 2, pairs)."""
    weights = half_weights(of)
    count = len(of.schedulers)
    step = max(1, BLOCK // (count * count))
    found = np.empty((len(weights), 2, count * (count - 1) // 2), np.int8)
    for low in range(0, len(weights), step):
        found[low : low + step] = pair_signs(weights[low : low + step] @ of.values.T)
    return found


def _terms(signs: Sequence[Signs], shared: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return (within, cross): tau a split, (splits, c) and (splits, c, c).

    Halves of conditions on the same windows are the same, so only opposite halves are crossed there: a
    window's luck is never on both sides.
    """
    step = max(1, BLOCK // (2 * len(signs) * signs[0].shape[-1] + 1))
    within, cross = [], []
    for low in range(0, len(signs[0]), step):
        s = np.stack([one[low : low + step] for one in signs], axis=2).astype(np.float32)
        opposite = taus(s[:, 0], s[:, 1])
        crossed = (opposite + opposite.swapaxes(1, 2)) / 2
        if not shared.all():
            same = (taus(s[:, 0]) + taus(s[:, 1])) / 2
            crossed = np.where(shared, crossed, (crossed + same) / 2)
        within.append(np.diagonal(opposite, axis1=1, axis2=2))
        cross.append(crossed)
    return np.concatenate(within), np.concatenate(cross)


def pair_signs(means: Floats) -> Singles:
    """Return the sign of every difference along the last axis, (..., pairs), 0 for ties (1e-9 relative)."""
    first, second = np.triu_indices(means.shape[-1], 1)
    left, right = means[..., first], means[..., second]
    difference = left - right
    found = np.sign(difference)
    found[np.abs(difference) <= TIE * np.maximum(np.abs(left), np.abs(right))] = 0.0
    return found.astype(np.float32)


def taus(rows: npt.NDArray[np.floating], columns: npt.NDArray[np.floating] | None = None) -> Floats:
    """Return tau-b of every row's pair signs with every column's, (..., c, c); NaN if one is all ties."""
    columns = rows if columns is None else columns
    agreed = rows @ columns.swapaxes(-1, -2)
    size = np.sqrt(np.abs(rows).sum(axis=-1)[..., :, None] * np.abs(columns).sum(axis=-1)[..., None, :])
    return np.asarray(np.where(size > 0, agreed / np.where(size > 0, size, 1), np.nan), np.float64)


def _top(means: Floats) -> Floats:
    """Return top-weighted tau (Vigna's additive hyperbolic weights) between conditions, (splits, c, c).

    The mean of the two weightings, by either order, as ``scipy.stats.weightedtau`` has it; tied schedulers
    share the mean of their ranks.
    """
    first, second = np.triu_indices(means.shape[-1], 1)
    worth = 1.0 / rank_vector(means)
    weights = worth[..., first] + worth[..., second]
    s = pair_signs(means).astype(np.float64)
    turned = np.abs(s).swapaxes(-1, -2)
    size = np.sqrt((weights * np.abs(s)).sum(axis=-1)[..., :, None] * (weights @ turned))
    agreed = (weights * s) @ s.swapaxes(-1, -2)
    one = np.where(size > 0, agreed / np.where(size > 0, size, 1), np.nan)
    return np.asarray((one + one.swapaxes(-1, -2)) / 2, np.float64)


def _mean(values: Floats) -> Floats:
    """Return the mean over the first axis of what is defined, NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def half_weights(of: Scores) -> Floats:
    """Return weights of disjoint halves: of all windows, then of half-samples; (splits, 2, windows).

    A source has the same draws in every region and metric, and draws of its own.
    """
    windows = len(of.windows)
    strata = of.strata if len(of.strata) == windows else ("",) * windows
    return _halves(windows, strata, zlib.crc32(of.source.encode()), windows >= LEAST_WINDOWS)


@lru_cache(maxsize=64)
def _halves(windows: int, strata: tuple[str, ...], seed: int, nested: bool) -> Floats:
    """Return random halves balanced within strata: the odd window of a stratum joins a pool that is halved
    too, one left over sits out. Then ``nested`` ones, which aren't.
    """
    rng = np.random.default_rng([windows, seed])
    groups = [np.flatnonzero(np.asarray(strata) == name) for name in dict.fromkeys(strata)]
    weights = np.zeros((SPLITS, 2, windows))
    for split in weights:
        pool: list[int] = []
        for group in groups:
            mixed = rng.permutation(group)
            half = len(mixed) // 2
            split[0, mixed[:half]] = split[1, mixed[half : 2 * half]] = 1.0
            pool += [int(mixed[-1])] if len(mixed) % 2 else []
        mixed = rng.permutation(np.asarray(pool, np.int64))
        half = len(mixed) // 2
        split[0, mixed[:half]] = split[1, mixed[half : 2 * half]] = 1.0
    weights = np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float64)
    return np.concatenate([weights, _nested(windows, rng)]) if nested else weights


def _nested(windows: int, rng: np.random.Generator) -> Floats:
    """Return weights of halves of random half-samples, shape (subsamples * subsplits, 2, windows)."""
    size = windows // 2
    half = size // 2
    kept = np.argsort(rng.random((SUBSAMPLES, 1, windows)), axis=-1)[..., :size]
    order = np.argsort(rng.random((SUBSAMPLES, SUBSPLITS, size)), axis=-1)
    mixed = np.take_along_axis(np.broadcast_to(kept, (SUBSAMPLES, SUBSPLITS, size)), order, axis=-1)
    mixed = mixed.reshape(-1, size)
    weights = np.zeros((len(mixed), 2, windows))
    np.put_along_axis(weights[:, 0], mixed[:, :half], 1.0 / half, axis=-1)
    np.put_along_axis(weights[:, 1], mixed[:, half : 2 * half], 1.0 / half, axis=-1)
    return weights
