"""Speed of the simulator on a fixed job, as medians and as ratios to the interpreter in the same run."""

import json
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.bench_cluster import cluster
from windtunnel.bench_job import OUTPUT, PROFILE, PROMPT, RHO, fixed_job
from windtunnel.bench_live import live

if TYPE_CHECKING:
    from loadgen.demand import Demand
    from schedulers.policy import Scheduler
    from sim.run import Setup

app = typer.Typer(no_args_is_help=True, help="Measure the speed of the simulator.")

REQUESTS = 10_000
SCHEDULERS = ["fcfs-chunked", "fcfs-prefill", "sjf-pred", "edf", "sarathi"]
OVERLOAD = 1.4
PLANS = ["published", "canon"]
REFERENCE, DOOR, DOOR_REQUESTS = "fcfs-chunked", "least-slack", 1_000
MODES = {"interpreted": "interpreter", "stepped": "compiled, stepped", "jumped": "compiled, jumped"}


app.command("live")(live)
app.command("cluster")(cluster)


@app.callback()
def bench() -> None:
    """Measure the speed of the simulator."""


@app.command()
def kernel(
    scheduler: Annotated[
        list[str] | None, typer.Option(help="Schedulers to time; several may be given.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs a variant; the median is printed.")] = 5,
    requests: Annotated[int, typer.Option(min=10, help="Requests of the job.")] = REQUESTS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Requests simulated a second on one core: interpreter, compiled and stepped, compiled and jumped.

    One engine, Llama-3.1-8B on an A100-80G, 10,000 requests of about 1,000 prompt and 200 output tokens,
    Poisson arrivals at 0.85 of measured capacity. The interpreter runs the first 300 of them. Seconds are CPU
    seconds of one core, so that other work on the machine doesn't count.

    Example: windtunnel bench kernel --scheduler edf --runs 7
    """
    from schedulers.load import load

    rows = []
    for spec in scheduler or SCHEDULERS:
        rows.append(time_scheduler(load(spec), requests, runs))
        typer.echo(f"{spec}: done", err=True)
    if as_json:
        typer.echo(json.dumps({"job": job_of(requests, runs), "schedulers": rows}))
    else:
        show(rows, requests, runs)


@app.command()
def schedulers(
    name: Annotated[
        list[str] | None,
        typer.Option(help="Engine policies to time (default: all that ship); several may be given."),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs a policy and load; the median counts.")] = 5,
    requests: Annotated[int, typer.Option(min=10, help="Requests of the job.")] = 4_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """CPU time per simulated request of each engine policy, relative to fcfs-chunked.

    The fixed job of `bench kernel` with two tiers, four tenants and conversations, compiled and jumped, at rho 0.85
    and at rho 1.4, where more than a thousand requests wait in the end. Policies take turns, so that what else the
    machine does falls on all alike. One policy runs again as plain Python, through the slow door.

    Example: windtunnel bench schedulers --name edf --name vtc --runs 3
    """
    from schedulers.load import engine_names, load, published_names
    from sim.run import prepare_compiled

    chosen = [load(spec) for spec in name or (*engine_names(), *published_names())]
    plain = load(REFERENCE)
    field = [plain, *(scheduler for scheduler in chosen if scheduler.name != plain.name)]
    for scheduler in field:
        prepare_compiled(scheduler)
    doors = load(DOOR)
    doors = doors._replace(name=f"{DOOR} (slow door)", engine=doors.engine._replace(python=True))
    told = [time_field(field, rho, requests, runs) for rho in (RHO, OVERLOAD)]
    time_field([load(DOOR), doors], RHO, 10, 1)  # compiles what is not kept between processes
    slow = time_field([load(DOOR), doors], RHO, min(requests, DOOR_REQUESTS), runs)
    if as_json:
        loads = [{"rho": rho, "policies": rows} for rho, rows in zip((RHO, OVERLOAD), told, strict=True)]
        typer.echo(json.dumps({"job": job_of(requests, runs), "loads": loads, "slow_door": slow}))
    else:
        show_field(told, slow, requests, runs)


@app.command()
def sweep(
    plan: Annotated[
        list[str] | None, typer.Option(help="Plans that ship with a window set; several may be given.")
    ] = None,
    fraction: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Share of each source's windows that is really run.")
    ] = 0.05,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Worker processes; 0 is one a core.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time whole sweeps, published and canon: a fraction is run after compilation, the rest is extrapolated.

    Runs are of all schedulers and controls in all regions on the first windows of each surrogate source. Wall time
    holds what else the machine does; compare CPU seconds, and mind the load that is printed.

    Example: windtunnel bench sweep --fraction 0.1 --jobs 2
    """
    from windtunnel.pace import pace, words
    from windtunnel.sweep import cores

    told = [pace(name, fraction, cores(jobs)) for name in plan or PLANS]
    if as_json:
        typer.echo(json.dumps({"fraction": fraction, "plans": told}))
        return
    for line in words(told):
        typer.echo(line)


def time_field(field: list["Scheduler"], rho: float, requests: int, runs: int) -> list[dict[str, Any]]:
    """CPU seconds of each scheduler on the job, medians over so many rounds; the first is the reference."""
    from sim.run import simulate

    demand, setup = fixed_job(requests, rho)
    demand, setup = mixed(demand, setup)
    spans: dict[str, list[float]] = {scheduler.name: [] for scheduler in field}
    totals = {}
    for turn in range(runs):
        for scheduler in field:
            start = process_time()
            totals[scheduler.name] = simulate(demand, scheduler, setup).totals
            spans[scheduler.name].append(process_time() - start)
        typer.echo(f"rho {rho}: round {turn + 1} of {runs} done", err=True)
    reference = median(spans[field[0].name])
    return [
        {
            "policy": scheduler.name,
            "us_per_request": median(spans[scheduler.name]) / requests * 1e6,
            "ratio": median(spans[scheduler.name]) / reference,
            "queue_peak": totals[scheduler.name].queue_peak,
            "steps": totals[scheduler.name].steps,
            "evictions": totals[scheduler.name].evictions,
        }
        for scheduler in field
    ]


def mixed(demand: "Demand", setup: "Setup") -> tuple["Demand", "Setup"]:
    """The job with two tiers, four tenants and conversations of four, which some policies tell apart."""
    import numpy as np

    from schedulers.view import Tiers

    count = len(demand.arrival_s)
    draw = np.random.default_rng(20_27)
    session = draw.integers(0, max(1, count // 4), count)
    tiers = Tiers(np.array([0.5, 2.0]), np.array([0.03, 0.1]), np.full(2, np.inf), np.array([2.0, 1.0]))
    mix = demand._replace(tier=draw.integers(0, 2, count), tenant=session % 4, session=session)
    return mix, setup._replace(tiers=tiers)


def job_of(requests: int, runs: int) -> dict[str, Any]:
    """What was timed."""
    lengths = {"prompt_tokens_mean": PROMPT, "output_tokens_mean": OUTPUT}
    return {"requests": requests, "rho": RHO, "profile": PROFILE, "runs": runs, **lengths}


def time_scheduler(scheduler: "Scheduler", requests: int, runs: int) -> dict[str, Any]:
    """Requests a second of each variant, medians over so many runs."""
    import numpy as np

    from loadgen.demand import part
    from sim.run import prepare_compiled, simulate

    prepare_compiled(scheduler)
    demand, setup = fixed_job(requests)
    few = part(demand, np.arange(min(300, requests)))
    row: dict[str, Any] = {"scheduler": scheduler.name}
    for mode in MODES:
        job = few if mode == "interpreted" else demand
        spans = []
        for _ in range(1 if mode == "interpreted" else runs):
            start = process_time()
            told = simulate(job, scheduler, setup, mode)
            spans.append(process_time() - start)
        row[f"{mode}_per_s"] = len(job.arrival_s) / median(spans)
    row["batch_mean"], row["steps"] = told.totals.batch_mean, told.totals.steps
    return row


def show(rows: list[dict[str, Any]], requests: int, runs: int) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"Requests simulated a second and core ({requests:,} requests, rho {RHO}, median of {runs})"
    )
    table.add_column("scheduler")
    for title in (*MODES.values(), "jumped / interpreter", "mean batch"):
        table.add_column(title, justify="right")
    for row in rows:
        rates = [row[f"{mode}_per_s"] for mode in MODES]
        cells = [f"{rate:,.0f}" for rate in rates]
        table.add_row(row["scheduler"], *cells, f"{rates[-1] / rates[0]:,.0f}x", f"{row['batch_mean']:.1f}")
    Console().print(table)


def show_field(
    told: list[list[dict[str, Any]]], slow: list[dict[str, Any]], requests: int, runs: int
) -> None:
    """Print the table, slowest under overload last, and what the slow door costs."""
    from rich.console import Console
    from rich.table import Table

    title = (
        f"Microseconds of CPU a simulated request at rho {RHO} and at rho {OVERLOAD},\ntimes {REFERENCE} (x) "
    )
    title += f"and longest queue ({requests:,} requests, median of {runs})"
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("policy", no_wrap=True)
    for rho in (RHO, OVERLOAD):
        for heading in (f"us {rho}", "x", "queue"):
            grid.add_column(heading, justify="right", no_wrap=True)
    for pair in sorted(zip(*told, strict=True), key=lambda pair: pair[1]["ratio"]):
        cells = [
            f"{row['us_per_request']:.1f} {row['ratio']:.1f} {row['queue_peak']}".split() for row in pair
        ]
        grid.add_row(pair[0]["policy"], *cells[0], *cells[1])
    Console().print(grid)
    compiled, door = slow
    typer.echo(
        f"{DOOR} as plain Python through the slow door: {door['us_per_request']:,.0f} us a request at rho {RHO}, "
        f"{door['ratio']:,.0f} times its compiled {compiled['us_per_request']:.1f} us."
    )
