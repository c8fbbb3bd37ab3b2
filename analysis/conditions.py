"""Which conditions are worth replaying live: where the simulator tells schedulers apart, and turns them round.

A choice is made from simulated results alone, before anything runs live. Gaps are told in units of a condition: the
metric's margin (``analysis.metrics``), below which a difference is of no practical size, or how far simulated runs of
one cell lie apart when their arrivals are shaken, if that is more.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.metrics import METRICS, split_column
from analysis.validity import Condition, Value, values

SPREAD_LEAST = 2.0
"""Standard deviation between schedulers, in units, from which on a condition says something about their order."""

USUAL = ("e2e_mean_s", "ttft_mean_s", "slowdown_e2e_mean", "ttft_p95_s", "tpot_mean_s")
"""Metrics tried where the one asked does not tell schedulers apart."""


class Choice(NamedTuple):
    """The conditions of a study, why these, and how far apart schedulers lie in each (units)."""

    conditions: tuple[Condition, ...]
    spreads: tuple[float, ...]
    seconds: float  # that one live run of every scheduler in each of them takes, all together
    why: str


def margin_of(metric: str) -> float:
    """Return the practical margin of a metric on its compared scale; raises InputError for an unknown one."""
    return METRICS[split_column(metric)[0]].margin


class Simulated(NamedTuple):
    """What the simulator says: the mean of a cell's draws, the draws, and the unit of gaps in each condition."""

    mean: Value
    draws: Mapping[tuple[Condition, str], tuple[float, ...]]
    unit: Mapping[Condition, float]


def pooled_draws(draws: Sequence[Value], margin: float) -> Simulated:
    """Bring simulated draws of the same cells together; a cell that a draw lacks is left out."""
    shared = sorted(set.intersection(*map(set, draws))) if draws else []
    found = {cell: tuple(one[cell] for one in draws) for cell in shared}
    unit = dict.fromkeys(sorted({condition for condition, _ in shared}), margin)
    for condition in unit if len(draws) > 1 else ():
        apart = [np.var(values, ddof=1) for (where, _), values in found.items() if where == condition]
        unit[condition] = max(margin, float(np.sqrt(np.mean(apart))))
    return Simulated({cell: float(np.mean(values)) for cell, values in found.items()}, found, unit)


def spreads(simulated: Simulated) -> dict[Condition, float]:
    """Return how far apart schedulers lie in each condition: their standard deviation in its unit."""
    seen: dict[Condition, list[float]] = {}
    for (condition, _), value in simulated.mean.items():
        seen.setdefault(condition, []).append(value / simulated.unit[condition])
    return {one: float(np.std(found, ddof=1)) for one, found in sorted(seen.items()) if len(found) > 1}


def in_units(simulated: Simulated, chosen: Sequence[Condition]) -> Value:
    """Return the means of some conditions in units: what claims are made of."""
    return {
        (condition, name): value / simulated.unit[condition]
        for (condition, name), value in simulated.mean.items()
        if condition in chosen
    }


def metric_of(draws: Sequence[pd.DataFrame], metric: str) -> Simulated:
    """Return what the simulator says by a metric; each table holds the runs of one draw."""
    return pooled_draws([values(one, metric) for one in draws], margin_of(metric))


def telling(draws: Sequence[pd.DataFrame], primary: str) -> list[tuple[str, int]]:
    """Return metrics by which the simulator tells schedulers apart, with in how many conditions, the most first."""
    found = [
        (metric, sum(one >= SPREAD_LEAST for one in spreads(metric_of(draws, metric)).values()))
        for metric in dict.fromkeys((primary, *USUAL))
    ]
    return sorted((one for one in found if one[1]), key=lambda one: -one[1])


def choose(
    simulated: Simulated, took_s: Mapping[tuple[Condition, str], float], count: int, limit_s: float
) -> Choice | None:
    """Return so many conditions whose runs fit the time, with the most reversals between them; None if none tells.

    ``took_s`` is how long a live run of each cell takes, ``limit_s`` how long one run of all cells may. Windows
    differ as far as there are enough. 0 conditions stands for all that tell schedulers apart.
    """
    spread, scaled = spreads(simulated), in_units(simulated, list(simulated.unit))
    cost = {one: sum(took for (where, _), took in took_s.items() if where == one) for one in spread}
    able = [one for one in spread if spread[one] >= SPREAD_LEAST]
    if not able:
        return None
    if count == 0 or len(able) <= count:
        return _made(able, spread, cost, "every condition that tells schedulers apart")
    sets = [_grown(start, able, scaled, count) for start in combinations(able, min(2, count))]
    sets = [one for one in sets if len({window for window, _ in one}) == len(one)] or sets
    fitting = [one for one in sets if sum(cost[each] for each in one) <= limit_s]
    if not fitting:
        cheapest = min(sets, key=lambda one: (sum(cost[each] for each in one), one))
        return _made(cheapest, spread, cost, "the shortest: no other fits the time either")
    best = max(fitting, key=lambda one: (_turned(one, scaled), sum(spread[each] for each in one), one))
    words = (
        "the sharpest reversals between conditions" if _turned(best, scaled) else "the largest differences"
    )
    return _made(best, spread, cost, f"{words} that fit the time")


def _made(
    chosen: Sequence[Condition], spread: Mapping[Condition, float], cost: Mapping[Condition, float], why: str
) -> Choice:
    kept = tuple(sorted(chosen))
    return Choice(kept, tuple(spread[one] for one in kept), sum(cost[one] for one in kept), why)


def _grown(
    start: tuple[Condition, ...], able: Sequence[Condition], scaled: Value, count: int
) -> tuple[Condition, ...]:
    """Add to a set what turns most against it, until there are so many."""
    chosen = start
    while len(chosen) < count:
        windows = {window for window, _ in chosen}
        rest = [one for one in able if one not in chosen]
        rest = [one for one in rest if one[0] not in windows] or rest
        chosen = (*chosen, max(rest, key=lambda one: (_turned((*chosen, one), scaled), one)))
    return tuple(sorted(chosen))


def _turned(chosen: Sequence[Condition], scaled: Value) -> float:
    """Return how much of the order turns round: over pairs of schedulers, the smaller side's gap."""
    names = sorted({name for _, name in scaled})
    total = 0.0
    for one, other in combinations(chosen, 2):
        for first, second in combinations(names, 2):
            cells = [(one, first), (one, second), (other, first), (other, second)]
            if all(cell in scaled for cell in cells):
                a, b, c, d = (scaled[cell] for cell in cells)
                total += min(abs(a - b), abs(c - d)) if (a - b) * (c - d) < 0.0 else 0.0
    return total
