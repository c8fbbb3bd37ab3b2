"""Clusters with tiers, moves, scaling and faults at once: nobody is lost, identities hold to the bit."""

from itertools import product

import numpy as np
import pytest

from loadgen.tables import broken_facts
from schedulers.load import find, load
from schedulers.view import RUNNING, Tiers, allocate
from sim.fabric import Wiring
from sim.run import simulate
from tests.sim.test_moves import TIERS, crowd, differing, drawn, fleet

SPECS = (
    "tiered:order=1,headroom=1,victim=1+tier-freeness+rebalance:low=100,high=0",
    "tiered:order=1,victim=1,preempt=1+tier-freeness+rebalance:low=100,high=0,candidate=1+scale-slo",
    "tiered:order=2,headroom=2+llumnix:headroom=1+tier-shed:low=0.2,high=0.6+rebalance:low=100,high=0,candidate=2",
    "tiered:order=1+llumnix-binary+tier-degrade+scale-predictive:ahead_s=1,out_s=1,in_s=1",
    "tiered:order=3,headroom=1+partition+rebalance:low=100,high=0,rest_s=0+scale-freeness:hold_s=0,out_s=0.5,in_s=0.5",
    "tiered+infaas+tier-degrade+scale-rho:aim=0.3,out_s=0.5,in_s=0.5,window_s=1",
)
ONE = Tiers(*(column[:1] for column in TIERS))
REJECTED = 1


def scene(seed):
    """A random crowd, cluster and faults, with reserves."""
    demand, _, place = drawn(seed)
    return demand, SPECS[seed % len(SPECS)], place._replace(reserve=np.array([20, 8, 0]))


def told_twice(demand, spec, place):
    """The same run jumped and stepped, audited."""
    return (
        simulate(demand, load(spec), place, mode, audit=True)
        for mode in ("interpreted", "interpreted-jumped")
    )


@pytest.mark.parametrize("seed", range(18))
def test_everybody_ends_once_whatever_happens(seed):
    """E1 to E6 at every step; tokens whole; begun moves end; no livelock: all end though engines die and drain."""
    demand, spec, place = scene(seed)
    told, jumped = told_twice(demand, spec, place)
    facts = told.facts
    assert np.isin(facts.outcome, (0, 1, 2, 3)).all()
    assert broken_facts(facts) == []
    assert (facts.output_tokens[facts.outcome == 0] == demand.output_tokens[facts.outcome == 0]).all()
    assert "tier-shed" in spec or not (facts.outcome == REJECTED).any()
    assert told.moves.started == told.moves.committed + told.moves.aborted
    assert differing(told, jumped, False) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 290))
def test_many_more(seed):
    test_everybody_ends_once_whatever_happens(seed)


@pytest.mark.slow  # compiles the clusters' loop
@pytest.mark.parametrize("seed", range(18))
def test_compiled_is_interpreted_to_the_last_bit(seed):
    demand, spec, place = scene(seed)
    told = simulate(demand, load(spec), place, "interpreted")
    assert differing(told, simulate(demand, load(spec), place, "stepped"), True) == []


@pytest.mark.parametrize("seed", [2, 14, 33])
def test_one_tier_is_the_untiered_cluster_to_the_last_bit(seed):
    """Order, reserve, victim and freeness by tier do nothing at K = 1, with faults, moves and late reports."""
    demand, _, place = drawn(seed)
    demand = demand._replace(tier=np.zeros_like(demand.tier))
    place = place._replace(tiers=ONE, reserve=np.array([40]))
    plain = simulate(demand, load("fcfs-chunked+llumnix+rebalance:low=100,high=0"), place, "interpreted")
    for spec in ("order=1,headroom=1,victim=1,preempt=1", "order=2,headroom=2"):
        told = simulate(
            demand, load(f"tiered:{spec}+tier-freeness+rebalance:low=100,high=0"), place, "interpreted"
        )
        assert differing(plain, told, True) == []
    assert plain.moves.committed > 0


@pytest.mark.parametrize(
    "cluster",
    [
        "tier-freeness+rebalance:low=100,high=0",
        "llumnix-binary",
        "partition",
        "llumnix:headroom=1+tier-degrade",
    ],
)
def test_one_engine_is_the_single_engine_run_to_the_last_bit(cluster):
    """Dispatch, moves and reports have no choice: the plain kernel's run."""
    demand, engine = crowd(70, 20.0, 3), "tiered:order=1,headroom=1,victim=1"
    reserve = np.array([20, 8, 0])
    alone = simulate(demand, load(engine), fleet(1, Wiring())._replace(reserve=reserve), "interpreted")
    for wiring in (Wiring(), Wiring(period_s=0.05, delay_s=0.005)):
        place = fleet(1, wiring)._replace(reserve=reserve)
        told = simulate(demand, load(f"{engine}+{cluster}"), place, "interpreted")
        if "tier-degrade" not in cluster:  # which holds in the centre even for one engine
            assert differing(alone, told, True) == []
        assert (told.facts.outcome == 0).all()


def test_headroom_in_freeness_alone_says_nothing_about_tiers():
    """`number`: who asks changes no answer, and with all tiers everywhere and equal batches neither does the reserve.

    The charge is one constant, but freeness divides by the batch: where batches differ it can still tip the scale.
    """
    policy = find("llumnix:headroom=1").policy
    draw, tipped = np.random.default_rng(0), 0
    for equal, _ in product((True, False), range(150)):
        view = allocate(3, 4, TIERS, np.ones(1), policy.memo)
        fleet_, batch = view.engines, draw.integers(3, 12, 4)
        fleet_.running[:] = 7 if equal else batch
        fleet_.blocks_total[:], fleet_.blocks_free[:] = 100, draw.integers(0, 100, 4)
        fleet_.tier_running[:], fleet_.reserve[:] = 1, (20, 8, 2)
        view.requests.tier[:] = (0, 1, 2)
        charged, free = (
            [policy.dispatch(view._replace(params=np.array([1.0, on])), request, 0.0) for request in range(3)]
            for on in (1.0, 0.0)
        )
        assert len(set(charged)) == 1, "the request's tier is not asked"
        tipped += charged != free
        assert not equal or charged == free
    assert tipped > 0


def test_who_took_rests_and_only_a_gain_moves():
    """Two engines: with any move welcome and no rest requests go back and forth; with hysteresis and rest not."""
    demand, wiring = crowd(60, 60.0, 4), Wiring()
    eager = "fcfs-chunked+random-engine+rebalance:low=1000,high=-1000,worth=0,hysteresis=-10000,rest_s=0"
    calm = "fcfs-chunked+random-engine+rebalance:low=1000,high=-1000,worth=0,hysteresis=1,rest_s=2"
    moved = {
        spec: simulate(demand, load(spec), fleet(2, wiring), "interpreted").facts.migrations
        for spec in (eager, calm)
    }
    assert moved[eager].max() > 2
    assert 0 < moved[calm].sum() < moved[eager].sum()
    assert moved[calm].max() <= 2


def giver(spec: str):
    """Engine 0 gives to engine 1; it decodes a request of tier 0 and four of tier 2, of 3, 9, 5 and 4 blocks."""
    found = find(f"rebalance:{spec}")
    view = allocate(5, 2, TIERS, np.ones(1), found.policy.memo)._replace(params=np.array(found.values))
    table, engines = view.requests, view.engines
    table.state[:], table.engine[:], table.generated_tokens[:] = RUNNING, 0, 5
    table.tier[:], table.blocks[:], table.arrival_s[:] = (0, 2, 2, 2, 2), (1, 3, 9, 5, 4), (9, 1, 2, 3, 4)
    table.forecast_tokens[:], table.computed_tokens[:] = (90, 6, 90, 90, 90), table.blocks * 16
    engines.running[0], engines.step_s[:], engines.memo[0, 0] = 5, 0.02, 2.0
    engines.blocks_total[:], engines.blocks_free[:] = 100, (2, 60)
    return found.policy, view


@pytest.mark.parametrize(("candidate", "expected"), [(0, 4), (1, 4), (2, 2)])
def test_who_moves(candidate, expected):
    """Of the last tier the fewest blocks (3 blocks have a token left, not worth it), the newest or the most."""
    policy, view = giver(f"candidate={candidate}")
    keys = [policy.pick(view, request, 0.0) for request in range(5)]
    assert int(np.argmin(keys)) == expected
    assert keys[1] == np.inf
    view.params[5] = 0.0  # worth nothing: the smallest may go
    assert policy.pick(view, 1, 0.0) < np.inf


def test_nobody_moves_where_it_would_turn_the_tables():
    """After it 60 - 4 over 1 against 2 + 4 over 4: fine; with 8 there and 8 running the giver would be freer."""
    policy, view = giver("hysteresis=0")
    assert policy.pick(view, 4, 0.0) < np.inf
    view.engines.blocks_free[1], view.engines.running[1] = 8, 8
    assert policy.pick(view, 4, 0.0) == np.inf
    view.engines.draining[0] = 1
    assert policy.pick(view, 4, 0.0) < np.inf, "a drain needs no gain"
