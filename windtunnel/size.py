"""The command ``windtunnel size``: the fewest engines for a traffic file, tiers and targets, and what they cost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from schedulers.errors import InputError
from windtunnel.scene import Place, plan_of, staged

if TYPE_CHECKING:
    from loadgen.promises import Promise
    from loadgen.trace import Trace
    from loadgen.window import Window
    from sim.sizing import Sized, Trial

SCHEDULER = "strict-tiers+llumnix+rebalance"
PROFILE = "llama-3.1-8b/a100-80g"
ROWS_MAX, ROWS_MIN = 5_000, 200
"""Requests of one window: more would tell little more, fewer are hardly a load."""

FEW_WINDOWS = 5
"""With fewer windows than this an interval over windows says nothing."""


class Job(NamedTuple):
    """What is sized: windows at their rate, what is promised, and on what."""

    windows: "Sequence[Window]"
    promises: "tuple[Promise, ...]"
    place: Place
    scheduler: str
    rate_scale: float
    most: int


Tiers = Annotated[
    str,
    typer.Option(
        help="Tiers, the most important first: NAME:ttft=S,tpot=S,e2e=S,share=P,attain=P,weight=W;... or a TOML "
        "file with [[tiers]]. attain is the share of arrivals that must meet every target. If unsaid: premium, "
        "standard, batch."
    ),
]
Scaler = Annotated[
    str, typer.Option(help="Autoscaler to compare with (scale-freeness, scale-rho, scale-slo ...), or none.")
]


def size(
    traffic: Annotated[Path, typer.Argument(help="Traffic file; its family is recognised.")],
    profile: Annotated[str, typer.Option(help="Model and accelerator of each engine.")] = PROFILE,
    tiers: Tiers = "",
    scheduler: Annotated[str, typer.Option(help="Engine policy, then cluster policies, by +.")] = SCHEDULER,
    max_engines: Annotated[int, typer.Option(min=1, max=1024, help="Largest fleet that is tried.")] = 64,
    rate_scale: Annotated[float, typer.Option(help="Times the recorded rate of requests.")] = 1.0,
    windows: Annotated[int, typer.Option(min=1, max=200, help="Windows, spread over the file.")] = 12,
    price: Annotated[
        float, typer.Option(min=0.0, help="Price of an engine for an hour; 0: none told.")
    ] = 0.0,
    scaler: Scaler = "scale-freeness",
    wiring: Annotated[str, typer.Option(help="As in a plan's [cluster]: boot_s=120,period_s=0.5")] = "",
    limits: Annotated[str, typer.Option(help="Of each engine, as in a plan's [fleet]: budget_max=512")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the tiers' draw and of the interval.")] = 0,
    columns: Annotated[
        str, typer.Option(help="Names in your own file: arrival_s=ts,prompt_tokens=in,...")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Find the fewest engines with which every tier attains what it is owed, at the traffic's own rate.

    Windows of the file are simulated on fleets of different size, the same windows on each; sizes are bisected, and
    those around the answer are tried too. Exits with 1 if not even --max-engines are enough.

    Example: windtunnel size AzureLLMInferenceTrace_conv.csv --profile llama-3.1-8b/a100 --tiers
    'premium:ttft=0.5,tpot=0.05,share=0.2,attain=0.95;standard:ttft=2,tpot=0.1,share=0.8,attain=0.9' --price 2.5
    """
    from loadgen.promises import USUAL, read_promises
    from loadgen.trace import parse_columns, read
    from schedulers.load import load

    if not 0.0 < rate_scale < 1e6:
        raise InputError(f"{rate_scale:g} times the rate", where="--rate-scale", fix="use a number above 0")
    if not price < 1e12:
        raise InputError(
            f"an engine for {price:g} an hour", where="--price", fix="use a price that can be paid"
        )
    promises = read_promises(tiers or USUAL)
    place = Place(profile=profile, tiers=tiers, wiring=wiring, limits=limits, engines=max_engines)
    cluster = plan_of(scheduler, place).cluster  # refuses what can't be, before the file is read
    if cluster is not None and (cluster.start, cluster.least) != (0, 1):
        what = "sizing tries fleets of every size, all serving from the beginning"
        raise InputError(what, where="--wiring", fix="leave out start and least")
    load(scheduler if scaler == "none" else f"{scheduler}+{scaler}")
    trace = read(traffic, unpinned=True, columns=parse_columns(columns) or None)
    job = Job(spread(trace, windows, seed), promises, place, scheduler, rate_scale, max_engines)
    sized, auto = solve(job, "" if scaler == "none" else scaler, seed)
    told = facts_of(job, trace, sized, auto) | {"price": price or None, "scaler": scaler, "profile": profile}
    if as_json:
        typer.echo(json.dumps(told))
    else:
        tell(told)
    if not sized.engines:
        raise typer.Exit(1)


def spread(trace: "Trace", count: int, seed: int) -> "list[Window]":
    """Cut windows of equal rows, spread evenly over a file; raises InputError if it is too short for one."""
    from loadgen.window import cut

    total = len(trace.arrival_ns)
    count = max(1, min(count, total // ROWS_MIN))
    rows = min(ROWS_MAX, total // count)
    cuts = (
        [cut(trace, place * (total // count), rows, "main", seed) for place in range(count)]
        if rows > 1
        else []
    )
    cuts = [window for window in cuts if window.arrival_s[-1] > 0.0]
    if not cuts:
        raise InputError(
            f"{total} requests in no time at all are no traffic to size for", where=trace.info.file,
            fix="use a file with at least two requests at different times",
        )  # fmt: skip
    return cuts


def solve(job: Job, scaler: str, seed: int) -> "tuple[Sized, Trial | None]":
    """Return the sized fleet, and what the autoscaler made of the same windows."""
    from sim import sizing

    def try_(engines: int) -> "Trial":
        trial = attempt(job, job.scheduler, engines, 0)
        words = "  ".join(
            f"{one.tier.name} {share:.1%}" for one, share in zip(job.promises, trial.attained, strict=True)
        )
        typer.echo(f"{engines} engine{'s' if engines > 1 else ''}: {words}", err=True)
        return trial

    owed = np.array([promise.attain for promise in job.promises])
    typer.echo(f"{len(job.windows)} windows of {len(job.windows[0].arrival_s):,} requests", err=True)
    sized = sizing.size(try_, owed, first_guess(job), job.most, seed)
    if not sized.engines or not scaler:
        return sized, None
    room = min(job.most, max(sized.engines + 2, 2 * sized.engines))
    auto = attempt(job, f"{job.scheduler}+{scaler}", room, sized.engines)
    typer.echo(
        f"autoscaled, {sized.engines} at first and up to {room}: {auto.billed:.2f} on average", err=True
    )
    return sized, auto


def first_guess(job: Job) -> int:
    """Return how many engines the busiest window's work would fill, by the measured capacity of one."""
    from sim.calibrate import measure

    busiest = min(job.windows, key=lambda window: float(window.arrival_s[-1]) / len(window.arrival_s))
    place = job.place._replace(engines=1, wiring="")
    plan = plan_of(job.scheduler, place)
    capacity = measure(busiest, plan, staged(plan, place))
    rate_per_s = len(busiest.arrival_s) / capacity.span_s * job.rate_scale
    return int(np.ceil(rate_per_s / capacity.capacity_per_s))


def attempt(job: Job, scheduler: str, engines: int, start: int) -> "Trial":
    """Run a fleet on every window; ``start`` engines serve from the beginning, 0 stands for all."""
    from analysis.metrics import met
    from loadgen.demand import prepare, targets
    from schedulers.load import load
    from sim.run import simulate
    from sim.sizing import Trial

    place = job.place._replace(engines=engines)
    plan, policy = plan_of(scheduler, place), load(scheduler)
    setup = staged(plan, place)
    setup = setup._replace(wiring=setup.wiring._replace(start=start))
    tiers, rows = len(job.promises), []
    for window in job.windows:
        demand = prepare(window, plan, 1.0 / job.rate_scale)
        outcome = simulate(demand, policy, setup)
        good = met("tier", outcome.facts, targets(plan))
        inside = slice(*window.scored)
        arrived = np.bincount(demand.tier[inside], minlength=tiers)
        kept = np.bincount(demand.tier[inside][good[inside]], minlength=tiers)
        end_s = float(np.nanmax(outcome.facts.finished_s, initial=float(demand.arrival_s[-1])))
        billed = outcome.totals.engine_s if start else engines * end_s
        rows.append((arrived, kept, int(good.sum()), billed, end_s))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Trial(engines, *columns)


def facts_of(job: Job, trace: "Trace", sized: "Sized", auto: "Trial | None") -> dict[str, Any]:
    """Return the answer as plain values."""
    requests = sum(len(window.arrival_s) for window in job.windows)
    span_s = sum(float(window.arrival_s[-1]) for window in job.windows) / job.rate_scale
    rows = [fleet_row(job, trial, sized.chance.get(trial.engines)) for trial in sized.trials]
    found = next((trial for trial in sized.trials if trial.engines == sized.engines), None)
    told: dict[str, Any] = {
        "file": trace.info.file,
        "source": trace.info.source,
        "label": trace.info.label,
        "scheduler": job.scheduler,
        "windows": len(job.windows),
        "requests": requests,
        "requests_per_s": requests / span_s,
        "rate_scale": job.rate_scale,
        "tiers": [
            {"name": one.tier.name, "share": one.tier.share, "attain": one.attain} for one in job.promises
        ],
        "engines": sized.engines or None,
        "max_engines": job.most,
        "fraction": sized.fraction if sized.engines else None,
        "low": sized.low,
        "high": sized.high if sized.high <= job.most else None,
        "fleets": rows,
        "falls": [
            {"engines": engines, "tier": job.promises[tier].tier.name, "by": by}
            for engines, tier, by in sized.falls
        ],
        "autoscaled": None,
    }
    if auto is not None and found is not None:
        saving = 1.0 - auto.billed / found.billed
        told["autoscaled"] = fleet_row(job, auto, None) | {"saving": saving}
    return told


def fleet_row(job: Job, trial: "Trial", chance: float | None) -> dict[str, Any]:
    """Return one fleet: what each tier attained, and what it cost in engine-hours."""
    per_good_s = trial.engine_s_per_good
    return {
        "engines": trial.engines,
        "attained": dict(zip([one.tier.name for one in job.promises], trial.attained.tolist(), strict=True)),
        "enough": bool((trial.attained >= [one.attain for one in job.promises]).all()),
        "chance": chance,
        "engine_hours_an_hour": trial.billed,
        "engine_hours_per_1000": per_good_s * 1000 / 3600 if np.isfinite(per_good_s) else None,
    }


def tell(told: dict[str, Any]) -> None:
    """Print the answer, the cost table, and what speaks against it."""
    from rich.console import Console

    console = Console()
    rate = f"{told['requests_per_s']:.2f} requests/s"
    console.print(
        f"{told['source']} ({told['label']}): {told['windows']} windows, {told['requests']:,} requests, {rate}"
        + (f", {told['rate_scale']:g} times as recorded" if told["rate_scale"] != 1 else ""),
        highlight=False, markup=False,
    )  # fmt: skip
    console.print(cost_table(told))
    if told["engines"] is None:
        console.print(f"Not even {told['max_engines']} engines are enough.", style="bold", highlight=False)
    else:
        few = told["windows"] < FEW_WINDOWS
        high = told["high"] or f"more than {told['max_engines']}"
        over = "too few windows for an interval" if few else f"95 % over windows: {told['low']} to {high}"
        plural = "s" if told["engines"] > 1 else ""
        console.print(
            f"{told['engines']} engine{plural} of {told['profile']} ({over}; {told['fraction']:.2f} between sizes)",
            style="bold", highlight=False,
        )  # fmt: skip
    for fall in told["falls"]:
        console.print(
            f"Not monotone: {fall['engines']} engines: {fall['tier']} attains {fall['by']:.1%} less than with fewer.",
            highlight=False, markup=False,
        )  # fmt: skip
    if told["autoscaled"]:
        saving, kept = told["autoscaled"]["saving"], told["autoscaled"]["enough"]
        verb = "saves" if saving >= 0 else "costs"
        so = "and keeps every promise" if kept else "but does not keep every promise"
        console.print(
            f"Autoscaling ({told['scaler']}) {verb} {abs(saving):.0%} of engine-hours {so}.", highlight=False
        )


def cost_table(told: dict[str, Any]) -> Any:
    """Return fleets by size with attainment, the chance that they are enough, and cost."""
    from rich.table import Table

    grid, price = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0)), told["price"]
    names = [one["name"] for one in told["tiers"]]
    grid.add_column("engines", no_wrap=True)
    for one in told["tiers"]:
        grid.add_column(f"{one['name']}\n>= {one['attain']:.0%}", justify="right")
    for title in (
        "chance",
        "hours\nan hour",
        "hours per\n1,000 met",
        *(("cost\nan hour", "cost per\n1,000") if price else ()),
    ):
        grid.add_column(title, justify="right", no_wrap=True)
    autoscaled = [told["autoscaled"]] if told["autoscaled"] else []
    for row in (*told["fleets"], *autoscaled):
        chosen = row["chance"] is not None and row["engines"] == told["engines"]
        cells = [f"{row['attained'][name]:.1%}" for name in names]
        cells.append(f"{row['chance']:.0%}" if row["chance"] is not None else "")
        cells.append(f"{row['engine_hours_an_hour']:.2f}")
        per = row["engine_hours_per_1000"]
        cells.append("-" if per is None else f"{per:.3f}")
        if price:
            cells.append(f"{row['engine_hours_an_hour'] * price:,.2f}")
            cells.append("-" if per is None else f"{per * price:,.3f}")
        name = str(row["engines"]) if row["chance"] is not None else "autoscaled"
        grid.add_row(name, *cells, style="bold" if chosen else "")
    return grid
