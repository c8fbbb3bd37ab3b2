"""How long a plan takes: a declared fraction of its windows is swept, and the rest is extrapolated."""

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer


class Watch:
    """Hears the steps of a sweep and notes when the first and the last run ended; use as its notice."""

    def __init__(self) -> None:
        self.ended: list[tuple[float, int]] = []
        self.failed = 0

    def __call__(self, event: Any) -> None:
        """Note one event."""
        if getattr(event, "stage", "") == "sweep":
            self.ended.append((time.monotonic(), event.done))
        elif not hasattr(event, "stage"):
            self.failed += 1

    @property
    def runs_per_s(self) -> float:
        """Runs a second between the end of the first run and of the last: starting workers doesn't count."""
        told = [one for one in self.ended if one[1] > 0]
        if len(told) < 2 or told[-1][0] <= told[0][0]:
            return float("nan")
        return (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])


def pace(name: str, fraction: float, jobs: int) -> dict[str, Any]:
    """Sweep the fraction of the plan's windows, surrogates, and say what the whole plan would take.

    The first windows of each source are taken, at least one. What is compiled is compiled before. Wall seconds
    are those of this machine with what else it does; CPU seconds are of all processes of the sweep.
    """
    from analysis.metrics import summarise
    from loadgen.plan import read_plan
    from loadgen.sets import SURROGATE, find_set, of_size
    from sim.crew import Crew
    from sim.sweep import compile_policies, open_job, sweep
    from windtunnel.sets import freeze_set, sources_of

    plan = read_plan(name)
    of = find_set(f"{plan.study.window_set}{SURROGATE}")
    part = of_size(of, max(1, round(fraction * of.recipe.count)))
    watch = Watch()
    with TemporaryDirectory(prefix="windtunnel-") as folder:
        windows = Path(folder) / "windows"
        freeze_set(part, windows, sources_of(of, []), lambda words: typer.echo(words, err=True))
        job, lines = open_job(replace(plan, windows=str(windows)), Path(folder) / "out", summarise, "bench")
        typer.echo("Loading policies", err=True)
        compile_policies(job.plan, lambda step: None)
        typer.echo(f"Sweeping {len(lines)} windows", err=True)
        before_s, start_s = cpu_s(), time.monotonic()
        with Crew(jobs) as crew:
            done = sweep(job, lines, crew, watch)
        wall_s, spent_s = time.monotonic() - start_s, cpu_s() - before_s
    whole = of.recipe.count * len(of.sources) / len(lines)
    requests = sum(line.rows for line in lines) * len(plan.specs) * len(plan.regions)
    fixed_s = wall_s - done.total / watch.runs_per_s
    return {
        "plan": plan.name,
        "windows": len(lines),
        "of_windows": round(whole * len(lines)),
        "runs": done.total,
        "requests": requests,
        "jobs": jobs,
        "wall_s": wall_s,
        "cpu_s": spent_s,
        "cpu_ms_per_run": spent_s / done.total * 1e3,
        "cpu_us_per_request": spent_s / requests * 1e6,
        "runs_per_s": watch.runs_per_s,
        "extrapolated": {
            "runs": round(whole * done.total),
            "requests": round(whole * requests),
            "wall_s": max(0.0, fixed_s) + whole * done.total / watch.runs_per_s,
            "cpu_s": whole * spent_s,
            "cpu_s_per_job": whole * spent_s / jobs,
        },
        "failures": watch.failed,
        "load_average": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    told = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in told)


def words(told: Sequence[dict[str, Any]]) -> list[str]:
    """Say what was measured and what was extrapolated from it."""
    said = []
    for one in told:
        whole = one["extrapolated"]
        said += [
            f"{one['plan']}: measured {one['windows']} of {one['of_windows']} windows, {one['runs']:,} runs, "
            f"{one['requests']:,} requests on {one['jobs']} processes: {one['wall_s']:.1f} s wall, "
            f"{one['cpu_s']:.1f} CPU s with workers' start ({one['cpu_ms_per_run']:.2f} ms a run, "
            f"{one['cpu_us_per_request']:.1f} us a request); load {one['load_average']:.1f} on {one['cores']} cores",
            f"{one['plan']}: EXTRAPOLATED to {whole['runs']:,} runs, {whole['requests']:,} requests: "
            f"{whole['wall_s']:.0f} s wall at this load; {whole['cpu_s']:.0f} CPU s, so at least "
            f"{whole['cpu_s_per_job']:.0f} s where {one['jobs']} cores are free",
        ]
    return said
