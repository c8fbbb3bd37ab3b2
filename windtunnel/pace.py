"""How long a plan takes: a declared fraction of its windows is swept, and the rest is extrapolated."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from sim.crew import Crew


def pace(name: str, fraction: float, jobs: int) -> dict[str, Any]:
    """Sweep the fraction of the plan's windows, surrogates, and say what the whole plan would take.

    The first windows of each source are taken, at least one. What is compiled is compiled before. Wall seconds
    are those of this machine with what else it does; CPU seconds are of all processes of the sweep. Workers start,
    and load every policy, on a window each that is not counted; that time is told apart. Linux only.
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
    with TemporaryDirectory(prefix="windtunnel-") as folder:
        windows = Path(folder) / "windows"
        freeze_set(part, windows, sources_of(of, []), lambda words: typer.echo(words, err=True))
        job, lines = open_job(replace(plan, windows=str(windows)), Path(folder) / "out", summarise, "bench")
        typer.echo("Loading policies", err=True)
        compile_policies(job.plan, lambda step: None)
        typer.echo(f"Sweeping {len(lines)} windows", err=True)
        base_s = time.process_time()
        with Crew(jobs) as crew:
            start_s = time.monotonic()
            warm = replace(job, out=Path(folder) / "warm")
            sweep(
                warm, lines[:jobs], crew, lambda event: None
            )  # a window each: every worker loads every policy
            warm_s, warm_cpu_s = time.monotonic() - start_s, cpu_s(crew)
            start_s = time.monotonic()
            done = sweep(job, lines, crew, lambda event: None)
            wall_s, spent_s = time.monotonic() - start_s, cpu_s(crew) - warm_cpu_s
    whole = of.recipe.count * len(of.sources) / len(lines)
    requests = sum(line.rows for line in lines) * len(plan.specs) * len(plan.regions)
    start_cpu_s = warm_cpu_s - base_s
    return {
        "plan": plan.name,
        "windows": len(lines),
        "of_windows": round(whole * len(lines)),
        "runs": done.total,
        "requests": requests,
        "jobs": jobs,
        "start_s": warm_s,
        "start_cpu_s": start_cpu_s,
        "wall_s": wall_s,
        "cpu_s": spent_s,
        "cpu_ms_per_run": spent_s / done.total * 1e3,
        "cpu_us_per_request": spent_s / requests * 1e6,
        "extrapolated": {
            "runs": round(whole * done.total),
            "requests": round(whole * requests),
            "wall_s": warm_s + whole * wall_s,
            "cpu_s": start_cpu_s + whole * spent_s,
            "cpu_s_per_job": (start_cpu_s + whole * spent_s) / jobs,
        },
        "failures": len(done.failures),
        "load_average": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def cpu_s(crew: "Crew") -> float:
    """Return the CPU seconds that this process and the crew's living workers have spent."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    spent_s = time.process_time()
    for member in (*crew.busy, *crew.idle):
        told = Path(f"/proc/{member.process.pid}/stat").read_text().rpartition(")")[2].split()
        spent_s += (int(told[11]) + int(told[12])) * tick_s  # user and system time, after the name (proc(5))
    return spent_s


def words(told: Sequence[dict[str, Any]]) -> list[str]:
    """Say what was measured and what was extrapolated from it."""
    said = []
    for one in told:
        whole = one["extrapolated"]
        said += [
            f"{one['plan']}: measured {one['windows']} of {one['of_windows']} windows, {one['runs']:,} runs, "
            f"{one['requests']:,} requests on {one['jobs']} processes: {one['wall_s']:.1f} s wall, "
            f"{one['cpu_s']:.1f} CPU s ({one['cpu_ms_per_run']:.2f} ms a run, "
            f"{one['cpu_us_per_request']:.1f} us a request); load {one['load_average']:.1f} on {one['cores']} cores",
            f"{one['plan']}: EXTRAPOLATED to {whole['runs']:,} runs, {whole['requests']:,} requests: "
            f"{whole['wall_s']:.0f} s wall at this load, {one['start_s']:.0f} s of it to start; "
            f"{whole['cpu_s']:.0f} CPU s, so at least "
            f"{whole['cpu_s_per_job']:.0f} s where {one['jobs']} cores are free",
        ]
    return said
