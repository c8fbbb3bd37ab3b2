"""Fidelity: runs of one condition in two folders held against each other, request by request and rank by rank.

An error is (second - first) / first of TTFT, TPOT and E2E over scored requests that finished in both runs.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from analysis.metrics import latencies, orient, split_column
from loadgen.result import FINISHED, read_requests, read_runs, scored_rows

LATENCIES = ("ttft", "tpot", "e2e")
METRICS = ("attainment:S2", "attainment:tier", "ttft_p95_s", "e2e_mean_s", "throughput_tokens_per_s")
"""By which the ranks of several schedulers are compared, where both folders have them."""

CONDITION = ["source", "region", "window_id", "scheduler"]


def held(first: Path, second: Path, metrics: Sequence[str] = METRICS) -> dict[str, Any]:
    """Return how many runs two folders have in common, errors a run, their medians, and agreement of ranks.

    Raises InputError for folders without results, damaged shards or an unknown metric.
    """
    pairs = paired(first, second)
    errors = [told for pair in pairs if (told := request_errors(pair)) is not None]
    return {
        "pairs": len(pairs),
        "errors": errors,
        "pooled": pooled(errors),
        "ranks": rank_agreement(pairs, metrics),
    }


def paired(simulated: Path, live: Path) -> list[dict[str, Any]]:
    """Return runs of one condition in both folders, with their rows and their facts."""
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


def rows(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table of runs."""
    return [{str(name): value for name, value in row.items()} for row in runs.to_dict("records")]


def request_errors(pair: dict[str, Any]) -> dict[str, Any] | None:
    """Return relative errors of each latency over what finished in both runs; None without both facts."""
    sim, live = pair["sim"][1], pair["live"][1]
    if sim is None or live is None or len(sim.arrival_s) != len(live.arrival_s):
        return None
    try:
        low, high = scored_rows(kind_of(pair["window_id"]), len(sim.arrival_s))
    except (KeyError, IndexError):
        return None  # not a window of ours: nobody knows which of its requests count
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


def pooled(errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs of the runs' errors."""
    return {
        name: {
            part: float(np.median([one[name][part] for one in errors if name in one]))
            for part in ("signed_p50", "p50", "p90")
        }
        for name in LATENCIES
        if any(name in one for one in errors)
    }


def rank_agreement(pairs: list[dict[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return Kendall's tau-b between simulated and live order of schedulers, a condition and metric."""
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        cells[pair["source"], pair["region"]][pair["scheduler"]].append(pair)
    told = []
    for (source, region), schedulers in cells.items():
        for column in ("_".join(filter(None, split_column(asked))) for asked in metrics):
            sides = {
                name: [_mean([pair[side][0] for pair in found], column) for side in ("sim", "live")]
                for name, found in schedulers.items()
            }
            means = {name: both for name, both in sides.items() if np.isfinite(both).all()}
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


def _mean(runs: list[dict[str, Any]], column: str) -> float:
    """Return the mean of a metric over runs, oriented; NaN if a run has no such column or none has a value."""
    values = [np.nan if row.get(column) is None else float(row[column]) for row in runs]
    known = orient(np.array(values), column)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) and all(column in row for row in runs) else float("nan")
