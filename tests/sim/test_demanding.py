"""Hooks that no shipped policy uses yet: compiled = interpreted, jumped = stepped, physics hold."""

import numpy as np
import pytest
from hypothesis import given

from schedulers.load import load
from schedulers.view import ARRIVAL, EVICT, FINISH, FIRST_TOKEN, TAKE, TOKEN
from sim.checks import Trial, unended
from sim.kernel import run
from sim.run import build, simulate
from tests.sim import demanding
from tests.sim.stage import ask, cases, close, same, setup, traffic
from tests.sim.test_invariants import DRAWN

SCARCE = setup(blocks=90, sequences=10, budget=128)


def scheduler(policy):
    """A scheduler of this engine policy and the default cluster policy."""
    return load("fcfs-chunked")._replace(name=policy.name, engine=policy, engine_params=())


@pytest.mark.parametrize("policy", demanding.ALL, ids=lambda policy: policy.name)
def test_compiled_equals_interpreted(policy):
    demand = traffic(45, 10.0, seed=7)
    slow = simulate(demand, scheduler(policy), SCARCE, "interpreted", audit=True)
    fast = simulate(demand, scheduler(policy), SCARCE, "stepped", audit=True)
    assert same(slow, fast) == []
    assert same(simulate(demand, scheduler(policy), SCARCE, "interpreted-jumped"),
                simulate(demand, scheduler(policy), SCARCE, "jumped")) == []  # fmt: skip
    assert same(fast, simulate(demand, load("fcfs-chunked"), SCARCE, "stepped")) != [], "the case can tell"


@pytest.mark.parametrize("policy", demanding.ALL, ids=lambda policy: policy.name)
@DRAWN
@given(case=cases())
def test_physics_and_jumps(policy, case):
    assert unended(Trial(scheduler(policy), *case)) == ""


@pytest.mark.parametrize("policy", demanding.ALL, ids=lambda policy: policy.name)
@pytest.mark.parametrize("rate", [3.0, 12.0])
def test_jumps_on_long_windows(policy, rate):
    demand, place = traffic(600, rate, seed=int(rate), output=80), setup(blocks=900, sequences=40)
    stepped = simulate(demand, scheduler(policy), place, "stepped", audit=True)
    assert close(stepped, simulate(demand, scheduler(policy), place, "jumped", audit=True)) == []


def test_refusals_are_results():
    """What the policy refuses is rejected with its reason, and never started."""
    facts = simulate(traffic(200, 30.0, seed=4), scheduler(demanding.GUARD), SCARCE).facts
    refused = facts.reason == 2
    assert 0 < refused.sum() < 200
    assert (facts.outcome[refused] == 1).all()
    assert np.isnan(facts.first_token_s[refused]).all()


@pytest.mark.parametrize("jump", [False, True])
def test_every_event_is_told_once(jump):
    """Each request: one arrival, one first token, one finish; takes = 1 + evictions; tokens add up."""
    demand = traffic(60, 10.0, seed=5)
    rig = build(demand, scheduler(demanding.COUNTING), SCARCE, jump=jump, audit=True)
    run(rig)
    done = rig.plant.outcome == 0
    assert done.sum() > 50
    memo, table = rig.known.requests.memo[done], rig.known.requests
    evictions = table.evictions[done]
    assert (memo[:, [ARRIVAL, FIRST_TOKEN, FINISH]] == 1).all()
    assert evictions.sum() > 0, "the case can tell"
    assert (memo[:, EVICT] == evictions).all()
    assert (memo[:, TAKE] == 1 + evictions).all()
    assert (memo[:, TOKEN] == demand.output_tokens[done]).all()
    assert rig.known.engines.memo[0, 0] > 0
    assert rig.known.engines.memo[0, 1] == 0, "a step that evicts takes nobody (vLLM V1)"


@pytest.mark.parametrize("blocks", [120, 900])
def test_own_time_is_as_good_as_reading_the_order_at_every_step(blocks):
    """A newcomer may bring an earlier own time than all who waited before it."""
    demand, place = traffic(200, 16.0, seed=11), setup(blocks=blocks, sequences=6)
    plain = demanding.IMPATIENT
    told = simulate(demand, scheduler(plain), place, "jumped")
    always = simulate(demand, scheduler(plain._replace(dynamic=True, wake=None)), place, "stepped")
    assert close(told, always) == []


@pytest.mark.parametrize("mode", ["stepped", "jumped"])
def test_a_step_that_begins_at_the_own_time_is_asked(mode):
    """Steps of one second; at second 4 exactly the policy starts to hold its decodes, for ever but for the clock."""
    whole_s = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    place, demand = setup(costs=whole_s), ask([0.0], [10], [8])
    facts = simulate(demand, scheduler(demanding.PAUSED), place, mode).facts
    assert facts.longest_gap_s[0] == 3.0  # tokens at 1, 2, 3, 4, then at 7
    assert facts.finished_s[0] == 10.0


def test_own_time_reorders_the_queue():
    """``sjf-pred`` with a longest wait moves who waited too long to the front, though nothing happens."""
    demand, place = traffic(150, 14.0, seed=6), setup(blocks=900, sequences=4)
    plain, capped = load("sjf-pred"), load("sjf-pred:max_wait_s=2")
    told = {name: simulate(demand, scheduler, place) for name, scheduler in (("p", plain), ("c", capped))}
    waits = {name: np.max(run.facts.started_s - run.facts.arrival_s) for name, run in told.items()}
    assert waits["c"] < waits["p"]
    assert close(told["c"], simulate(demand, capped, place, "stepped")) == []
