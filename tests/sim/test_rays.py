"""Ray: the same bytes as processes here, what a lost machine did is done again, and nothing of Ray survives."""

import builtins
import hashlib
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from loadgen.result import read_runs, verify
from schedulers.errors import InputError
from sim.crew import TRIES, Crew, Lost
from sim.rays import NODES_LOST, RayCrew, import_ray
from sim.sweep import open_job, sweep


def digest_of(folder: Path) -> str:
    """Content digest of a dataset: every shard's name and bytes."""
    told = hashlib.sha256()
    for path in sorted((folder / "runs").glob("*.parquet")):
        told.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return told.hexdigest()


def ray_processes() -> set[str]:
    """Processes of Ray on this machine, as "pid words"."""
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    words = ("/raylet/raylet", "gcs_server", " ray::", "ray/dashboard", "_private/workers", "log_monitor.py")
    return {line for line in listed.splitlines() if any(word in line for word in words)}


@pytest.fixture
def plan(tmp_path):
    """Two schedulers in two regions on six windows of 200 rows."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from loadgen.plan import Plan, TierSpec
    from loadgen.surrogate import generate

    trace = generate("azure_surrogate-conv", rows=2400, seed=1)
    freeze([trace], tmp_path / "windows", Recipe("published", 6, 1))
    few = {"controls": (), "regions": (0.7, 1.1), "slo_sets": ("tier",), "keep": "requests"}
    specs = ("fcfs-chunked", "sjf-pred")
    return Plan("p", specs, (TierSpec("a", 0.5, 0.05, 1.0),), str(tmp_path / "windows"), **few)


def swept(plan, out, pool, heard=None):
    """Run the plan with this pool; return the folder's digest."""
    from analysis.metrics import summarise

    job, lines = open_job(plan, out, summarise, "rev")
    with pool as crew:
        done = sweep(job, lines, crew, heard or (lambda event: None))
    assert (done.total, done.failures) == (24, ())
    assert verify(out) == []
    assert len(read_runs(out)) == 24
    return digest_of(out)


class FallenError(Exception):
    """Stands for any error of Ray's."""


class NodeGoneError(FallenError):
    """Stands for the death of a machine."""


class Cluster:
    """A cluster of one core that is this process; ``deaths`` are raised in place of the next answers."""

    def __init__(self, *deaths: Exception) -> None:
        self.deaths, self.asked, self.cancelled, self.up = list(deaths), 0, [], False
        gone = dict.fromkeys(("NodeDiedError", "ObjectLostError", "OwnerDiedError"), NodeGoneError)
        self.exceptions = SimpleNamespace(RayError=FallenError, **gone)

    def is_initialized(self):
        return self.up

    def init(self, **settings):
        self.up = True

    def shutdown(self):
        self.up = False

    def cluster_resources(self):
        return {"CPU": 1.0}

    def remote(self, **settings):
        return lambda function: SimpleNamespace(remote=lambda *arguments: partial(function, *arguments))

    def wait(self, refs, num_returns, timeout):
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref):
        self.asked += 1
        if self.deaths and (death := self.deaths.pop(0)) is not None:
            raise death
        return ref()

    def cancel(self, ref, force):
        self.cancelled.append(ref)


@pytest.fixture
def crew_on(monkeypatch):
    """Return a crew on a given stand-in for Ray."""

    def make(cluster):
        monkeypatch.setattr("sim.rays.import_ray", lambda: cluster)
        return RayCrew("ray", 1)

    return make


def test_tasks_travel_and_their_files_come_back_as_the_same_bytes(plan, tmp_path, crew_on):
    """Also a window's bytes travel: the folder of windows is not looked at where the work is done."""
    cluster = Cluster()
    assert swept(plan, tmp_path / "ray", crew_on(cluster)) == swept(plan, tmp_path / "one", Crew(1))
    assert cluster.asked == 6 + 6
    assert not cluster.up


def test_a_lost_machine_is_nobodys_fault_and_a_lost_worker_counts(plan, tmp_path, crew_on):
    """Fewer deaths than would give a task up: all is done, and the bytes are the same."""
    deaths = [NodeGoneError()] * (NODES_LOST - 1) + [None] * 5 + [FallenError()] * (TRIES - 1)
    swept(plan, tmp_path / "ray", crew_on(Cluster(*deaths)))


class Task(NamedTuple):
    """A task without runs."""

    job: object
    line: object


@pytest.fixture
def run(plan, tmp_path, crew_on):
    """Return a function that runs one work over one task on a stand-in, and gives what was told."""
    from analysis.metrics import summarise

    job, lines = open_job(plan, tmp_path / "out", summarise, "rev")

    def on(cluster, work):
        told = []
        with crew_on(cluster) as crew:
            crew.run(work, [Task(job, lines[0])], told.append)
        return told

    return on


def say(task, tell, stopped):
    tell((task.line.id, stopped()))


def refuse(task, tell, stopped):
    raise InputError("the disk is full", where="a.parquet", fix="free some space")


def fail(task, tell, stopped):
    raise ZeroDivisionError("by zero")


def test_what_is_told_is_heard_once(run):
    told = run(Cluster(), say)
    assert len(told) == 1
    assert told[0][1] is False


@pytest.mark.parametrize(("death", "times"), [(FallenError(), TRIES), (NodeGoneError(), NODES_LOST)])
def test_a_task_that_takes_its_worker_with_it_each_time_is_lost(run, death, times):
    cluster = Cluster(*[death] * times)
    lost = run(cluster, say)
    assert [type(one) for one in lost] == [Lost]
    assert cluster.asked == times


def test_refusals_and_faults_reach_the_caller_whole(run):
    with pytest.raises(InputError) as caught:
        run(Cluster(), refuse)
    assert (caught.value.where, caught.value.fix) == ("a.parquet", "free some space")
    with pytest.raises(RuntimeError, match=r"fail[\s\S]*ZeroDivisionError: by zero"):
        run(Cluster(), fail)


def test_a_task_that_hangs_is_given_up(run, monkeypatch):
    monkeypatch.setattr("sim.rays.SILENCE_S", -1.0)
    cluster = Cluster()
    cluster.wait = lambda refs, num_returns, timeout: ([], refs)
    lost = run(cluster, say)
    assert lost[0].hung
    assert len(cluster.cancelled) == 1


def test_without_ray_the_remedy_is_named(monkeypatch):
    real = builtins.__import__

    def no_ray(name, *rest):
        if name == "ray":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_ray)
    with pytest.raises(InputError, match=r"pip install 'windtunnel\[ray\]'"):
        RayCrew("ray", 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own code and processes warn
def test_a_node_that_is_killed_in_the_middle_costs_nothing(plan, tmp_path):
    """Two nodes, one of which dies while tasks run on it: every run is there once, with the same bytes."""
    wanted = swept(plan, tmp_path / "one", Crew(1))
    assert swept(plan, tmp_path / "two", Crew(2)) == wanted
    before = ray_processes()
    import_ray()
    from ray.cluster_utils import Cluster as RealCluster

    small = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = RealCluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        node = cluster.add_node(**small)
        killed = []

        def kill_once(event):
            if getattr(event, "stage", "") == "sweep" and event.done > 0 and not killed:
                killed.append(node)
                cluster.remove_node(node, allow_graceful=False)

        assert swept(plan, tmp_path / "ray", RayCrew(cluster.address, 2), kill_once) == wanted
        assert killed
    finally:
        cluster.shutdown()
    end_s = time.monotonic() + 20.0
    while ray_processes() - before and time.monotonic() < end_s:
        time.sleep(0.2)
    assert ray_processes() - before == set()
