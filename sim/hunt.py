"""The hunt: the mildest change of a window's workload under which one scheduler beats another.

A change is four logarithms of ratios (``loadgen.reshape.Change``): pressure, burstiness, lengths, targets. Each
evaluation calibrates the changed window, runs both schedulers under the same few draws of luck, and compares.
What is found is held against fresh luck, and then cut down to the fewest requests that still show it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from loadgen.demand import prepare
from loadgen.facts import Facts, Totals
from loadgen.plan import TARGETS, Plan, TierSpec
from loadgen.region import place
from loadgen.reshape import Change, hunted, reach, reshaped, take, with_luck_of
from loadgen.window import Window
from schedulers.errors import InputError
from schedulers.policy import Scheduler
from schedulers.view import Floats, Ints
from sim.calibrate import measure, setup_of
from sim.run import Setup, simulate
from sim.search import Looked, Notice, Space, fewest, mildest

Score = Callable[[Facts, Totals, tuple[int, int], Sequence[TierSpec]], float]
"""The metric of a run on the compared scale, higher is better; NaN where undefined."""

Test = Callable[[Floats], float]
"""The p-value that the mean of these differences is above 0."""

SEARCH_LUCK, SHRINK_LUCK, FRESH_LUCK = 0, 1_000, 10_000
"""Seeds of luck begin here: what is found under one is held against another that nobody has chosen by."""

SEARCH_DRAWS, SHRINK_DRAWS, FRESH_DRAWS = 6, 8, 24

ERRORS = 2.0
"""Standard errors over luck by which a mean must be above the margin, to be seen while searching: without them
the mildest point would be the luckiest one."""

OUTWARD = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""At the edge B just wins, and fresh luck may not see it: steps outward until it does."""

LEVEL = 0.01
"""Stricter than the usual 5 %, since several points may be tried until one holds."""

CANDIDATES = 5
RHO_RANGE, SLO_RANGE = (0.3, 1.6), (0.25, 4.0)
BURST_RANGE, LENGTHS_RANGE = (0.25, 4.0), (0.5, 2.0)
"""How far a hunt goes: rho itself, and ratios; burstiness and lengths no further than the window's rows allow."""


@dataclass(frozen=True)
class Contest:
    """Who is to beat whom, on what. ``plan`` has the fleet and the tiers, ``rho`` is the pressure hunted from."""

    winner: Scheduler
    loser: Scheduler
    plan: Plan
    window: Window
    rho: float
    margin: float
    score: Score
    test: Test


@dataclass
class Failures:
    """Changed workloads that could not be run, counted by what went wrong."""

    seen: dict[str, int] = field(default_factory=dict)

    def note(self, error: InputError) -> float:
        """Count an error and return NaN."""
        self.seen[error.what] = self.seen.get(error.what, 0) + 1
        return float("nan")


class Fresh(NamedTuple):
    """Differences under luck that nothing was chosen by, and what they show against the margin."""

    differences: Floats
    p: float

    @property
    def mean(self) -> float:
        """Mean difference, winner less loser."""
        return float(self.differences.mean())

    @property
    def holds(self) -> bool:
        """Whether the winner is shown to win by more than the margin, whatever the luck."""
        return self.p <= LEVEL


class Quarry(NamedTuple):
    """A counter-example: a window that can be frozen, under ``rho`` and ``tiers``; ``difference`` in its own run."""

    window: Window
    change: Change
    rho: float
    tiers: tuple[TierSpec, ...]
    difference: float
    fresh: Fresh


class Hunt(NamedTuple):
    """What a hunt did. ``edge`` is the mildest point seen; ``found`` the mildest that holds under fresh luck."""

    space: Space
    looked: Looked
    means: Floats  # difference at each point looked at, mean over luck; NaN where undefined
    edge: Change | None
    found: Change | None
    fresh: Fresh | None
    smallest: Quarry | None
    tried: int  # subsets of rows
    failures: dict[str, int]


def space_of(contest: Contest, knobs: Sequence[str]) -> Space:
    """Return the box of changes; knobs that this window can't turn (even gaps, equal lengths) are left out.

    Raises InputError for an unknown knob, and where none is left.
    """
    least, most = reach(contest.window)
    log = np.log
    ranges = {
        "rate": (log(RHO_RANGE[0] / contest.rho), log(RHO_RANGE[1] / contest.rho)),
        "burstiness": (
            max(log(BURST_RANGE[0]), least.burstiness), min(log(BURST_RANGE[1]), most.burstiness),
        ),
        "lengths": (max(log(LENGTHS_RANGE[0]), least.lengths), min(log(LENGTHS_RANGE[1]), most.lengths)),
        "slo": (log(SLO_RANGE[0]), log(SLO_RANGE[1])),
    }  # fmt: skip
    unknown = [knob for knob in knobs if knob not in ranges]
    if unknown:
        fix = f"choose from {', '.join(ranges)}"
        raise InputError(f"there is no knob {unknown[0]!r}", where="--knob", fix=fix)
    used = [knob for knob in knobs if ranges[knob][0] < 0.0 or ranges[knob][1] > 0.0]
    if not used:
        raise InputError(
            "this window leaves nothing to change", where=contest.window.line.id, fix="use another"
        )
    low, high = (np.array([float(ranges[knob][end]) for knob in used]) for end in (0, 1))
    return Space(tuple(used), np.minimum(low, 0.0), np.maximum(high, 0.0))


def change_at(space: Space, point: Floats) -> Change:
    """Return a point of the box as a change."""
    return Change(**dict(zip(space.knobs, (float(part) for part in point), strict=True)))


def scaled_tiers(tiers: Sequence[TierSpec], slo: float) -> tuple[TierSpec, ...]:
    """Return the tiers with every target exp(``slo``) times as long; infinite ones stay."""
    by = float(np.exp(slo)) if slo else 1.0
    return tuple(replace(tier, **{key: getattr(tier, key) * by for key in TARGETS}) for tier in tiers)


@lru_cache(maxsize=64)
def setup_for(plan: Plan) -> Setup:
    """Return the plan's fleet, read once."""
    return setup_of(plan)


def difference(contest: Contest, window: Window, rho: float, tiers: tuple[TierSpec, ...]) -> float:
    """Return by how much the winner wins on this very window, as a sweep would find it; NaN where undefined.

    Raises InputError where the window can't be calibrated or a policy fails on it.
    """
    plan = replace(contest.plan, tiers=tiers)
    setup = setup_for(plan)
    capacity = measure(window, plan, setup)
    region = place(
        rho, requests=capacity.served, span_s=capacity.span_s, capacity_per_s=capacity.capacity_per_s
    )
    demand = prepare(window, plan, region.factor)
    first, second = (
        contest.score(*simulate(demand, scheduler, setup)[:2], window.scored, tiers)  # facts and totals
        for scheduler in (contest.winner, contest.loser)
    )
    return first - second


def differences(
    contest: Contest, change: Change, seeds: Sequence[int], failures: Failures, rows: Ints | None = None
) -> Floats:
    """Return the difference under each seed's luck, shape (seeds,), on the changed window or ``rows`` of it."""
    rho = contest.rho * float(np.exp(change.rate))
    tiers = scaled_tiers(contest.plan.tiers, change.slo)
    found, shaped = [], reshaped(contest.window, change)
    for seed in seeds:
        window = with_luck_of(shaped, seed)
        try:
            found.append(difference(contest, window if rows is None else take(window, rows), rho, tiers))
        except InputError as error:
            found.append(failures.note(error))
    return np.array(found)


def surely(found: Floats) -> float:
    """Return the mean difference less ERRORS standard errors over luck; NaN if any is undefined."""
    return float(found.mean() - ERRORS * found.std(ddof=1) / np.sqrt(len(found)))


def seeds_from(start: int, count: int, seed: int) -> range:
    """Return ``count`` seeds of luck; a hunt with another ``seed`` has others."""
    first = start + seed * 1_000_000
    return range(first, first + count)


def hunt(contest: Contest, knobs: Sequence[str], budget: int, seed: int, notice: Notice) -> Hunt:
    """Look for the mildest change, hold it against fresh luck, and cut it down; deterministic for a seed.

    ``budget`` bounds the changes evaluated, and once more the subsets of rows tried. Raises InputError where the
    window can't be run as it is; changes under which it can't are counted.
    """
    space, failures = space_of(contest, knobs), Failures()
    looked, means = seek(contest, space, (budget, seed), failures, notice)
    edge = None if looked.best is None else change_at(space, looked.best)
    change, fresh = believed(contest, space, looked, seed, failures)
    if change is None:
        return Hunt(space, looked, means, edge, None, None, None, 0, failures.seen)
    smallest, tried = shrink(contest, change, budget, seed, failures)
    return Hunt(space, looked, means, edge, change, fresh, smallest, tried, failures.seen)


def seek(
    contest: Contest, space: Space, limits: tuple[int, int], failures: Failures, notice: Notice
) -> tuple[Looked, Floats]:
    """Return what a search of (budget, seed) saw, and the mean difference at each point that it looked at."""
    budget, seed = limits
    lucks = seeds_from(SEARCH_LUCK, SEARCH_DRAWS, seed)
    difference(contest, with_luck_of(contest.window, lucks[0]), contest.rho, contest.plan.tiers)
    means: list[float] = []

    def worth(point: Floats) -> float:
        found = differences(contest, change_at(space, point), lucks, failures)
        means.append(float(found.mean()))
        return surely(found) - contest.margin

    return mildest(worth, space, budget, seed, notice), np.array(means)


def believed(
    contest: Contest, space: Space, looked: Looked, seed: int, failures: Failures
) -> tuple[Change | None, Fresh | None]:
    """Return the mildest change seen that holds under fresh luck; (None, None) if none does.

    Where a candidate does not hold, the way outward is followed, and then other candidates are.
    """
    for candidate in looked.candidates[:CANDIDATES]:
        for outward in OUTWARD if candidate.any() else (1.0,):
            change = change_at(space, np.clip(candidate * outward, space.low, space.high))
            fresh = hold(contest, change, seed, failures)
            if fresh.holds:
                return change, fresh
    return None, None


def hold(contest: Contest, change: Change, seed: int, failures: Failures, rows: Ints | None = None) -> Fresh:
    """Return the differences under fresh luck, and the p-value that their mean is above the margin."""
    found = differences(contest, change, seeds_from(FRESH_LUCK, FRESH_DRAWS, seed), failures, rows)
    p = 1.0 if np.isnan(found).any() else contest.test(found - contest.margin)
    return Fresh(found, p)


def shrink(
    contest: Contest, change: Change, budget: int, seed: int, failures: Failures
) -> tuple[Quarry, int]:
    """Return the smallest part of the changed window that still shows it under fresh luck, and subsets tried.

    A part shows it as a change does, under other draws of luck; since parts are chosen by that, the answer is the
    smallest of them that fresh luck confirms. The whole window does already.
    """
    lucks = seeds_from(SHRINK_LUCK, SHRINK_DRAWS, seed)
    tried = 0

    def shows(rows: Ints) -> bool:
        nonlocal tried
        tried += 1
        found = differences(contest, change, lucks, failures, rows)
        return surely(found) > contest.margin

    parts = fewest(len(contest.window.arrival_s), shows, budget)
    for rows in reversed(parts):
        fresh = hold(contest, change, seed, failures, rows)
        if fresh.holds or len(rows) == len(parts[0]):
            return quarry(contest, change, rows, seed, fresh), tried
    raise AssertionError("the whole window stands first and is always taken")


def quarry(contest: Contest, change: Change, rows: Ints, seed: int, fresh: Fresh) -> Quarry:
    """Return the counter-example with the luck, of those that nothing was chosen by, that is most usual.

    That is the upper median of the draws whose difference is above the margin.
    """
    above = np.flatnonzero(fresh.differences > contest.margin)
    usual = above[np.argsort(fresh.differences[above], kind="stable")[len(above) // 2]]
    luck = seeds_from(FRESH_LUCK, FRESH_DRAWS, seed)[int(usual)]
    window = take(reshaped(with_luck_of(contest.window, luck), change), rows)
    names = {"winner": contest.winner.name, "loser": contest.loser.name}
    made = hunted(window, change, rows, {**names, "luck": luck})
    return Quarry(
        window=made,
        change=change,
        rho=contest.rho * float(np.exp(change.rate)),
        tiers=scaled_tiers(contest.plan.tiers, change.slo),
        difference=float(fresh.differences[usual]),
        fresh=fresh,
    )
