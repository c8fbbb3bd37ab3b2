"""A made-up fidelity study of known truth: three schedulers, two conditions that turn round, noisy live repeats."""

import json
from pathlib import Path

import numpy as np

from analysis.conditions import in_units, pooled_draws
from analysis.validity import register, values
from loadgen.result import FINISHED, GAP_BINS, Facts, RunKey, Totals, read_runs, write_shard

REQUESTS = 200
NAMES = ("edf+least-requests", "lifo+least-requests", "vtc+least-requests")
WINDOWS = {"made-published-00000000aa": (0.8, 0.5, 0.6), "made-published-00000000bb": (0.3, 0.7, 0.55)}
"""Attainment of each scheduler in each window: edf and lifo change places."""

STEP_S = 0.05


def facts(late_s=0.0, engine=0):
    """Requests that came a second apart and took 0.2 s to the first of 11 tokens, 1.2 s in all."""
    arrival_s = np.arange(REQUESTS, dtype=float)
    zeros, ints = np.zeros(REQUESTS), np.zeros(REQUESTS, np.int64)
    return Facts(
        arrival_s=arrival_s, dispatched_s=arrival_s, started_s=arrival_s + 0.1,
        first_token_s=arrival_s + 0.2 + late_s, finished_s=arrival_s + 1.2 + late_s,
        prompt_tokens=ints + 100, output_tokens=ints + 11, tier=ints, tenant=ints,
        session=ints - 1, outcome=np.full(REQUESTS, FINISHED, np.int8), reason=np.zeros(REQUESTS, np.int8),
        engine=ints + engine, migrations=ints, preemptions=ints, longest_gap_s=zeros + 0.1, idle_ttft_s=zeros + 0.1,
        idle_e2e_s=zeros + 1.0, cached_tokens=ints,
    )  # fmt: skip


def key(name, window, driver):
    """The key of one run."""
    return RunKey(
        window_id=window, window_sha256="a" * 64, manifest_sha256="b" * 64, source="made", label="surrogate",
        split="test", scheduler=name, scheduler_version="1", params="{}", control=False,
        engine_policy=name.partition("+")[0], cluster_policy="least-requests", fleet="{}", profile="made",
        region="1.2", rho=1.2, tiers="[]", forecast="lognormal:0.2", seed=1, driver=driver,
        git_rev="0123456789abcdef", schema_version=1, calibration_sha256="c" * 64,
    )  # fmt: skip


def one_run(folder, run, attained, told):
    """Write a run that attained so much, with its requests."""
    totals = Totals(
        1000,
        1000 * STEP_S,
        60.0,
        8.0,
        0.4,
        0.8,
        1.0,
        5,
        0,
        0,
        10_000,
        0,
        5_000,
        0,
        0,
        np.ones(GAP_BINS, np.int64),
    )
    counts = {"arrivals": REQUESTS, "finished": REQUESTS, "rejected": 0, "expired": 0, "failed": 0}
    row = {
        "run_id": run.run_id, **run.__dict__, **totals._asdict(), **counts, "attainment_tier": attained,
        "e2e_mean_s": 2.0 - attained, "rho_reached": 1.25, "stretch": 1.0, "stratum": "",
    }  # fmt: skip
    write_shard(folder, run.run_id, [row], [(run.run_id, told)])


def make_study(folder: Path, *, noise=0.005, late_s=0.025, slowness=1.0, turned=False) -> Path:
    """Write claims, simulated runs and three repeats; ``turned`` lets the engine say the opposite."""
    rng = np.random.default_rng(2)
    for window, truth in WINDOWS.items():
        for place, name in enumerate(NAMES):
            one_run(folder / "sim", key(name, window, "sim"), truth[place], facts())
            real = 1.0 - truth[place] if turned else truth[place]
            for number in (1, 2, 3):
                run, place_of = key(name, window, "paced"), folder / "live" / f"repeat-{number}"
                one_run(place_of, run, real + rng.normal(0.0, noise), facts(late_s, engine=number % 2))
                (place_of / "replays").mkdir(exist_ok=True)
                slow = slowness if number == 3 else 1.0
                told = {"slowness": slow, "lag": {"p99_s": 0.004}}
                (place_of / "replays" / f"{run.run_id}.json").write_text(json.dumps(told))
    known = pooled_draws([values(read_runs(folder / "sim", sketches=False), "attainment:tier")] * 2, 0.02)
    told = {
        "metric": "attainment:tier", "metric_why": "as asked", "why": "the sharpest reversals",
        "seconds": 60.0, "candidates": 8, "schedulers": list(NAMES), "simulated_sha256": "d" * 64,
        "conditions": [
            {"window": window, "region": "1.2", "spread": 5.0, "unit": 0.02, "ceiling": 1.0, "seconds": 30.0}
            for window in WINDOWS
        ],
        "simulated": [
            {"window": where[0], "region": where[1], "scheduler": name, "mean": value,
             "draws": known.draws[where, name]} for (where, name), value in known.mean.items()
        ],
        "pairs": [pair._asdict() for pair in register(in_units(known, list(known.unit)))],
    }  # fmt: skip
    (folder / "registered.json").write_text(json.dumps(told))
    return folder
