"""The prefix cache: sums by hand, and the invariants E1 to E8 over drawn windows of related prompts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.prefixes import shared
from schedulers.cost import step_s
from schedulers.load import load
from sim.checks import Trial, foreseen, kindred, misjumped, mistranslated, unended, unscaled
from sim.run import simulate
from tests.sim.stage import COSTS, ask, cases, same, setup, traffic

FCFS = load("fcfs-chunked")
POLICIES = ("fcfs-chunked", "fcfs-prefill", "srpt-limited", "slai", "kv-peak", "mlfq-skipjoin")
"""One of each kind: the default, whole prompts, displacement, waiting in between, own admission, own times."""

DRAWN = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def told(demand, rows, block_tokens=16):
    """The demand with these lists of prefix numbers."""
    offsets = np.cumsum([0, *map(len, rows)])
    return demand._replace(
        prefixes=shared(offsets, np.array([one for row in rows for one in row], np.int64), block_tokens)
    )


def step(prefill=0, attention=0.0, decodes=0, kv=0.0):
    return step_s(COSTS, prefill, attention, decodes, kv)


def test_a_prefix_that_was_computed_is_not_computed_again():
    """64 tokens of 100 are shared; the second prompt computes 36, and its attention still reads all before."""
    demand = told(ask([0.0, 9.0], [100, 100], [1, 1]), [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 7, 8, 9]])
    facts = simulate(demand, FCFS, setup(), "interpreted", audit=True).facts
    assert facts.cached_tokens.tolist() == [0, 64]
    assert facts.first_token_s[0] == pytest.approx(step(100, 100 * 50.0), rel=1e-12)
    assert facts.first_token_s[1] == pytest.approx(9.0 + step(36, 36 * (64 + 18.0)), rel=1e-12)


def test_the_last_token_is_always_computed():
    """Equal prompts of 64 tokens: three blocks are found, the fourth is computed for its last token."""
    demand = told(ask([0.0, 9.0], [64, 64], [1, 1]), [[0, 1, 2, 3], [0, 1, 2, 3]])
    facts = simulate(demand, FCFS, setup(), "interpreted", audit=True).facts
    assert facts.cached_tokens.tolist() == [0, 48]


@pytest.mark.parametrize(
    ("trace", "engine", "found"),
    [
        (16, 16, 96),
        (16, 32, 96),
        (16, 64, 64),
        (48, 16, 96),
        (48, 32, 96),
        (96, 16, 96),
        (32, 48, 96),
        (32, 7, 91),
    ],
)
def test_a_block_is_shared_if_the_traces_block_with_its_last_token_is(trace, engine, found):
    """96 tokens of 200 are shared, in trace blocks of several sizes."""
    alike, others = 96 // trace, -(-200 // trace) - 96 // trace
    rows = [[*range(alike), *range(start, start + others)] for start in (100, 200)]
    demand = told(ask([0.0, 9.0], [200, 200], [1, 1]), rows, trace)
    place = setup()._replace(block_tokens=engine)
    facts = simulate(demand, FCFS, place, "interpreted", audit=True).facts
    assert facts.cached_tokens.tolist() == [0, found]


def test_what_is_shared_is_held_once():
    """Thirteen blocks: two of 128 + 8 tokens would need 18, sharing six they need 12: both run at once."""
    rows = [[*range(6), 10, 11], [*range(6), 20, 21]]
    demand, place = told(ask([0.0, 0.011], [128, 128], [8, 8]), rows), setup(blocks=13)
    both = simulate(demand, FCFS, place, "interpreted", audit=True)
    alone = simulate(demand, FCFS, place._replace(prefix_cache=False), "interpreted", audit=True)
    assert both.facts.started_s[1] < both.facts.finished_s[0]
    assert alone.facts.started_s[1] >= alone.facts.finished_s[0]
    assert both.totals.kv_mean <= 1.0


def test_the_least_recently_used_block_goes_first_and_a_tail_before_its_head():
    """Ten blocks. A: 65 tokens in blocks 0-4; B: 49 in 5-8; 9 is free. Once both ended the queue is 9, A's 4 3 2 1 0,
    B's 8 7 6 5. C (64 tokens, unrelated) takes 9, 4, 3, 2. A's prompt comes again: two of its four full blocks are
    left, 0 and 1, and the three that it needs beside are 8, 7, 6. So B's prompt, beside it, finds one of three.
    """
    rows = [[0, 1, 2, 3, 90], [10, 11, 12, 91], [20, 21, 22, 23], [0, 1, 2, 3, 92], [10, 11, 12, 93]]
    demand = told(ask([0.0, 1.0, 2.0, 3.0, 3.0], [65, 49, 64, 65, 49], [1] * 5), rows)
    facts = simulate(demand, FCFS, setup(blocks=10), "interpreted", audit=True).facts
    assert facts.cached_tokens.tolist() == [0, 0, 0, 32, 16]


def test_an_evicted_request_finds_what_it_had():
    """Five blocks as in the test without a cache: of the 32 tokens lost the free two blocks are found again."""
    demand = told(ask([0.0, 0.0], [30, 30], [20, 20]), [[0, 1], [2, 3]])
    out = simulate(demand, FCFS, setup(blocks=5), "interpreted", audit=True)
    assert out.totals.evictions == 1
    assert out.totals.recomputed_tokens == 32
    assert out.totals.prefill_tokens + out.totals.cached_tokens == 60 + 33
    assert out.facts.cached_tokens.tolist() == [0, 0], "found by the new request is what the column tells"


def test_switched_off_or_untold_nothing_is_cached():
    demand, place = kindred(traffic(60, 12.0)), setup(blocks=90, sequences=10)
    plain = simulate(demand._replace(prefixes=None), FCFS, place, "stepped", audit=True)
    off = simulate(demand, FCFS, place._replace(prefix_cache=False), "stepped", audit=True)
    on = simulate(demand, FCFS, place, "stepped", audit=True)
    assert same(plain, off) == []
    assert plain.totals.cached_tokens == off.totals.cached_tokens == 0 < on.totals.cached_tokens
    assert on.totals.busy_s < off.totals.busy_s


def test_each_engine_has_a_cache_of_its_own():
    """Round-robin: the third request meets the engine of the first, the second none of its prefix."""
    demand = told(
        ask([0.0, 3.0, 6.0], [100] * 3, [1] * 3), [[0, 1, 2, 3, 4, 10 + r, 20 + r] for r in range(3)]
    )
    facts = simulate(demand, FCFS, setup(engines=2), "interpreted", audit=True).facts
    assert facts.cached_tokens.tolist() == [0, 0, 80]


@pytest.mark.parametrize("name", POLICIES)
@DRAWN
@given(
    case=cases(), seed=st.integers(0, 99), trace=st.sampled_from([7, 16, 64]), size=st.sampled_from([16, 20])
)
def test_physics_hold_at_every_step_with_shared_prefixes(name, case, seed, trace, size):
    """E1 to E6, blocks counted once, and all that a cache must be, audited in the compiled kernel; jumps agree."""
    demand, place = case
    trial = Trial(load(name), kindred(demand, seed, trace), place._replace(block_tokens=size))
    assert unended(trial) == ""


@pytest.mark.parametrize("name", POLICIES[:4])
@pytest.mark.parametrize("blocks", [60, 90])
def test_compiled_equals_interpreted_bit_for_bit_with_a_cache(name, blocks):
    demand = kindred(traffic(45, 10.0, seed=7), 7)
    assert mistranslated(Trial(load(name), demand, setup(blocks=blocks, sequences=10, budget=128))) == ""


@pytest.mark.parametrize("rate", [3.0, 9.0, 30.0])
def test_jumps_agree_on_long_windows_with_a_cache(rate):
    demand = kindred(traffic(600, rate, seed=int(rate), output=80), 3)
    assert misjumped(Trial(FCFS, demand, setup(blocks=500, sequences=40))) == ""


@pytest.mark.parametrize("name", POLICIES)
def test_no_oracle_and_no_unit_with_a_cache(name):
    """E7: a longer answer changes nothing before it; E8: time has no unit."""
    demand = kindred(traffic(60, 8.0, seed=3), 5)
    assert foreseen(Trial(load(name), demand, setup(blocks=60, sequences=12)), (5, 20, 40)) == ""
    assert unscaled(Trial(load(name), demand, setup(blocks=120, sequences=12))) == ""
