"""What a fidelity study claims: conditions picked from simulated results, and pairs, written before it runs live."""

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from loadgen.manifest import write_whole
from schedulers.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.validity import Condition
    from loadgen.plan import Plan

REGISTERED = "registered.json"

SEAL = "claims_sha256"
"""Name of the digest of the claims in their file."""

OVERHEAD_S = 4.0
"""Wall seconds of a live run beside its traffic: setting the policy, waiting until engines are empty, storing."""


class Wanted(NamedTuple):
    """What the command line says about a study."""

    metric: str  # "": the plan's, or one that tells schedulers apart
    conditions: int  # 0: every one that tells schedulers apart
    repeats: int
    minutes: float
    ids: frozenset[str]  # of windows; none: all


class Claims(NamedTuple):
    """What was registered: the metric, the conditions to be run live with the seconds of a cell, and the pairs."""

    metric: str
    conditions: "tuple[Condition, ...]"
    seconds: float  # of one live run of every scheduler in every condition
    told: dict[str, Any]  # the file


def simulate(plan: "Plan", out: Path) -> None:
    """Sweep the plan in the simulator into OUT/sim, keeping every request; what is there stays."""
    from windtunnel.sweep import complete

    swept, _ = complete(plan, out / "sim", 0, as_json=False)
    if swept.failures:
        fix = "see its file of failures, or leave that scheduler out"
        raise InputError(f"{swept.failures} simulated runs failed", where=str(out / "sim"), fix=fix)


def claimed(plan: "Plan", out: Path, wanted: Wanted, speed: float) -> Claims:
    """Return what is claimed, written now if no claims are there: the mean over simulated draws, see ``shaken``.

    Raises InputError if no metric tells schedulers apart, if the simulator says something else than when claims were
    made, or if live runs are there and no claims.
    """
    runs = simulated(out, wanted.ids)
    path = out / REGISTERED
    if path.exists():
        told = _unchanged(path)
        _refuse_another(told, runs, wanted, path)
    elif (out / "live").exists():
        raise InputError("there are live runs and no claims", where=str(path), fix="use a new --out")
    else:
        told = _register(plan, out, wanted, seconds_of(out, runs, speed))
        told["simulated_sha256"] = digest_of(runs, told["metric"])
        told = sealed(told)
        write_whole(path, f"{json.dumps(told, indent=1, sort_keys=True)}\n".encode())
    conditions = tuple((one["window"], one["region"]) for one in told["conditions"])
    return Claims(told["metric"], conditions, told["seconds"], told)


def simulated(out: Path, ids: frozenset[str]) -> "pd.DataFrame":
    """Return the simulator's runs, of the windows named or of all."""
    from loadgen.result import read_runs

    runs = read_runs(out / "sim", sketches=False)
    return runs[runs["window_id"].isin(ids)] if ids else runs


def seconds_of(out: Path, runs: "pd.DataFrame", speed: float) -> "dict[tuple[Condition, str], float]":
    """Return how many wall seconds a live run of each cell takes: until the simulator's last request ended."""
    from loadgen.result import read_requests

    facts = dict(read_requests(out / "sim", set(runs["run_id"])))
    found = {}
    for _, row in runs.iterrows():
        last_s = float(np.nanmax(facts[row["run_id"]].finished_s, initial=0.0))
        found[(str(row["window_id"]), str(row["region"])), str(row["scheduler"])] = (
            last_s / speed + OVERHEAD_S
        )
    return found


def digest_of(runs: "pd.DataFrame", metric: str) -> str:
    """Return the digest of simulated values: claims belong to these."""
    from analysis.validity import values

    return sha256(repr(sorted(values(runs, metric).items())).encode()).hexdigest()


def sealed(told: dict[str, Any]) -> dict[str, Any]:
    """Return claims with the digest of all else that they say, which shows a change made by accident or in haste."""
    others = {name: value for name, value in told.items() if name != SEAL}
    return others | {SEAL: sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()}


def _unchanged(path: Path) -> dict[str, Any]:
    """Return the claims as they were registered; raises InputError if the file is damaged or was changed."""
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        good = told[SEAL] == sealed(told)[SEAL]
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        fix = "use a new --out: what was claimed stands"
        raise InputError("the claims are not as they were registered", where=str(path), fix=fix)
    return told


def _refuse_another(told: dict[str, Any], runs: "pd.DataFrame", wanted: Wanted, path: Path) -> None:
    same = wanted.metric in ("", told["metric"])
    if not same or told["simulated_sha256"] != digest_of(runs, told["metric"]):
        what = "the simulator says something else than when claims were made" if same else (
            f"claims were made by {told['metric']}, not {wanted.metric}"
        )  # fmt: skip
        raise InputError(what, where=str(path), fix="use a new --out: what was claimed stands")


def _register(
    plan: "Plan", out: Path, wanted: Wanted, took_s: "dict[tuple[Condition, str], float]"
) -> dict[str, Any]:
    """Choose metric and conditions, and tell what is claimed of them."""
    from analysis.conditions import USUAL, choose, in_units, metric_of
    from analysis.validity import expected, register
    from windtunnel.shaken import shaken

    asked = wanted.metric or plan.primary
    draws = shaken(plan, out, (asked, *USUAL), lambda words: typer.echo(words, err=True))
    if wanted.ids:
        draws = [one[one["window_id"].isin(wanted.ids)] for one in draws]
    metric, why = _metric(draws, asked, named=bool(wanted.metric))
    known = metric_of(draws, metric)
    chosen = choose(known, took_s, wanted.conditions, wanted.minutes * 60.0 / wanted.repeats)
    assert chosen is not None  # the metric tells schedulers apart somewhere
    return {
        "metric": metric, "metric_why": why, "why": chosen.why, "seconds": chosen.seconds,
        "conditions": [
            {"window": one[0], "region": one[1], "spread": spread, "unit": known.unit[one],
             "ceiling": expected(known.draws, one),
             "seconds": sum(took for (where, _), took in took_s.items() if where == one)}
            for one, spread in zip(chosen.conditions, chosen.spreads, strict=True)
        ],
        "simulated": [
            {"window": window, "region": region, "scheduler": name, "mean": value,
             "draws": [*known.draws[(window, region), name]]}
            for ((window, region), name), value in sorted(known.mean.items())
            if (window, region) in chosen.conditions
        ],
        "candidates": len(known.unit), "schedulers": list(plan.schedulers),
        "pairs": [pair._asdict() for pair in register(in_units(known, chosen.conditions))],
    }  # fmt: skip


def _metric(draws: "list[pd.DataFrame]", asked: str, *, named: bool) -> tuple[str, str]:
    """Return the metric to rank by and why; raises InputError if the one named tells nobody apart."""
    from analysis.conditions import telling

    able = dict(telling(draws, asked))
    if asked in able:
        return asked, "as asked" if named else "the plan's"
    if not able:
        fix = "with a new --out press harder (--region 1.2), run fewer at once, or compare other schedulers"
        raise InputError("no metric tells these schedulers apart in the simulator", where="--region", fix=fix)
    best = next(iter(able))
    if named:
        what = f"the simulator tells schedulers apart by {asked} nowhere: nothing could be held against live runs"
        raise InputError(what, where="--metric", fix=f"use {', '.join(able)}")
    typer.echo(f"note: {asked} does not tell these schedulers apart; ranked by {best}", err=True)
    return best, f"{asked}, the plan's, tells nobody apart in the simulator"
