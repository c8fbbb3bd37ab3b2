"""The invariants E1 to E8 of the engine, over drawn windows and every policy."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedulers.load import engine_names, load
from schedulers.view import Tiers
from sim.run import simulate
from tests.sim.stage import TIERS, cases, close, same, setup, traffic

POLICIES = engine_names()
DRAWN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def physics(told, demand, place):
    """E3 and E4 on the facts of one run."""
    facts = told.facts
    assert set(facts.outcome.tolist()) <= {0, 1}, "E3: each arrival ends exactly once"
    done = facts.outcome == 0
    fits = demand.prompt_tokens + 1 <= place.capacity_tokens
    assert (done == fits).all() or (facts.reason[~done & fits] == 2).all(), "E5: what fits ends"
    wanted = np.minimum(demand.output_tokens, np.maximum(place.capacity_tokens - demand.prompt_tokens, 1))
    assert (facts.output_tokens[done] == wanted[done]).all(), "E3: every token is delivered once"
    times = [facts.arrival_s, facts.dispatched_s, facts.started_s, facts.first_token_s, facts.finished_s]
    for earlier, later in pairwise(times):
        assert (earlier[done] <= later[done]).all(), "E4"
    assert told.totals.kv_peak <= 1.0, "E1"


@pytest.mark.parametrize("name", POLICIES)
@DRAWN
@given(case=cases())
def test_physics_hold_at_every_step(name, case):
    """E1 to E5, audited inside the compiled kernel at each step, jumped and stepped alike."""
    demand, place = case
    stepped = simulate(demand, load(name), place, "stepped", audit=True)
    physics(stepped, demand, place)
    jumped = simulate(demand, load(name), place, "jumped", audit=True)
    assert close(stepped, jumped) == []


@DRAWN
@given(case=cases(), engines=st.integers(2, 4), cluster=st.sampled_from(["round-robin", "least-requests"]))
def test_physics_hold_in_a_cluster(case, engines, cluster):
    """The same over several engines, each audited."""
    demand, place = case
    place = place._replace(engines=engines)
    told = simulate(demand, load(f"fcfs-chunked+{cluster}"), place, "stepped", audit=True)
    physics(told, demand, place)
    assert close(told, simulate(demand, load(f"fcfs-chunked+{cluster}"), place, "jumped", audit=True)) == []


@pytest.mark.parametrize("name", [name for name in POLICIES if not load(name).engine.oracle])
@pytest.mark.parametrize("blocks", [60, 2000])
def test_no_oracle(name, blocks):
    """E7: a longer answer changes nothing that happened before the shorter one ended."""
    demand, place = traffic(60, 8.0, seed=3), setup(blocks=blocks, sequences=12)
    for request in (5, 20, 40):
        longer = demand.output_tokens.copy()
        longer[request] += 25
        before = simulate(demand, load(name), place, "stepped").facts
        after = simulate(demand._replace(output_tokens=longer), load(name), place, "stepped").facts
        end_s = before.finished_s[request]
        for column in ("dispatched_s", "started_s", "first_token_s", "finished_s"):
            was, now = getattr(before, column), getattr(after, column)
            early = was < end_s
            assert np.array_equal(was[early], now[early]), (name, request, column)


@pytest.mark.parametrize("name", POLICIES)
def test_time_has_no_unit(name):
    """E8: doubling all times and step costs doubles every result, to the last bit."""
    demand, place = traffic(80, 8.0, seed=1), setup(blocks=120, sequences=12)
    tiers = Tiers(place.tiers.ttft_s * 2, place.tiers.tpot_s * 2, place.tiers.e2e_s * 2, place.tiers.weight)
    slow = place._replace(costs=place.costs * 2, tiers=tiers)
    once = simulate(demand, load(name), place, "stepped").facts
    twice = simulate(demand._replace(arrival_s=demand.arrival_s * 2), load(name), slow, "stepped").facts
    for column in ("started_s", "first_token_s", "finished_s", "longest_gap_s"):
        assert np.array_equal(getattr(once, column) * 2, getattr(twice, column), equal_nan=True), column


@pytest.mark.parametrize("name", POLICIES)
def test_targets_move_only_policies_that_read_them(name):
    """E8: other deadlines, same decisions, unless the policy says that it reads targets."""
    demand, place = traffic(80, 9.0, seed=2), setup(blocks=120, sequences=12)
    other = Tiers(np.array([3.0, 0.1]), np.array([0.5, 0.011]), np.array([inf, inf]), TIERS.weight)
    scheduler = load(name)
    a = simulate(demand, scheduler, place, "stepped")
    b = simulate(demand, scheduler, place._replace(tiers=other), "stepped")
    if "targets" not in scheduler.engine.reads:
        assert same(a, b) == []
    elif name == "edf":
        assert same(a, b) != [], "the case must be able to tell"


def test_every_policy_pays_the_same_for_a_step():
    """E6: one request alone costs the same under every policy that takes its prompt in one chunk."""
    demand, place = traffic(1, 1.0, prompt=200, output=30), setup()
    told = {name: simulate(demand, load(name), place, "stepped").facts for name in POLICIES}
    spans = {name: facts.finished_s[0] - facts.arrival_s[0] for name, facts in told.items()}
    assert len(set(spans.values())) == 1, spans


@pytest.mark.parametrize("name", POLICIES)
def test_policies_differ(name):
    """Two names with the same results are one policy: each differs from FCFS under pressure."""
    demand, place = traffic(150, 14.0, seed=5), setup(blocks=120, sequences=12, budget=256)
    ours = simulate(demand, load(name), place, "stepped")
    plain = simulate(demand, load("fcfs-chunked"), place, "stepped")
    assert (same(ours, plain) == []) == (name == "fcfs-chunked")
