"""Five schedulers on the wall clock come in the order in which the simulator puts them, within the measured noise."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from loadgen.candidate import Recipe
from loadgen.manifest import freeze
from loadgen.result import read_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEDULERS = (
    "fcfs-chunked+least-requests", "sjf-pred+least-requests", "vtc+least-requests",
    "fcfs-prefill+least-requests", "fcfs-chunked+most-loaded",
)  # fmt: skip
METRICS = ("e2e_mean_s", "attainment_S2", "attainment_tier")
REPEATS = 2


@pytest.fixture(scope="module")
def results(windtunnel, tmp_path_factory) -> tuple[Path, Path]:
    """Folders of the simulator's runs and of the live ones, whose repeats lie inside it."""
    from windtunnel.traffic import generated

    folder = tmp_path_factory.mktemp("ranks")
    window, live, simulated, place = (folder / name for name in ("windows", "live", "sim", "testbed"))
    freeze(generated("azure_surrogate", 2, "published", 1), window, Recipe(kind="published", count=1, seed=1))
    up = windtunnel("up", "--workers", 2, "--speed", 4, "--dir", place)
    assert up.code == 0, up.said
    try:
        named = [part for name in SCHEDULERS for part in ("--scheduler", name)]
        ran = windtunnel(
            "replay", window, "--region", "1.3", "--out", live, "--dir", place, "--repeats", REPEATS,
            "--lag-p50-ms", 200, "--lag-p99-ms", 2000, "--progress", "none", *named,
        )  # fmt: skip
        assert ran.code == 0, ran.said
    finally:
        windtunnel("down", "--dir", place, "--now")
    swept = windtunnel("sweep", live / "plan.toml", "--out", simulated)
    assert swept.code == 0, swept.said
    return simulated, live


def column(folder, metric):
    runs = read_runs(folder, sketches=False).set_index("scheduler")
    return np.array([runs.loc[name, metric] for name in SCHEDULERS], float)


@pytest.mark.parametrize("metric", METRICS)
def test_pairs_beyond_the_noise_keep_their_order(results, metric):
    """Noise of a pair: how far the repeats of its two schedulers lie apart. Closer pairs may change places."""
    simulated, live = results
    once = column(simulated, metric)
    repeats = np.array([column(live, metric), column(live / "repeat-2", metric)])
    mean, spread = repeats.mean(axis=0), np.ptp(repeats, axis=0)
    pairs = list(combinations(range(len(SCHEDULERS)), 2))
    clear = [
        (a, b)
        for a, b in pairs
        if min(abs(mean[a] - mean[b]), abs(once[a] - once[b])) > spread[a] + spread[b]
    ]
    assert len(clear) >= len(pairs) // 2, "the noise leaves something to compare"
    turned = [(a, b) for a, b in clear if (mean[a] - mean[b]) * (once[a] - once[b]) < 0]
    assert turned == []


def test_compare_tells_errors_and_ranks_of_all_five(windtunnel, results):
    """One row of errors a scheduler, over every scored request; the order by mean latency is the simulator's."""
    told = json.loads(windtunnel("compare", *results, "--metric", "e2e_mean_s", "--json").out)
    assert sorted(row["scheduler"] for row in told["errors"]) == sorted(SCHEDULERS)
    assert {row["requests"] for row in told["errors"]} == {200}
    (ranks,) = told["ranks"]
    assert ranks["schedulers"] == len(SCHEDULERS)
