"""`windtunnel replay`: frozen windows against live services, open loop, stored as a sweep's results are."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.aims import Aims, Watch, page_at, raise_misuse
from windtunnel.up import DEFAULT_FOLDER, AsJson, Folder, paced

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from loadgen.replay.run import ReplayRules
    from loadgen.window import ManifestLine
    from services.live_run import Account, Live, Target
    from sim.runs import Job

INVALID_RUN, LOST = 3, 5
"""Exit codes: a replay that could not keep its schedule, requests or tokens that got lost."""

PROGRESS = ("auto", "live", "plain", "none")


WindowArg = Annotated[
    Path, typer.Argument(help="Folder of frozen windows, or one window's parquet file.", metavar="WINDOW")
]
OutDir = Annotated[Path, typer.Option("--out", help="Folder of the results; one plan a folder.")]
Regions = Annotated[list[float] | None, typer.Option(help="Pressure (rho); several may be given.")]
Specs = Annotated[
    list[str] | None, typer.Option(help="ENGINE+CLUSTER to set before the run; several take turns.")
]
Windows = Annotated[list[str] | None, typer.Option(help="Ids of windows, if not all of the folder.")]
TargetUrl = Annotated[
    str,
    typer.Option(
        help="http(s)://HOST:PORT of any OpenAI-compatible server, or grpc://HOST:PORT of a dispatcher."
    ),
]
Label = Annotated[str, typer.Option(help="Name in results of a --target that is not ours.")]
PlanName = Annotated[str, typer.Option("--plan", help="Plan of fleet and tiers for a --target.")]
Model = Annotated[str, typer.Option(help="Model asked of a --target by HTTP; its first if unsaid.")]
Key = Annotated[str, typer.Option(help="API key.", envvar="WINDTUNNEL_KEY")]
Admin = Annotated[
    str,
    typer.Option(
        help="HOST:PORT of a --target's HTTP door if it is a dispatcher of ours; its key in WINDTUNNEL_ADMIN_KEY."
    ),
]
Speed = Annotated[float, typer.Option(help="Time factor for a --target: 2 halves every gap.")]
ByHttp = Annotated[bool, typer.Option("--http", help="Ask the testbed by HTTP, not by gRPC.")]
Turns = Annotated[
    str,
    typer.Option(help="absolute: later turns at their recorded times; think: a gap after the answer before."),
]
LagP50 = Annotated[float, typer.Option(help="Most median lag of a valid run.")]
LagP99 = Annotated[float, typer.Option(help="Most lag of a valid run, 99th percentile.")]
Drain = Annotated[float, typer.Option(min=0.0, help="Wait for open answers after the last request.")]
StopOpen = Annotated[int, typer.Option(min=0, help="End a run once so many requests are open; 0: never.")]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each; the further ones go to OUT/repeat-N.")]
Metrics = Annotated[
    str,
    typer.Option(help="HOST:PORT where Prometheus finds the run under way; the dispatcher tells it where."),
]
Progress = Annotated[str, typer.Option(help="auto, live, plain or none.")]


def replay(
    windows: WindowArg,
    out: OutDir,
    region: Regions = None,
    scheduler: Specs = None,
    window: Windows = None,
    target: TargetUrl = "",
    label: Label = "",
    plan: PlanName = "",
    model: Model = "",
    key: Key = "",
    admin: Admin = "",
    speed: Speed = 1.0,
    by_http: ByHttp = False,
    turns: Turns = "absolute",
    lag_p50_ms: LagP50 = 10.0,
    lag_p99_ms: LagP99 = 50.0,
    drain_s: Drain = 120.0,
    stop_open: StopOpen = 0,
    repeats: Repeats = 1,
    metrics: Metrics = "",
    progress: Progress = "auto",
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Replay frozen windows open loop against the testbed of `windtunnel up`, or any OpenAI-compatible server.

    Requests go out at the window's times whatever the system does, latency counts from the intended time, and a run
    whose own lag is over the limits is invalid (exit 3) and never ranked. Results lie as a sweep's do: rank, report
    and `results verify` read them.

    Example: windtunnel replay windows --region 0.85 --scheduler edf+least-requests --out out/live
    """
    from loadgen.replay.lag import LagLimits
    from loadgen.replay.run import ReplayRules

    aims = Aims(folder, target, label, plan, model, key, speed, by_http, admin)
    place, known = aims.resolve()
    if place.label and scheduler:
        raise_misuse("--scheduler", "a --target's policy is its own", "leave it out, name it with --label")
    if progress not in PROGRESS:
        raise_misuse("--progress", f"unknown {progress!r}", f"use one of {', '.join(PROGRESS)}")
    limits = LagLimits(lag_p50_ms / 1e3, lag_p99_ms / 1e3)
    own = not place.label and place.driver == "live"  # what a model says is no function of the seed
    rules = ReplayRules(limits=limits, drain_s=drain_s, stop_open=stop_open, checked=own)
    source, ids = window_source(windows, window or [])
    specs = tuple(scheduler or ()) or aims.specs
    known = about(known, source, specs, tuple(region or (0.85,)), place.driver)
    places = [out, *(out / f"repeat-{number}" for number in range(2, repeats + 1))]
    accounts: list[Account] = []
    with page_at(metrics, place) as page:
        for where in places:
            accounts += run_all(known, where, ids, place, rules, turns, Watch(progress, page))
    if repeats > 1 and not as_json:
        for words in spread(places, known.primary):
            typer.echo(words)
    finish(accounts, out, as_json)


def about(
    plan: "Plan", windows: Path, specs: tuple[str, ...], regions: tuple[float, ...], driver: str
) -> "Plan":
    """Return the plan of a replay: these schedulers on these windows; what another plan declared is left out.

    Raises InputError for a scheduler that the driver's engines can't run.
    """
    from dataclasses import replace as changed

    from loadgen.plan import Study
    from windtunnel.engines import refuse_weaker

    refuse_weaker(driver, specs, plan.fleet)
    return changed(
        plan,
        windows=str(windows),
        schedulers=specs,
        controls=(),
        regions=regions,
        keep="requests",
        study=Study(),  # what a plan declares beforehand is about its own schedulers
    )


def spread(places: list[Path], primary: str) -> list[str]:
    """Say how far repeated runs lie apart by the plan's metric: a sentence a scheduler, window and region."""
    from analysis.metrics import split_column
    from loadgen.result import read_runs

    column = "_".join(filter(None, split_column(primary)))
    seen: dict[tuple[str, str, str], list[float]] = {}
    for place in places:
        if (place / "runs").is_dir():
            runs = read_runs(place, sketches=False)
            named = zip(runs["scheduler"], runs["window_id"], runs["region"], runs[column], strict=True)
            for scheduler, window, region, value in named:
                seen.setdefault((scheduler, window, region), []).append(float(value))
    return [
        f"{scheduler} {window} rho {region}: {column} {min(values):.4g} to {max(values):.4g} in {len(values)} runs"
        for (scheduler, window, region), values in seen.items()
    ]


def window_source(named: Path, ids: list[str]) -> tuple[Path, set[str]]:
    """Return the folder of windows and the ids wanted of it, all if none."""
    if named.suffix == ".parquet":
        return named.parent.parent, {named.stem}
    return named, set(ids)


def run_all(
    plan: "Plan", out: Path, ids: set[str], target: "Target", rules: "ReplayRules", turns: str, watch: "Watch"
) -> list["Account"]:
    """Replay every window in every region under every scheduler; return what each left."""
    accounts = []
    for live in cells(plan, out, ids, target, rules, turns):
        if is_stored(live):
            words = f"{live.spec} on {live.window.line.id} at {live.region.name}: stored already"
            typer.echo(words, err=True)
            continue
        accounts.append(one_run(live, watch))
    return accounts


def cells(
    plan: "Plan", out: Path, ids: set[str], target: "Target", rules: "ReplayRules", turns: str
) -> list["Live"]:
    """Return every run of a replay into a folder, which gets its plan and capacities, in the plan's order."""
    from analysis.metrics import summarise
    from loadgen.region import place
    from loadgen.window import read_window
    from services.live_run import Live
    from sim.runs import Task
    from sim.sweep import freeze, open_job
    from windtunnel.sweep import revision

    job, lines = open_job(plan, out, summarise, revision())
    lines = [line for line in lines if not ids or line.id in ids]
    if not lines:
        raise_misuse("--window", f"no such window in {plan.windows}", "see `windtunnel windows list`")
    freeze(job)
    job, capacities = calibrated(job, lines)
    found = []
    for line in lines:
        window, capacity = read_window(Path(plan.windows), line), capacities[line.id]
        warn_of_prefixes(window, target)
        for rho in plan.regions:
            region = place(
                rho, requests=capacity.served, span_s=capacity.span_s, capacity_per_s=capacity.capacity_per_s
            )
            for spec in plan.schedulers:
                shown = spec if target.label else paced(spec, target.speed)
                task = Task(job, line, capacity, ())
                found.append(Live(task, window, region, spec, shown, target, rules, turns))
    return found


def is_stored(live: "Live") -> bool:
    """Return whether a run's result lies in its folder already."""
    from loadgen.result import done_ids
    from services.live_run import live_key

    out = live.task.job.out
    return (out / "runs").is_dir() and live_key(live).run_id in done_ids(out)


def warn_of_prefixes(window: Any, target: "Target") -> None:
    """Say that simulated workers keep no prefix cache, where that matters."""
    if window.hash_ids is not None and not target.label:
        typer.echo(
            "note: simulated workers have no prefix cache; compare with prefix_cache = false", err=True
        )


def calibrated(job: "Job", lines: "list[ManifestLine]") -> tuple["Job", dict[str, Any]]:
    """Return the job with its calibration, and a capacity a window; what is not known is measured and frozen."""
    from dataclasses import replace as changed

    from loadgen.window import read_window
    from sim.calibrate import measure, missing, read_calibration, write_calibration

    known, sha256 = read_calibration(job.out)
    new = missing(lines, job.fleet, known)
    if new:
        typer.echo(f"calibrating {len(new)} windows", err=True)
        measured = [measure(read_window(Path(job.plan.windows), line), job.plan, job.setup) for line in new]
        write_calibration(job.out, [*known.values(), *measured])
        known, sha256 = read_calibration(job.out)
    return changed(job, calibration_sha256=sha256), {
        line.id: known[line.content_sha256, job.fleet] for line in lines
    }


def one_run(live: Any, watch: Watch) -> "Account":
    """Make and store one run; after Ctrl-C or SIGTERM what was measured is stored, then the command stops."""
    import asyncio
    import signal

    from services.live_run import INTERRUPTED, play, store
    from windtunnel.stopping import Terminated
    from windtunnel.ticker import Ticker

    title = f"{live.spec} on {live.window.line.id} at rho {live.region.name}"
    caught: list[int] = []

    async def work() -> Any:
        loop = asyncio.get_running_loop()

        def begin(replay: Any) -> None:
            def heed(number: int) -> None:
                caught.append(number)
                replay.stop(INTERRUPTED)

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, heed, number)
            if watch.page is not None:
                from services.generator import shown_of

                watch.page.show(shown_of(live, replay))

        with Ticker(title, watch.progress) as ticker:
            return await play(live, begin, ticker)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # leaves a caller's own loop alone
        played = runner.run(work())
    account = store(live, played)
    if watch.page is not None:
        watch.page.over(played.told)
    if caught:
        typer.echo(
            f"Stopped. What was measured is in {live.task.job.out / account.kept_in}; it is not ranked.",
            err=True,
        )
        raise Terminated if caught[0] == signal.SIGTERM else KeyboardInterrupt
    return account


def finish(accounts: "list[Account]", out: Path, as_json: bool) -> None:
    """Tell what was stored, and exit by the worst that happened."""
    lost = [one for one in accounts if one.summary["lost_requests"] or one.summary["lost_tokens"]]
    lost += [one for one in accounts if one.summary["repeated_tokens"] and one not in lost]
    invalid = [one for one in accounts if not one.summary["valid"]]
    if as_json:
        typer.echo(json.dumps({"out": str(out), "runs": [one.summary for one in accounts]}))
    else:
        for one in accounts:
            typer.echo(sentence(one.summary))
        stored = sum(one.kept_in == "runs" for one in accounts)
        typer.echo(f"{stored} runs stored in {out}. Next: windtunnel rank {out}")
    if lost:
        raise typer.Exit(LOST)
    if invalid:
        raise typer.Exit(INVALID_RUN)


def sentence(told: dict[str, Any]) -> str:
    """One run in a line."""
    ends = ", ".join(
        f"{count} {outcome}" + (f" ({reason})" if outcome != "finished" else "")
        for outcome, reasons in told["ends"].items()
        for reason, count in reasons.items()
    )
    lag = told["lag"]
    word = "" if told["valid"] else f"  INVALID: {'; '.join(told['faults'])}"
    gone = [f"{told['engines_gone']} engines answer no more"] if told["engines_gone"] else []
    warned = "".join(f"  warning: {words}" for words in (*gone, *told["health"]["warnings"]))
    late = " ".join(f"{name} {lag[f'{name}_s'] * 1e3:.1f}" for name in ("p50", "p99", "max"))
    return (
        f"{told['scheduler']} {told['window']} rho {told['region']}: {ends}; lost {told['lost_requests']}, "
        f"tokens lost {told['lost_tokens']}, repeated {told['repeated_tokens']}; lag ms {late}{word}{warned}"
    )
