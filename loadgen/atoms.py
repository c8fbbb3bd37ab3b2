"""Atoms: ten classes of importance that a request has by itself, whatever number of tiers a scheduler is shown.

A study of the number of tiers must hold the requests fixed, so importance, weight and targets belong to the
request's *atom*; K tiers are a partition of the ten atoms, and K+1 tiers refine K (reference/multitier.md
section 2). What a scheduler is shown is coarser than what it is scored by, unless K is 10.
"""

from collections.abc import Sequence
from math import inf, pi
from typing import NamedTuple

import numpy as np

from loadgen.draws import uniforms
from schedulers.errors import InputError
from schedulers.view import Floats, Ints, Tiers

ATOMS = 10
"""Classes of importance; 0 is the most important."""

_ENTERPRISE = (0.05, 0.05, 0.075, 0.075, 0.075, 0.075, 0.15, 0.15, 0.15, 0.15)

SHARES: dict[str, tuple[float, ...]] = {
    "uniform": (0.1,) * ATOMS,
    "bell": (0.033, 0.063, 0.101, 0.139, 0.164, 0.164, 0.139, 0.101, 0.063, 0.033),
    "enterprise": _ENTERPRISE,
    "free": (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.12, 0.16, 0.20, 0.24),
    "bursty-top": _ENTERPRISE,
    "correlated": _ENTERPRISE,
    "time-of-day": _ENTERPRISE,
    "drift": _ENTERPRISE,
    "tenant": _ENTERPRISE,
    "misdeclared": _ENTERPRISE,
    "shuffled": _ENTERPRISE,
}
"""Long-run shares of the atoms under each mix; the later ones say when, or to whom, the atoms come."""

TOP = 2
"""Atoms 0 and 1 are the top; their bursts are what ``bursty-top`` and ``correlated`` are about."""

BOTTOM = 6
"""Atoms from this one are the bottom; some of them lie about it under ``misdeclared``."""

BURST_ON_S, BURST_SHARE = 10.0, 0.2
"""Mean length of a burst of top atoms, and the share of time in one (reference/multitier.md section 2)."""

DAY_S, DAY_SWING = 100.0, 0.8
"""A day of the mix ``time-of-day`` in window seconds, and how far the share of the top swings in it."""

LIARS = 0.2
"""Share of the bottom that is shown as atom 0 under ``misdeclared``."""

CHAINS: dict[str, tuple[int, ...]] = {
    "top-first": (2, 6, 1, 4, 8, 3, 7, 5, 9),
    "middle-first": (5, 2, 7, 1, 4, 8, 3, 6, 9),
}
"""Order in which boundaries enter; boundary i lies before atom i. A K-tier partition has the first K-1."""

LEVELS = (1, 2, 3, 4, 5, 6, 8, 10)
"""Numbers of tiers that a study compares."""

TTFT_S = (0.50, 0.70, 0.97, 1.36, 1.89, 2.64, 3.68, 5.14, 7.17, 10.0)
TPOT_S = (0.030, 0.039, 0.050, 0.065, 0.083, 0.108, 0.139, 0.180, 0.232, 0.300)
"""The ``graded`` ladder: targets of each atom, from interactive to batch."""

FLAT = (2.0, 0.1)
"""The ``flat`` ladder: TTFT and TPOT of every atom, SLO set S2; only importance differs."""

LADDERS = ("flat", "graded")


class Importance(NamedTuple):
    """Atoms of a window's requests, shape (n,) each: as scored, and as shown to the scheduler."""

    scored: Ints
    shown: Ints


class Grading(NamedTuple):
    """What an atom is worth and promised, shape (10,) each."""

    weight: Floats
    ttft_s: Floats
    tpot_s: Floats


def shares_of(mix: str | Sequence[float]) -> Floats:
    """Return the long-run shares of the ten atoms; ``mix`` is a name in SHARES or ten shares of one's own."""
    if isinstance(mix, str):
        if mix not in SHARES:
            raise InputError(f"unknown mix {mix!r}", where="mix", fix=f"choose one of {', '.join(SHARES)}")
        return np.array(SHARES[mix])
    own = np.asarray(mix, np.float64)
    if own.shape != (ATOMS,) or not np.all(own >= 0) or abs(own.sum() - 1.0) > 1e-9:
        raise InputError("a mix needs ten shares that add up to 1", where="mix", fix="give ten numbers")
    return own


def importance(
    mix: str | Sequence[float], arrival_s: Floats, luck: Floats, tenant_luck: Floats, draws: tuple[int, str]
) -> Importance:
    """Return the atoms of a window's requests.

    ``arrival_s`` are the window's own times (never stretched: the atoms must not change with the load);
    ``luck`` is the window's tier column and ``tenant_luck`` its tenant column, shared by a conversation;
    ``draws`` = (seed, content digest of the window) keys what the mix draws beyond them.
    """
    shares = shares_of(mix)
    edges = np.cumsum(shares)
    edges[-1] = 1.0
    if mix == "tenant":
        luck = tenant_luck
    elif mix in ("bursty-top", "correlated", "time-of-day"):
        top = top_shares(str(mix), arrival_s, float(edges[TOP - 1]), draws)
        luck = squeezed(luck, top, float(edges[TOP - 1]))
    elif mix == "drift":
        return same(drifting(arrival_s, luck))
    scored = np.minimum(np.searchsorted(edges, luck, side="right"), ATOMS - 1).astype(np.int64)
    if mix == "misdeclared":
        lies = (scored >= BOTTOM) & (uniforms(*draws, "lie", len(luck)) < LIARS)
        return Importance(scored, np.where(lies, 0, scored))
    if mix == "shuffled":  # a placebo: what is shown has the same shares and says nothing
        other = uniforms(*draws, "shuffle", len(luck))
        shown = np.minimum(np.searchsorted(edges, other, side="right"), ATOMS - 1)
        return Importance(scored, shown.astype(np.int64))
    return same(scored)


def same(atoms: Ints) -> Importance:
    """Importance of requests that are shown as what they are."""
    return Importance(atoms, atoms)


def squeezed(luck: Floats, top: Floats, share: float) -> Floats:
    """Return luck mapped so that a request is of the top with chance ``top`` where that was ``share``.

    The order within the top and within the rest stays: [0, top) becomes [0, share), [top, 1) the rest.
    """
    inside = luck < top
    safe = np.where(top > 0, top, 1.0)
    rest = np.where(top < 1, 1.0 - top, 1.0)
    return np.asarray(np.where(inside, luck / safe * share, share + (luck - top) / rest * (1.0 - share)))


def top_shares(mix: str, arrival_s: Floats, share: float, draws: tuple[int, str]) -> Floats:
    """Return each request's chance to be of the top, shape (n,); its mean over time is about ``share``."""
    if mix == "bursty-top":
        return np.asarray(np.where(in_burst(arrival_s, draws), min(1.0, share / BURST_SHARE), 0.0))
    if mix == "correlated":  # the top comes when everybody comes: chance by the arrivals of the second around
        near = np.searchsorted(arrival_s, arrival_s + 0.5) - np.searchsorted(arrival_s, arrival_s - 0.5)
        rate = share * near / max(1.0, float(np.mean(near, dtype=float)) if len(near) else 1.0)
        return np.asarray(np.minimum(1.0, rate))
    return np.asarray(share * (1.0 + DAY_SWING * np.sin(2 * pi * arrival_s / DAY_S)))


def in_burst(arrival_s: Floats, draws: tuple[int, str]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return whether each arrival falls in a burst: an on/off chain with exponential stays, begun at random."""
    if not len(arrival_s):
        return np.zeros(0, bool)
    means = np.array([BURST_ON_S, BURST_ON_S * (1 - BURST_SHARE) / BURST_SHARE])
    stays = max(16, int(8 * arrival_s[-1] / means.sum()) + 16)
    luck = uniforms(*draws, "burst", stays + 1)
    first = int(luck[0] >= BURST_SHARE)  # 0: begins in a burst
    kinds = (first + np.arange(stays)) % 2
    ends = np.cumsum(-means[kinds] * np.log1p(-luck[1:]))
    return np.asarray(kinds[np.minimum(np.searchsorted(ends, arrival_s, side="right"), stays - 1)] == 0)


def drifting(arrival_s: Floats, luck: Floats) -> Ints:
    """Return atoms whose shares go from ``enterprise`` at the window's start to ``free`` at its end."""
    if not len(arrival_s):
        return np.zeros(0, np.int64)
    progress = (arrival_s / max(float(arrival_s[-1]), 1e-9))[:, None]
    edges = np.cumsum((1 - progress) * shares_of("enterprise") + progress * shares_of("free"), axis=1)
    passed = (luck[:, None] >= edges).sum(axis=1)
    return np.asarray(np.minimum(passed, ATOMS - 1), np.int64)


def boundaries(tiers: int, chain: str = "top-first") -> tuple[int, ...]:
    """Return the atoms at which a tier begins beside 0, ascending; raises InputError for what no chain has."""
    if chain not in CHAINS:
        raise InputError(f"unknown chain {chain!r}", where="chain", fix=f"choose one of {', '.join(CHAINS)}")
    if not 1 <= tiers <= ATOMS:
        raise InputError(f"{tiers} tiers", where="tiers", fix=f"choose 1 to {ATOMS}")
    return tuple(sorted(CHAINS[chain][: tiers - 1]))


def tier_of_atom(tiers: int, chain: str = "top-first") -> Ints:
    """Return the tier of each atom, shape (10,), under the K-tier partition of the chain."""
    cuts = np.array(boundaries(tiers, chain), np.int64)
    return np.searchsorted(cuts, np.arange(ATOMS), side="right").astype(np.int64)


def grading(ladder: str = "graded", ratio: float = 8.0) -> Grading:
    """Return weights and targets of the atoms: weight ratio^(1 - j/9), targets by the ladder."""
    if ladder not in LADDERS:
        raise InputError(
            f"unknown ladder {ladder!r}", where="ladder", fix=f"choose one of {', '.join(LADDERS)}"
        )
    weight = ratio ** (1.0 - np.arange(ATOMS) / (ATOMS - 1.0))
    if ladder == "flat":
        return Grading(weight, np.full(ATOMS, FLAT[0]), np.full(ATOMS, FLAT[1]))
    return Grading(weight, np.array(TTFT_S), np.array(TPOT_S))


def shown_tiers(tiers: int, chain: str, mix: str | Sequence[float], grades: Grading) -> Tiers:
    """Return what a scheduler is told of K tiers: the strictest target and the mean weight of their atoms."""
    place, shares = tier_of_atom(tiers, chain), shares_of(mix)
    members = [place == tier for tier in range(tiers)]
    weights = [
        float(np.average(grades.weight[of], weights=shares[of] if shares[of].sum() > 0 else None))
        for of in members
    ]
    return Tiers(
        ttft_s=np.array([grades.ttft_s[of].min() for of in members]),
        tpot_s=np.array([grades.tpot_s[of].min() for of in members]),
        e2e_s=np.full(tiers, inf),
        weight=np.array(weights),
    )
