"""Headroom: blocks of an engine's KV memory that are set aside for more important tiers, by a fixed budget.

The budget is eta * M blocks whatever the number of tiers, so that comparing numbers of tiers compares tiers and
not sizes of reserve (reference/multitier.md section 3; the published alternative whose total grows with K is
switch B06 of reference/published-studies.md).
"""

from math import exp, floor

import numpy as np

from schedulers.errors import InputError
from schedulers.view import Floats, Ints

SPLITS = ("nested", "decay", "linear", "top", "published")

DECAY = 2.5
"""Exponent over the whole span of importance, as in arXiv 2608.16336 (lambda = 2.5 / (K - 1))."""

PUBLISHED_SHARE = 0.20
"""Share of memory of the published first tier."""


def headroom(split: str, blocks: int, eta: float, tier_of_atom: Ints) -> Ints:
    """Return the reserve of each tier in blocks, shape (tiers,); they add up to round(eta * blocks).

    ``tier_of_atom`` gives the tier of each atom, most important first. ``nested`` gives each atom its own reserve,
    so what lies above a boundary does not depend on the number of tiers; ``published`` keeps its own total.
    Raises InputError for an unknown split or a budget outside 0 to 1.
    """
    tiers = int(tier_of_atom.max()) + 1
    if split not in SPLITS:
        raise InputError(
            f"unknown headroom split {split!r}", where="split", fix=f"choose one of {', '.join(SPLITS)}"
        )
    if not 0.0 <= eta <= 1.0:
        raise InputError(f"headroom budget {eta}", where="eta", fix="choose a share of memory from 0 to 1")
    if split == "published":
        return published(blocks, tiers)
    if split == "nested":
        atoms = len(tier_of_atom)
        by_atom = whole(eta * blocks, np.exp(-DECAY * np.arange(atoms) / max(1, atoms - 1)))
        return np.bincount(tier_of_atom, weights=by_atom, minlength=tiers).astype(np.int64)
    rank = np.arange(tiers) / max(1, tiers - 1)
    shares = {"decay": np.exp(-DECAY * rank), "linear": 1.0 - rank, "top": (np.arange(tiers) == 0) * 1.0}
    return whole(eta * blocks, shares[split])


def published(blocks: int, tiers: int) -> Ints:
    """The published reserve, floor(0.20 * M * exp(-2.5 p / (K - 1))): its total grows with K; none at K = 1."""
    if tiers == 1:
        return np.zeros(1, np.int64)
    decay = DECAY / (tiers - 1)
    return np.array([floor(PUBLISHED_SHARE * blocks * exp(-decay * tier)) for tier in range(tiers)], np.int64)


def whole(total: float, shares: Floats) -> Ints:
    """Return integers in proportion to ``shares`` that add up to round(total): largest remainders are rounded up."""
    budget = floor(total + 0.5)
    exact = budget * np.asarray(shares, np.float64) / float(np.sum(shares))
    parts = np.floor(exact + 1e-9).astype(np.int64)
    short = budget - int(parts.sum())
    order = np.argsort(-(exact - parts), kind="stable")
    parts[order[:short]] += 1
    return parts
