"""Made-up sweeps of known truth: run rows without a simulator."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from analysis.answers import Statistics
from analysis.findings import Findings, find
from analysis.scores import Scores
from analysis.statistics import statistics
from loadgen.result import GAP_BINS, RunKey, Totals, write_shard

RANKED = ("fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "sjf-pred")
CONTROLS = ("random", "lifo", "oracle-srpt")


WORTH = MappingProxyType({"random": -1.0, "lifo": -6.0, "oracle-srpt": 7.0})
"""Controls in their places, in steps of ``Made.truth``."""


class Made(NamedTuple):
    """What a made-up sweep holds; ``truth[source]`` orders schedulers, higher is better, one step apart."""

    sources: Sequence[str] = ("azure_surrogate", "burstgpt_surrogate", "bailian_surrogate")
    regions: Sequence[float] = (0.5, 0.7, 0.85, 0.95, 1.1, 1.4)
    windows: int = 12
    step: float = 0.04
    noise: float = 0.03
    truth: Mapping[str, Sequence[float]] = MappingProxyType({})
    controls: Mapping[str, float] = WORTH
    busy: Mapping[str, float] = MappingProxyType({})


def key(made: dict[str, Any]) -> RunKey:
    """Return a run's key with everything not in ``made`` filled in."""
    name = made["scheduler"]
    usual: dict[str, Any] = {
        "window_sha256": "a" * 64, "manifest_sha256": "b" * 64, "label": "surrogate", "split": "test",
        "scheduler_version": "1", "params": "{}", "control": name in CONTROLS, "engine_policy": name,
        "cluster_policy": "round-robin", "fleet": "{}", "profile": "llama-3.1-8b/a100-80g",
        "tiers": json.dumps([{"name": "interactive"}]), "forecast": "lognormal:0.2", "seed": 1,
        "driver": "sim", "git_rev": "0123456789abcdef", "schema_version": 1, "calibration_sha256": "c" * 64,
    }  # fmt: skip
    return RunKey(**{**usual, **made, "region": f"{made['rho']:g}"})


def row(run: RunKey, level: float, busy: float) -> dict[str, Any]:
    """Return a run whose every metric follows ``level`` (about -0.5 to 0.5, higher is better)."""
    strain = 1 + np.exp(3 * (run.rho - 0.9))
    attained = 1 / (1 + np.exp(4 * (run.rho - 1.0) - 3 * level))
    totals = Totals(
        1000, busy, 1.0, 60.0 * run.rho, 0.4 * run.rho, 0.8, 10 * run.rho, 50, 3, 100, 10_000, 0, 5_000, 0, 0,
        np.ones(GAP_BINS, np.int64),
    )  # fmt: skip
    metrics = {
        "attainment_tier": attained, "attainment_S1": attained**2, "attainment_S2": attained**0.7,
        "worst_group_tier": attained**1.5, "ttft_p95_s": strain * np.exp(-level), "itl_p95_s": 0.05,
        "ttft_p99_s": 2 * strain * np.exp(-2 * level), "e2e_mean_s": 5 * strain * np.exp(-level),
        "e2e_p95_s": 9 * strain * np.exp(-level),
        "slowdown_e2e_mean": 1 + strain * np.exp(-level), "throughput_tokens_per_s": 2000 * attained**0.1,
        "rejected_share": 0.0, "finished_share": 1.0, "utilisation": busy, "ttft_sketch": [1.0, 2.0],
    }  # fmt: skip
    counts = {"arrivals": 100, "finished": 100, "rejected": 0, "expired": 0, "failed": 0}
    return {
        "run_id": run.run_id, **run.__dict__, **totals._asdict(), **counts, **metrics,
        "stretch": 1.0, "stratum": ""
    }  # fmt: skip


def make_sweep(folder: Path, made: Made) -> Path:
    """Write a made-up sweep: one shard a source and region, a frozen plan, the same luck for all
    schedulers.
    """
    rng = np.random.default_rng(5)
    for source in made.sources:
        truth = made.truth.get(source, range(len(RANKED)))
        worth = dict(zip(RANKED, truth, strict=True)) | dict(made.controls)
        luck = rng.normal(0, made.noise, made.windows)
        for rho in made.regions:
            rows = []
            for number in range(made.windows):
                for name in (*RANKED, *made.controls):
                    run = key(
                        {"scheduler": name, "source": source, "window_id": f"{source}-{number}", "rho": rho}
                    )
                    level = made.step * (worth[name] - 2) + luck[number] + rng.normal(0, made.noise)
                    rows.append(row(run, level, made.busy.get(source, 0.9)))
            write_shard(folder, f"{source}-{rho:g}", rows)
    plan = {"name": "made", "primary": "attainment:tier", "slo_sets": ["tier", "S1", "S2"]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "plan.toml").write_text('name = "made"\nprimary = "attainment:tier"\n')
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of made-up sweeps in fresh folders; keywords are those of ``Made``."""

    def make(name: str = "sweep", **settings: Any) -> Path:
        return make_sweep(tmp_path / name, Made(**settings))

    return make


@pytest.fixture(scope="session")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small made-up sweep that no test changes: two sources, two regions, eight windows."""
    made = Made(("azure_surrogate", "burstgpt_surrogate"), (0.85, 1.1), 8)
    return make_sweep(tmp_path_factory.mktemp("usual") / "sweep", made)


def make_scores(
    values: Any, source: str = "s", region: str = "0.95", column: str = "attainment_S2"
) -> Scores:
    """Return a condition of (schedulers, windows) with names a, b, c ... and windows of its source."""
    values = np.asarray(values, np.float64)
    count, windows = values.shape
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:count])
    return Scores(
        source,
        region,
        column,
        names,
        tuple(f"{source}-{i}" for i in range(windows)),
        ("",) * windows,
        values,
        {},
        0,
    )


@pytest.fixture(scope="session")
def condition() -> Callable[..., Scores]:
    """Return a maker of conditions: values (schedulers, windows), then source, region, column by name."""
    return make_scores


@pytest.fixture(scope="session")
def drawn() -> Callable[..., Scores]:
    """Return a maker of conditions of normal values: means, windows, sd, seed, then where by name."""

    def draw(means: Sequence[float], windows: int, sd: float, seed: int, **where: str) -> Scores:
        noise = np.random.default_rng(seed).normal(0, sd, (len(means), windows))
        return make_scores(np.asarray(means, np.float64)[:, None] + noise, **where)

    return draw


@pytest.fixture(scope="session")
def found(usual: Path) -> Findings:
    """Return what the usual made-up sweep shows."""
    return find(usual)


@pytest.fixture(scope="session")
def stats(found: Findings) -> Statistics:
    """Return the statistics of the usual made-up sweep."""
    return statistics(found)


@pytest.fixture(scope="session")
def attributions() -> tuple[dict[str, Any], ...]:
    """Return what `windtunnel attribute` might have found between two sources."""

    def part(axis: str, value: float, share: float) -> dict[str, Any]:
        ends = {"low": value - 0.05, "high": value + 0.05}
        return {"axis": axis, "value": value, **ends, "share": share, "alone": value, "last": value}

    swing = {"value": 0.05, "low": 0.02, "high": 0.08}
    pair = {
        "better_on_a": "edf", "better_on_b": "sarathi", "d_a": swing, "d_b": {**swing, "value": -0.04},
        "material": True, "sure": True, "axes": [], "cause": "lengths",
    }  # fmt: skip
    one = {
        "sources": ["azure_surrogate", "burstgpt_surrogate"],
        "labels": {"azure_surrogate": "surrogate", "burstgpt_surrogate": "surrogate"},
        "region": "1.1", "metric": "attainment_tier", "unit": "share", "margin": 0.02, "windows": 8,
        "slo": {"mode": "absolute", "words": "both have the same targets in seconds", "same": True},
        "distance": {"value": 0.41, "low": 0.3, "high": 0.5},
        "shares": [part("lengths", 0.3, 0.73), part("arrivals", 0.11, 0.27), part("slo", 0.0, 0.0)],
        "reversals": [pair],
    }  # fmt: skip
    return (one,)
