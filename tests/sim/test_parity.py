"""One program: interpreted, compiled and through the slow door give the same bytes; jumps agree to 1e-9."""

import pytest

from schedulers.load import cluster_names, engine_names, load
from sim.checks import Trial, misjumped, mistranslated
from sim.run import simulate
from tests.sim.stage import HINGE, close, same, setup, traffic

SCARCE = setup(blocks=90, sequences=10, budget=128)
AMPLE = setup(costs=HINGE)


@pytest.mark.parametrize("name", engine_names())
@pytest.mark.parametrize("place", [SCARCE, AMPLE], ids=["scarce", "ample"])
def test_compiled_equals_interpreted_bit_for_bit(name, place):
    """The reference interpreter and the compiled kernel, stepped and jumped."""
    assert mistranslated(Trial(load(name), traffic(45, 10.0, seed=7), place)) == ""


@pytest.mark.parametrize("name", cluster_names())
def test_cluster_policies_compile_to_the_same(name):
    """Three engines."""
    demand, place = traffic(60, 20.0, seed=8), SCARCE._replace(engines=3)
    scheduler = load(f"sarathi+{name}")
    told = {mode: simulate(demand, scheduler, place, mode) for mode in ("interpreted", "stepped", "jumped")}
    assert same(told["interpreted"], told["stepped"]) == []
    assert close(told["stepped"], told["jumped"]) == []
    engines = set(told["jumped"].facts.engine.tolist())
    assert (engines == {0, 1, 2}) != (name == "most-loaded"), "the control overloads one engine"


@pytest.mark.parametrize("name", engine_names())
def test_the_slow_door_gives_equal_results(name):
    """A policy declared ``python`` runs as plain Python behind the compiled kernel."""
    demand, scheduler = traffic(60, 10.0, seed=9), load(name)
    doors = scheduler._replace(engine=scheduler.engine._replace(python=True))
    assert (
        same(simulate(demand, scheduler, SCARCE, "jumped"), simulate(demand, doors, SCARCE, "jumped")) == []
    )


@pytest.mark.parametrize("name", engine_names())
@pytest.mark.parametrize("rate", [3.0, 9.0, 30.0])
def test_jumps_agree_with_steps_on_long_windows(name, rate):
    """A thousand requests, under light load, near capacity and far above it."""
    demand, place = traffic(1000, rate, seed=int(rate), output=80), setup(blocks=900, sequences=40)
    assert misjumped(Trial(load(name), demand, place)) == ""


def test_a_second_run_gives_the_same_bytes():
    """Nothing is left over from one run to the next."""
    demand, scheduler = traffic(200, 9.0), load("sarathi")
    assert same(simulate(demand, scheduler, SCARCE), simulate(demand, scheduler, SCARCE)) == []
