"""Worked examples of the policies that read prefixes: small schedules derived by hand, then simulated.

A step takes one second whatever it carries, blocks hold ten tokens, in the trace too. Requests are lettered in order
of arrival; ``shares`` lists, request by request, whose prompt it begins like and for how many blocks.
"""

import numpy as np
import pytest

from loadgen.demand import Demand
from loadgen.prefixes import shared
from schedulers.cost import BASE
from schedulers.load import load
from sim.prefix import recall, remember
from sim.run import Setup, build, simulate
from tests.sim.test_examples import FREE

SECOND = np.zeros(7)
SECOND[BASE] = 1.0


def asked(requests, shares):
    """A request is (arrival, prompt, output, tenant)."""
    arrival, prompt, output, tenant = (np.array(column) for column in zip(*requests, strict=True))
    count, rows, fresh = len(prompt), [], 0
    for request in range(count):
        other, blocks = shares.get(request, (0, 0))
        own = -(-int(prompt[request]) // 10) - blocks
        rows.append([*(rows[other][:blocks] if blocks else []), *range(fresh, fresh + own)])
        fresh += own
    ids = np.array([one for row in rows for one in row])
    return Demand(
        arrival.astype(float), prompt, output, output.astype(float), np.zeros(count, np.int64), tenant,
        np.full(count, -1), (np.arange(count) + 0.5) / count, shared(np.cumsum([0, *map(len, rows)]), ids, 10),
    )  # fmt: skip


def place(slots=1, engines=1, blocks=1000, budget=1000):
    return Setup(engines, slots, budget, 10, blocks, 10_000, SECOND, FREE)


def play(spec, demand, where):
    told = simulate(demand, load(spec), where, "interpreted", audit=True).facts
    jumped = simulate(demand, load(spec), where, "interpreted-jumped", audit=True).facts
    assert told.finished_s == pytest.approx(jumped.finished_s)
    return told


def test_lpm_takes_the_longest_cached_prefix():
    """SGLang: one slot. A (40 tokens) runs from 0 to 1 and leaves its 4 blocks. B (30) is like nobody, C (40) begins
    with 20 of A's tokens, D (40) with 30. At 1 D is next, then C, then B, though they came the other way round.
    """
    demand = asked([(0, 40, 1, 0), (0.1, 30, 1, 0), (0.2, 40, 1, 0), (0.3, 40, 1, 0)], {2: (0, 2), 3: (0, 3)})
    facts = play("lpm", demand, place())
    assert facts.first_token_s.tolist() == [1, 4, 3, 2]
    assert facts.cached_tokens.tolist() == [0, 0, 20, 30]
    assert play("fcfs-chunked", demand, place()).first_token_s.tolist() == [1, 2, 3, 4]
    assert play("lpm:fcfs_over=2", demand, place()).first_token_s.tolist() == [1, 2, 4, 3], (
        "three wait at 1, two at 2"
    )


def test_lpm_keeps_one_back_that_could_share_with_one_ahead():
    """SGLang: two slots. X runs from 0 to 1. Then A (40), B (60, the first 40 as A's) and C (40) wait, nothing of
    them is cached. B would compute beside A what A computes: it goes last. 1 to 2: A and C. 2 to 3: B, which finds
    40 tokens. In order of arrival A and B would compute the 40 twice, and C would come last.
    """
    demand = asked([(0, 10, 1, 0), (0.1, 40, 1, 0), (0.2, 60, 1, 0), (0.3, 40, 1, 0)], {2: (1, 4)})
    facts = play("lpm", demand, place(slots=2))
    assert facts.first_token_s.tolist() == [1, 2, 3, 2]
    assert facts.cached_tokens.tolist() == [0, 0, 40, 0]
    plain = play("fcfs-chunked", demand, place(slots=2))
    assert plain.first_token_s.tolist() == [1, 2, 2, 3]
    assert plain.cached_tokens.tolist() == [0, 0, 0, 0]


def test_dlpm_lets_a_tenant_with_credit_pass_the_longest_prefix():
    """DLPM (2501.14312): one slot, quantum 50, tenants 0 and 1, a prompt token costs 1 and a token out 2.

    A (tenant 0, 40): credit 50 - 40 - 2 = 8. C and E (tenant 0) begin with 30 of A's tokens, D (tenant 1, 90) not.
    At 1 both tenants have credit: C is next and pays for 10 new tokens, 8 - 10 - 2 = -4. At 2 tenant 0 has none
    left: D, 2 to 3, though E finds 30. Taking D leaves only tenant 0 waiting: it gets a quantum. E, 3 to 4.
    """
    demand = asked([(0, 40, 1, 0), (0.1, 40, 1, 0), (0.2, 90, 1, 1), (0.3, 40, 1, 0)], {1: (0, 3), 3: (0, 3)})
    assert play("dlpm:quantum=50", demand, place()).first_token_s.tolist() == [1, 2, 3, 4]
    assert play("lpm", demand, place()).first_token_s.tolist() == [1, 2, 4, 3]
    assert play("dlpm:quantum=500", demand, place()).first_token_s.tolist() == [1, 2, 4, 3]


def test_shortest_uncached_goes_by_what_is_left_to_compute():
    """SGLang: one slot. B (30) is shorter than C (40), but C begins with 30 of A's 40 tokens: 10 are left of it."""
    demand = asked([(0, 40, 1, 0), (0.1, 30, 1, 0), (0.2, 40, 1, 0)], {2: (0, 3)})
    assert play("shortest-uncached", demand, place()).first_token_s.tolist() == [1, 3, 2]


def test_prefix_affinity_follows_the_prefix_until_the_engine_is_crowded():
    """Two engines, spill 1.5 x the mean. A: nothing is known, engine 0; B, like nobody, to the emptier engine 1.

    C, D, E and F begin as A. C: 0 holds 1 of 2. D: 2 of 3, mean 1.5. E: 3 of 4, mean 2, just not over 3.
    F: 4 of 5, mean 2.5, over 3.75: fewest requests, engine 1.
    """
    demand = asked([(0.1 * r, 40, 5, 0) for r in range(6)], dict.fromkeys((2, 3, 4, 5), (0, 3)))
    demand = demand._replace(luck=np.zeros(6))
    facts = play("fcfs-chunked+prefix", demand, place(slots=8, engines=2))
    assert facts.engine.tolist() == [0, 1, 0, 0, 0, 1]
    facts = play("fcfs-chunked+prefix:spill=3", demand, place(slots=8, engines=2))
    assert facts.engine.tolist() == [0, 1, 0, 0, 0, 0]


def test_the_dispatcher_knows_what_it_sent_as_long_as_memory_may_hold_it():
    """An engine of 10 blocks, 100 tokens. A (40 tokens) is sent; B begins with 30 of them. C (90), then D (20),
    are new: after C 130 tokens were sent, A's 40 being the first, so 90 after it; after D 110, more than fit.
    """
    demand = asked([(0, 40, 1, 0), (1, 35, 1, 0), (2, 90, 1, 0), (3, 20, 1, 0)], {1: (0, 3)})
    rig = build(demand, load("fcfs-chunked+prefix"), place(blocks=10, engines=2), jump=False, audit=False)
    remember(rig, 0, 0)
    recall(rig, 1)
    assert rig.board.sent[:, 1].tolist() == [30, 0]
    remember(rig, 0, 2)
    recall(rig, 1)
    assert rig.board.sent[:, 1].tolist() == [30, 0]
    remember(rig, 0, 3)
    recall(rig, 1)
    assert rig.board.sent[:, 1].tolist() == [0, 0]
