"""A fidelity study as `windtunnel validate` leaves it: claims, simulated and live runs, brought to one answer.

The folder holds ``registered.json``, ``sim`` and ``live/repeat-N``; pages read the answer, ``fidelity.json``.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analysis.fidelity import CONDITION, attainment_errors, paired, pooled, request_errors
from analysis.metrics import natural
from analysis.validity import (
    Condition,
    Pair,
    Value,
    cells_of,
    column_of,
    judge,
    name_of,
    values,
    verdict,
)
from loadgen.result import InputError, read_runs

FILE = "fidelity.json"
MISS = 0.1
"""A run whose engines took longer or shorter than expected by more than this share missed its pressure."""


def judged(out: Path, repeats: int, driver: str, usual: float = 1.0) -> dict[str, Any]:
    """Return the answer of a study: verdict, conditions, claims, errors, pressure and drift, as plain values.

    ``usual`` is how much slower than their profile engines are expected to be (1 for paced ones). Raises InputError
    for a folder without claims or results.
    """
    told = _registered(out)
    chosen = {(one["window"], one["region"]) for one in told["conditions"]}
    folders = [out / "live" / f"repeat-{number}" for number in range(1, repeats + 1)]
    folders = [one for one in folders if (one / "runs").is_dir()]
    metric = told["metric"]
    simulated = {
        ((one["window"], one["region"]), one["scheduler"]): float(one["mean"]) for one in told["simulated"]
    }
    live = [_kept(values(read_runs(one, sketches=False), metric), chosen) for one in folders]
    pairs = [Pair(**one) for one in told["pairs"]]
    against = [paired(out / "sim", one) for one in folders]
    pressure: list[dict[str, Any]] = []
    for number, (listed, folder) in enumerate(zip(against, folders, strict=True), 1):
        pressure += _pressure(listed, folder, number, usual)
    return {
        "driver": driver, "metric": metric, "registered": told, "usual": usual,
        "verdict": _plain(verdict(simulated, live, metric)._asdict()),
        "conditions": [
            _condition(one, simulated, live, metric) | {"draws": _draws(told, one)} for one in sorted(chosen)
        ],
        "pairs": [
            {**one._asdict(), "pair": one.pair._asdict(), "says": one.says} for one in judge(pairs, live)
        ],
        "errors": _errors(against, folders),
        "attainment": attainment_errors([pair for listed in against for pair in listed]),
        "pressure": pressure, "asked": len(chosen) * len(told["schedulers"]) * repeats,
        "drift": _drift(live, pressure, metric),
    }  # fmt: skip


def read_study(folder: Path) -> dict[str, Any] | None:
    """Return the answer that lies in a folder; None if there is none. Raises InputError for a damaged one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        fix = "run the same `windtunnel validate` again: live runs stay"
        raise InputError("the answer of the fidelity study is damaged", where=str(path), fix=fix) from error


def write(told: Mapping[str, Any], out: Path) -> None:
    """Write ``fidelity.json`` and ``fidelity.md`` into the study's folder."""
    from analysis.export import write_file
    from analysis.fidelity_words import as_markdown

    write_file(out / FILE, json.dumps(told, indent=1, sort_keys=True, allow_nan=False) + "\n")
    write_file(out / "fidelity.md", as_markdown(told))


def _registered(out: Path) -> dict[str, Any]:
    path = out / "registered.json"
    if not path.is_file():
        raise InputError(
            "no claims are registered", where=str(path), fix="windtunnel validate WINDOWS --out DIR"
        )
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _kept(found: Value, chosen: set[Condition]) -> Value:
    return {key: value for key, value in found.items() if key[0] in chosen}


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Replace what JSON has no word for."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in found.items()
    }


def _condition(of: Condition, simulated: Value, repeats: Sequence[Value], metric: str) -> dict[str, Any]:
    """Tell one condition: how it agrees, and each scheduler's value simulated and live, in the metric's unit."""
    only = [{key: value for key, value in one.items() if key[0] == of} for one in repeats]
    cells = cells_of(name_of(of), repeats)
    ours = {name: simulated[of, name] for name in cells.names if (of, name) in simulated}
    means = dict(zip(cells.names, cells.live.mean(axis=1) if cells.live.size else (), strict=False))
    told = verdict({key: value for key, value in simulated.items() if key[0] == of}, only, metric)
    column = column_of(metric)
    rows = [
        {
            "scheduler": name,
            "simulated": float(natural(np.asarray(ours[name]), column)),
            "live": [float(natural(np.asarray(one[of, name]), column)) for one in only],
            "mean": float(natural(np.asarray(means[name]), column)),
            "rank_simulated": _rank(ours, name),
            "rank_live": _rank(means, name),
        }
        for name in ours
    ]
    return {
        "window": of[0], "region": of[1], "schedulers": sorted(rows, key=lambda row: row["rank_simulated"]),
        **_plain({"tau": told.tau, "ceiling": told.ceiling, "clear": told.clear, "same": told.same,
                  "noise": told.noise, "effect": told.effect, "least": cells.least}),
    }  # fmt: skip


def _draws(told: Mapping[str, Any], of: Condition) -> dict[str, list[float]]:
    """Return what the simulator said of each scheduler each time, in the metric's unit."""
    return {
        one["scheduler"]: natural(np.array(one["draws"], np.float64), column_of(told["metric"])).tolist()
        for one in told["simulated"]
        if (one["window"], one["region"]) == of
    }


def _rank(of: Mapping[str, float], name: str) -> int:
    """Return a scheduler's place, 1 the best; equal values share the better place."""
    return 1 + sum(bool(value > of[name]) for value in of.values())


def _errors(against: Sequence[list[dict[str, Any]]], folders: Sequence[Path]) -> dict[str, Any]:
    """Return errors of requests: simulated against live, one repeat against the next, and by scheduler."""
    every = [error for listed in against for pair in listed if (error := request_errors(pair)) is not None]
    among = [
        error
        for one, other in pairwise(folders)
        for pair in paired(one, other)
        if (error := request_errors(pair)) is not None
    ]
    names = sorted({one["scheduler"] for one in every})
    return {
        "simulated": pooled(every), "repeats": pooled(among),
        "same_engine": {"simulated": _mean_of(every, "same_engine"), "repeats": _mean_of(among, "same_engine")},
        "schedulers": [
            {"scheduler": name, **pooled([one for one in every if one["scheduler"] == name])} for name in names
        ],
    }  # fmt: skip


def _mean_of(errors: Sequence[Mapping[str, Any]], part: str) -> float | None:
    known = [one[part] for one in errors if one.get(part) is not None]
    return float(np.mean(known)) if known else None


def _pressure(
    pairs: Sequence[Mapping[str, Any]], folder: Path, repeat: int, usual: float
) -> list[dict[str, Any]]:
    """Tell the pressure of each live run beside the simulated one: steps that take longer push harder."""
    rows = []
    for pair in pairs:
        sim, live = pair["sim"][0], pair["live"][0]
        summary = _summary(folder, live["run_id"])
        slowness = summary.get("slowness")
        ratio = slowness / usual if slowness else 1.0
        rows.append(
            {name: pair[name] for name in CONDITION}
            | {
                "repeat": repeat, "simulated": float(sim["rho_reached"]), "slowness": slowness,
                "live": float(live["rho_reached"]) * ratio, "missed": bool(abs(ratio - 1.0) > MISS),
                "lag_p99_s": summary.get("lag", {}).get("p99_s"),
            }
        )  # fmt: skip
    return rows


def _summary(folder: Path, run_id: str) -> dict[str, Any]:
    path = folder / "replays" / f"{run_id}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _drift(
    repeats: Sequence[Value], pressure: Sequence[Mapping[str, Any]], metric: str
) -> list[dict[str, Any]]:
    """Tell of each repeat the mean over cells that all repeats have, and how slow engines were."""
    shared = set.intersection(*map(set, repeats)) if repeats else set()
    told = []
    for number, one in enumerate(repeats, 1):
        level = float(np.mean([one[cell] for cell in shared])) if shared else float("nan")
        slow = [row["slowness"] for row in pressure if row["repeat"] == number and row["slowness"]]
        told.append(
            _plain(
                {
                    "repeat": number,
                    "level": float(natural(np.asarray(level), column_of(metric))),
                    "slowness": float(np.mean(slow)) if slow else float("nan"),
                    "slowness_worst": max(slow, default=float("nan")),
                }
            )
        )
    return told
