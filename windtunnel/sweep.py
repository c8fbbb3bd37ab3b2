"""`windtunnel calibrate` and `sweep`: the capacities of a plan's windows, and its runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from sim.crew import Crew
    from sim.rays import RayCrew
    from sim.runs import Failure
    from sim.sweep import Swept

PlanName = Annotated[
    str, typer.Argument(help="A plan file, or one that ships: `windtunnel plan list`.", metavar="PLAN")
]
WindowsDir = Annotated[Path | None, typer.Option("--windows", help="Folder of frozen windows.")]
OutDir = Annotated[Path, typer.Option("--out", help="Folder of the results; one plan a folder.")]
Specs = Annotated[
    list[str] | None,
    typer.Option("--scheduler", help="Add a scheduler: a name, or path/to/file.py:POLICY. Repeatable."),
]
Jobs = Annotated[int, typer.Option("--jobs", min=0, help="Worker processes; 0 is one a core.")]
On = Annotated[
    str,
    typer.Option(help="Run on Ray: 'ray' (RAY_ADDRESS, else one on this machine), or a cluster's address."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def calibrate(
    plan: PlanName,
    out: OutDir,
    windows: WindowsDir = None,
    jobs: Jobs = 0,
    on: On = "",
    as_json: AsJson = False,
) -> None:
    """Measure the capacity of each window of a plan and freeze it in OUT/calibration.jsonl.

    `sweep` does this by itself; a line that is there is never measured again. Capacity does not depend on
    the schedulers compared: a later sweep into OUT may add some.

    Example: windtunnel calibrate quick --windows windows/ --out out/quick
    """
    from analysis.metrics import summarise
    from sim.sweep import calibrate as measure
    from sim.sweep import open_job
    from windtunnel.progress import Meter

    known = named_plan(plan, windows)
    job, lines = open_job(known, out, summarise, revision())
    with Meter() as meter, workers(on, jobs) as crew:
        capacities, sha256 = measure(job, lines, crew, meter)
    if as_json:
        told = {name: capacity.capacity_per_s for name, capacity in capacities.items()}
        typer.echo(json.dumps({"out": str(out), "sha256": sha256, "capacity_per_s": told}))
        return
    for name, one in capacities.items():
        typer.echo(f"{name}  {one.capacity_per_s:8.2f} requests/s  {one.served} of {one.rows} fit")


def sweep(
    plan: PlanName,
    out: OutDir,
    windows: WindowsDir = None,
    scheduler: Specs = None,
    jobs: Jobs = 0,
    on: On = "",
    as_json: AsJson = False,
) -> None:
    """Run every scheduler of a plan on every window in every region, on all cores.

    Stopped by Ctrl-C, SIGTERM or a crash, the same command goes on where it was: no stored run is redone. On a
    Ray cluster the results are the same bytes; a lost machine's runs are done again by another one.

    Example: windtunnel sweep quick --windows windows/ --out out/quick --scheduler my_policy.py:POLICY
    """
    known = named_plan(plan, windows, scheduler or ())
    swept, took_s = complete(known, out, jobs, as_json, on)
    tell(swept, took_s, out, as_json)
    if swept.failures:
        raise typer.Exit(1)


def complete(plan: "Plan", out: Path, jobs: int, as_json: bool, on: str = "") -> tuple["Swept", float]:
    """Run a plan; after Ctrl-C or SIGTERM say what is safe and how to go on, and exit with 130 or 143."""
    from loadgen.result import done_ids
    from windtunnel.stopping import exit_code

    try:
        return run(plan, out, jobs, on)
    except KeyboardInterrupt as stop:
        kept = len(done_ids(out))
        if as_json:
            typer.echo(json.dumps({"interrupted": True, "stored": kept, "out": str(out)}))
        typer.echo(f"Stopped. {kept} runs are safe in {out}; the same command goes on from there.", err=True)
        raise typer.Exit(exit_code(stop)) from None


def run(plan: "Plan", out: Path, jobs: int, on: str = "") -> tuple["Swept", float]:
    """Compile, calibrate and sweep a plan with progress on stderr; return what was done, and the seconds."""
    from analysis.metrics import summarise
    from analysis.tiers_columns import by_class
    from sim.sweep import open_job
    from sim.sweep import sweep as run_all
    from windtunnel.progress import Meter

    job, lines = open_job(plan, out, summarise, revision(), by_class)
    if routed := routing(plan):
        typer.echo(routed, err=True)
    with Meter() as meter, workers(on, jobs) as crew:
        swept = run_all(job, lines, crew, meter)
    return swept, meter.elapsed_s


def workers(on: str, jobs: int) -> "Crew | RayCrew":
    """Return who does the runs: so many processes here, or a Ray cluster where ``on`` names one."""
    from sim.crew import Crew

    if not on:
        return Crew(cores(jobs))
    from sim.rays import RayCrew

    return RayCrew(on, cores(jobs))


def named_plan(named: str, windows: Path | None, schedulers: "Sequence[str]" = ()) -> "Plan":
    """Read the plan, a file or one that ships, and see that its metrics exist.

    Raises InputError, with near names if there is no such plan.
    """
    from difflib import get_close_matches

    from loadgen.plan import read_plan, shipped
    from schedulers.errors import InputError

    if not Path(named).is_file() and named not in shipped():
        files = [str(path) for path in Path(named).parent.glob("*.toml")]
        near = get_close_matches(named, [*shipped(), *files], 2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        fix = f"{hint}Name a TOML file, or a shipped plan: {', '.join(shipped())}"
        raise InputError("no such plan", where=named, fix=fix[0].lower() + fix[1:])
    plan = read_plan(named, windows=windows, schedulers=schedulers)
    check_metrics(plan, named)
    return plan


def routing(plan: "Plan") -> str:
    """Say which cluster policy spreads requests where the plan does not; "" where there is no choice."""
    from schedulers.load import DEFAULT_CLUSTER, pieces

    several = plan.fleet.engines > 1
    silent = [spec for spec in plan.specs if several and len(pieces(spec)) == 1]
    if not silent:
        return ""
    whose = "" if len(silent) == len(plan.specs) else f" for {', '.join(silent)}"
    return f"cluster policy: {DEFAULT_CLUSTER} (default){whose}"


def check_metrics(plan: "Plan", named: str) -> None:
    """Raise InputError, at the line of the plan ``named``, for an SLO set, metric or margin that does not exist."""
    from analysis.metrics import METRICS, expand, split_column
    from loadgen.plan import whereabouts
    from schedulers.errors import InputError

    key = "slo_sets"
    try:
        sets = expand(plan.slo_sets)
        key = "primary"
        for where, column in [("primary", plan.primary), *(("panel", one) for one in plan.study.panel)]:
            key = where
            _, slo = split_column(column)
            if slo and slo not in sets:
                raise InputError(f"{column} reads {slo}", fix=f"add {slo} to slo_sets")
        key = "margins"
        known = (*{entry.kind: None for entry in METRICS.values()}, *METRICS)
        for name, _ in plan.study.margins:
            if name not in known:
                raise InputError(f"a margin of {name!r}", fix=f"name a kind or a metric: {', '.join(known)}")
    except InputError as error:
        raise InputError(error.what, where=whereabouts(named, key), fix=error.fix) from None


def tell(swept: "Swept", took_s: float, out: Path, as_json: bool) -> None:
    """Print what a sweep did, failures last."""
    failures = [failure._asdict() for failure in swept.failures]
    if as_json:
        counts: dict[str, Any] = {"runs": swept.total, "before": swept.stored_before, "now": swept.stored_now}
        typer.echo(json.dumps({"out": str(out), **counts, "failures": failures, "took_s": round(took_s, 3)}))
        return
    again = f", {swept.stored_before} were there" if swept.stored_before else ""
    typer.echo(f"{swept.stored_now} runs of {swept.total} in {took_s:.1f} s{again}. Results: {out}")
    if not failures:
        typer.echo(f"Next: windtunnel rank {out}")
        return
    typer.echo(f"{len(failures)} runs failed; the others are stored:", err=True)
    for words in gathered(swept.failures):
        typer.echo(f"  {words}", err=True)
    typer.echo("Mend the policy; one whose file was edited needs a new --out.", err=True)


def gathered(failures: "Sequence[Failure]") -> list[str]:
    """Return one sentence a scheduler and cause: where it failed first, and how often."""
    first: dict[tuple[str, str], str] = {}
    count: Counter[tuple[str, str]] = Counter()
    for failure in failures:
        cause = (failure.scheduler, failure.what.split("; at ")[0])
        count[cause] += 1
        place = f"on {failure.window} in region {failure.region}"
        first.setdefault(cause, f"{failure.scheduler} {place}: {failure.what}")
    return [f"{words} ({count[cause]} runs)" for cause, words in first.items()]


def cores(jobs: int) -> int:
    """Return the number of workers: as asked, or one for each core that this process may use."""
    import os

    return jobs or len(os.sched_getaffinity(0))


def revision() -> str:
    """Return the git revision of the product, with "-dirty" if it was changed; its version if not in git."""
    import subprocess
    from importlib.metadata import version

    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return version("windtunnel")
    return told.stdout.strip()
