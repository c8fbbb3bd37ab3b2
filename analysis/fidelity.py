"""Fidelity: runs of one condition in two folders held against each other, request by request and rank by rank.

An error is (second - first) / first of TTFT, TPOT and E2E over scored requests that finished in both runs. Beside it
stand seconds and, of the first run, steps: an engine looks at arrivals only between two steps, so that a request
that comes a moment later may wait for one step more, and a TTFT shorter than a step is off by more than itself then.
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
    told["same_engine"] = float(np.mean((sim.engine == live.engine)[both])) if both.any() else None
    there, here, step_s = latencies(sim), latencies(live), step_of(pair["sim"][0])
    for name in LATENCIES:
        away_s = (here[name] - there[name])[both]
        with np.errstate(divide="ignore", invalid="ignore"):
            error = away_s / there[name][both]
        error, away_s = error[np.isfinite(error)], away_s[np.isfinite(error)]
        if len(error):
            told[name] = {"signed_p50": float(np.median(error))} | _sizes(error) | _sizes(away_s, "_s")
            if step_s:
                told[name] |= _sizes(away_s / step_s, "_steps")
    return told


def _sizes(error: Any, unit: str = "") -> dict[str, float]:
    """Median and 90th percentile of the size of errors, named by their unit."""
    p50, p90 = (float(value) for value in np.quantile(np.abs(error), [0.5, 0.9]))
    return {f"p50{unit}": p50, f"p90{unit}": p90}


def step_of(run: dict[str, Any]) -> float:
    """Return the mean seconds of a run's step, 0 where nobody counted steps."""
    steps, busy_s = run.get("steps"), run.get("busy_s")
    return float(busy_s) / float(steps) if steps and busy_s and np.isfinite(steps) else 0.0


def attainment_errors(pairs: list[dict[str, Any]], column: str = "attainment_tier") -> dict[str, float]:
    """Return how far attainment is off over pairs of runs, second less first: mean, mean size, largest size."""
    gaps = [
        float(pair["live"][0][column]) - float(pair["sim"][0][column])
        for pair in pairs
        if all(pair[side][0].get(column) is not None for side in ("sim", "live"))
    ]
    known = np.array([gap for gap in gaps if np.isfinite(gap)])
    if not len(known):
        return {}
    size = np.abs(known)
    return {"mean": float(known.mean()), "size_mean": float(size.mean()), "size_max": float(size.max())}


def kind_of(window_id: str) -> str:
    """The kind that a window's id tells: SOURCE-KIND-DIGEST."""
    return window_id.rsplit("-", 2)[1]


def pooled(errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs of the runs' errors, of each part that all of them have."""
    found = {name: [one[name] for one in errors if name in one] for name in LATENCIES}
    return {
        name: {
            part: float(np.median([one[part] for one in told]))
            for part in told[0]
            if all(part in one for one in told)
        }
        for name, told in found.items()
        if told
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
