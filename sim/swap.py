"""Swaps: the runs that say which axis of the traffic turns an order between two sources.

Reference statistics, section 9. Windows of two sources are paired; every mixture of their axes is frozen as
windows, brought to the same pressure by the usual calibration, and swept by the plan's schedulers. The SLO
axis swaps tiers, so a mixture is a set of windows and a set of tiers; equal sets are run once.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadgen.hybrid import COLUMNS, cross, freeze_made, has_tenants
from loadgen.plan import Plan, TierSpec, plain
from loadgen.result import done_ids
from loadgen.window import ManifestLine, Window, read_window
from schedulers.errors import InputError
from schedulers.load import load
from sim.calibrate import read_calibration, setup_of, write_calibration
from sim.crew import Crew
from sim.outcome import idle_service
from sim.run import Setup
from sim.runs import Failure, Summarise
from sim.sweep import Notice, open_job, sweep

TIGHTNESS, ABSOLUTE = "tightness", "absolute"
"""What the SLO axis swaps: how tight targets are beside the idle service, or the targets as they stand."""

Subset = frozenset[str]
"""The axes that come from the other source; those left come from the base."""


class Idle(NamedTuple):
    """Medians over a source's requests, each alone on an idle engine, in seconds."""

    ttft: float
    tpot: float
    e2e: float


class Sides(NamedTuple):
    """Two sources, the base first, with the same number of windows each: pair i is row i of both."""

    sources: tuple[str, str]
    windows: tuple[tuple[Window, ...], tuple[Window, ...]]


class Cell(NamedTuple):
    """Where the runs of one mixture lie: folder, source's name in it, and the window of each pair."""

    folder: Path
    source: str
    windows: tuple[str, ...]


class Swap(NamedTuple):
    """Everything that an attribution runs; ``cells`` has one entry a subset of ``axes``."""

    axes: tuple[str, ...]
    idle: tuple[Idle, Idle]
    cells: dict[Subset, Cell]
    plans: dict[Path, Plan]  # folder of results -> the plan swept into it
    same_slo: bool


class Ran(NamedTuple):
    """What running a swap did; runs."""

    total: int
    now: int
    failures: tuple[Failure, ...]


def pick_sides(plan: Plan, lines: Sequence[ManifestLine], sources: tuple[str, str], count: int = 0) -> Sides:
    """Read ``count`` windows of each source (0: as many as both have), spread over strata alike.

    Pairs are made within equal strata as far as both sources have them. Raises InputError for a source
    without windows, or with fewer than asked for.
    """
    if sources[0] == sources[1]:
        raise InputError("a source can't be compared with itself", where="--sources", fix="name two sources")
    orders = []
    for source in sources:
        own = [line for line in lines if line.source == source]
        if not own:
            known = ", ".join(sorted({line.source for line in lines}))
            raise InputError(f"no windows of {source}", where="--sources", fix=f"name two of: {known}")
        orders.append(spread(own))
    least = min(len(order) for order in orders)
    if count > least:
        raise InputError(
            f"{count} windows were asked for, the sources have {' and '.join(str(len(one)) for one in orders)}",
            where="--windows",
            fix=f"ask for at most {least}",
        )
    folder = Path(plan.windows)
    chosen = [
        sorted(order[: count or least], key=lambda line: (line.stratum, line.content_sha256))
        for order in orders
    ]
    first, second = (tuple(read_window(folder, line) for line in side) for side in chosen)
    return Sides(sources, (first, second))


def spread(lines: Sequence[ManifestLine]) -> list[ManifestLine]:
    """Return the lines so that any first few are spread over strata: the first of each, then the second."""
    turn: dict[str, int] = {}
    keyed = []
    for line in sorted(lines, key=lambda line: line.content_sha256):
        turn[line.stratum] = turn.get(line.stratum, -1) + 1
        keyed.append((turn[line.stratum], line.stratum, line))
    return [line for *_, line in sorted(keyed, key=lambda one: one[:2])]


def idle_medians(windows: Sequence[Window], setup: Setup) -> Idle:
    """Return the median idle service of the windows' requests; TPOT over those of two tokens or more."""
    prompt = np.concatenate([window.prompt_tokens for window in windows])
    output = np.concatenate([window.output_tokens for window in windows])
    ttft, e2e = idle_service(prompt, output, setup)
    several = output > 1
    tpot = (e2e - ttft)[several] / (output[several] - 1)
    return Idle(
        float(np.median(ttft)),
        float(np.median(tpot)) if several.any() else float("nan"),
        float(np.median(e2e)),
    )


def scaled(tiers: Sequence[TierSpec], lengths: Idle, slo: Idle) -> tuple[TierSpec, ...]:
    """Return targets as tight for traffic whose idle service is ``lengths`` as ``tiers`` are for ``slo``'s.

    A target that one of them has no idle service for, or that is infinite, stays.
    """
    ratio = {
        "ttft_s": lengths.ttft / slo.ttft,
        "tpot_s": lengths.tpot / slo.tpot,
        "e2e_s": lengths.e2e / slo.e2e,
    }
    return tuple(
        replace(tier, **{key: getattr(tier, key) * by for key, by in ratio.items() if np.isfinite(by)})
        for tier in tiers
    )


def tiers_for(
    plan: Plan, idle: tuple[Idle, Idle], slo: str, other: Sequence[TierSpec], taken: Subset
) -> tuple[TierSpec, ...]:
    """Return the tiers of a mixture; ``other`` are those of the other source where ``slo`` names a plan.

    Under TIGHTNESS a source's SLO set is how tight the plan's targets are beside its own idle service: both
    ends, all axes from one source, keep the plan's targets to the bit.
    """
    of_lengths, of_slo = int("lengths" in taken), int("slo" in taken)
    if slo == ABSOLUTE:
        return plan.tiers
    if slo == TIGHTNESS:
        return (
            plan.tiers if of_lengths == of_slo else scaled(plan.tiers, idle[of_lengths], idle[1 - of_lengths])
        )
    return tuple(other) if of_slo else plan.tiers


def lay_out(plan: Plan, sides: Sides, out: Path, slo: str, other: Sequence[TierSpec] = ()) -> Swap:
    """Freeze the windows of every mixture below ``out`` and say where its runs will lie.

    ``plan`` names one region. ``out`` gets a folder of its own a (sources, windows, plan, slo), so that the
    same attribution goes on where it was and another one never mixes with it.
    """
    setup = setup_of(plan)
    idle = (idle_medians(sides.windows[0], setup), idle_medians(sides.windows[1], setup))
    traffic = ("arrivals", "lengths", *(["tenants"] if tenants_matter(plan, sides) else []))
    axes = (*traffic[:2], "slo", *traffic[2:])
    home = out / name_of(plan, sides, slo, other)
    made: dict[Subset, list[Window]] = {}
    for taken in subsets(traffic):
        whole = taken if "tenants" in traffic or "arrivals" not in taken else taken | {"tenants"}
        assert whole <= COLUMNS.keys()
        made[taken] = [cross(one, two, whole) for one, two in zip(*sides.windows, strict=True)]
    unique = {window.line.id: window for windows in made.values() for window in windows}
    freeze_made(home / "windows", list(unique.values()))
    plans: dict[Path, Plan] = {}
    folders: dict[tuple[TierSpec, ...], Path] = {}
    cells: dict[Subset, Cell] = {}
    for taken in subsets(axes):
        tiers = tiers_for(plan, idle, slo, other, taken)
        if tiers not in folders:
            folders[tiers] = home / f"tiers-{len(folders)}"
            plans[folders[tiers]] = replace(
                plan, name=f"{plan.name}-swap", controls=(), tiers=tiers, windows=str(home / "windows"),
                keep="sketch",
            )  # fmt: skip
        windows = made[taken - {"slo"}]
        ids = tuple(window.line.id for window in windows)
        cells[taken] = Cell(folders[tiers], windows[0].line.source, ids)
    same = all(cells[taken] == cells[taken | {"slo"}] for taken in subsets(traffic))
    return Swap(axes, idle, cells, plans, same)


def tenants_matter(plan: Plan, sides: Sides) -> bool:
    """Return whether tenants are an axis: the windows tell conversations, and somebody asks whose one is.

    A scheduler asks if it declares to read tenants; measures of fairness do where tiers are no groups.
    Otherwise tenants travel with the arrivals, and could move nothing.
    """
    asked = len(plan.tiers) < 2 or any(
        "tenant" in (*scheduler.engine.reads, *scheduler.cluster.reads)
        for scheduler in map(load, plan.schedulers)
    )
    return asked and has_tenants([*sides.windows[0], *sides.windows[1]])


def subsets(axes: Sequence[str]) -> list[Subset]:
    """Return every subset of the axes, smaller ones first."""
    return [frozenset(one) for size in range(len(axes) + 1) for one in combinations(axes, size)]


def name_of(plan: Plan, sides: Sides, slo: str, other: Sequence[TierSpec]) -> str:
    """Return the folder's name of this very attribution."""
    told: dict[str, Any] = plain(replace(plan, windows="", controls=()))
    ids = [[window.line.content_sha256 for window in side] for side in sides.windows]
    text = json.dumps([told, ids, slo, [repr(tier) for tier in other]], sort_keys=True)
    return f"{sides.sources[0]}--{sides.sources[1]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_swap(swap: Swap, crew: Crew, notice: Notice, summarise: Summarise, git_rev: str) -> Ran:
    """Run what is not stored yet of every mixture; a window's capacity is measured once for all tiers."""
    known = None
    total = now = 0
    failures: list[Failure] = []
    for folder, plan in swap.plans.items():
        job, lines = open_job(plan, folder, summarise, git_rev)
        wanted = {name for cell in swap.cells.values() if cell.folder == folder for name in cell.windows}
        chosen = [line for line in lines if line.id in wanted]
        if known is not None and not read_calibration(folder)[0]:
            write_calibration(folder, known)
        swept = sweep(job, chosen, crew, notice)
        known = list(read_calibration(folder)[0].values())
        total, now = total + len(done_ids(folder)), now + swept.stored_now
        failures += swept.failures
    return Ran(total, now, tuple(failures))
