"""The sweep: every scheduler on every window in every region, over all cores, resumable at any moment.

A task is one window, and its shard is written when its runs are done: a crash costs at most one window a
worker, and memory does not grow with the number of runs. What is stored is never run again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.manifest import manifest_sha256, read_manifest
from loadgen.plan import Plan, plain, toml
from loadgen.plan_arms import variants
from loadgen.region import place
from loadgen.result import PLAN_REMEDY, done_ids, drop_factless, write_failures
from loadgen.window import ManifestLine
from schedulers.errors import InputError
from schedulers.load import load
from sim.calibrate import (
    NEUTRAL,
    Capacity,
    fleet_json,
    missing,
    read_calibration,
    setup_of,
    write_calibration,
    write_text,
)
from sim.crew import SILENCE_S, Lost, Pool
from sim.run import prepare_compiled
from sim.runs import (
    Failure,
    Job,
    Stored,
    Summarise,
    Task,
    forget_policies,
    key_of,
    measure_window,
    run_window,
    source_digest,
)


class Step(NamedTuple):
    """Progress: ``done`` of ``total`` in stage "compile", "calibrate" or "sweep"; ``name`` says of what."""

    stage: str
    done: int
    total: int
    name: str = ""


class Swept(NamedTuple):
    """What a sweep did; runs."""

    total: int
    stored_before: int
    stored_now: int
    failures: tuple[Failure, ...]


Notice = Callable[[Step | Failure], None]


def open_job(
    plan: Plan,
    out: Path,
    summarise: Summarise,
    git_rev: str = "unknown",
    by_class: Summarise | None = None,
) -> tuple[Job, list[ManifestLine]]:
    """Check all that can be checked before the first run, return job and windows; nothing is written.

    Raises InputError for an unknown scheduler, two of one name, a bad profile, and windows that are missing or none.
    """
    forget_policies()
    names: dict[str, str] = {}
    for spec in plan.specs:
        name = load(spec).name
        if name in names:
            raise InputError(
                f"{spec!r} and {names[name]!r} are one scheduler: {name}",
                where="schedulers",
                fix="name it once",
            )
        names[name] = spec
    if not plan.windows:
        raise InputError("the plan names no windows", where="windows", fix=NAME_WINDOWS)
    lines = list(read_manifest(Path(plan.windows)))
    setup = setup_of(plan)
    manifest = manifest_sha256(Path(plan.windows))
    fleet = fleet_json(plan, setup)
    job = Job(plan, Path(out), setup, fleet, manifest, "", git_rev, summarise, by_class=by_class)
    return replace(job, plan_sha256=frozen_plan(job)["digest"]), lines


def freeze(job: Job) -> None:
    """Write plan.toml and plan.json into the job's folder, or refuse if they are there and differ.

    plan.json pins the windows by their manifest; plan.toml says where they lay, seen from that file, so that
    it can be run again here, and wherever both folders are copied together.
    """
    path = job.out / "plan.json"
    if path.exists():
        refuse_another(job)
        return
    write_text(job.out / "plan.toml", toml(replace(job.plan, windows=seen_from(job.out, job.plan.windows))))
    write_text(path, json.dumps(frozen_plan(job), indent=2, sort_keys=True) + "\n")


def frozen_plan(job: Job) -> dict[str, Any]:
    """Return what plan.json holds: the plan, its windows by digest, and the digests of policies from files."""
    plan = job.plan
    policies = {spec: digest for spec in plan.specs if (digest := source_digest(spec))}
    frozen = plain(replace(plan, windows="")) | {
        "manifest_sha256": job.manifest_sha256,
        "policies": policies,
    }
    frozen["digest"] = hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()
    return frozen


def seen_from(out: Path, windows: str) -> str:
    """Return the folder of windows relative to ``out``; "" if they share nothing but the root.

    A path from the root would tell how this machine is laid out, and lead nowhere on another.
    """
    here, there = out.resolve(), Path(windows).resolve()
    shared = os.path.commonpath([here, there])
    return "" if shared == here.anchor else os.path.relpath(there, here)


def refuse_another(job: Job, only: tuple[str, ...] = ()) -> None:
    """Raise InputError if the folder holds results of another plan; ``only`` these keys matter, if given."""
    path = job.out / "plan.json"
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError("the frozen plan is damaged", where=str(path), fix=PLAN_REMEDY) from None
    frozen = frozen_plan(job)
    keys = only or sorted(({*before} | {*frozen}) - {"digest"})
    changed = [key for key in keys if before.get(key) != frozen.get(key)]
    if changed or (not only and before != frozen):
        raise InputError(
            f"this folder holds results of another plan; changed: {', '.join(changed) or 'digest'}",
            where=str(path),
            fix="use a new --out, or the plan as it was (plan.toml beside it)",
        )


def compile_policies(plan: Plan, notice: Notice) -> None:
    """Compile the kernel and all hooks once, in this process: workers then load them from the cache.

    Raises InputError naming the scheduler that can't be compiled.
    """
    specs = tuple(dict.fromkeys((NEUTRAL, *(spec for part in variants(plan) for spec in part.specs))))
    for number, spec in enumerate(specs):
        scheduler = load(spec)
        notice(Step("compile", number, len(specs), scheduler.name))
        try:
            prepare_compiled(scheduler)
        except Exception as error:
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise InputError(
                f"{scheduler.name} can't be compiled: {' '.join(said)[:300] or type(error).__name__}",
                where=spec,
                fix="try `windtunnel schedulers check`, or declare it python=True to run it uncompiled",
            ) from error
    notice(Step("compile", len(specs), len(specs)))


def calibrate(
    job: Job, lines: Sequence[ManifestLine], crew: Pool, notice: Notice
) -> tuple[dict[str, Capacity], str]:
    """Measure the windows without a frozen capacity; return window id -> capacity, and the file's sha256.

    A capacity is one of a window and a fleet, whatever is compared on them: this does not freeze the plan.
    Raises InputError naming a window that is damaged or can't be calibrated, and for other windows or
    another fleet than those of the results in the folder: a new line would change what they belong to.
    """
    known, sha256 = read_calibration(job.out)
    new = missing(lines, job.fleet, known)
    if new:
        if (job.out / "plan.json").exists():
            refuse_another(job, ("fleet", "manifest_sha256"))
        measured: list[Capacity] = []

        def hear(told: Capacity | Lost) -> None:
            if isinstance(told, Lost):
                window = told.task[1].id
                raise InputError(
                    f"calibration of {window} ended its process {death(told)}", where=window, fix=ROOM
                )
            measured.append(told)
            notice(Step("calibrate", len(measured), len(new), told.window_id))

        notice(Step("calibrate", 0, len(new)))
        crew.run(measure_window, ((job, line) for line in new), hear)
        write_calibration(job.out, [*known.values(), *measured])
        known, sha256 = read_calibration(job.out)
    return {line.id: known[line.content_sha256, job.fleet] for line in lines}, sha256


NAME_WINDOWS = 'add --windows DIR, the folder of `windtunnel windows freeze`, or windows = "DIR" to the plan'
ROOM = "free some memory or use fewer --jobs, then run the same command again"


def death(lost: Lost) -> str:
    """Say how a worker died."""
    if lost.hung:
        return f"after {SILENCE_S:.0f} s without a run ending"
    code = lost.exit_code
    return f"three times (exit code {code}{', killed' if code == -9 else ''})"


def cure(lost: Lost) -> str:
    """Say what may help against such a death."""
    outside = any(source_digest(spec) for _, specs in lost.task.todo for spec in specs)
    if outside:
        return (
            "the policy reads or writes outside its tables, or never returns; `windtunnel schedulers check` and "
            "mode 'interpreted' show where"
        )
    return ROOM


def sweep(job: Job, lines: Sequence[ManifestLine], crew: Pool, notice: Notice) -> Swept:
    """Freeze the plan and run what is not stored yet; return counts and failures.

    Raises InputError if the folder holds the results of another plan, or results can't be written.

    After a KeyboardInterrupt, leaving the crew's context lets workers save the runs that they have done.
    """
    freeze(job)
    drop_factless(job.out)
    stored = done_ids(job.out)
    if not settled(job, lines, stored):
        compile_policies(job.plan, notice)
    capacities, sha256 = calibrate(job, lines, crew, notice)
    job = replace(job, calibration_sha256=sha256)
    parts = [one.plan for one in jobs_of(job)]
    total = len(lines) * sum(len(part.regions) * len(part.specs) for part in parts)
    before = now = ended = len(stored)
    failures: list[Failure] = []
    notice(Step("sweep", ended, total))

    def hear(told: Any) -> None:
        nonlocal now, ended
        if isinstance(told, Stored):
            now += told.runs
            return
        new = lost_runs(told) if isinstance(told, Lost) else [told] if isinstance(told, Failure) else []
        failures.extend(new)
        for failure in new:
            notice(failure)
        ended += max(1, len(new))
        notice(Step("sweep", ended, total, told.scheduler if not isinstance(told, Lost) else ""))

    try:
        crew.run(run_window, tasks(job, lines, capacities, stored), hear)
    finally:
        write_failures(job.out, failures)
    return Swept(total, before, now - before, tuple(failures))


def settled(job: Job, lines: Sequence[ManifestLine], stored: set[str]) -> bool:
    """Return whether every run is stored already."""
    known, sha256 = read_calibration(job.out)
    if missing(lines, job.fleet, known):
        return False
    capacities = {line.id: known[line.content_sha256, job.fleet] for line in lines}
    left = tasks(replace(job, calibration_sha256=sha256), lines, capacities, stored)
    return next(left, None) is None


def jobs_of(job: Job) -> tuple[Job, ...]:
    """Return the jobs that a plan's arms stand for; their arrivals press as hard as on the plan's own fleet."""
    if not job.plan.arms:
        return (job,)
    made = []
    for plan in variants(job.plan):
        setup = setup_of(plan)
        made.append(replace(job, plan=plan, setup=setup, fleet=fleet_json(plan, setup)))
    return tuple(made)


def tasks(
    job: Job, lines: Sequence[ManifestLine], capacities: dict[str, Capacity], stored: set[str]
) -> Iterator[Task]:
    """Yield the runs left, made one by one as workers get free: a task a window, and arm, for all that ships."""
    for one in jobs_of(job):
        yield from tasks_of(one, lines, capacities, stored)


def tasks_of(
    job: Job, lines: Sequence[ManifestLine], capacities: dict[str, Capacity], stored: set[str]
) -> Iterator[Task]:
    """Yield the runs left of a job without arms.

    A policy from outside has tasks of its own, at the end: if it crashes or hangs, it takes nobody with it.
    """
    ships = tuple(spec for spec in job.plan.specs if not source_digest(spec))
    outside = tuple((spec,) for spec in job.plan.specs if source_digest(spec))
    for specs in (ships, *outside):
        for line in lines:
            capacity = capacities[line.id]
            whole = Task(job, line, capacity, ())
            todo = []
            for rho in job.plan.regions:
                region = place(
                    rho,
                    requests=capacity.served,
                    span_s=capacity.span_s,
                    capacity_per_s=capacity.capacity_per_s,
                )
                left = tuple(spec for spec in specs if key_of(whole, region, spec).run_id not in stored)
                if left:
                    todo.append((region, left))
            if todo:
                yield whole._replace(todo=tuple(todo))


def lost_runs(lost: Lost) -> list[Failure]:
    """Return the runs of a task that was given up; those whose shard was written are not lost."""
    task: Task = lost.task
    stored = done_ids(task.job.out)
    return [
        Failure(key.scheduler, key.window_id, key.region, f"its process ended {death(lost)}; {cure(lost)}")
        for region, specs in task.todo
        for key in (key_of(task, region, spec) for spec in specs)
        if key.run_id not in stored
    ]
