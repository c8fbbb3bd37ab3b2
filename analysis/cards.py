"""Cards: what a sweep says about one scheduler, in a few lines."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from analysis.answers import REVERSAL, Statistics
from analysis.figures import by_mean_rank, labelled, metric_places
from analysis.findings import Findings, Key
from analysis.numerals import number
from analysis.ranks import Row
from analysis.words import parameter_words


class Card(NamedTuple):
    """One scheduler: its name, what it was run with, its mean rank, and what was found."""

    name: str
    version: str
    params: str
    mean_rank: float  # over conditions under the primary metric, NaN if never ranked
    lines: tuple[tuple[str, str], ...]  # what it is about, what was found


def cards(of: Findings, stats: Statistics | None) -> tuple[Card, ...]:
    """Return a card a ranked scheduler, best mean rank first."""
    once = of.study.runs.drop_duplicates("scheduler").set_index("scheduler")
    by_metric = {column: metric_places(of, column)[0] for column in of.study.metrics}
    found = []
    for name in by_mean_rank(of):
        rows = _rows(of, name)
        told = parameter_words(str(once.loc[name, "params"]))
        lines = [*_places(of, name, rows), *_levels(of, rows), _metrics(name, by_metric)]
        lines += [_reversals(stats, name)] if stats else []
        twins = of.study.twins.get(name, ())
        lines += [("Same as", ", ".join(twins) + ": equal results in every run")] if twins else []
        mean_rank = float(np.mean([row.rank for row in rows.values()])) if rows else float("nan")
        kept = tuple(line for line in lines if line[1])
        found.append(Card(name, str(once.loc[name, "scheduler_version"]), told, mean_rank, kept))
    return tuple(found)


def _rows(of: Findings, name: str) -> dict[Key, Row]:
    return {
        key: row
        for key, ranking in of.rankings.items()
        if key[2] == of.study.primary
        for row in ranking.rows
        if row.scheduler == name
    }


def _places(of: Findings, name: str, rows: dict[Key, Row]) -> list[tuple[str, str]]:
    """Say how often it came first or was not shown worse, and where it did best and worst."""
    told = [key for key in rows if of.rankings[key].informative]
    if not told:
        return [("Places", "no condition in which schedulers differ by more than the margin ranks it")]
    names = labelled(of.study)
    first = sum(rows[key].rank == 1 for key in told)
    tested = [key for key in told if of.rankings[key].testable]
    top = "too few windows to show it worse than the best"
    if tested:
        top = f"not shown worse than the best in {sum(rows[key].in_top for key in tested)} of {len(tested)}"
    best, worst = min(told, key=lambda key: rows[key].rank), max(told, key=lambda key: rows[key].rank)
    where = " to ".join(f"rank {rows[key].rank} ({names[key[0]]}, rho {key[1]})" for key in (best, worst))
    same = rows[best].rank == rows[worst].rank
    spread = f"rank {rows[best].rank} everywhere" if same else where
    return [("Places", f"best mean in {first} of {len(told)} conditions; {top}"), ("Spread", spread)]


def _levels(of: Findings, rows: dict[Key, Row]) -> list[tuple[str, str]]:
    """Say its means at the lowest, the usual and the highest load, as a range over sources."""
    regions = of.study.regions
    usual = min(regions, key=lambda region: abs(float(region) - 0.95)) if regions else ""
    parts = []
    for region in dict.fromkeys((regions[0], usual, regions[-1])):
        means = [row.mean for key, row in rows.items() if key[1] == region]
        if means:
            low, high = number(min(means)), number(max(means))
            parts.append(f"{low if low == high else f'{low} to {high}'} at rho {region}")
    return [(of.study.primary, ", ".join(parts))]


def _metrics(name: str, by_metric: dict[str, dict[str, float]]) -> tuple[str, str]:
    """Say by which metric it ranks best and worst."""
    own = {column: places[name] for column, places in by_metric.items() if name in places}
    if len(own) < 2:
        return ("Metrics", "")
    best, worst = min(own, key=lambda column: own[column]), max(own, key=lambda column: own[column])
    return ("Metrics", f"best by {best} (mean rank {own[best]:.1f}), worst by {worst} ({own[worst]:.1f})")


def _reversals(stats: Statistics, name: str) -> tuple[str, str]:
    """Say in how many hypotheses between sources its order with another reverses, and with whom most often."""
    family = next((one for one in stats.families if one.name == "sources"), None)
    if family is None or not len(family.table):
        return ("Reversals", "")
    mine = family.table[(family.table["a"] == name) | (family.table["b"] == name)]
    lost = mine[mine["outcome"] == REVERSAL]
    partners = Counter(b if a == name else a for a, b in zip(lost["a"], lost["b"], strict=True))
    if not partners:
        return ("Reversals", f"none shown in {len(mine)} comparisons between sources")
    partner, times = partners.most_common(1)[0]
    return ("Reversals", f"{len(lost)} of {len(mine)} between sources, most with {partner} ({times})")
