"""`windtunnel compare`: a live run held against the simulator's, request by request and rank by rank."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.up import AsJson

WIDTH = 120
"""Columns where no terminal says how many there are."""


def compare(
    simulated: Annotated[Path, typer.Argument(help="Results of the simulator.", metavar="RUN_SIM")],
    live: Annotated[Path, typer.Argument(help="Results of a replay.", metavar="RUN_LIVE")],
    metric: Annotated[
        list[str] | None, typer.Option(help="Compare ranks by these; several may be given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs of one window, region and scheduler: errors of each request, and whether the ranks agree.

    An error is (live - simulated) / simulated of TTFT, TPOT and E2E over scored requests that finished in both:
    its median with its sign, the median and the 90th percentile without. Ranks: Kendall's tau-b over schedulers.

    Example: windtunnel compare out/sim out/live --metric ttft_p95_s
    """
    from analysis.fidelity import METRICS, held
    from schedulers.errors import InputError

    told = held(simulated, live, tuple(metric or METRICS))
    if not told["pairs"]:
        raise InputError(
            "the two folders have no run in common",
            where=str(live),
            fix='sweep the plan.toml of the live folder with keep = "requests" into another --out',
        )
    if as_json:
        typer.echo(json.dumps(told))
        return
    show(told)


def show(told: dict[str, Any]) -> None:
    """Print errors and ranks."""
    from rich.console import Console
    from rich.table import Table

    from analysis.fidelity import LATENCIES

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    title = "Live against simulated, relative error of a request:\nmedian (its sign kept) 90th percentile"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("scheduler", "window", "rho", "requests"):
        table.add_column(heading, overflow="fold")
    for name in LATENCIES:
        table.add_column(name, justify="right", no_wrap=True)
    for one in told["errors"]:
        cells = [words(one.get(name)) for name in LATENCIES]
        digest = one["window_id"].rpartition("-")[2]
        table.add_row(one["scheduler"], digest, one["region"], str(one["requests"]), *cells)
    table.add_row("median of runs", "", "", "", *(words(told["pooled"].get(name)) for name in LATENCIES))
    console.print(table)
    for one in told["ranks"]:
        tau = "undefined" if one["tau_b"] is None else f"{one['tau_b']:.2f}"
        first = (
            "same first"
            if one["same_first"]
            else f"first: {one['simulated'][0]} simulated, {one['live'][0]} live"
        )
        console.print(
            f"{one['source']} rho {one['region']} by {one['metric']}: tau-b {tau} over {one['schedulers']}, {first}",
            highlight=False,
        )


def words(error: dict[str, float] | None) -> str:
    """An error in percent."""
    if error is None:
        return "-"
    return f"{error['p50']:.0%} ({error['signed_p50']:+.0%}) {error['p90']:.0%}"
