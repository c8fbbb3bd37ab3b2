"""The levers of tiers: each does nothing where it must not, and what it says where it may."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedulers.engine.tiered import POLICY, admit, evict, kept_free, order, preempt, wake
from schedulers.load import load
from schedulers.policy import GIVE_WAY, USUAL
from schedulers.view import RUNNING, WAITING, Tiers, View, allocate
from sim.checks import ask, same, setup
from sim.run import Setup, simulate

TIERS = Tiers(
    np.array([0.5, 1.0, inf]), np.array([0.03, 0.1, 0.2]), np.full(3, inf), np.array([4.0, 2.0, 1.0])
)
ONE = Tiers(*(column[:1] for column in TIERS))
DRAWN = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def place(engines: int = 1, tiers: Tiers = TIERS, blocks: int = 60, sequences: int = 8) -> Setup:
    """Engines short of memory, a fifth of it set aside for the first tiers."""
    reserve = np.array([blocks // 8, blocks // 16, 0][: len(tiers.weight)])
    return setup(blocks, engines, sequences, 256, tiers=tiers)._replace(reserve=reserve)


def burst(seed: int, n: int = 60, rate_per_s: float = 60.0, tiers: int = 3):
    """Short prompts and answers of random tiers."""
    draw = np.random.default_rng(seed)
    demand = ask(
        np.cumsum(draw.exponential(1 / rate_per_s, n)),
        draw.integers(1, 300, n),
        draw.integers(1, 60, n),
        seed,
    )
    return demand._replace(tier=draw.integers(0, tiers, n))


def run(spec, demand, where, mode="interpreted"):
    return simulate(demand, load(spec), where, mode, audit=True)


@pytest.mark.parametrize("seed", range(4))
def test_with_all_levers_at_zero_it_is_fcfs_chunked_to_the_last_bit(seed):
    for mode in ("interpreted", "interpreted-jumped"):
        told = run("tiered", burst(seed), place(), mode)
        plain = run("fcfs-chunked", burst(seed), place(), mode)
        assert same(told, plain) == []
        assert told.totals._replace(gaps=None) == plain.totals._replace(gaps=None)
    assert same(plain, run("tiered:order=1", burst(seed), place())) != []


LEVERS = ("order=1", "order=2", "headroom=1", "headroom=2", "victim=1", "preempt=1")


@pytest.mark.parametrize("lever", [*LEVERS, "order=1,headroom=1,victim=1,preempt=1"])
def test_with_one_tier_no_lever_does_anything(lever):
    demand = burst(1, tiers=1)
    assert (
        same(run("fcfs-chunked", demand, place(tiers=ONE)), run(f"tiered:{lever}", demand, place(tiers=ONE)))
        == []
    )


@pytest.mark.parametrize("lever", LEVERS)
def test_each_lever_does_something_with_three_tiers(lever):
    runs = (run(f"tiered:{lever}", burst(seed, 120), place()) for seed in range(4))
    plain = (run("tiered", burst(seed, 120), place()) for seed in range(4))
    assert any(same(one, other) for one, other in zip(runs, plain, strict=True))


def test_with_one_tier_its_freeness_is_llumnix():
    """One tier: dispatch by tier is dispatch by freeness without headroom, engine by engine."""
    demand, where = burst(2, 90, 150.0, tiers=1), place(3, ONE)
    told = run("fcfs-chunked+tier-freeness", demand, where)
    assert same(told, run("fcfs-chunked+llumnix", demand, where)) == []
    three = burst(2, 90, 150.0)
    assert same(
        run("fcfs-chunked+tier-freeness", three, place(3)), run("fcfs-chunked+llumnix", three, place(3))
    )


def test_where_nobody_waits_all_cells_are_equal():
    """A request every 20 s: each is alone, so order, headroom, victim, dispatch and migration meet no choice."""
    demand = burst(3, 24)._replace(arrival_s=np.arange(24) * 20.0)
    first = None
    for number, headroom, victim in product((0, 1), (0, 1, 2), (0, 1)):
        engine = f"tiered:order={number},headroom={headroom},victim={victim}"
        for cluster in ("llumnix", "llumnix:headroom=1", "tier-freeness+rebalance"):
            told = run(f"{engine}+{cluster}", demand, place(3))
            first = first or told
            assert same(first, told) == [], (engine, cluster)


def view(spec: str = "order=0") -> View:
    """An engine of 100 blocks of 10 tokens, 30 and 10 kept for tiers 0 and 1; it runs 1 (tier 1) and 2 (tier 2)."""
    made = allocate(4, 1, TIERS, np.ones(1), POLICY.memo)
    made = made._replace(params=np.array(load(f"tiered:{spec}").engine_params))
    fleet, table = made.engines, made.requests
    fleet.blocks_total[:], fleet.blocks_free[:], fleet.block_tokens[:] = 100, 35, 10
    fleet.reserve[0], fleet.running[0], fleet.waiting[0] = (30, 10, 0), 2, 2
    table.tier[:], table.arrival_s[:], table.engine[:] = (2, 1, 2, 0), (4.0, 3.0, 2.0, 1.0), 0
    table.prefill_tokens[:], table.blocks[:] = 49, (0, 4, 61, 0)
    table.state[:] = (WAITING, RUNNING, RUNNING, WAITING)
    made.running[0, :2], made.waiting[0, :2] = (1, 2), (0, 3)
    return made


def test_the_keys_of_the_queue():
    keys = [[order(view(f"order={kind}"), request, 9.0) for request in (0, 3)] for kind in range(4)]
    assert keys[0] == [4.0, 1.0]
    assert keys[1] == [2e6 + 4.0, 1.0]
    assert keys[2] == [24.0, 1.0]
    assert keys[3] == [1e6 + 4.0, 1.0 + 0.5 / 2.0]


def test_who_is_held_for_a_reserve():
    """Tier 2 must leave 30 + (10 - 4); 35 free less 5 are 30 < 36. Tier 1 needs 30, tier 0 nothing."""
    made = view("headroom=1")
    assert [kept_free(made, 0, tier, 0.0) for tier in range(3)] == [0, 30, 36]
    assert admit(made, 0, 0.0) == GIVE_WAY
    made.requests.tier[0] = 1
    assert admit(made, 0, 0.0) == USUAL
    made.requests.tier[0], made.engines.running[0] = 2, 0
    assert admit(made, 0, 0.0) == USUAL, "an engine without a batch keeps nothing back"
    assert admit(view("headroom=0"), 0, 0.0) == USUAL


def test_a_reserve_is_lent_once_its_tier_has_not_come_for_a_while_and_is_taken_back():
    made = view("headroom=2,window_s=5")
    assert admit(made, 0, 3.0) == USUAL, "nobody of tiers 0 and 1 has come"
    POLICY.observe(made, 3, 0, 3.0)
    made.engines.blocks_free[0] = 34
    assert kept_free(made, 0, 2, 7.9) == 30
    assert admit(made, 0, 7.9) == GIVE_WAY
    assert wake(made, 0, 7.9) == 8.0
    assert admit(made, 0, 8.0) == USUAL
    assert wake(made, 0, 8.0) == inf
    made.engines.blocks_free[0] = 4  # tier 0 asks for 5 and uses nothing of its 30
    assert [preempt(made, 3, running, 8.0) for running in (1, 2)] == [1.0, 1.0]
    assert preempt(made, 0, 1, 8.0) == 0.0, "nobody displaces a higher tier"
    assert evict(made, 2, 8.0) > evict(made, 1, 8.0), "the lowest tier first"
    made.engines.reserve[0, 0] = 0
    assert preempt(made, 3, 2, 8.0) == 0.0, "nothing was set aside for it"


def test_who_is_held_lets_higher_tiers_pass_and_no_lower_ones():
    """A big request of tier 1 is held for tier 0's reserve; a small one of tier 2 behind it would fit, and waits."""
    where = setup(60, 1, 8, 256, tiers=TIERS)._replace(reserve=np.array([20, 0, 0]))
    demand = ask([0.0, 0.01, 0.02, 0.03], [400, 380, 20, 100], [60, 5, 5, 5])._replace(
        tier=np.array([1, 1, 2, 0])
    )
    facts = run("tiered:headroom=1", demand, where).facts
    assert facts.started_s[3] < facts.started_s[1] < facts.finished_s[2]
    assert facts.started_s[1] <= facts.started_s[2]
    assert facts.started_s[1] >= facts.finished_s[0]


@DRAWN
@given(
    seed=st.integers(0, 10_000),
    spec=st.sampled_from([
        "order=1,headroom=1,victim=1", "order=0,headroom=1", "order=2,headroom=2", "order=3,headroom=2,preempt=1",
        "order=1,victim=1,preempt=1", "order=1,headroom=2",
    ]),
    blocks=st.sampled_from([24, 40, 90]),
    engines=st.integers(1, 3),
)  # fmt: skip
def test_physics_hold_with_reserves(seed, spec, blocks, engines):
    """E1 to E5 audited at every step, everybody ends, and jumps change nothing."""
    where, demand = place(engines, blocks=blocks), burst(seed, 30, 100.0)
    told = run(f"tiered:{spec}+tier-freeness", demand, where)
    assert (told.facts.outcome == 0).all()
    jumped = run(f"tiered:{spec}+tier-freeness", demand, where, "interpreted-jumped")
    for name, one, two in zip(told.facts._fields, told.facts, jumped.facts, strict=True):
        assert np.allclose(one, two, rtol=1e-9, atol=1e-9, equal_nan=True), name


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["order=1,headroom=1,victim=1", "order=3,headroom=2,preempt=1"])
def test_compiled_is_interpreted_to_the_last_bit(spec):
    for seed in range(3):
        told = run(f"tiered:{spec}+tier-freeness", burst(seed), place(3))
        assert same(told, run(f"tiered:{spec}+tier-freeness", burst(seed), place(3), "stepped")) == []


def test_admit_looks_at_the_batch_only_where_it_could_matter():
    """Half a hundred random states of an engine: the short way gives what the whole sum gives."""
    draw = np.random.default_rng(3)
    for _ in range(50):
        view = allocate(12, 1, TIERS, np.ones(1), (0, 10, 0))._replace(
            params=np.array([1.0, draw.integers(1, 3), 0, 0, 10, 0.5, 10, 0], float)
        )
        view.engines.reserve[0] = draw.integers(0, 12, 3)
        view.engines.blocks_total[0], view.engines.block_tokens[0] = 60, 16
        view.engines.blocks_free[0], view.engines.running[0] = draw.integers(0, 40), 10
        view.engines.memo[0, :3] = draw.integers(0, 2, 3) * 10.0
        view.running[0, :10] = np.arange(10)
        view.requests.tier[:] = draw.integers(0, 3, 12)
        view.requests.blocks[:10] = draw.integers(0, 6, 10)
        view.requests.prefill_tokens[11], view.requests.engine[11] = draw.integers(1, 300), 0
        kept = kept_free(view, 0, int(view.requests.tier[11]), 5.0)
        need = -(-(int(view.requests.prefill_tokens[11]) + 1) // 16)
        wanted = GIVE_WAY if kept > 0 and view.engines.blocks_free[0] - need < kept else USUAL
        assert admit(view, 11, 5.0) == wanted
