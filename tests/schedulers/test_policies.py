"""Keys and answers of each shipped policy, computed by hand on a small view."""

from math import inf

import numpy as np
import pytest

from schedulers.checks import check, defaults
from schedulers.cost import ATTENTION, BASE, DECODE, KV, PREFILL
from schedulers.load import cluster_names, engine_names, find, load
from schedulers.policy import HOLD, TAKE, WAIT
from schedulers.view import RUNNING, WAITING, Tiers, View, allocate

ENGINES = ("edf", "fcfs-chunked", "fcfs-prefill", "sarathi", "sjf-pred")
CONTROLS = ("lifo", "oracle-srpt", "pathological", "random")
CLUSTERS = ("least-requests", "round-robin")
TAU_S = 0.017  # 0.01 + 4/2 decodes * 0.001 + 100*10/2 KV tokens * 1e-5


def a_view(spec: str, *, engines: int = 1, requests: int = 4) -> View:
    """Engines of 100 blocks of 10 tokens, 4 sequences, 100 tokens a step; four requests on engine 0.

    Request 0 decodes (5 tokens out), 1 is half way through its prompt, 2 and 3 wait.
    """
    found = find(spec)
    tiers = Tiers(np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([inf, 30.0]), np.ones(2))
    view = allocate(requests, engines, tiers, np.ones(1), found.policy.memo)
    view = view._replace(params=np.array([*found.values, 0.0]))
    view.costs[:, BASE], view.costs[:, PREFILL], view.costs[:, ATTENTION] = 0.01, 1e-4, 2e-8
    view.costs[:, DECODE], view.costs[:, KV] = 1e-3, 1e-5
    fleet, table = view.engines, view.requests
    fleet.sequences_max[:], fleet.budget_max[:] = 4, 100
    fleet.blocks_total[:], fleet.blocks_free[:], fleet.block_tokens[:] = 100, 100, 10
    if requests == 4:
        table.arrival_s[:] = (1.0, 2.0, 3.0, 4.0)
        table.prompt_tokens[:] = table.prefill_tokens[:] = (50, 80, 250, 30)
        table.forecast_tokens[:] = (20.0, 10.0, 10.0, 40.0)
        table.generated_tokens[0], table.computed_tokens[:2] = 5, (54, 40)
        table.luck[:] = (0.1, 0.9, 0.5, 0.3)
        table.engine[:] = 0
        table.state[:] = (RUNNING, RUNNING, WAITING, WAITING)
        table.blocks[:2] = (6, 4)
        fleet.running[0] = fleet.waiting[0] = 2
        view.running[0, :2], view.waiting[0, :2] = (0, 1), (3, 2)
        fleet.blocks_free[0] = 90
    return view


def answers(spec: str, hook: str, view: View, requests: tuple[int, ...], now_s: float = 5.0) -> list[float]:
    function = getattr(find(spec).policy, hook)
    return [function(view, request, now_s) for request in requests]


def test_the_folders_hold_what_is_tested_here():
    assert set(engine_names()) >= {*ENGINES, *CONTROLS}
    assert set(cluster_names()) >= set(CLUSTERS)
    assert {name for name in ENGINES + CONTROLS if find(name).policy.control} == set(CONTROLS)
    assert [name for name in engine_names() if find(name).policy.oracle] == ["oracle-srpt"]


@pytest.mark.parametrize("name", [*engine_names(), *cluster_names()])
def test_every_shipped_policy_keeps_the_contract(name):
    found = find(name)
    assert check(found.policy, idea=found.module.__doc__) == []
    assert found.policy.name == name
    assert found.policy.source
    assert len(found.idea.split()) > 4


def test_fcfs_chunked_takes_the_smaller_budget():
    view = a_view("fcfs-chunked:budget_tokens=64")
    assert answers("fcfs-chunked", "budget", view, (0,)) == [64.0]
    view.engines.budget_max[0] = 48
    assert answers("fcfs-chunked", "budget", view, (0,)) == [48.0]


def test_fcfs_prefill_pauses_decodes_while_the_head_fits():
    view = a_view("fcfs-prefill")
    # head is request 2: 251 tokens are 26 blocks, 90 - 26 >= 1
    assert answers("fcfs-prefill", "serve", view, (0, 1)) == [inf, inf]
    assert answers("fcfs-prefill", "admit", view, (2, 3)) == [TAKE, TAKE]
    view.engines.blocks_free[0] = 26  # it would leave less than the watermark of one block
    view.engines.steps[0] += 1
    assert answers("fcfs-prefill", "serve", view, (0, 1)) == [1.0, 2.0]
    assert answers("fcfs-prefill", "admit", view, (2, 3)) == [WAIT, TAKE]
    view.engines.blocks_free[0] = 27
    view.engines.steps[0] += 1
    assert answers("fcfs-prefill", "serve", view, (0,)) == [inf]
    view.engines.sequences_max[0] = 2  # a slot is wanting
    view.engines.steps[0] += 1
    assert answers("fcfs-prefill", "serve", view, (0,)) == [1.0]
    assert answers("fcfs-prefill", "admit", view, (2,)) == [WAIT]


def test_fcfs_prefill_serves_if_nobody_waits_and_looks_at_ties_by_luck():
    view = a_view("fcfs-prefill")
    view.requests.arrival_s[3] = 3.0  # as request 2, and luckier
    view.engines.blocks_free[0] = 10  # request 3 needs 4 blocks, request 2 needs 26
    assert answers("fcfs-prefill", "serve", view, (0,)) == [inf]
    view.engines.waiting[0] = 0
    view.engines.steps[0] += 1
    assert answers("fcfs-prefill", "serve", view, (0, 1)) == [1.0, 2.0]


@pytest.mark.parametrize("name", ["fcfs-prefill", "sarathi", "oracle-srpt"])
def test_an_empty_engine_needs_no_watermark(name):
    view = a_view(name)
    view.engines.running[0], view.engines.blocks_free[0], view.engines.blocks_total[0] = 0, 25, 25
    assert answers(name, "admit", view, (2,)) == [TAKE]
    view.engines.running[0] = 1
    assert answers(name, "admit", view, (2,)) == [WAIT]


def test_fcfs_prefill_counts_the_recompute_of_an_evicted_head():
    view = a_view("fcfs-prefill")
    view.engines.blocks_free[0] = 27
    view.requests.prefill_tokens[2] = 270  # 28 blocks with the next token
    assert answers("fcfs-prefill", "serve", view, (0,)) == [1.0]


def test_sarathi_serves_decodes_before_started_prompts():
    view = a_view("sarathi")
    view.requests.arrival_s[0] = 9.0
    decode, prompt = answers("sarathi", "serve", view, (0, 1))
    assert decode == 9.0
    assert prompt == 1e6 + 2.0
    assert load("sarathi").engine.waiting_rank is None


def test_sarathi_takes_what_fits_whole():
    view = a_view("sarathi")
    view.engines.blocks_free[0] = 26  # request 2 has 25 blocks of prompt, one is the watermark
    assert answers("sarathi", "admit", view, (2,)) == [TAKE]
    view.engines.blocks_free[0] = 25
    assert answers("sarathi", "admit", view, (2,)) == [WAIT]


def test_sarathi_derives_its_budget_from_the_tightest_pace():
    view = a_view("sarathi:min_budget=64")
    view.engines.budget_max[0] = 1000
    # beside 2 decodes and 500 KV tokens: 0.01 + 1e-4 n + 1e-8 n^2 + 0.002 + 0.005 <= 0.9 * 0.1
    #   n = 702 (budget 704): 0.017 + 0.0702 + 0.00493 = 0.0921; n = 638: 0.017 + 0.0638 + 0.00407 = 0.0849
    assert answers("sarathi", "budget", view, (0,)) == [640.0]
    assert view.engines.memo[0, 0] == 640.0
    view.tiers.tpot_s[0] = 0.01  # read once a run
    assert answers("sarathi", "budget", view, (0,)) == [640.0]
    view.engines.memo[0, 0] = 0.0
    assert answers("sarathi", "budget", view, (0,)) == [64.0]


def test_sarathi_leaves_room_for_half_the_slots_as_decodes():
    view = a_view("sarathi:phi=0.9")
    view.engines.budget_max[0], view.engines.sequences_max[0] = 2000, 200
    view.tiers.tpot_s[:] = 0.3
    # 0.01 + 0.1 for 100 decodes + 0.005 + 1e-4 n + 1e-8 n^2 <= 0.27, n = budget - 100: 1308 fits, 1372 not
    assert answers("sarathi", "budget", view, (0,)) == [1408.0]


def test_sarathi_takes_the_whole_limit_without_a_pace_and_a_fixed_budget_by_order():
    view = a_view("sarathi")
    view.engines.budget_max[0] = 1000
    view.tiers.tpot_s[:] = inf
    assert answers("sarathi", "budget", view, (0,)) == [960.0]  # the last multiple of 64
    view.params[2] = 512.0
    assert answers("sarathi", "budget", view, (0,)) == [512.0]
    view.engines.budget_max[0] = 100
    assert answers("sarathi", "budget", view, (0,)) == [100.0]


def test_edf_moves_the_deadline_on_with_each_token():
    view = a_view("edf")
    view.requests.tier[3] = 1
    # a + F + g*T
    assert answers("edf", "serve", view, (0, 1)) == [1.0 + 1.0 + 5 * 0.1, 2.0 + 1.0]
    assert answers("edf", "order", view, (2, 3)) == [4.0, 6.0]
    assert answers("edf", "evict", view, (0,)) == [2.5]


def test_edf_never_holds_a_request_without_a_deadline():
    view = a_view("edf")
    view.tiers.tpot_s[0] = inf  # a first-token target only: after the first token nothing is due
    assert answers("edf", "serve", view, (0, 1)) == [1e6 + 1.0, 3.0]
    view.tiers.ttft_s[1], view.requests.tier[3] = inf, 1  # an end-to-end target only
    assert answers("edf", "order", view, (3,)) == [34.0]
    view.tiers.e2e_s[1] = inf
    assert answers("edf", "order", view, (3,)) == [1e6 + 4.0]


def prefill_s(tokens: int) -> float:
    chunks, rest = divmod(tokens, 100)
    return chunks * 0.02 + (0.01 + 1e-4 * rest if rest else 0.0) + 2e-8 * tokens**2 / 2


def test_sjf_orders_by_predicted_service():
    view = a_view("sjf-pred")
    assert answers("sjf-pred", "order", view, (2, 3)) == pytest.approx(
        [prefill_s(250) + 10 * TAU_S, prefill_s(30) + 40 * TAU_S]
    )
    assert answers("sjf-pred", "evict", view, (0, 1)) == pytest.approx(
        [15 * TAU_S, prefill_s(40) + 10 * TAU_S]
    )
    view.requests.generated_tokens[0] = 33  # overrun: one more is expected
    assert answers("sjf-pred", "evict", view, (0,)) == pytest.approx([TAU_S])
    assert answers("sjf-pred", "wake", view, (0,)) == [inf]


def test_sjf_lets_those_go_ahead_who_waited_too_long():
    view = a_view("sjf-pred:max_wait_s=10")
    assert answers("sjf-pred", "wake", view, (0,), 5.0) == [13.0]
    before = answers("sjf-pred", "order", view, (2, 3), 12.9)
    after = answers("sjf-pred", "order", view, (2, 3), 13.0)
    assert after[1] == before[1] > 0.0 > after[0] == -1e6 + 3.0
    assert answers("sjf-pred", "wake", view, (0,), 13.0) == [14.0]
    assert answers("sjf-pred", "wake", view, (0,), 14.0) == [inf]
    late = answers("sjf-pred", "order", view, (2, 3), 20.0)
    assert late == [-1e6 + 3.0, -1e6 + 4.0]


def test_oracle_srpt_goes_by_what_remains_and_serves_decodes_first():
    view = a_view("oracle-srpt")
    remaining = [
        15 * TAU_S,
        prefill_s(40) + 10 * TAU_S,
        prefill_s(250) + 10 * TAU_S,
        prefill_s(30) + 40 * TAU_S,
    ]
    assert answers("oracle-srpt", "order", view, (2, 3)) == pytest.approx(remaining[2:])
    assert answers("oracle-srpt", "evict", view, (0, 1)) == pytest.approx(remaining[:2])
    assert remaining[0] > remaining[1]
    assert answers("oracle-srpt", "serve", view, (0, 1)) == pytest.approx([remaining[0], 1e6 + remaining[1]])


def test_oracle_srpt_displaces_only_where_it_pays():
    view = a_view("oracle-srpt")
    preempt = find("oracle-srpt").policy.preempt
    view.requests.forecast_tokens[:] = (200.0, 200.0, 10.0, 10.0)
    # request 3 needs prefill_s(30) + 10 tau = 0.183 s; recomputing 54 tokens delays all four by 0.01543 s;
    # 195 tau = 3.315 s remain of request 0, more of 1
    assert preempt(view, 3, 0, 5.0) == 1.0
    view.engines.waiting[0] = 200  # 0.183 + 202 * 0.01543 = 3.300 s
    assert preempt(view, 3, 0, 5.0) == 1.0
    view.engines.waiting[0] = 202  # 0.183 + 204 * 0.01543 = 3.331 s: too dear
    assert preempt(view, 3, 0, 5.0) == 0.0
    view.engines.waiting[0] = 2
    view.requests.forecast_tokens[1] = 1.0  # a slot comes free sooner than request 3 could end
    assert preempt(view, 3, 0, 5.0) == 0.0
    view.requests.forecast_tokens[1] = 200.0
    view.params[0] = 3.2
    assert preempt(view, 3, 0, 5.0) == 0.0


def test_oracle_srpt_takes_whole_prompts():
    view = a_view("oracle-srpt")
    view.engines.blocks_free[0] = 27  # 26 for 251 tokens, one is the watermark
    assert answers("oracle-srpt", "admit", view, (2,)) == [TAKE]
    view.engines.blocks_free[0] = 26
    assert answers("oracle-srpt", "admit", view, (2,)) == [WAIT]


def test_pathological_is_the_reverse_of_shortest_remaining():
    view = a_view("oracle-srpt")
    shortest = [find("oracle-srpt").policy.evict(view, request, 5.0) for request in range(4)]
    for hook, requests in (("serve", (0, 1)), ("order", (2, 3)), ("evict", (0, 1))):
        assert answers("pathological", hook, view, requests) == [-shortest[request] for request in requests]


def test_lifo_turns_arrivals_round():
    view = a_view("lifo")
    assert answers("lifo", "order", view, (2, 3)) == [-3.0, -4.0]
    assert answers("lifo", "serve", view, (0, 1)) == [-1.0, -2.0]
    assert answers("lifo", "evict", view, (0, 1)) == [-1.0, -2.0]  # the largest is the oldest


def test_random_goes_by_luck():
    view = a_view("random")
    assert answers("random", "order", view, (2, 3)) == [0.5, 0.3]
    assert answers("random", "serve", view, (0, 1)) == [0.1, 0.9]
    assert find("random").policy.evict is None


def turns(name: str, view: View, count: int, luck: float = 0.0) -> list[float]:
    view.requests.luck[:] = luck
    return [find(name).policy.dispatch(view, 0, 1.0) for _ in range(count)]


def test_round_robin_takes_turns_and_passes_over():
    view = a_view("round-robin", engines=3, requests=1)
    assert turns("round-robin", view, 4) == [0.0, 1.0, 2.0, 0.0]
    view.engines.draining[1] = 1
    assert turns("round-robin", view, 3) == [2.0, 0.0, 2.0]
    view.engines.draining[1], view.engines.alive[0] = 0, 0
    assert turns("round-robin", view, 4) == [1.0, 2.0, 1.0, 2.0]  # no burst for the one that came back
    view.engines.alive[:] = 0
    memo = view.engines.memo.copy()
    assert turns("round-robin", view, 1) == [HOLD]
    assert np.array_equal(memo, view.engines.memo)


def test_round_robin_goes_by_turns_not_by_names():
    view = a_view("round-robin", engines=3, requests=1)
    view.engines.memo[:, 0] = (7.0, 5.0, 6.0)
    assert turns("round-robin", view, 3) == [1.0, 2.0, 0.0]
    view.engines.memo[:, 0] = (5.0, 6.0, 7.0)
    assert turns("round-robin", view, 3) == [0.0, 1.0, 2.0]


def test_least_requests_counts_both_lists_and_breaks_ties_by_luck():
    view = a_view("least-requests", engines=4, requests=1)
    view.engines.running[:], view.engines.waiting[:] = (3, 1, 2, 4), (0, 2, 0, 5)
    assert turns("least-requests", view, 1, 0.99) == [2.0]
    view.engines.draining[2] = 1  # then 0 and 1 hold three each
    assert [turns("least-requests", view, 1, u)[0] for u in (0.0, 0.49, 0.5, 0.999)] == [0.0, 0.0, 1.0, 1.0]
    view.engines.alive[0] = 0
    assert turns("least-requests", view, 1, 0.0) == [1.0]
    view.engines.alive[:] = 0
    assert turns("least-requests", view, 1, 0.5) == [HOLD]


def test_declarations_that_an_engine_acts_on():
    policies = {name: find(name).policy for name in ENGINES + CONTROLS}
    assert {name for name, policy in policies.items() if policy.scan == "skip"} == {"edf"}
    assert {name for name, policy in policies.items() if not policy.chunked} == {"fcfs-prefill"}
    assert {name for name, policy in policies.items() if policy.wake} == {"sjf-pred"}
    assert {name for name, policy in policies.items() if policy.preempt} == {"oracle-srpt"}
    assert not any(policy.dynamic or policy.rekey or policy.python for policy in policies.values())


def test_parameters_have_a_default_of_their_own():
    assert defaults(find("sarathi").policy) == (0.9, 256.0, 0.0)
    assert defaults(find("fcfs-chunked").policy) == (2048.0,)
    assert defaults(find("fcfs-prefill").policy) == (0.01,)
    assert defaults(find("sjf-pred").policy) == (inf,)
