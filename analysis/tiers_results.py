"""Results of a study of tiers, arranged by what was told of whose importance: one cell a scheduler and setting.

Reference multitier, sections 4 and 5. Cells that are one by theorem were run once; ``Results.cell`` finds them.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.tiers_columns import ATOMS, HISTOGRAMS, MOSTS, SCALARS, SUMS
from loadgen.result import InputError, frozen_plan, read_failures, run_shards

Floats = npt.NDArray[np.float64]

TOP, BOTTOM = 2, 6
"""Atoms below the first are the top, from the second on the bottom (reference multitier, section 5)."""

MARGIN = 0.02
"""Of attainment, weighted or not (reference statistics, section 5)."""

TOTALS = (
    "arrivals", "finished", "rejected", "expired", "failed", "engine_s", "busy_s", "kv_peak", "kv_mean", "batch_mean",
    "evictions", "recomputed_tokens", "prefill_tokens", "scored_s", "rho_reached", "stretch_far",
)  # fmt: skip
"""Numbers of a run that are read beside those of its atoms."""

METRICS = {
    "U": "attainment weighted by importance",
    "attainment": "attainment, unweighted",
    "top": "attainment of the top (atoms 0 and 1)",
    "bottom": "attainment of the bottom (atoms 6 to 9)",
    "U-flat": "weighted attainment where all have the same targets",
    "U-2": "weighted attainment, the top worth twice the bottom",
    "U-32": "weighted attainment, the top worth 32 times the bottom",
}
"""What cells are compared by; higher is better."""

Place = Callable[[str, int], tuple[str, int]]
"""``loadgen.plan_arms.runs_as``: the scheduler and tiers as which a cell ran; handed in, as analysis reads only."""


class Setting(NamedTuple):
    """Where a scheduler ran."""

    source: str
    region: str
    tiers: int
    mix: str
    chain: str
    ladder: str
    engines: int
    start: int
    boot_s: float

    @property
    def untiered(self) -> "Setting":
        """The same requests where nothing is told of their importance; placebo and lies tell, but score the same."""
        mix = {"shuffled": "enterprise", "misdeclared": "enterprise"}.get(self.mix, self.mix)
        return self._replace(tiers=1, mix=mix, chain="top-first")


class Cell(NamedTuple):
    """One scheduler in one setting, over windows."""

    windows: tuple[str, ...]
    sums: Floats  # (windows, SUMS, atoms)
    weights: Floats  # (atoms,)
    scalars: Floats  # (windows, SCALARS + TOTALS)
    mosts: Floats  # (MOSTS, atoms), over windows
    histograms: Floats  # (HISTOGRAMS, atoms, bins), over windows

    def total(self, name: str) -> Floats:
        """Return a column of SUMS, (windows, atoms)."""
        return np.asarray(self.sums[:, SUMS.index(name)], np.float64)

    def scalar(self, name: str) -> Floats:
        """Return a column of SCALARS or TOTALS, (windows,)."""
        return np.asarray(self.scalars[:, (*SCALARS, *TOTALS).index(name)], np.float64)

    def values(self, metric: str) -> Floats:
        """Return a metric of METRICS a window, NaN where nobody of its atoms arrived."""
        met = self.total("met_flat" if metric == "U-flat" else "met")
        worth = worths(metric, self.weights)
        arrived = self.total("arrivals") @ worth
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(arrived > 0, (met @ worth) / arrived, np.nan), np.float64)


def worths(metric: str, weights: Floats) -> Floats:
    """Return what each atom counts in a metric, (atoms,)."""
    atoms = np.arange(ATOMS)
    if metric == "top":
        return (atoms < TOP).astype(np.float64)
    if metric == "bottom":
        return (atoms >= BOTTOM).astype(np.float64)
    if metric == "attainment":
        return np.ones(ATOMS)
    if metric.startswith("U-") and metric != "U-flat":
        return np.asarray(float(metric[2:]) ** (1.0 - atoms / (ATOMS - 1.0)), np.float64)
    return weights


class Results(NamedTuple):
    """A study's cells, and what made them."""

    cells: dict[tuple[Setting, str], Cell]
    plan: dict[str, Any]
    home: Setting  # the plan's own setting; source and region empty
    labels: dict[str, str]
    sources: tuple[str, ...]
    regions: tuple[str, ...]
    schedulers: tuple[str, ...]  # of the factorial, as the plan names them
    runs: int
    failures: tuple[Any, ...]
    place: Place
    made: dict[str, tuple[str, ...]]  # digests and versions

    def at(self, source: str, region: str, **changed: Any) -> Setting:
        """Return the plan's setting for a source and region, with these changes."""
        return self.home._replace(source=source, region=region, **changed)

    def cell(self, setting: Setting, spec: str) -> Cell | None:
        """Return a cell, or that as which it ran; None if it did not run."""
        name, tiers = self.place(spec, setting.tiers)
        where = setting if tiers == setting.tiers else setting.untiered
        return self.cells.get((where, name))

    def levels(self, setting: Setting, spec: str) -> tuple[int, ...]:
        """Return at how many tiers a scheduler ran (or would have done the same) in a setting."""
        found = sorted({at.tiers for at, _ in self.cells})
        return tuple(k for k in found if self.cell(self.told(setting, k), spec) is not None)

    def told(self, setting: Setting, tiers: int) -> Setting:
        """Return the setting with another number of tiers; with one, nothing can be told wrongly."""
        return setting.untiered if tiers == 1 else setting._replace(tiers=tiers)


def aligned(cells: Sequence[Cell], metric: str) -> tuple[tuple[str, ...], Floats]:
    """Return the windows that all cells have with the metric defined, and its values, (cells, windows)."""
    shared = sorted(set(cells[0].windows).intersection(*(cell.windows for cell in cells[1:])))
    values = np.array([[*_by_window(cell, metric, shared)] for cell in cells]).reshape(
        len(cells), len(shared)
    )
    known = ~np.isnan(values).any(axis=0)
    return tuple(np.asarray(shared, object)[known]), values[:, known]


def _by_window(cell: Cell, metric: str, windows: Sequence[str]) -> Floats:
    at = {name: place for place, name in enumerate(cell.windows)}
    return cell.values(metric)[[at[name] for name in windows]]


def read_results(folder: Path, place: Place) -> Results:
    """Read a study's folder a shard at a time. Raises InputError for one without atoms, or without results."""
    plan = frozen_plan(Path(folder))
    if not plan.get("atoms"):
        fix = "name the results of `windtunnel study tiers`"
        raise InputError("these results are of no study of tiers", where=str(folder), fix=fix)
    gathered: dict[tuple[Setting, str], dict[str, list[Any]]] = {}
    labels: dict[str, str] = {}
    rhos: dict[str, float] = {}
    made: dict[str, set[str]] = {}
    runs = 0
    for shard in run_shards(Path(folder)):
        runs += shard.num_rows
        _gather(shard, gathered)
        labels |= dict(zip(shard["source"].to_pylist(), shard["label"].to_pylist(), strict=True))
        rhos |= dict(zip(shard["region"].to_pylist(), shard["rho"].to_pylist(), strict=True))
        for name in ("git_rev", "manifest_sha256", "calibration_sha256", "plan_sha256", "profile", "fleet"):
            made.setdefault(name, set()).update(shard[name].unique().to_pylist())
    cells = {key: _cell(parts) for key, parts in gathered.items()}
    atoms, cluster = plan["atoms"], plan.get("cluster") or {}
    home = Setting(
        "", "", atoms["tiers"], atoms["mix"], atoms["chain"], atoms["ladder"], plan["fleet"]["engines"],
        cluster.get("start", 0), cluster.get("boot_s", 60.0),
    )  # fmt: skip
    return Results(
        cells, plan, home, labels, tuple(sorted(labels)), tuple(sorted(rhos, key=rhos.__getitem__)),
        tuple(plan["schedulers"]), runs, read_failures(Path(folder)), place,
        {name: tuple(sorted(found)) for name, found in made.items()},
    )  # fmt: skip


def _gather(shard: Any, into: dict[tuple[Setting, str], dict[str, list[Any]]]) -> None:
    """Add a shard's runs to their cells."""
    if "atom_arrivals" not in shard.column_names:
        return
    count = shard.num_rows
    lists = {name: _rows(shard, f"atom_{name}", count) for name in ("weight", *SUMS, *MOSTS)}
    latencies = [
        _rows(shard, f"atom_{name}_histogram", count).reshape(count, ATOMS, -1) for name in HISTOGRAMS
    ]
    sums = np.stack([lists[name] for name in SUMS], axis=1)
    mosts = np.stack([lists[name] for name in MOSTS], axis=1)
    histograms = np.stack(latencies, axis=1)
    scalars = np.stack([_numbers(shard, name) for name in (*SCALARS, *TOTALS)], axis=1)
    columns = [
        shard[name].to_pylist() for name in ("source", "region", "tiers", "fleet", "scheduler", "window_id")
    ]
    for i, (source, region, tiers, fleet, scheduler, window) in enumerate(zip(*columns, strict=True)):
        setting = Setting(source, region, *_told(tiers), *_fleet(fleet))
        parts = into.setdefault((setting, scheduler), {"windows": [], "sums": [], "scalars": []})
        parts["windows"].append(window)
        parts["sums"].append(sums[i])
        parts["scalars"].append(scalars[i])
        parts["weights"] = [lists["weight"][i]]
        known = parts.get("mosts")
        parts["mosts"] = [mosts[i] if known is None else np.maximum(known[0], mosts[i])]
        parts["histograms"] = [histograms[i] + (parts["histograms"][0] if "histograms" in parts else 0.0)]


def _cell(parts: dict[str, list[Any]]) -> Cell:
    order = np.argsort(np.asarray(parts["windows"], object), kind="stable")
    return Cell(
        tuple(parts["windows"][i] for i in order), np.stack(parts["sums"])[order], parts["weights"][0],
        np.stack(parts["scalars"])[order], parts["mosts"][0], parts["histograms"][0],
    )  # fmt: skip


def _rows(shard: Any, name: str, count: int) -> Floats:
    flat = shard[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64).reshape(count, -1)


def _numbers(shard: Any, name: str) -> Floats:
    return np.asarray(shard[name].to_numpy(), np.float64)


@cache
def _told(tiers: str) -> tuple[int, str, str, str]:
    """Return tiers, mix, chain and ladder of a run's column."""
    atoms = json.loads(tiers)["atoms"]
    return atoms["tiers"], atoms["mix"], atoms["chain"], atoms["ladder"]


@cache
def _fleet(fleet: str) -> tuple[int, int, float]:
    """Return engines, those that serve from the start, and the boot time, of a run's column."""
    told = json.loads(fleet)
    cluster = told.get("cluster") or {}
    return told["engines"], cluster.get("start", 0), cluster.get("boot_s", 60.0)
