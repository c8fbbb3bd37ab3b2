"""Recovery: how many windows it takes until another draw of as many gives the same order and the same best.

Reference statistics, section 8: two disjoint sets of m windows against each other, never a set against the
whole that contains it, which reaches 1 by construction.
"""

import zlib

import numpy as np
import numpy.typing as npt
from scipy import special

from analysis.answers import Recovery
from analysis.compare import pair_signs
from analysis.ranks import LEVEL, tau_of_signs
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DRAWS = 500
SIZES = (5, 7, 10, 14, 20, 28, 40, 56, 80, 113, 160)
"""Set sizes tried, up to half of the windows."""

BEST_WANTED = 0.9
"""Share of draws in which the best of one set must be in the top set of the other."""

TAU_WANTED = 0.95
"""Mean tau must reach this part of the plateau of the fitted curve."""

PLATEAU_WANTED = 0.5
"""With a lower plateau there is no order that more windows would recover."""


def recovery_of(cell: Scores) -> Recovery:
    """Return the curves of one condition; empty with fewer than ten windows or one scheduler."""
    key, n = (cell.source, cell.region, cell.column), len(cell.windows)
    sizes = tuple(m for m in SIZES if m <= n // 2)
    if not sizes or len(cell.schedulers) < 2:
        return Recovery(key, (), np.zeros(0), np.zeros(0), np.zeros(0), float("nan"), 0)
    rng = np.random.default_rng(zlib.crc32("|".join((cell.source, *cell.windows)).encode()))
    found = np.array([_one_size(cell, m, rng) for m in sizes])
    tau, jaccard, kept = found.T
    plateau = plateau_of(np.asarray(sizes, np.float64), tau)
    enough = (kept >= BEST_WANTED) & (tau >= TAU_WANTED * plateau) & (plateau >= PLATEAU_WANTED)
    return Recovery(
        key,
        sizes,
        tau,
        jaccard,
        kept,
        plateau,
        next((m for m, yes in zip(sizes, enough, strict=True) if yes), 0),
    )


def plateau_of(sizes: Floats, tau: Floats) -> float:
    """Return the plateau a <= 1 of the least-squares fit tau = a - b / sqrt(m), a * (1 - c / sqrt(m)).

    NaN if tau is undefined; its mean with fewer than three sizes, or where it doesn't rise.
    """
    known = ~np.isnan(tau)
    if not known.any():
        return float("nan")
    x, y = 1 / np.sqrt(sizes[known]), tau[known]
    slope, top = np.polyfit(x, y, 1) if len(y) > 2 else (0.0, float(y.mean()))
    return float(min(1.0, top if slope < 0 else y.mean()))


def top_sets(means: Floats, spreads: Floats, windows: int, margin: float) -> Flags:
    """Return who is not shown worse than the best by more than the margin, (draws, schedulers).

    ``spreads`` (draws, schedulers) are standard deviations of the paired difference to each draw's best.
    Student's t for every size, Holm over schedulers.
    """
    best = means.argmax(axis=1)
    behind = means.max(axis=1, keepdims=True) - means - margin
    error = spreads / np.sqrt(windows)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, behind / error, np.sign(behind) * np.inf)
    p = special.stdtr(windows - 1, -t)
    p[np.arange(len(p)), best] = np.inf  # the best is no hypothesis and comes last
    order = np.argsort(p, axis=1)
    rivals = p.shape[1] - 1
    steps = np.maximum(rivals - np.arange(p.shape[1]), 1)
    adjusted = np.maximum.accumulate(np.take_along_axis(p, order, axis=1) * steps, axis=1)
    inside = np.empty(p.shape, np.bool_)
    np.put_along_axis(inside, order, adjusted > LEVEL, axis=1)
    return inside


def _one_size(cell: Scores, m: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return mean tau, mean Jaccard and the share of draws that keep the best, over disjoint pairs of sets."""
    n, k = len(cell.windows), len(cell.schedulers)
    order = np.argsort(rng.random((DRAWS, n)), axis=1)
    weights = np.zeros((2, DRAWS, n))
    for side in (0, 1):
        np.put_along_axis(weights[side], order[:, side * m : (side + 1) * m], 1.0 / m, axis=1)
    flat = weights.reshape(2 * DRAWS, n)
    y = cell.values - cell.values.mean(axis=0)  # differences are unmoved, and moments lose fewer digits
    means = flat @ y.T
    products = (y[:, None, :] * y[None, :, :]).reshape(k * k, n)
    moments = (flat @ products.T).reshape(-1, k, k)
    covered = moments - means[:, :, None] * means[:, None, :]
    own = np.diagonal(covered, axis1=1, axis2=2)
    best = means.argmax(axis=1)
    rows = np.arange(len(means))
    variance = own[rows, best][:, None] + own - 2 * covered[rows, best]
    spreads = np.sqrt(np.maximum(variance, 0.0) * m / (m - 1))
    inside = top_sets(means, spreads, m, cell.margin).reshape(2, DRAWS, k)
    signs = pair_signs(means).reshape(2, DRAWS, -1).astype(np.int8)
    tau = tau_of_signs(signs[0], signs[1])
    overlap = (inside[0] & inside[1]).sum(axis=1) / (inside[0] | inside[1]).sum(axis=1)
    first, second = best.reshape(2, DRAWS)
    at = np.arange(DRAWS)
    kept = (inside[1][at, first].mean() + inside[0][at, second].mean()) / 2
    known = tau[~np.isnan(tau)]
    return (float(known.mean()) if len(known) else float("nan"), float(overlap.mean()), float(kept))
