"""A plan with atoms and arms in the sweep: wiring and reserve reach the fleet, no run is lost, none done twice."""

import hashlib
from dataclasses import replace

import pytest

from analysis.metrics import summarise
from loadgen.candidate import Recipe
from loadgen.manifest import freeze, read_manifest
from loadgen.plan import Fleet, Plan, read_plan, shown
from loadgen.plan_cluster import Arm, Atoms, Cluster
from loadgen.result import read_requests, read_runs
from loadgen.surrogate import generate
from loadgen.window import read_window
from sim.calibrate import fleet_json, setup_of
from sim.fabric import RECOMPUTE, Wiring
from sim.runs import tiers_json
from sim.sweep import open_job, sweep
from tests.sim.test_runs import Here

ATOMS = Atoms(tiers=2)


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    freeze([generate("azure_surrogate-conv", rows=800, seed=1)], folder, Recipe("published", 2, 1))
    return folder


def plan_of(windows, **changes) -> Plan:
    few = {"controls": (), "regions": (0.9,), "slo_sets": ("tier",), "keep": "requests"}
    fleet = Fleet(engines=2, sequences_max=16)
    made = Plan(
        "p", ("strict-tiers", "fcfs-chunked"), shown(ATOMS), str(windows), fleet=fleet, atoms=ATOMS, **few
    )
    return replace(made, **changes)


def test_a_plan_without_tables_keeps_fleet_and_key():
    """Both texts are part of a run's id: what was stored before there were such tables is still found."""
    quick = read_plan("quick")
    setup = setup_of(quick)
    assert (setup.wiring, setup.reserve) == (Wiring(), None)
    told = f"{fleet_json(quick, setup)}{tiers_json(quick)}"
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "7c31e95d2c320d6d"


def test_the_tables_reach_the_fleet(windows):
    setup = setup_of(plan_of(windows, cluster=Cluster(start=1, recompute=True, bandwidth_gbps=10.0)))
    assert (setup.wiring.start, setup.wiring.period_s, setup.wiring.moving.mode) == (1, 0.05, RECOMPUTE)
    assert setup.wiring.moving.bandwidth_gbps == 10.0
    assert setup.wiring.moving.token_bytes == 131072.0  # of the profile
    assert setup.reserve is not None
    assert len(setup.reserve) == 2
    assert int(setup.reserve.sum()) == round(0.2 * int(setup.blocks))


def test_arms_run_once_each_and_can_go_on(windows, tmp_path):
    arms = (
        Arm("levels", tiers=(1, 2)),
        Arm("again", tiers=(2,)),
        Arm("fleets", ("strict-tiers",), engines=(3,)),
    )
    plan = plan_of(windows, arms=arms)
    job, lines = open_job(plan, tmp_path, summarise)
    done = sweep(job, lines, Here(), lambda step: None)
    assert (done.total, done.stored_now, done.failures) == (2 * (2 + 1 + 1), 8, ())
    runs = read_runs(tmp_path)
    assert runs["run_id"].is_unique
    assert runs["tiers"].nunique() == 2
    assert runs["fleet"].nunique() == 2
    assert runs["capacity_per_s"].nunique() == 2  # a window's, whatever the arm's fleet
    again = sweep(job, lines, Here(), lambda step: None)
    assert (again.stored_before, again.stored_now) == (8, 0)


def test_what_is_kept_of_a_request_is_its_atom(windows, tmp_path):
    plan = plan_of(windows, schedulers=("strict-tiers",))
    job, lines = open_job(plan, tmp_path, summarise)
    sweep(job, lines, Here(), lambda step: None)
    from loadgen.demand import prepare

    run = read_runs(tmp_path).iloc[0]
    ((_, facts),) = read_requests(tmp_path, {run["run_id"]})
    line = next(one for one in read_manifest(windows) if one.id == run["window_id"])
    demand = prepare(read_window(windows, line), plan, float(run["stretch"]))
    assert facts.tier.tolist() == demand.atom.tolist()
    assert facts.tier.max() > 1 >= demand.tier.max()
