"""Scores: the runs of a sweep arranged as one matrix a condition, schedulers by windows, higher is better."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.completeness import expected_runs, incomplete_words
from analysis.declared import Declared, read_declared
from analysis.metrics import METRICS, SLO_SETS, orient, split_column
from loadgen.result import FailedRun, InputError, frozen_plan, read_failures, read_runs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PANEL = (
    "ttft_p95_s",
    "itl_p95_s",
    "e2e_mean_s",
    "slowdown_e2e_mean",
    "throughput_tokens_per_s",
)
"""Metrics ranked beside the primary one: the panel of reference statistics, section 10, and mean E2E."""


class Study(NamedTuple):
    """The runs of one sweep and what can be compared in them."""

    runs: pd.DataFrame
    rows: dict[tuple[str, str], Ints]  # (source, region) -> rows of ``runs``
    plan: dict[str, Any]  # plan.json as frozen, {} if absent
    sources: tuple[str, ...]
    regions: tuple[str, ...]  # by rising pressure
    schedulers: tuple[str, ...]  # ranked; exact duplicates merged
    controls: tuple[str, ...]  # reported, never ranked
    twins: dict[str, tuple[str, ...]]  # a ranked scheduler -> others that gave the same bytes
    primary: str  # column
    expected: int = 0  # runs that the plan asks for, 0 if unknown
    failures: tuple[FailedRun, ...] = ()  # runs that left no result
    declared: Declared = read_declared({})
    valued: frozenset[str] = frozenset()  # columns in which some run has a value

    @property
    def incomplete(self) -> str:
        """Say "229 of 336 runs: incomplete", or "" for a sweep that ran all its plan (or whose plan is unknown)."""
        return incomplete_words(int(self.runs["run_id"].nunique()), self.expected, len(self.failures))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Columns compared by default: the primary, and the plan's panel.

        Without one: the worst group under the primary's SLO set, and ``PANEL``.
        """
        slo = split_column(self.primary)[1]
        panel = self.declared.panel or (*([f"worst_group_{slo}"] if slo else []), *PANEL)
        return self._known((self.primary, *panel))

    @property
    def slo_columns(self) -> tuple[str, ...]:
        """The primary metric under every SLO set that was scored, () if it has none."""
        metric, slo = split_column(self.primary)
        return self._known(tuple(f"{metric}_{name}" for name in SLO_SETS)) if slo else ()

    def _known(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(names) if name in self.valued)

    @property
    def labels(self) -> dict[str, str]:
        """Source -> label ("real", "surrogate" ...); several labels of one source are joined by +."""
        pairs = self.runs[["source", "label"]].drop_duplicates().sort_values(["source", "label"])
        return {str(source): "+".join(group["label"]) for source, group in pairs.groupby("source")}


class Failed(NamedTuple):
    """A scheduler that failed in some windows of a condition: undefined there, whatever it did in the others."""

    scheduler: str
    windows: int  # in which it failed
    of: int  # windows of the condition

    @property
    def words(self) -> str:
        """Say "undefined: failed in 3 of 4 windows"."""
        return f"undefined: failed in {self.windows} of {self.of} windows"


class Scores(NamedTuple):
    """One condition: ``values`` (schedulers, windows) oriented so that higher is better, no NaN."""

    source: str
    region: str
    column: str
    schedulers: tuple[str, ...]
    windows: tuple[str, ...]
    strata: tuple[str, ...]  # one a window, "" if unknown
    values: Floats
    left_out: dict[str, int]  # scheduler -> windows in which its metric is undefined
    windows_lost: int  # windows that some scheduler has not run, or in which nobody has a value
    failed: tuple[Failed, ...] = ()  # left out too
    delta: float | None = None  # a margin of its own

    @property
    def margin(self) -> float:
        """The practical margin delta on the compared scale: the declared one, or that of the metric."""
        return METRICS[split_column(self.column)[0]].margin if self.delta is None else self.delta

    @property
    def means(self) -> Floats:
        """Mean over windows a scheduler, shape (schedulers,)."""
        if not self.values.size:
            return np.full(len(self.schedulers), np.nan)
        return np.asarray(self.values.mean(axis=1), np.float64)

    @property
    def informative(self) -> bool:
        """Whether schedulers differ by more than the margin: a cell where all reach 1 (or 0) can't rank."""
        means = self.means
        return bool(len(means) > 1 and means.max() - means.min() > self.margin)


def study(folder: Path, primary: str = "") -> Study:
    """Read a sweep's folder. ``primary`` is a column such as "attainment_S2"; "" takes the plan's.

    Raises InputError for a folder without results, damaged shards, mixed plans, or an unknown metric.
    """
    runs = read_runs(Path(folder), sketches=False)
    _refuse_mixtures(runs, Path(folder))
    plain = [name for name in ("scheduler", "window_id", "stratum") if name in runs]
    runs[plain] = runs[plain].astype(object)  # arrow's strings are converted anew at each look
    plan = frozen_plan(Path(folder))
    failures = read_failures(Path(folder))
    column = _primary(runs, primary or str(plan.get("primary", "")), primary)
    ranked = tuple(sorted(runs.loc[~runs["control"], "scheduler"].unique()))
    twins = _twins(runs, ranked, failures)
    merged = {name for names in twins.values() for name in names}
    cells = runs.groupby(["source", "region"]).indices
    rows_of = {key: np.asarray(at, np.int64) for key, at in cells.items() if isinstance(key, tuple)}
    by_pressure = runs[["region", "rho"]].drop_duplicates("region").sort_values("rho")
    return Study(
        runs=runs,
        rows=rows_of,
        plan=plan,
        sources=tuple(sorted(runs["source"].unique())),
        regions=tuple(by_pressure["region"]),
        schedulers=tuple(name for name in ranked if name not in merged),
        controls=tuple(sorted(runs.loc[runs["control"], "scheduler"].unique())),
        twins=twins,
        primary=column,
        expected=expected_runs(Path(folder)),
        failures=failures,
        declared=read_declared(plan),
        valued=frozenset(str(name) for name in runs.columns[runs.notna().any()]),
    )


def failed_in(of: Study, source: str, region: str, names: Sequence[str] = ()) -> tuple[Failed, ...]:
    """Return who failed in one condition, of ``names`` (default: all but controls), by name.

    Whoever failed everywhere left no row, and is a control only if the plan says so.
    """
    controls = {*of.controls, *map(str, of.plan.get("controls", ()))}
    lost: dict[str, set[str]] = {}
    for run in of.failures:
        wanted = run.scheduler in names if names else run.scheduler not in controls
        if wanted and run.region == region and _source_of(of, run.window_id) == source:
            lost.setdefault(run.scheduler, set()).add(run.window_id)
    if not lost:
        return ()
    rows = of.rows.get((source, region), np.zeros(0, np.int64))
    windows = set(of.runs["window_id"].to_numpy(object)[rows]).union(*lost.values())
    return tuple(Failed(name, len(lost[name]), len(windows)) for name in sorted(lost))


def _source_of(of: Study, window: str) -> str:
    """Return a window's source: that of its runs, or the one its id begins with if it has none."""
    known = of.runs.loc[of.runs["window_id"] == window, "source"]
    if len(known):
        return str(known.iloc[0])
    return max((one for one in of.sources if window.startswith(f"{one}-")), key=len, default="")


def scores(of: Study, source: str, region: str, column: str, names: Sequence[str] = ()) -> Scores:
    """Return one condition's matrix over ``names`` (default: the ranked schedulers).

    Windows that some scheduler lacks are dropped; a scheduler whose metric is undefined in a window that is
    left is left out of the condition and counted, never imputed. One that failed in any window is left out
    with all its windows, and drops none of the others'.
    """
    if column not in of.runs:
        raise InputError(f"these results have no metric {column!r}", where="--metric", fix=_offer(of.runs))
    wanted = tuple(names) or of.schedulers
    failed = failed_in(of, source, region, names)
    wanted = tuple(name for name in wanted if name not in {one.scheduler for one in failed})
    rows = of.rows.get((source, region), np.zeros(0, np.int64))
    rows = rows[np.isin(of.runs["scheduler"].to_numpy(object)[rows], wanted)]
    windows, window_at = np.unique(of.runs["window_id"].to_numpy(object)[rows], return_inverse=True)
    places = {name: place for place, name in enumerate(wanted)}
    scheduler_at = [places[name] for name in of.runs["scheduler"].to_numpy(object)[rows]]
    ran = np.zeros((len(wanted), len(windows)), np.bool_)
    values = np.full(ran.shape, np.nan)
    ran[scheduler_at, window_at] = True
    values[scheduler_at, window_at] = orient(of.runs[column].to_numpy(np.float64)[rows], column)
    strata = np.full(len(windows), "", object)
    if "stratum" in of.runs:
        strata[window_at] = of.runs["stratum"].fillna("").astype(str).to_numpy(object)[rows]
    present = np.asarray(ran.any(axis=1), np.bool_)
    kept = np.asarray(ran[present].all(axis=0) & (~np.isnan(values)).any(axis=0), np.bool_)
    undefined = np.asarray(np.isnan(values[:, kept]).sum(axis=1), np.int64)
    inside = present & (undefined == 0) & bool(kept.any())
    out = {name: int(undefined[place] if present[place] else len(kept)) for name, place in places.items()}
    return Scores(
        source=source,
        region=region,
        column=column,
        schedulers=tuple(name for name, place in places.items() if inside[place]),
        windows=tuple(windows[kept]),
        strata=tuple(strata[kept]),
        values=values[np.ix_(inside, kept)],
        left_out={name: out[name] for name, place in places.items() if not inside[place]},
        windows_lost=int((~kept).sum()),
        failed=failed,
        delta=of.declared.margin(column),
    )


def every_score(of: Study) -> dict[tuple[str, str, str], Scores]:
    """Return the matrix of every condition compared by default, by (source, region, column)."""
    return {
        (source, region, column): scores(of, source, region, column)
        for source in of.sources
        for region in of.regions
        for column in of.metrics
    }


def _primary(runs: pd.DataFrame, wanted: str, asked: str) -> str:
    """Return the column to rank by; what the user asked for must exist, the plan's falls back to any
    attainment.
    """
    if wanted in METRICS and METRICS[wanted].by_slo:
        found = [f"{wanted}_{slo}" for slo in SLO_SETS if f"{wanted}_{slo}" in runs]
        if found:
            return found[0]
    if wanted:
        metric, slo = split_column(wanted)
        column = f"{metric}_{slo}" if slo else metric
        if column in runs:
            return column
        if asked:
            raise InputError(f"these results have no metric {column!r}", where="--metric", fix=_offer(runs))
    usual = ["attainment_tier", "attainment_S2", *(f"attainment_{slo}" for slo in SLO_SETS)]
    found = [name for name in usual if name in runs]
    if not found:
        raise InputError("no attainment in these results", where="runs", fix=_offer(runs))
    return found[0]


def _offer(runs: pd.DataFrame) -> str:
    names = []
    for name in runs.columns:
        try:
            split_column(str(name))
            names.append(str(name))
        except InputError:
            continue
    return f"choose from {', '.join(names)}" if names else "run the sweep again"


_MADE_OF = ("manifest_sha256", "fleet", "tiers", "forecast", "seed", "driver", "schema_version", "params")


def _refuse_mixtures(runs: pd.DataFrame, folder: Path) -> None:
    """Raise if a scheduler has two runs on one window in one region: results of several plans don't mix."""
    twice = runs[runs.duplicated(["scheduler", "window_id", "region"], keep=False)]
    if len(twice):
        first = twice[twice["window_id"] == twice["window_id"].iloc[0]]
        differ = [name for name in (*_MADE_OF, "run_id") if first[name].nunique() > 1] or ["run_id"]
        raise InputError(
            f"{len(twice)} runs share scheduler, window and region but differ in {', '.join(differ)}",
            where=str(folder),
            fix="give each plan a folder of its own (`windtunnel sweep --out`)",
        )


def _twins(
    runs: pd.DataFrame, ranked: Sequence[str], failures: Sequence[FailedRun]
) -> dict[str, tuple[str, ...]]:
    """Return ranked schedulers that did exactly the same in every run, the first of each by name as
    the key.
    """
    numbers = [name for name in runs.columns if _is_metric(name)] + ["steps", "busy_s", "evictions"]
    same: dict[str, list[str]] = {}
    for name in ranked:
        rows = runs[runs["scheduler"] == name].sort_values(["window_id", "region"])
        digest = hashlib.sha256("|".join(rows["window_id"] + rows["region"]).encode())
        lost = [f"{run.window_id}|{run.region}" for run in failures if run.scheduler == name]
        digest.update("\n".join(["", *lost, ""]).encode())
        digest.update(np.ascontiguousarray(rows[numbers].to_numpy(np.float64)).tobytes())
        same.setdefault(digest.hexdigest(), []).append(name)
    return {names[0]: tuple(names[1:]) for names in same.values() if len(names) > 1}


def _is_metric(name: str) -> bool:
    try:
        split_column(name)
    except InputError:
        return False
    return True
