"""Speed of clusters: requests simulated a second and core, beside one engine and a fleet where nothing moves."""

import json
from collections.abc import Callable, Sequence
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.bench_job import PROFILE, RHO, fixed_job

if TYPE_CHECKING:
    from loadgen.demand import Demand
    from sim.run import Setup

REQUESTS, ENGINES, RUNS = 100_000, (4, 16, 64), 3
PERIOD_S, DELAY_S = 0.05, 0.005
"""Reports of the clusters that have them (reference/multitier.md section 10)."""

SHARES = (0.1, 0.2, 0.3, 0.4)
"""Requests by tier, the most important first."""

ALONE, PLAIN = "fcfs-chunked", "strict-tiers+llumnix"
"""The references: the kernel of one engine, and a fleet where nothing happens but arrivals and steps."""

WHOLE = "strict-tiers+llumnix+rebalance:low=800,high=0"
"""Tiers and moves. By these thresholds a move is under way about 8 % of an engine's time (Llumnix: about 10 %)."""

TIGHT_BLOCKS = 6_000
"""KV blocks of an engine in the run where memory, too, is short."""


def cluster(
    scheduler: Annotated[
        list[str] | None, typer.Option(help="Schedulers to time beside the fixed ones; several may be given.")
    ] = None,
    engines: Annotated[
        list[int] | None, typer.Option(min=1, max=1024, help="Sizes of the cluster; several may be given.")
    ] = None,
    requests: Annotated[int, typer.Option(min=100, help="Requests of the job.")] = REQUESTS,
    runs: Annotated[int, typer.Option(min=1, help="Runs a row; the median is printed.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Requests simulated a second on one core by clusters with tiers and live migration.

    The fixed job of `bench kernel` in four tiers, its rate times the engines, so that each engine meets the same
    load. References in the same run: one engine by itself, and the same fleet without moves, reports and scaling
    (the plain loop). With reports the dispatcher hears of engines every 50 ms, else it sees them as they are.
    Seconds are CPU seconds of one core.

    Example: windtunnel bench cluster --engines 4 --engines 16 --requests 20000
    """
    sizes = engines or list(ENGINES)
    rows = [timed("one engine", ALONE, 1, requests, runs)]
    for name, spec, place in cases(scheduler or []):
        for size in sizes:
            rows.append(timed(name, spec, size, requests, runs, place))
            typer.echo(f"{name}, {size} engines: done", err=True)
    grown = growth(rows)
    if as_json:
        job = {"requests": requests, "rho": RHO, "profile": PROFILE, "runs": runs, "shares": SHARES}
        typer.echo(json.dumps({"job": job, "rows": rows, "growth": grown}))
        return
    show(rows, requests, runs)
    for name, power in grown.items():
        typer.echo(f"{name}: cost a request grows with engines to the power of {power:.2f} (1 is linear)")


Place = Callable[["Setup"], "Setup"]


def cases(further: Sequence[str]) -> list[tuple[str, str, Place | None]]:
    """What is timed on each size: a name, a scheduler, and what is changed in the fleet."""
    from sim.fabric import Wiring

    reports = Wiring(period_s=PERIOD_S, delay_s=DELAY_S)

    def reporting(setup: "Setup") -> "Setup":
        return setup._replace(wiring=reports)

    def tight(setup: "Setup") -> "Setup":
        return setup._replace(wiring=reports, blocks=TIGHT_BLOCKS)

    fixed: list[tuple[str, str, Place | None]] = [
        ("plain", PLAIN, None),
        ("moves", WHOLE, None),
        ("moves, reports", WHOLE, reporting),
        ("little memory", WHOLE, tight),
    ]
    return fixed + [(spec, spec, reporting) for spec in further]


def timed(
    name: str, spec: str, engines: int, requests: int, runs: int, place: Place | None = None
) -> dict[str, Any]:
    """One row: the median CPU time of so many runs, after one short run that loads what is compiled."""
    from schedulers.load import load
    from sim.run import simulate

    scheduler = load(spec)
    demand, setup = tiered_job(requests, engines)
    setup = place(setup) if place else setup
    few, few_setup = tiered_job(100, engines)
    simulate(few, scheduler, place(few_setup) if place else few_setup)
    spans = []
    for _ in range(runs):
        start = process_time()
        told = simulate(demand, scheduler, setup)
        spans.append(process_time() - start)
    span_s = float(demand.arrival_s[-1])
    return {
        "case": name,
        "scheduler": spec,
        "engines": engines,
        "per_s": requests / median(spans),
        "us_per_request": median(spans) / requests * 1e6,
        "moves": told.moves.committed,
        "moving_share": told.moves.seconds / span_s / engines if span_s > 0 else 0.0,
        "evictions": told.totals.evictions,
        "batch_mean": told.totals.batch_mean,
    }


def tiered_job(requests: int, engines: int) -> tuple["Demand", "Setup"]:
    """The fixed job in four tiers, at the same load for each of so many engines."""
    import numpy as np

    from schedulers.view import Tiers

    demand, setup = fixed_job(requests)
    luck = np.random.default_rng(20_28).random(requests)
    tier = np.searchsorted(np.cumsum(SHARES)[:-1], luck, side="right").astype(np.int64)
    targets = (np.array([0.5, 1.0, 2.0, 10.0]), np.array([0.03, 0.05, 0.1, 0.3]))
    tiers = Tiers(*targets, np.full(4, np.inf), np.array([8.0, 4.0, 2.0, 1.0]))
    demand = demand._replace(arrival_s=demand.arrival_s / engines, tier=tier)
    return demand, setup._replace(engines=engines, tiers=tiers)


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The exponent with which a case's cost a request grows from its smallest to its largest cluster."""
    from math import log

    found = {}
    for name in dict.fromkeys(row["case"] for row in rows):
        own = sorted((row for row in rows if row["case"] == name), key=lambda row: row["engines"])
        first, last = own[0], own[-1]
        if last["engines"] > first["engines"]:
            cost = last["us_per_request"] / first["us_per_request"]
            found[name] = log(cost) / log(last["engines"] / first["engines"])
    return found


def show(rows: list[dict[str, Any]], requests: int, runs: int) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"Requests simulated a second and core ({requests:,} requests, median of {runs})",
        title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("case", overflow="fold")
    for title in ("engines", "requests/s", "us each", "x one", "moves", "moving", "evicted"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["case"],
            str(row["engines"]),
            f"{row['per_s']:,.0f}",
            f"{row['us_per_request']:.2f}",
            f"{row['us_per_request'] / rows[0]['us_per_request']:.2f}",
            f"{row['moves']:,}",
            f"{row['moving_share']:.1%}",
            f"{row['evictions']:,}",
        )
    Console().print(table)
