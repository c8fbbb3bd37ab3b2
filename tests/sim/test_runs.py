"""Runs of one window: what a worker saves when it is stopped, and that a key names all that made a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.metrics import summarise
from loadgen.candidate import Recipe
from loadgen.manifest import freeze
from loadgen.plan import Plan, TierSpec
from loadgen.region import place
from loadgen.result import done_ids
from loadgen.surrogate import generate
from sim.crew import Lost
from sim.runs import Failure, Ran, Stored, Task, key_of, params_json, run_window, scheduler_of, shard_name
from sim.sweep import calibrate, lost_runs, open_job, settled, tasks

SPECS = ("fcfs-chunked", "sjf-pred", "edf")


class Here:
    """A crew of nobody: it does each task at once, in this process."""

    def run(self, work, todo, hear):
        for task in todo:
            work(task, hear, lambda: False)


@pytest.fixture(scope="module")
def windows(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    freeze([generate("azure_surrogate-conv", rows=800, seed=1)], folder, Recipe("published", 2, 1))
    return folder


@pytest.fixture
def made(windows, tmp_path):
    """A job, its windows, and the tasks that are to do."""
    tier = TierSpec("a", 0.5, 0.05, 1.0)
    few = {"controls": (), "regions": (0.7, 1.1), "slo_sets": ("tier",)}
    plan = Plan("p", SPECS, (tier,), str(windows), **few)
    job, lines = open_job(plan, tmp_path / "out", summarise, "rev")
    capacities, sha256 = calibrate(job, lines, Here(), lambda step: None)
    job = replace(job, calibration_sha256=sha256)
    return job, lines, capacities


def left(made) -> list[Task]:
    job, lines, capacities = made
    return list(tasks(job, lines, capacities, done_ids(job.out)))


def test_a_stopped_worker_saves_what_it_has_done(made):
    """Stopped after two of three runs of a region: both are stored, the third is all that is left of it."""
    task, other = left(made)
    told: list[object] = []

    def stopped() -> bool:
        return sum(isinstance(one, Ran) for one in told) >= 2

    run_window(task, told.append, stopped)
    assert told[-1] == Stored(2)
    assert len(done_ids(task.job.out)) == 2
    again, untouched = left(made)
    assert again.todo == ((task.todo[0][0], ("edf",)), task.todo[1])
    assert untouched == other
    assert not settled(made[0], made[1], done_ids(task.job.out))


def test_what_is_left_is_done_and_nothing_else(made):
    first, second = left(made)
    run_window(first, lambda told: None, lambda: False)
    assert [task.line.id for task in left(made)] == [second.line.id]
    before = {path.name: path.stat().st_mtime_ns for path in (first.job.out / "runs").iterdir()}
    told: list[object] = []
    run_window(first, told.append, lambda: False)  # as after the death of the worker that wrote all of it
    assert told == []
    assert {path.name: path.stat().st_mtime_ns for path in (first.job.out / "runs").iterdir()} == before
    assert lost_runs(Lost(first, -9)) == []
    assert {type(one) for one in lost_runs(Lost(second, -9))} == {Failure}
    assert len(lost_runs(Lost(second, -9))) == 6
    run_window(second, told.append, lambda: False)
    assert left(made) == []
    assert settled(made[0], made[1], done_ids(first.job.out))


def test_shard_names_follow_from_the_runs(made):
    task, _ = left(made)
    assert len(set(task.runs)) == 6
    assert shard_name(task, task.runs) == shard_name(task, list(task.runs))
    assert len({shard_name(task, task.runs[:n]) for n in range(1, 7)}) == 6


def test_a_key_sees_every_cause(made):
    task, other = left(made)
    region = task.todo[0][0]
    plain = key_of(task, region, "edf")
    assert plain.run_id == key_of(task._replace(job=replace(task.job, git_rev="later")), region, "edf").run_id
    elsewhere = place(0.9, requests=200, span_s=60.0, capacity_per_s=4.0)
    plan = task.job.plan
    causes = [
        key_of(task, elsewhere, "edf"),
        key_of(other, region, "edf"),
        key_of(task, region, "edf+least-requests"),
        key_of(task, region, "sarathi:phi=0.5"),
        key_of(task._replace(job=replace(task.job, calibration_sha256="0")), region, "edf"),
        key_of(task._replace(job=replace(task.job, manifest_sha256="0")), region, "edf"),
        key_of(task._replace(job=replace(task.job, fleet="{}")), region, "edf"),
        key_of(task._replace(job=replace(task.job, plan=replace(plan, forecast="oracle"))), region, "edf"),
        key_of(task._replace(job=replace(task.job, plan=replace(plan, seed=9))), region, "edf"),
        key_of(task._replace(job=replace(task.job, plan=replace(plan, controls=("edf",)))), region, "edf"),
    ]
    assert len({plain.run_id, *(key.run_id for key in causes)}) == len(causes) + 1


OUTSIDE = """\"\"\"Mine.\"\"\"
from schedulers.policy import EnginePolicy
def order(view, request, now_s):
    return -view.requests.arrival_s[request]
POLICY = EnginePolicy("{name}", order=order)
"""


def test_policies_from_outside_have_tasks_of_their_own_at_the_end(windows, tmp_path):
    """If one crashes its worker, nobody else's runs are in the same task."""
    files = [tmp_path / f"{name}.py" for name in ("one", "two")]
    for file in files:
        file.write_text(OUTSIDE.format(name=file.stem))
    specs = (f"{files[0]}:POLICY", "edf", f"{files[1]}:POLICY", "sjf-pred")
    tier = TierSpec("a", 0.5, 0.05, 1.0)
    few = {"controls": (), "regions": (0.7, 1.1), "slo_sets": ("tier",)}
    job, lines = open_job(Plan("p", specs, (tier,), str(windows), **few), tmp_path / "out", summarise, "rev")
    capacities, sha256 = calibrate(job, lines, Here(), lambda step: None)
    found = list(tasks(replace(job, calibration_sha256=sha256), lines, capacities, set()))
    groups = [{one for _, some in task.todo for one in some} for task in found]
    assert groups == [{"edf", "sjf-pred"}] * 2 + [{specs[0]}] * 2 + [{specs[2]}] * 2
    assert "schedulers check" in lost_runs(Lost(found[-1], -11))[0].what
    assert "memory" in lost_runs(Lost(found[0], -9))[0].what


def test_parameters_are_told_with_their_names():
    assert '"max_wait_s":"inf"' in params_json(scheduler_of("sjf-pred"))
    assert '"phi":0.5' in params_json(scheduler_of("sarathi:phi=0.5"))
