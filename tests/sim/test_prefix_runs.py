"""A sweep over windows that tell prefixes: the cache is on unless the plan says no, results tell what was found."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from analysis.metrics import summarise
from loadgen.candidate import Recipe
from loadgen.manifest import freeze
from loadgen.plan import Fleet, Plan, TierSpec
from loadgen.result import done_ids, verify
from loadgen.surrogate import generate
from sim.runs import run_window
from sim.sweep import calibrate, open_job, tasks
from tests.sim.test_runs import Here

SPECS = ("fcfs-chunked", "lpm")


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    freeze([generate("bailian_surrogate-b", rows=400, seed=1)], folder, Recipe("published", 1, 1))
    return folder


def sweep(windows, out, cache):
    """Rows of runs and of requests, and the capacity that was measured."""
    plan = Plan(
        "p", SPECS, (TierSpec("a", 0.5, 0.05, 1.0),), str(windows), controls=(), regions=(0.85,),
        slo_sets=("tier",), keep="requests", fleet=Fleet(prefix_cache=cache),
    )  # fmt: skip
    job, lines = open_job(plan, out, summarise, "rev")
    capacities, sha256 = calibrate(job, lines, Here(), lambda step: None)
    for task in tasks(replace(job, calibration_sha256=sha256), lines, capacities, done_ids(out)):
        run_window(task, lambda told: None, lambda: False)
    assert verify(out) == []
    runs, requests = (pq.read_table(out / folder).to_pandas() for folder in ("runs", "requests"))
    return runs.set_index("scheduler"), requests, [one.capacity_per_s for one in capacities.values()]


def test_results_tell_what_was_found_in_the_cache(windows, tmp_path):
    on, on_requests, capacity = sweep(windows, tmp_path / "on", cache=True)
    off, off_requests, same_capacity = sweep(windows, tmp_path / "off", cache=False)
    assert capacity == same_capacity, "a region means the same pressure with and without a cache"
    assert not set(on["run_id"]) & set(off["run_id"])
    assert (off["cached_tokens"] == 0).all()
    assert (off_requests["cached_tokens"] == 0).all()
    found = on_requests.groupby("run_id")["cached_tokens"].sum()
    assert found.to_dict() == on.set_index("run_id")["cached_tokens"].to_dict(), "nobody was evicted here"
    assert (found > 0.2 * on_requests["prompt_tokens"].sum() / 2).all()
    assert (on["prefill_tokens"] + on["cached_tokens"] == off["prefill_tokens"]).all()
    assert (on["busy_s"] < off["busy_s"]).all()
