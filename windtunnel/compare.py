"""`windtunnel compare`: a live run held against the simulator's, request by request and rank by rank."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.up import AsJson

if TYPE_CHECKING:
    import pandas as pd

LATENCIES = ("ttft", "tpot", "e2e")
METRICS = ("attainment:S2", "attainment:tier", "ttft_p95_s", "e2e_mean_s", "throughput_tokens_per_s")
"""By which the ranks of several schedulers are compared, where both folders have them."""

WIDTH = 120
"""Columns where no terminal says how many there are."""

CONDITION = ["source", "region", "window_id", "scheduler"]


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
    from schedulers.errors import InputError

    pairs = paired(simulated, live)
    if not pairs:
        raise InputError(
            "the two folders have no run in common",
            where=str(live),
            fix='sweep the plan.toml of the live folder with keep = "requests" into another --out',
        )
    errors = [told for pair in pairs if (told := request_errors(pair)) is not None]
    ranks = rank_agreement(pairs, tuple(metric or METRICS))
    told = {"pairs": len(pairs), "errors": errors, "pooled": pooled(errors), "ranks": ranks}
    if as_json:
        typer.echo(json.dumps(told))
        return
    show(told)


def paired(simulated: Path, live: Path) -> list[dict[str, Any]]:
    """Return runs of one condition in both folders, with their rows and their facts."""
    from loadgen.result import read_requests, read_runs

    sides = []
    for folder in (simulated, live):
        runs = read_runs(folder, sketches=False)
        facts = dict(read_requests(folder, set(runs["run_id"])))
        sides.append(
            {tuple(row[name] for name in CONDITION): (row, facts.get(row["run_id"])) for row in rows(runs)}
        )
    return [
        {
            **dict(zip(CONDITION, condition, strict=True)),
            "sim": sides[0][condition],
            "live": sides[1][condition],
        }
        for condition in sorted(set(sides[0]) & set(sides[1]))
    ]


def rows(runs: "pd.DataFrame") -> list[dict[str, Any]]:
    """The rows of a table of runs."""
    return [{str(name): value for name, value in row.items()} for row in runs.to_dict("records")]


def request_errors(pair: dict[str, Any]) -> dict[str, Any] | None:
    """Return relative errors of each latency over what finished in both runs; None without both facts."""
    import numpy as np

    from loadgen.result import FINISHED
    from loadgen.window import scored_rows

    sim, live = pair["sim"][1], pair["live"][1]
    if sim is None or live is None or len(sim.arrival_s) != len(live.arrival_s):
        return None
    low, high = scored_rows(kind_of(pair["window_id"]), len(sim.arrival_s))
    both = (sim.outcome == FINISHED) & (live.outcome == FINISHED)
    both[:low] = both[high:] = False
    told: dict[str, Any] = {name: pair[name] for name in CONDITION} | {"requests": int(both.sum())}
    there, here = latencies(sim), latencies(live)
    for name in LATENCIES:
        with np.errstate(divide="ignore", invalid="ignore"):
            error = ((here[name] - there[name]) / there[name])[both]
        error = error[np.isfinite(error)]
        if len(error):
            size = np.abs(error)
            p50, p90 = (float(value) for value in np.quantile(size, [0.5, 0.9]))
            told[name] = {"signed_p50": float(np.median(error)), "p50": p50, "p90": p90}
    return told


def kind_of(window_id: str) -> str:
    """The kind that a window's id tells: SOURCE-KIND-DIGEST."""
    return window_id.rsplit("-", 2)[1]


def latencies(facts: Any) -> dict[str, Any]:
    """TTFT, TPOT and E2E of each request; TPOT of a single token is NaN."""
    import numpy as np

    gaps = np.where(facts.output_tokens > 1, facts.output_tokens - 1, np.nan)
    return {
        "ttft": facts.first_token_s - facts.arrival_s,
        "tpot": (facts.finished_s - facts.first_token_s) / gaps,
        "e2e": facts.finished_s - facts.arrival_s,
    }


def pooled(errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs of the runs' errors."""
    import numpy as np

    return {
        name: {
            part: float(np.median([one[name][part] for one in errors if name in one]))
            for part in ("signed_p50", "p50", "p90")
        }
        for name in LATENCIES
        if any(name in one for one in errors)
    }


def rank_agreement(pairs: list[dict[str, Any]], metrics: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return Kendall's tau-b between simulated and live order of schedulers, a condition and metric."""
    from collections import defaultdict

    import numpy as np
    from scipy.stats import kendalltau

    from analysis.metrics import orient, split_column

    cells: dict[tuple[str, str], dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for pair in pairs:
        cells[pair["source"], pair["region"]][pair["scheduler"]].append((pair["sim"][0], pair["live"][0]))
    told = []
    for (source, region), schedulers in cells.items():
        for asked in metrics:
            base, slo = split_column(asked)
            column = f"{base}_{slo}" if slo else base
            means = {
                name: tuple(
                    float(
                        np.nanmean(
                            orient(
                                np.array([row[side].get(column) or np.nan for row in found], float), column
                            )
                        )
                    )
                    for side in (0, 1)
                )
                for name, found in schedulers.items()
                if all(row[side].get(column) is not None for row in found for side in (0, 1))
            }
            if len(means) < 2:
                continue
            ours, theirs = np.array(list(means.values())).T
            tau = float(kendalltau(ours, theirs).statistic)
            order = [sorted(means, key=lambda name, side=side: -means[name][side]) for side in (0, 1)]  # type: ignore[misc]
            told.append(
                {
                    "source": source, "region": region, "metric": column, "schedulers": len(means),
                    "tau_b": tau if np.isfinite(tau) else None, "simulated": order[0], "live": order[1],
                    "same_first": order[0][0] == order[1][0],
                }
            )  # fmt: skip
    return told


def show(told: dict[str, Any]) -> None:
    """Print errors and ranks."""
    from rich.console import Console
    from rich.table import Table

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
