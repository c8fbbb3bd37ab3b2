"""What strict tiers promise to tier 0 against any load of lower tiers, and what they do not."""

from math import ceil, inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.demand import Demand, part
from schedulers.cost import step_s
from schedulers.load import load
from schedulers.view import Tiers
from sim.checks import COSTS, ask, setup
from sim.run import Setup, simulate

TIERS = Tiers(np.array([0.5, 1.0, 2.0]), np.full(3, 0.1), np.full(3, inf), np.array([4.0, 2.0, 1.0]))
STRICT = "tiered:order=1,victim=1,preempt=1"
SLOTS, BUDGET, SIZE = 8, 128, 16
LONGEST = 400  # tokens of prompt and answer of a lower tier's request
DRAWN = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def place(blocks: int = 60) -> Setup:
    return setup(blocks, 1, SLOTS, BUDGET, tiers=TIERS)


def longest_step_s(blocks: int) -> float:
    """No step is longer: its budget is prompt at the end of the longest context, all slots decode, all KV is read."""
    return step_s(COSTS, BUDGET, BUDGET * blocks * SIZE, SLOTS, blocks * SIZE)


@st.composite
def mixed(draw):
    """One request of tier 0 every five seconds, small enough to be alone, in a storm of lower tiers."""
    seed, n = draw(st.integers(0, 10_000)), draw(st.integers(20, 60))
    luck = np.random.default_rng(seed)
    low_s = np.sort(luck.uniform(0.0, draw(st.sampled_from([2.0, 10.0])), n))
    top_s = np.array([0.5, 5.5])
    prompts = np.concatenate([luck.integers(1, 200, n), [100, 40]])
    outputs = np.concatenate([luck.integers(100, 200, n), [30, 60]])
    tier = np.concatenate([luck.integers(1, 3, n), [0, 0]])
    order = np.argsort(np.concatenate([low_s, top_s]), kind="stable")
    demand = ask(np.concatenate([low_s, top_s])[order], prompts[order], outputs[order], seed)
    return demand._replace(tier=tier[order]), draw(st.sampled_from([20, 30, 60]))


@DRAWN
@given(case=mixed())
def test_between_two_tokens_of_tier_0_lies_one_step_whatever_lower_tiers_do(case):
    demand, blocks = case
    facts = simulate(demand, load(STRICT), place(blocks), "interpreted", audit=True).facts
    top = demand.tier == 0
    assert (facts.preemptions[top] == 0).all(), "nobody of a lower tier makes tier 0 leave"
    assert facts.longest_gap_s[top].max() <= longest_step_s(blocks)
    assert (facts.outcome == 0).all(), "all end once arrivals stop"


@DRAWN
@given(case=mixed())
def test_tier_0_starts_after_a_bounded_number_of_steps(case):
    """The step under way, the prompt that was begun, its own chunks, and steps that evict: one a slot at most."""
    demand, blocks = case
    facts = simulate(demand, load(STRICT), place(blocks), "interpreted").facts
    top = demand.tier == 0
    steps = 1 + ceil(LONGEST / (BUDGET - SLOTS)) + SLOTS
    assert (facts.started_s - facts.arrival_s)[top].max() <= steps * longest_step_s(blocks)


def storm(seconds: float) -> Demand:
    """Lower tiers ask for several times what the engine can do for so long; one of tier 0 comes at the end."""
    n = int(seconds * 60)
    draw = np.random.default_rng(1)
    demand = ask(
        np.sort(draw.uniform(0, seconds, n + 1)), draw.integers(1, 200, n + 1), draw.integers(1, 50, n + 1), 1
    )
    tier = draw.integers(1, 3, n + 1)
    tier[-1] = 0
    return demand._replace(tier=tier)


@pytest.mark.parametrize("spec", [STRICT, "tiered:order=1", "tiered:order=1,headroom=1,victim=1"])
def test_lower_tiers_never_block_tier_0_for_ever(spec):
    """However long the storm: the wait of tier 0 does not grow with it, while first come first served does."""
    where = place()._replace(reserve=np.array([8, 4, 0]))

    def waited(scheduler, seconds):
        facts = simulate(storm(seconds), load(scheduler), where, "interpreted-jumped").facts
        return float(facts.started_s[-1] - facts.arrival_s[-1])

    waits = [waited(spec, seconds) for seconds in (2.0, 8.0)]
    assert max(waits) < 2.0
    assert waited("fcfs-chunked", 8.0) > 4 * max(waits)


def test_one_step_and_one_block_is_not_what_lower_tiers_cost():
    """The plain statement is false, and the price is that of shared steps: its tokens come further apart.

    One of tier 0 decodes 60 tokens, alone or beside seven that decode, too. It starts at the same moment, loses
    far more than one step by its end, and no more than the difference between the longest and its own steps.
    """
    demand = ask(np.zeros(8), [40, *[100] * 7], [60, *[100] * 7])._replace(tier=np.array([0, *[2] * 7]))
    alone, among = (
        simulate(one, load(STRICT), place(120), "interpreted").facts for one in (part(demand, [0]), demand)
    )
    lost_s = among.finished_s[0] - alone.finished_s[0]
    own_s = step_s(COSTS, 0.0, 0.0, 1.0, 40.0)
    assert among.started_s[0] == alone.started_s[0]
    assert lost_s > 2 * own_s
    assert lost_s <= 61 * (longest_step_s(120) - own_s)


def weighted(mixed_tiers: bool, rate_per_s: float, spec: str, seed: int) -> tuple[float, float]:
    """(attainment of tier 0, of all): a world of three tiers or of one."""
    draw, n = np.random.default_rng(seed), 160
    demand = ask(
        np.cumsum(draw.exponential(1 / rate_per_s, n)),
        draw.integers(50, 300, n),
        draw.integers(5, 60, n),
        seed,
    )
    demand = demand._replace(
        tier=draw.choice(3, n, p=[0.1, 0.3, 0.6]) if mixed_tiers else np.zeros(n, np.int64)
    )
    facts = simulate(demand, load(spec), place(120), "interpreted-jumped").facts
    met = facts.first_token_s - facts.arrival_s <= 0.5
    return float(np.mean(met[demand.tier == 0])), float(np.mean(met))


def test_where_tiers_must_help_they_do_and_where_they_cannot_nothing_changes():
    """Planted: at twice the capacity the top tenth gains most of its targets; alike or idle nobody gains anything."""
    for seed in range(3):
        plain, tiered = (weighted(True, 25.0, spec, seed)[0] for spec in ("tiered", "tiered:order=1"))
        assert tiered > plain + 0.4
        for mixed_tiers, rate_per_s in ((False, 25.0), (True, 0.5)):
            before, after = (
                weighted(mixed_tiers, rate_per_s, spec, seed) for spec in ("tiered", "tiered:order=1")
            )
            assert before == after
