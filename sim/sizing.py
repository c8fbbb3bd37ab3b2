"""How many engines are enough: bisection over fleets on common windows, with a bootstrap over windows.

A fleet is enough if each tier attains what it is owed, over the arrivals of all windows (reference/multitier.md
section 8). That attainment rises with engines is looked at, not taken for granted: further sizes around the answer
are tried, and the answer is the fewest engines from which on every size that was tried is enough.
"""

from collections.abc import Callable
from itertools import pairwise
from math import inf, nan
from typing import NamedTuple

import numpy as np

from schedulers.errors import InputError
from schedulers.view import Floats, Ints

DRAWS = 2_000
LEVEL = 0.95
WIDEN_MAX = 6
"""Most sizes that are tried on either side of the answer to find the ends of its interval."""

SLACK = 0.005
"""A fall of a tier's attainment by more than this, from one engine more, is told."""


class Trial(NamedTuple):
    """What one fleet did on w windows, by t tiers."""

    engines: int
    arrived: Ints  # (w, t) scored arrivals
    met: Ints  # (w, t) those that met every target
    good: Ints  # (w,) arrivals that met every target, scored or not
    engine_s: Floats  # (w,) billed
    span_s: Floats  # (w,) from the first arrival to the last end

    @property
    def attained(self) -> Floats:
        """Attainment of each tier, shape (t,); 1 for a tier without arrivals."""
        return share(self.met.sum(axis=0), self.arrived.sum(axis=0))

    @property
    def billed(self) -> float:
        """Engines that are paid for, on average over time."""
        return float(self.engine_s.sum() / self.span_s.sum())

    @property
    def engine_s_per_good(self) -> float:
        """Engine-seconds for each arrival that met every target; inf if none did."""
        return float(self.engine_s.sum() / self.good.sum()) if self.good.any() else inf


class Sized(NamedTuple):
    """The answer."""

    engines: int  # 0: not even the largest fleet is enough
    fraction: float  # between the last fleet that is not enough and the answer, by the margin's straight line
    low: int  # interval over windows; ``high`` above ``most`` stands for more than was tried
    high: int
    chance: dict[int, float]  # that a fleet of a size is enough, over draws of windows
    trials: tuple[Trial, ...]  # by size
    falls: tuple[tuple[int, int, float], ...]  # (engines, tier, by how much one engine more attained less)


Try = Callable[[int], Trial]


def share(met: Ints, arrived: Ints) -> Floats:
    """Return met / arrived; 1 where nothing arrived."""
    return np.where(arrived > 0, met / np.maximum(1, arrived), 1.0)


def margin(trial: Trial, owed: Floats) -> float:
    """Return by how much the tier that is worst off attains more than it is owed."""
    return float((trial.attained - owed).min())


def size(try_: Try, owed: Floats, guess: int, most: int, seed: int = 0) -> Sized:
    """Return the fewest of 1 to ``most`` engines that are enough; ``try_`` runs a fleet on the windows.

    ``owed`` (t,) is the attainment owed to each tier. Each size is tried once.
    """
    if most < 1:
        raise InputError(f"at most {most} engines", where="--max-engines", fix="use 1 or more")
    tried: dict[int, Trial] = {}

    def enough(engines: int) -> bool:
        if engines not in tried:
            tried[engines] = try_(engines)
        return margin(tried[engines], owed) >= 0.0

    low, high = bracket(enough, max(1, min(guess, most)), most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    for engines in (high - 2, high + 1, high + 2):
        if 1 <= engines <= most:
            enough(engines)
    return answer(tried, enough, owed, most, seed)


def bracket(enough: Callable[[int], bool], guess: int, most: int) -> tuple[int, int]:
    """Return (a size that is not enough or 0, a size that is or ``most`` + 1), by doubling and halving."""
    if enough(guess):
        high, low = guess, guess // 2
        while low >= 1 and enough(low):
            high, low = low, low // 2
        return low, high
    low, high = guess, min(most, 2 * guess)
    while low < most:
        if enough(high):
            return low, high
        low, high = high, min(most, 2 * high)
    return most, most + 1


def answer(
    tried: dict[int, Trial], enough: Callable[[int], bool], owed: Floats, most: int, seed: int
) -> Sized:
    """Widen what was tried until the interval's ends are in it, then say what came of it."""
    found = fewest(tried, owed)
    for step in range(1, WIDEN_MAX + 1):
        chances = chance(tried, owed, seed)
        if found > step and chances.get(found - step + 1, 0.0) > (1 - LEVEL) / 2:
            enough(found - step)
        if found and found + step <= most and chances.get(found + step - 1, 1.0) < (1 + LEVEL) / 2:
            enough(found + step)
    found = fewest(tried, owed)
    trials = tuple(tried[engines] for engines in sorted(tried))
    answers = drawn_answers(trials, owed, seed, most)
    low, high = np.quantile(answers, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return Sized(
        engines=found,
        fraction=fraction(tried, owed, found),
        low=int(low),
        high=int(high),
        chance=chance(tried, owed, seed),
        trials=trials,
        falls=falls(trials),
    )


def fewest(tried: dict[int, Trial], owed: Floats) -> int:
    """Return the fewest engines from which on every size that was tried is enough; 0 if the largest is not."""
    found = 0
    for engines in sorted(tried, reverse=True):
        if margin(tried[engines], owed) < 0.0:
            break
        found = engines
    return found


def fraction(tried: dict[int, Trial], owed: Floats, found: int) -> float:
    """Return where the margin is 0 on the line from the next smaller size tried; 0 engines attain nothing."""
    if not found:
        return nan
    smaller = max((engines for engines in tried if engines < found), default=0)
    here = margin(tried[found], owed)
    there = margin(tried[smaller], owed) if smaller else -float(owed.max())
    return found - (found - smaller) * here / (here - there) if here > there else float(found)


def picks(windows: int, seed: int) -> Ints:
    """Return draws of windows with replacement, shape (DRAWS, w): the same for every size."""
    return np.random.default_rng(seed).integers(0, windows, (DRAWS, windows))


def drawn_margins(trial: Trial, owed: Floats, seed: int) -> Floats:
    """Return the margin of a fleet in each draw of windows, shape (DRAWS,)."""
    chosen = picks(len(trial.arrived), seed)
    attained = share(trial.met[chosen].sum(axis=1), trial.arrived[chosen].sum(axis=1))
    return np.asarray((attained - owed).min(axis=1))


def chance(tried: dict[int, Trial], owed: Floats, seed: int) -> dict[int, float]:
    """Return the share of draws in which each size is enough."""
    return {
        engines: float((drawn_margins(tried[engines], owed, seed) >= 0.0).mean()) for engines in sorted(tried)
    }


def drawn_answers(trials: tuple[Trial, ...], owed: Floats, seed: int, most: int) -> Ints:
    """Return the answer in each draw of windows, shape (DRAWS,); ``most`` + 1 where nothing tried is enough."""
    good = np.array([drawn_margins(trial, owed, seed) >= 0.0 for trial in trials])
    lasting = np.flip(np.logical_and.accumulate(np.flip(good, axis=0), axis=0), axis=0)  # and so is all above
    sizes = np.array([trial.engines for trial in trials])
    found: Ints = np.where(lasting.any(axis=0), sizes[np.argmax(lasting, axis=0)], most + 1)
    return found


def falls(trials: tuple[Trial, ...]) -> tuple[tuple[int, int, float], ...]:
    """Return where a tier attains less with more engines, by more than SLACK: (engines, tier, by how much)."""
    found = []
    for one, more in pairwise(trials):
        lost = one.attained - more.attained
        found += [(more.engines, int(tier), float(lost[tier])) for tier in np.flatnonzero(lost > SLACK)]
    return tuple(found)
