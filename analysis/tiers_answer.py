"""The answer of a study of tiers: how many are worth having, for whom, by what, and how sure that is.

Reference multitier, sections 9 and 11. Everything that the report and the page show is in an ``Answer``.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.ranks import LEVEL, holm
from analysis.tiers_cost import Fleets, atom_rows, board_row, fleets, scaling
from analysis.tiers_effects import Effect, Factorial, alone_and_together, cells_of, factorial, pooled
from analysis.tiers_levels import (
    AXES,
    SYSTEMS,
    Levels,
    Travel,
    across_metrics,
    every_level,
    placebo,
    travels,
)
from analysis.tiers_results import MARGIN, METRICS, Place, Results, Setting, read_results
from analysis.tiers_words import sentences

EFFECT_METRICS = ("U", "top", "bottom")
ASKED = ("queue order", "all mechanisms")
"""Systems that the other metrics and axes are asked of."""


class Answer(NamedTuple):
    """All that a study of tiers found."""

    results: Results
    factorials: list[Factorial]  # in the plan's mix, at every number of tiers that was run
    pooled: dict[
        str, dict[str, Effect]
    ]  # metric -> effect over sources, regions and mixes at the plan's tiers
    alone: dict[str, list[dict[str, Any]]]  # metric -> what mechanisms add alone and together
    levels: list[Levels]  # by U
    by_metric: dict[str, list[Levels]]  # by the other metrics
    travel: list[Travel]
    placebo: list[tuple[Setting, str, Effect]]
    board: list[dict[str, Any]]
    atoms: list[dict[str, Any]]
    fleets: list[Fleets]
    scaling: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    sentences: list[str]


def answer(folder: Path, place: Place) -> Answer:
    """Return what the results in a folder say. Raises InputError for a folder without such results."""
    return answer_of(read_results(folder, place))


def answer_of(of: Results) -> Answer:
    """Return what these results say."""
    settings = home_settings(of)
    mixes = sorted({at.mix for at, _ in of.cells if at.mix not in ("shuffled", "misdeclared")})
    wide = [at._replace(mix=mix) for at in settings for mix in mixes]
    ran = sorted({at.tiers for at, _ in of.cells} - {1})
    factorials = [
        made for metric in EFFECT_METRICS for at in settings for k in ran
        if (made := factorial(of, at._replace(tiers=k), metric)) is not None
    ]  # fmt: skip
    levels = every_level(of, "U")
    by_metric = {metric: every_level(of, metric, ASKED) for metric in METRICS if metric != "U"}
    found = Answer(
        results=of, factorials=factorials,
        pooled={metric: pooled(of, wide, metric) for metric in EFFECT_METRICS},
        alone={metric: alone_and_together(of, wide, metric) for metric in EFFECT_METRICS},
        levels=levels, by_metric=by_metric, travel=travel_of(of, levels, by_metric), placebo=placebo(of),
        board=board(of, settings), atoms=atoms(of, settings), fleets=fleets(of), scaling=scaling(of),
        checks=[], sentences=[],
    )  # fmt: skip
    found = found._replace(checks=checks(found))
    return found._replace(sentences=sentences(found))


def home_settings(of: Results) -> list[Setting]:
    """Return the plan's own setting in each source and region."""
    return [of.at(source, region) for source in of.sources for region in of.regions]


def travel_of(of: Results, levels: Sequence[Levels], by_metric: dict[str, list[Levels]]) -> list[Travel]:
    """Return how far the sets travel along each axis and across metrics, for each system asked."""
    found: list[Travel | None] = []
    for system in ASKED:
        mine = [one for one in levels if one.system == system]
        found += [travels(of, mine, axis) for axis in AXES]
        home = [one for one in mine if one.setting.chain == of.home.chain and one.setting.mix == of.home.mix]
        for metric, others in by_metric.items():
            one = across_metrics(of, home, others)
            found.append(None if one is None else one._replace(axis=f"metric ({metric})"))
    return [one for one in found if one is not None]


def board(of: Results, settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return a line a scheduler at the plan's number of tiers, and of what ran at one tier only."""
    rows = []
    for at in settings:
        names = sorted({spec for where, spec in of.cells if where in (at, at.untiered)})
        for spec in names:
            where = at if (at, spec) in of.cells else at.untiered
            row = board_row(of, where, spec)
            if row is not None:
                rows.append(row)
    return rows


def atoms(of: Results, settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return the lines by atom of every scheduler that the board has."""
    return [
        row for at in settings
        for where in (at.untiered, at)
        for spec in sorted({spec for one, spec in of.cells if one == where})
        for row in atom_rows(of, where, spec)
    ]  # fmt: skip


def checks(found: Answer) -> list[dict[str, Any]]:
    """Return what must hold for the rest to mean anything, each with what was seen."""
    of = found.results
    gains = [one for _, _, one in found.placebo]
    beyond = [one for one in gains if one.mean > MARGIN]
    surely = holm(np.array([one.p_gain for one in gains])) if gains else np.zeros(0)
    shown = [one for one, p in zip(gains, surely, strict=True) if one.mean > MARGIN and p <= LEVEL]
    open_ = not gains or bool(beyond and not shown)
    placebo_seen = (
        f"{len(beyond)} of {len(gains)} settings gain more than the margin, {len(shown)} surely (Holm)"
    )
    cells = list(of.cells.values())
    most = max_of(cells, "batch_most")
    lost = sum(
        float(np.sum(cell.scalar("arrivals") - sum(cell.scalar(name) for name in ENDS))) for cell in cells
    )
    return [
        {"check": "the placebo gains nothing", "holds": None if open_ else not shown, "seen": placebo_seen},
        {"check": "every arrival ends once", "holds": lost == 0, "seen": f"{lost:,.0f} lost"},
        {"check": "memory is never overdrawn", "holds": max_of(cells, "kv_peak") <= 1.0 + 1e-9,
         "seen": f"at most {max_of(cells, 'kv_peak'):.1%} of an engine's KV blocks"},
        {"check": "batches keep their cap", "holds": True if most <= of.plan["fleet"]["sequences_max"] else None,
         "seen": f"at most {most:,.0f} requests taken and not finished on one engine, evicted ones among them; the "
                 f"cap is {of.plan['fleet']['sequences_max']:,}"},
        {"check": "the whole factorial ran", "holds": bool(found.factorials),
         "seen": f"{len(cells_of(of.schedulers))} of 16 cells in the plan"},
        {"check": "no run failed", "holds": not of.failures, "seen": f"{len(of.failures)} failed"},
    ]  # fmt: skip


ENDS = ("finished", "rejected", "expired", "failed")


def max_of(cells: Sequence[Any], name: str) -> float:
    """Return the greatest value of a scalar over all cells and windows."""
    return max(float(cell.scalar(name).max()) for cell in cells)


def plain(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON can hold it."""
    of = found.results
    told = {
        "plan": of.plan, "runs": of.runs, "failures": len(of.failures), "labels": of.labels, "made": of.made,
        "sentences": found.sentences, "checks": found.checks,
        "factorials": [one._asdict() for one in found.factorials], "pooled": found.pooled, "alone": found.alone,
        "levels": [with_least(one) for one in found.levels],
        "by_metric": {name: [with_least(one) for one in ones] for name, ones in found.by_metric.items()},
        "travel": found.travel, "placebo": found.placebo, "board": found.board, "atoms": found.atoms,
        "fleets": found.fleets, "scaling": found.scaling, "systems": SYSTEMS,
    }  # fmt: skip
    return dict(_plain(told))


def with_least(one: Levels) -> dict[str, Any]:
    """Return levels with K* and the number of tiers of the highest mean."""
    return one._asdict() | {"least": one.least, "best": one.best}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Counter | list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
