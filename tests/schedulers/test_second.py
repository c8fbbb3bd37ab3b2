"""Keys and answers of the second tier of engine policies, computed by hand on a small view."""

from math import exp, inf

import numpy as np
import pytest

from schedulers.load import find
from schedulers.peak import jot, peak_tokens
from schedulers.policy import TAKE, WAIT
from schedulers.view import ARRIVAL, EVICT, FINISH, TOKEN, Tenants, View
from schedulers.view import TAKE as TAKEN
from tests.schedulers.test_policies import a_view, answers


def tell(spec: str, view: View, event: int, *requests: int, now_s: float = 5.0) -> None:
    for request in requests:
        find(spec).policy.observe(view, request, event, now_s)


def with_tenants(view: View, weights: tuple[float, ...], of: tuple[int, ...]) -> View:
    """The view with so many tenants, and whose each request is."""
    view.requests.tenant[:] = of
    waiting = np.zeros(len(weights), np.int64)
    for request in view.waiting[0, : view.engines.waiting[0]]:
        waiting[of[request]] += 1
    width = view.tenants.memo.shape[1]
    return view._replace(tenants=Tenants(np.array(weights), waiting, np.zeros((len(weights), width))))


def test_the_peak_comes_just_before_somebody_ends():
    view = a_view("mc-sf")
    # most left first: 10 + 3 * 1, then 10 + 5 + 2 * 2, then 10 + 5 + 20 + 1 * 3
    for place, (left, held) in enumerate([(3.0, 10.0), (1.0, 20.0), (2.0, 5.0)]):
        jot(view, place, left, held)
    assert peak_tokens(view, 3) == 38.0
    jot(view, 0, 1.0, 1.0)
    jot(view, 1, 10.0, 1.0)
    assert peak_tokens(view, 2) == 11.0  # the long one alone, later
    assert peak_tokens(view, 0) == 0.0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 60])
def test_the_peak_equals_the_sum_at_every_end(count):
    """At each end: what those hold who are still there, grown by so many tokens (arXiv 2502.07115)."""
    draw = np.random.default_rng(count)
    view = a_view("mc-sf", requests=60)
    for _ in range(20):
        left, held = draw.integers(1, 9, count), draw.integers(0, 50, count)
        for place in range(count):
            jot(view, place, float(left[place]), float(held[place]))
        at_ends = [sum(held[j] + end for j in range(count) if left[j] >= end) for end in left]
        assert peak_tokens(view, count) == max(at_ends)


def test_static_batch_fills_in_one_step_and_waits_for_all():
    view = a_view("static-batch:limit_tokens=100")
    assert answers("static-batch", "admit", view, (2, 3)) == [WAIT, WAIT]
    view.engines.running[0] = 0
    assert answers("static-batch", "admit", view, (3,)) == [TAKE]
    view.engines.running[0], view.running[0, 0] = 1, 3
    # 30 + 100 tokens are 13 blocks, 250 + 100 are 35
    assert answers("static-batch", "admit", view, (2,)) == [TAKE]
    view.params[0] = 400.0  # 43 and 65 blocks, of 100
    assert answers("static-batch", "admit", view, (2,)) == [WAIT]
    view.params[0] = 100.0
    view.engines.steps[0] += 1
    assert answers("static-batch", "admit", view, (2,)) == [WAIT]


def test_orca_reserves_prompt_and_limit():
    view = a_view("orca:limit_tokens=100")
    # 150 and 180 tokens of those who run are 15 and 18 blocks, 350 are 35 more; 100 blocks in all
    assert answers("orca", "admit", view, (2,)) == [TAKE]
    view.engines.blocks_total[0] = 68
    assert answers("orca", "admit", view, (2,)) == [TAKE]
    view.engines.blocks_total[0] = 67
    assert answers("orca", "admit", view, (2,)) == [WAIT]
    view.engines.blocks_total[0] = 68
    view.requests.generated_tokens[0] = 100  # past the limit: one more, 151 tokens
    assert answers("orca", "admit", view, (2,)) == [WAIT]
    view.engines.running[0] = 0
    assert answers("orca", "admit", view, (2,)) == [TAKE]


def test_strict_tiers_go_by_tier_then_arrival():
    view = a_view("strict-tiers")
    view.requests.tier[:] = (1, 0, 1, 0)
    assert answers("strict-tiers", "order", view, (2, 3)) == [1e6 + 3.0, 4.0]
    assert answers("strict-tiers", "serve", view, (0, 1)) == [1e6 + 1.0, 2.0]
    assert answers("strict-tiers", "evict", view, (0, 1)) == [1e6 + 1.0, 2.0]
    preempt = find("strict-tiers").policy.preempt
    assert preempt(view, 3, 0, 5.0) == 0.0
    view.params[0] = 1.0
    # by tier, and within a tier by arrival, as vLLM compares them
    assert [preempt(view, 3, q, 5.0) for q in (0, 1)] == [1.0, 0.0]
    assert [preempt(view, 2, q, 5.0) for q in (0, 1)] == [0.0, 0.0]
    view.requests.arrival_s[2] = 0.5
    assert preempt(view, 2, 0, 5.0) == 1.0


def test_ageing_lets_ten_seconds_outweigh_a_tier():
    view = a_view("ageing")
    view.requests.tier[:] = (0, 0, 1, 0)
    view.requests.arrival_s[3] = 12.9
    assert answers("ageing", "order", view, (2, 3)) == [13.0, 12.9]
    view.requests.arrival_s[3] = 13.1
    assert answers("ageing", "order", view, (2, 3)) == [13.0, 13.1]


def test_wfq_stamps_a_virtual_finish():
    view = with_tenants(a_view("wfq"), (1.0, 2.0), (0, 0, 1, 1))
    view.requests.memo[:2, 0] = (100.0, 40.0)  # virtual starts in service
    view.tenants.memo[1, 0] = 10.0
    tell("wfq", view, ARRIVAL, 3, 2)
    # 3 starts at V = 40 and ends (30 + 2 * 40) / 2 later; 2 starts there and ends (250 + 2 * 10) / 2 later
    assert view.requests.memo[2:].tolist() == [[95.0, 230.0], [40.0, 95.0]]
    assert answers("wfq", "order", view, (2, 3)) == [230.0, 95.0]
    view.engines.running[0] = 0  # then the least start in the queue: request 3's
    view.requests.tenant[0] = 0
    tell("wfq", view, ARRIVAL, 0)
    assert view.requests.memo[0].tolist() == [40.0, 40.0 + 50.0 + 2 * 20.0]
    view.engines.waiting[0] = 0  # an idle engine forgets who was idle
    view.tenants.memo[0, 0] = 0.0
    tell("wfq", view, ARRIVAL, 1)
    assert view.requests.memo[1].tolist() == [230.0, 230.0 + 80.0 + 2 * 10.0]


def test_wfq_can_do_without_forecasts():
    view = with_tenants(a_view("wfq:mean=1"), (1.0, 1.0), (0, 0, 1, 1))
    view.engines.running[0] = view.engines.waiting[0] = 0
    tell("wfq", view, ARRIVAL, 3)
    assert view.requests.memo[3, 1] == 30.0 + 2 * 256.0
    view.requests.generated_tokens[2:] = (7, 8)
    tell("wfq", view, FINISH, 2, 3)
    tell("wfq", view, ARRIVAL, 2)
    assert view.requests.memo[2].tolist() == [542.0, 542.0 + 250.0 + 2 * 7.5]


def test_drr_counts_quanta_and_takes_turns():
    view = with_tenants(a_view("drr:quantum=100"), (1.0, 2.0), (0, 1, 0, 1))
    served, place = view.tenants.memo[:, 0], view.tenants.memo[:, 1]
    view.engines.waiting[0] = view.tenants.waiting[:] = 0
    tell("drr", view, ARRIVAL, 0, 1)
    assert place.tolist() == [1.0, 2.0]  # in order of joining
    view.tenants.waiting[:] = 1
    tell("drr", view, TAKEN, 0, 1)
    assert served.tolist() == [50.0, 40.0]  # prompts over weights
    view.requests.fresh_tokens[:2] = (25, 10)
    tell("drr", view, TOKEN, 0, 1)
    assert served.tolist() == [100.0, 50.0]
    # tenant 0 has used its quantum up: round 1, place 1 of 2 (a round is 3 wide); tenant 1 is in round 0
    assert answers("drr", "order", view, (2, 3)) == [4e6 + 3.0, 2e6 + 4.0]
    view.requests.evictions[0] = 1
    tell("drr", view, TAKEN, 0)
    assert served.tolist() == [100.0, 50.0]  # a recompute is not charged


def test_drr_lets_a_tenant_join_the_round_under_way():
    view = with_tenants(a_view("drr:quantum=100"), (1.0, 1.0, 1.0), (0, 1, 2, 2))
    memo = view.tenants.memo
    memo[:, 0], memo[:, 1] = (570.0, 340.0, 0.0), (1.0, 2.0, 3.0)
    view.tenants.waiting[:] = (0, 1, 0)
    tell("drr", view, ARRIVAL, 2)  # idle before: no credit saved up
    assert memo.tolist() == [[570.0, 1.0], [340.0, 2.0], [300.0, 3.0]]
    tell("drr", view, EVICT, 0)  # used much while nobody else waited: no debt kept
    assert memo.tolist() == [[300.0, 3.0], [340.0, 1.0], [300.0, 2.0]]
    view.tenants.waiting[:] = 0
    tell("drr", view, ARRIVAL, 1)
    assert memo[1].tolist() == [300.0, 3.0]


@pytest.mark.parametrize("name", ["drr", "kv-conservative", "mc-sf", "proserve"])
def test_no_step_is_jumped_while_somebody_could_join(name):
    view = a_view(name)
    assert answers(name, "wake", view, (0,)) == [5.0]
    view.engines.sequences_max[0] = 2  # both slots are taken
    assert answers(name, "wake", view, (0,)) == [inf]
    view.engines.sequences_max[0], view.engines.waiting[0] = 4, 0
    assert answers(name, "wake", view, (0,)) == [inf]


def test_hrrn_weighs_work_since_arrival_against_its_own():
    view = a_view("hrrn")
    tell("hrrn", view, ARRIVAL, 2)
    view.engines.prefilled_tokens[0] = 300
    tell("hrrn", view, ARRIVAL, 3)
    view.engines.prefilled_tokens[0] = 500
    assert answers("hrrn", "order", view, (2, 3)) == [-2.0, -200 / 30]
    view.requests.computed_tokens[3] = 30
    assert answers("hrrn", "order", view, (3,)) == [-1e9 + 4.0]
    view.params[0] = 1.0
    assert answers("hrrn", "order", view, (2, 3)) == [3.0, 4.0]


def test_shortest_uncached_counts_what_is_owed():
    view = a_view("shortest-uncached")
    assert answers("shortest-uncached", "order", view, (2, 3)) == [250.0, 30.0]
    view.requests.prefill_tokens[3] += 7  # evicted after seven tokens
    assert answers("shortest-uncached", "order", view, (3,)) == [37.0]


def test_ltr_promotes_who_idles_too_long_and_for_so_many_steps():
    view = a_view("ltr:starve=20,period=5")
    tell("ltr", view, ARRIVAL, 0, 1, 2, 3)
    view.engines.steps[0] = 19
    assert answers("ltr", "order", view, (2, 3)) == [10.0, 40.0]
    view.engines.steps[0] = 20
    assert answers("ltr", "order", view, (2, 3)) == [-1e6 + 10.0, -1e6 + 40.0]
    view.requests.computed_tokens[3] = 30  # taken, and its prompt done in step 21: one of five
    view.requests.fresh_tokens[3] = 1
    view.engines.steps[0] = 21
    tell("ltr", view, TOKEN, 3)
    view.engines.steps[0], view.requests.fresh_tokens[3] = 24, 3
    tell("ltr", view, TOKEN, 3)
    assert answers("ltr", "serve", view, (3,)) == [-1e6 + 40.0]
    view.engines.steps[0], view.requests.fresh_tokens[3] = 25, 1
    tell("ltr", view, TOKEN, 3)
    assert answers("ltr", "serve", view, (3,)) == [40.0]


def test_ltr_notices_chunks_that_gave_no_token():
    view = a_view("ltr:starve=20")
    tell("ltr", view, ARRIVAL, 1)
    view.engines.steps[0] = 19
    assert answers("ltr", "serve", view, (1,)) == [10.0]  # 40 tokens were computed just now
    view.engines.steps[0] = 38
    assert answers("ltr", "serve", view, (1,)) == [10.0]
    view.engines.steps[0] = 39
    assert answers("ltr", "serve", view, (1,)) == [-1e6 + 10.0]
    tell("ltr", view, EVICT, 1)
    assert answers("ltr", "order", view, (1,)) == [10.0]


def test_ltr_wakes_before_anybody_can_be_promoted():
    view = a_view("ltr:starve=20")
    tell("ltr", view, ARRIVAL, 2)
    view.engines.steps[0] = 5
    tell("ltr", view, ARRIVAL, 3)
    view.engines.steps[0] = 8
    # 12 steps are left of request 2; the first ends no sooner than now, each later one takes 0.011 s at least
    assert answers("ltr", "wake", view, (0,)) == pytest.approx([5.0 + 11 * 0.011])
    view.engines.steps[0] = 20
    assert answers("ltr", "wake", view, (0,)) == pytest.approx([5.0 + 4 * 0.011])
    view.engines.steps[0] = 25
    assert answers("ltr", "wake", view, (0,)) == [inf]


def test_ltr_can_be_given_a_worse_ranker():
    view = a_view("ltr:noise=0.5")
    # luck 0.5 is the middle; 0.3 lies 0.4 * sqrt(3) deviations below
    assert answers("ltr", "order", view, (2, 3)) == pytest.approx([10.0, 40.0 * exp(-0.2 * 3**0.5)])


@pytest.mark.parametrize(
    ("spec", "fits", "short"),
    [
        # left 20, 20, 15 of held 80, 250, 54: 384 + 3 * 15 = 429 tokens, of 1000
        ("kv-conservative:limit_tokens=20", 0.57, 0.58),
        # one token left of each: 384 + 3 = 387
        ("kv-aggressive", 0.61, 0.62),
        # left 15, 10, 10 of held 54, 80, 250: 384 + 3 * 10 = 414
        ("mc-sf", 0.58, 0.59),
    ],
)
def test_admission_by_the_coming_peak(spec, fits, short):
    view = a_view(spec)
    reserve = 1 if "limit" in spec else 0
    name = spec.split(":")[0]
    view.params[reserve] = fits
    assert answers(name, "admit", view, (2,)) == [TAKE]
    view.params[reserve] = short
    assert answers(name, "admit", view, (2,)) == [WAIT]
    view.engines.running[0] = 0
    assert answers(name, "admit", view, (2,)) == [TAKE]


@pytest.mark.parametrize("name", ["kv-conservative", "kv-aggressive"])
def test_the_default_watermark_holds_too(name):
    view = a_view(name)
    view.params[0] = 1.0 if name == "kv-conservative" else 0.0
    view.engines.blocks_free[0] = 27  # 251 tokens are 26 blocks, one is the watermark
    assert answers(name, "admit", view, (2,)) == [TAKE]
    view.engines.blocks_free[0] = 26
    assert answers(name, "admit", view, (2,)) == [WAIT]


def test_mc_sf_goes_by_forecast_and_trusts_it_no_longer_once_overrun():
    view = a_view("mc-sf")
    assert answers("mc-sf", "order", view, (2, 3)) == [10.0, 40.0]
    view.requests.generated_tokens[0] = 30  # one more is expected: left 10, 10, 1, so 384 + 3 or 330 + 20
    view.params[0] = 0.61
    assert answers("mc-sf", "admit", view, (2,)) == [TAKE]
    view.params[0] = 0.62
    assert answers("mc-sf", "admit", view, (2,)) == [WAIT]
