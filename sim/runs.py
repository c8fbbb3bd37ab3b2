"""The runs of one window, as a worker does them: read once, run, write one shard.

A run is identified by its key, which names everything that made it. A run that a policy breaks is told and
left out; the others go on.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadgen.demand import Demand, prepare, targets
from loadgen.plan import Plan, plain
from loadgen.region import Region, reached_rho, work_s
from loadgen.result import SCHEMA_VERSION, Facts, RunKey, run_row, write_shard
from loadgen.window import ManifestLine, Window, read_window
from schedulers.errors import PolicyError
from schedulers.load import load
from schedulers.policy import Scheduler
from sim.calibrate import Capacity, measure
from sim.crew import Stopped, Tell
from sim.origin import reachable, seal
from sim.outcome import Outcome
from sim.run import Setup, simulate

Summarise = Callable[..., Mapping[str, Any]]
"""``analysis.metrics.summarise``; handed in, because sim may not import analysis."""


@dataclass(frozen=True)
class Job:
    """All that the runs of one sweep share; sent to a worker with each task."""

    plan: Plan
    out: Path
    setup: Setup
    fleet: str  # canonical JSON, part of a run's key
    manifest_sha256: str
    calibration_sha256: str
    git_rev: str
    summarise: Summarise
    plan_sha256: str = ""  # of plan.json: what was declared before the runs, in each of their rows
    by_class: Summarise | None = None  # further columns of a run whose requests have atoms


class Task(NamedTuple):
    """One window and the runs that are still to do, as (region, specs)."""

    job: Job
    line: ManifestLine
    capacity: Capacity
    todo: tuple[tuple[Region, tuple[str, ...]], ...]

    @property
    def runs(self) -> list[str]:
        """Ids of the runs that are still to do."""
        return [key_of(self, region, spec).run_id for region, specs in self.todo for spec in specs]


class Failure(NamedTuple):
    """A run that left no result."""

    scheduler: str
    window: str
    region: str
    what: str


class Stored(NamedTuple):
    """So many runs are safe in a shard."""

    runs: int


class Ran(NamedTuple):
    """One run ended."""

    scheduler: str


def measure_window(task: tuple[Job, ManifestLine], tell: Tell, stopped: Stopped) -> None:
    """Tell the capacity of one window."""
    job, line = task
    if not stopped():
        tell(measure(read_window(Path(job.plan.windows), line), job.plan, job.setup))


def run_window(task: Task, tell: Tell, stopped: Stopped) -> None:
    """Do the task's runs, tell Ran, Failure and Stored, and save what is done when stopped.

    Raises InputError if the window is damaged or the shard can't be written.
    """
    if (task.job.out / "runs" / f"{shard_name(task, task.runs)}.parquet").exists():
        return  # written by a worker that died right after
    window = read_window(Path(task.job.plan.windows), task.line)
    done: list[Done] = []
    for part in task.todo:
        run_region(task, window, part, (done, tell, stopped))
    if done:
        rows = [one.row for one in done]
        kept = [
            (row["run_id"], one.facts) for row, one in zip(rows, done, strict=True) if one.facts is not None
        ]
        write_shard(task.job.out, shard_name(task, [row["run_id"] for row in rows]), rows, kept or None)
        tell(Stored(len(rows)))


class Done(NamedTuple):
    """A run's row, and its facts where the plan keeps them."""

    row: dict[str, Any]
    facts: Facts | None


def run_region(
    task: Task,
    window: Window,
    part: tuple[Region, tuple[str, ...]],
    desk: tuple[list[Done], Tell, Stopped],
) -> None:
    """Run the schedulers of one region over one demand; ``desk`` takes what is done, what is told, and a stop."""
    job, (region, specs), (done, tell, stopped) = task.job, part, desk
    demand = prepare(window, job.plan, region.factor)
    pressure = region_columns(task, window, region)
    graded = targets(job.plan)
    for spec in specs:
        if stopped():
            return
        scheduler = scheduler_of(spec)
        key = key_of(task, region, spec)
        try:
            outcome = simulate(demand, scheduler, job.setup)
        except PolicyError as error:
            tell(Failure(key.scheduler, key.window_id, key.region, str(error)))
            continue
        facts, totals = scored_facts(outcome, demand), outcome.totals
        metrics = job.summarise(facts, totals, window.scored, graded, job.plan.slo_sets)
        if job.by_class is not None and demand.atom is not None:
            metrics = {**metrics, **job.by_class(facts, demand.tier, outcome.moves, window.scored, graded)}
        row = run_row(key, facts, totals, metrics, pressure)
        done.append(Done(row, facts if job.plan.keep == "requests" else None))
        tell(Ran(key.scheduler))


def scored_facts(outcome: Outcome, demand: Demand) -> Facts:
    """Return the facts with each request's class as it is scored: its atom, where the demand has atoms."""
    return outcome.facts if demand.atom is None else outcome.facts._replace(tier=demand.atom)


def shard_name(task: Task, run_ids: Sequence[str]) -> str:
    """Return the name of the shard of these runs: the same runs get the same name, others another one."""
    return f"{task.line.id}-{hashlib.sha256(' '.join(run_ids).encode()).hexdigest()[:8]}"


def region_columns(task: Task, window: Window, region: Region) -> dict[str, Any]:
    """Return the columns that say how a region's pressure was made, and what the scored rows really met."""
    setup, capacity = task.job.setup, task.capacity
    work = work_s(window.prompt_tokens, window.output_tokens, setup.costs, setup.sequences_max)
    work = np.where(
        window.prompt_tokens < setup.capacity_tokens, work, 0.0
    )  # what is rejected is no pressure
    serve_all_s = capacity.served / capacity.capacity_per_s
    arrival_s = np.asarray(window.arrival_s) * region.factor
    return {
        "stretch": region.factor,
        "stretch_far": float(region.far),
        "capacity_per_s": capacity.capacity_per_s,
        "rho_reached": reached_rho(work, arrival_s, window.scored, serve_all_s),
        "stratum": task.line.stratum,
        "plan_sha256": task.job.plan_sha256,
    }


def key_of(task: Task, region: Region, spec: str) -> RunKey:
    """Return the key of one run."""
    job, line, scheduler = task.job, task.line, scheduler_of(spec)
    digest = source_digest(spec)
    return RunKey(
        window_id=line.id,
        window_sha256=line.content_sha256,
        manifest_sha256=job.manifest_sha256,
        source=line.source,
        label=line.label,
        split=line.split,
        scheduler=scheduler.name,
        scheduler_version=scheduler.version + (f"+{digest}" if digest else ""),
        params=params_of(spec),
        control=scheduler.control or spec in job.plan.controls,
        engine_policy=scheduler.engine.name,
        cluster_policy="+".join(part.policy.name for part in scheduler.parts),
        fleet=job.fleet,
        profile=job.plan.fleet.profile,
        region=region.name,
        rho=region.rho,
        tiers=tiers_json(job.plan),
        forecast=job.plan.forecast,
        seed=job.plan.seed,
        driver="sim",
        git_rev=job.git_rev,
        schema_version=SCHEMA_VERSION,
        calibration_sha256=job.calibration_sha256,
    )


def params_json(scheduler: Scheduler) -> str:
    """Return the values of all parameters as canonical JSON; an infinite one as text."""
    sides = {
        "engine": (scheduler.engine.params, scheduler.engine_params),
        "cluster": (scheduler.cluster.params, scheduler.cluster_params),
        **{part.policy.name: (part.policy.params, part.params) for part in scheduler.more},
    }
    told = {
        side: {
            param.name: value if math.isfinite(value) else str(value)
            for param, value in zip(declared, values, strict=True)
        }
        for side, (declared, values) in sides.items()
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=8)
def tiers_json(plan: Plan) -> str:
    """Return the plan's tiers, and its atoms if any, as canonical JSON, made once a plan and not once a run."""
    table = plain(plan)
    told = table["tiers"] if plan.atoms is None else {"atoms": table["atoms"], "tiers": table["tiers"]}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


@cache
def params_of(spec: str) -> str:
    """Return ``params_json`` of the scheduler that ``spec`` names."""
    return params_json(scheduler_of(spec))


@cache
def scheduler_of(spec: str) -> Scheduler:
    """Return the scheduler that ``spec`` names, loaded once a process."""
    return load(spec)


@cache
def source_digest(spec: str) -> str:
    """Return a digest of the code of a policy that does not ship with the product, "" for one that does.

    An edited file, helper or constant makes another scheduler: old results are never taken for its new ones.
    """
    scheduler = scheduler_of(spec)
    policies = (scheduler.engine, *(part.policy for part in scheduler.parts))
    hooks = [hook for policy in policies for hook in policy if callable(hook)]
    code = [
        found for hook in hooks for found in reachable(hook) if not found.__module__.startswith("schedulers.")
    ]
    own = {hook.__module__ for hook in hooks if not hook.__module__.startswith("schedulers.")}
    files = sorted(str(getattr(sys.modules.get(module), "__file__", None) or "") for module in own)
    if not own:
        return ""
    told = hashlib.sha256(seal(code).encode())
    for file in files:
        told.update(Path(file).read_bytes() if file else b"")
    return told.hexdigest()[:12]


def forget_policies() -> None:
    """Load every policy afresh from now on: a file may have been edited since this process loaded it."""
    scheduler_of.cache_clear()
    params_of.cache_clear()
    source_digest.cache_clear()
