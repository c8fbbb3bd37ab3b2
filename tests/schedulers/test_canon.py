"""Keys and answers of the canon, computed by hand on a small view, where the worked examples do not reach."""

from math import inf

import numpy as np
import pytest

from schedulers.cost import KV
from schedulers.load import find
from schedulers.policy import REFUSE, TAKE, WAIT
from schedulers.view import ARRIVAL, DONE, EVICT, FINISH, TOKEN
from schedulers.view import TAKE as TAKEN
from tests.schedulers.test_policies import TAU_S, a_view, answers, prefill_s

CANON = (
    "least-slack",
    "srpt-limited",
    "mlfq-skipjoin",
    "vtc",
    "kv-peak",
    "slai",
    "slo-guard",
    "hybrid-ageing",
)


def tell(spec, view, request, event, now_s=5.0):
    find(spec).policy.observe(view, request, event, now_s)


def memo_of(view, *columns):
    return [float(view.requests.memo[place]) for place in columns]


def test_declarations_that_an_engine_acts_on():
    policies = {name: find(name).policy for name in CANON}
    assert {name for name, one in policies.items() if one.scan == "skip"} == {"least-slack", "slo-guard"}
    assert {name for name, one in policies.items() if one.preempt} == {"srpt-limited", "mlfq-skipjoin"}
    assert {name for name, one in policies.items() if one.rekey} == {"vtc"}
    assert {name for name, one in policies.items() if one.waiting_rank is not None} == {"slai"}
    assert {name for name, one in policies.items() if "forecast" in one.reads} == {
        "least-slack", "srpt-limited", "hybrid-ageing",
    }  # fmt: skip
    assert not any(one.control or one.oracle or one.python or not one.chunked for one in policies.values())
    assert all(one.source for one in policies.values())


def test_least_slack_keys_are_deadline_less_remaining_service():
    view = a_view("least-slack")
    # no E: dE = a + F + (o - 1) T
    due_s = [1 + 1 + 19 * 0.1, 2 + 1 + 0.9, 3 + 1 + 0.9, 4 + 1 + 3.9]
    left_s = [15 * TAU_S, prefill_s(40) + 10 * TAU_S, prefill_s(250) + 10 * TAU_S, prefill_s(30) + 40 * TAU_S]
    keys = [due - left for due, left in zip(due_s, left_s, strict=True)]
    assert answers("least-slack", "order", view, (2, 3)) == pytest.approx(keys[2:])
    assert answers("least-slack", "serve", view, (0, 1)) == pytest.approx([-1e6 + 1.0, keys[1]])
    assert answers("least-slack", "evict", view, (0, 1)) == pytest.approx([keys[0], 2e6 + keys[1]])
    assert answers("least-slack", "wake", view, (0,)) == [inf]
    view.requests.tier[3] = 1  # an end-to-end target of 30 s
    assert answers("least-slack", "order", view, (3,)) == pytest.approx([34.0 - left_s[3]])


def test_least_slack_puts_the_late_last_and_wakes_for_the_next():
    view = a_view("least-slack:late_last=1")
    starts = answers("least-slack", "order", view, (2, 3), 0.0)
    assert answers("least-slack", "wake", view, (0,), 0.0) == [min(starts)]
    assert answers("least-slack", "order", view, (2,), starts[0]) == [starts[0]]
    assert answers("least-slack", "order", view, (2,), starts[0] + 0.001) == pytest.approx([2e6 + starts[0]])
    assert answers("least-slack", "wake", view, (0,), starts[0] + 0.001) == [starts[1]]


def test_least_slack_holds_nobody_without_a_deadline():
    view = a_view("least-slack")
    view.tiers.tpot_s[0] = inf
    assert answers("least-slack", "order", view, (2,)) == [1e6 + 3.0]
    assert answers("least-slack", "evict", view, (0, 1)) == [1e6 + 1.0, 3e6 + 2.0]


def test_srpt_evicts_the_early_before_the_late():
    view = a_view("srpt-limited:c=0.25")  # request 0 has 5 of 20 tokens out: not less than a quarter
    late, early = answers("srpt-limited", "evict", view, (0, 1))
    assert late == pytest.approx(15 * TAU_S)
    assert early == pytest.approx(1e6 + prefill_s(40) + 10 * TAU_S)


def test_srpt_displaces_by_margin_and_share():
    view = a_view("srpt-limited:c=0.3")
    preempt = find("srpt-limited").policy.preempt
    view.requests.forecast_tokens[3] = 5.0
    gap_s = 15 * TAU_S - (prefill_s(30) + 5 * TAU_S)
    assert gap_s > 0.1
    assert preempt(view, 3, 0, 5.0) == 1.0
    view.params[1] = gap_s + 0.001
    assert preempt(view, 3, 0, 5.0) == 0.0
    view.params[:2] = (0.25, 0.0)
    assert preempt(view, 3, 0, 5.0) == 0.0
    view.requests.generated_tokens[0] = 30  # overrun: late, though o' = g + 1
    view.params[0] = 1.0
    assert preempt(view, 3, 0, 5.0) == 0.0


def test_mlfq_joins_by_prefill_and_keeps_the_last_level_in_order():
    view = a_view("mlfq-skipjoin:q0_s=0.015,levels=3")  # quanta of 15 and 30 ms, then none
    assert prefill_s(50) == pytest.approx(0.015025)
    for request in range(4):
        tell("mlfq-skipjoin", view, request, ARRIVAL, float(request))
    assert view.requests.memo[:, 0].tolist() == [1.0, 1.0, 2.0, 0.0]
    assert answers("mlfq-skipjoin", "order", view, (2, 3)) == [2e6 + 2.0, 3.0]
    assert find("mlfq-skipjoin").policy.preempt(view, 3, 1, 5.0) == 1.0
    assert find("mlfq-skipjoin").policy.preempt(view, 2, 1, 5.0) == 0.0
    view.requests.memo[2, 1] = 100.0
    fleet = view.engines
    view.running[0, 0], fleet.running[0], fleet.steps[0], fleet.reported_s[0] = 2, 1, 1, 6.0
    view.requests.computed_tokens[2] = 100
    answers("mlfq-skipjoin", "budget", view, (0,), 6.0)
    assert view.requests.memo[2, :3].tolist() == [2.0, 106.0, 2.0]  # no quantum below


def test_mlfq_charges_only_who_was_served_and_wakes_for_quantum_and_starvation():
    view = a_view("mlfq-skipjoin:q0_s=1,starve_s=3")
    for request in range(4):
        tell("mlfq-skipjoin", view, request, ARRIVAL, 5.0)
    view.requests.memo[:2, 4] = (54, 40)
    answers("mlfq-skipjoin", "budget", view, (0,), 5.0)
    assert answers("mlfq-skipjoin", "wake", view, (0,), 5.0) == [6.0]
    view.engines.steps[0], view.engines.reported_s[0] = 1, 5.75
    view.requests.computed_tokens[0] = 55
    answers("mlfq-skipjoin", "budget", view, (0,), 5.75)
    assert view.requests.memo[:2, 1].tolist() == [0.75, 0.0]
    assert answers("mlfq-skipjoin", "wake", view, (0,), 5.75) == [6.0]
    view.requests.memo[:2, 1] = 0.0
    view.requests.memo[:, 0] = 7.0  # the last level: only starvation is left
    assert answers("mlfq-skipjoin", "wake", view, (0,), 5.75) == [8.0]
    answers("mlfq-skipjoin", "budget", view, (0,), 8.5)
    assert view.requests.memo[:, 0].tolist() == [7.0, 0.0, 0.0, 0.0]  # request 0 was served at 5.75
    assert memo_of(view, (1, 2), (1, 3)) == [8.5, 8.5]
    view.requests.memo[1, :3] = (2.0, 0.5, 4.0)
    tell("mlfq-skipjoin", view, 1, EVICT, 9.0)  # keeps level and place
    assert view.requests.memo[1, [0, 1, 2, 4]].tolist() == [2.0, 0.5, 4.0, 0.0]


def fair_view():
    view = a_view("vtc")
    tenants = view.tenants._replace(weight=np.array([1.0, 2.0, 1.0]), waiting=np.zeros(3, np.int64))
    view = view._replace(tenants=tenants._replace(memo=np.zeros((3, 2))))
    view.requests.tenant[:] = (0, 1, 1, 2)
    return view


def test_vtc_charges_prompts_once_and_tokens_by_weight():
    view = fair_view()
    tell("vtc", view, 1, TAKEN)
    assert view.tenants.memo[1, 0] == 80 / 2
    view.requests.fresh_tokens[1] = 7  # a jump
    tell("vtc", view, 1, TOKEN)
    assert view.tenants.memo[1, 0] == 40 + 2 * 7 / 2
    view.requests.evictions[1] = 1
    tell("vtc", view, 1, TAKEN)
    assert view.tenants.memo[1, 0] == 47.0
    assert answers("vtc", "order", view, (2, 3)) == [47.0, 0.0]
    assert answers("vtc", "evict", view, (0, 1)) == [0.0, 47.0]


def test_vtc_lifts_to_the_poorest_waiting_else_to_the_last_that_left():
    view = fair_view()
    view.tenants.memo[:, 0] = (50.0, 30.0, 10.0)
    view.tenants.waiting[:] = (1, 2, 0)
    tell("vtc", view, 3, ARRIVAL)
    assert view.tenants.memo[2, 0] == 30.0
    tell("vtc", view, 2, ARRIVAL)  # its tenant waits already
    assert view.tenants.memo[1, 0] == 30.0
    view.tenants.waiting[:] = 0
    view.tenants.memo[2, 0] = 10.0
    tell("vtc", view, 3, ARRIVAL)  # nobody ever left
    assert view.tenants.memo[2, 0] == 10.0
    view.requests.evictions[:] = 1
    tell("vtc", view, 1, TAKEN)
    tell("vtc", view, 0, TAKEN)
    tell("vtc", view, 3, ARRIVAL)
    assert view.tenants.memo[2, 0] == 50.0


def test_vtc_looks_again_while_tokens_may_change_the_head():
    view = fair_view()
    assert answers("vtc", "wake", view, (0,)) == [inf]
    view.tenants.waiting[1:] = 1
    assert answers("vtc", "wake", view, (0,)) == [5.0]
    view.engines.running[0] = 4
    assert answers("vtc", "wake", view, (0,)) == [inf]


def finish(spec, view, *lengths):
    for length in lengths:
        view.requests.state[1], view.requests.generated_tokens[1] = DONE, length
        tell(spec, view, 1, FINISH)
    view.requests.generated_tokens[1] = 0


def test_kv_peak_remembers_the_last_lengths_in_order():
    view = a_view("kv-peak:history=3,warm=3")
    finish("kv-peak", view, 9, 4, 7)
    memo = view.engines.memo[0]
    assert memo[:5].tolist() == [3.0, 0.0, 9.0, 4.0, 7.0]
    assert memo[1002:1005].tolist() == [4.0, 7.0, 9.0]
    finish("kv-peak", view, 5, 7)  # 9 and 4 are forgotten
    assert memo[:5].tolist() == [3.0, 2.0, 5.0, 7.0, 7.0]
    assert memo[1002:1005].tolist() == [5.0, 7.0, 7.0]


def test_kv_peak_predicts_by_the_requests_own_quantile_of_longer_answers():
    view, module = a_view("kv-peak:history=4,warm=4"), find("kv-peak").module
    finish("kv-peak", view, 6, 12, 30)
    assert module.left_tokens(view, 0, 0) == 1024 - 5  # three are not yet four
    finish("kv-peak", view, 5)
    # request 0 has 5 out, so 6, 12, 30 are longer; its luck 0.1 says the first, 0.5 the second, 0.9 the third
    assert module.left_tokens(view, 0, 0) == 1.0
    view.requests.luck[0] = 0.5
    assert module.left_tokens(view, 0, 0) == 7.0
    view.requests.luck[0] = 0.9
    assert module.left_tokens(view, 0, 0) == 25.0
    view.requests.generated_tokens[0] = 40  # longer than any: as much again
    assert module.left_tokens(view, 0, 0) == 40.0


def test_kv_peak_wants_default_room_too():
    view = a_view("kv-peak:cold_tokens=10,reserve=0")
    assert answers("kv-peak", "admit", view, (2,)) == [TAKE]
    view.engines.blocks_free[0] = 26  # 251 tokens are 26 blocks, one is the watermark
    assert answers("kv-peak", "admit", view, (2,)) == [WAIT]
    view.engines.running[0] = 0
    assert answers("kv-peak", "admit", view, (2,)) == [TAKE]
    assert answers("kv-peak", "wake", view, (0,)) == [5.0]


def test_slai_ranks_and_offsets():
    view = a_view("slai")
    view.engines.steps[0], view.engines.step_s[0] = 1, 0.01
    tell("slai", view, 0, TOKEN, 5.0)
    lst = 5.0 + 0.1 - 5 * 0.01
    assert view.requests.memo[0, 0] == pytest.approx(lst)
    view.engines.blocks_free[0] = 4  # 96 % in use
    tell("slai", view, 0, TOKEN, 5.0)
    assert view.requests.memo[0, 0] == pytest.approx(5.0 + 0.1 - 10 * 0.01)
    view.requests.memo[0, 0] = lst
    assert answers("slai", "serve", view, (0, 1), 5.0) == pytest.approx([3e6 + lst, 1e6 + 2.0])
    assert answers("slai", "serve", view, (0,), lst) == pytest.approx([lst])
    assert answers("slai", "order", view, (2, 3)) == [1e8 + 250, 1e8 + 30]
    assert answers("slai", "budget", view, (0,)) == [100.0]


def test_slai_mean_sees_each_step_of_a_jump():
    one, many, rise_s = a_view("slai"), a_view("slai"), 2 * 1e-5
    assert one.costs[0, KV] * 2 == rise_s  # two run
    for view in (one, many):
        view.engines.steps[0], view.engines.step_s[0] = 1, 0.02
        tell("slai", view, 0, TOKEN)
    for step in range(2, 6):
        one.engines.steps[0], one.engines.step_s[0] = step, 0.03 + rise_s * step
        tell("slai", one, 0, TOKEN)
    many.engines.steps[0], many.engines.step_s[0] = 5, 0.03 + rise_s * 5
    tell("slai", many, 0, TOKEN)
    assert many.engines.memo[0, 0] == pytest.approx(one.engines.memo[0, 0], rel=1e-12)
    tell("slai", many, 0, TOKEN)
    assert many.engines.memo[0, 0] == pytest.approx(one.engines.memo[0, 0], rel=1e-12)  # once a step


def test_slai_caps_the_critical_by_last_schedulable_time():
    view = a_view("slai:decode_cap=1")
    view.requests.computed_tokens[1] = 80  # both decode
    view.requests.memo[:2, 0] = (4.9, 4.8)
    answers("slai", "budget", view, (0,))
    assert answers("slai", "serve", view, (0, 1)) == pytest.approx([3e6 + 4.9, 4.8])
    view.requests.memo[:2, 0] = 4.8  # a tie: request 0 came first
    assert answers("slai", "serve", view, (0, 1)) == pytest.approx([4.8, 3e6 + 4.8])


def test_slai_wakes_for_decodes_that_were_passed_over():
    view = a_view("slai")
    view.requests.memo[0, 0] = 5.5
    view.requests.last_token_s[0] = view.engines.reported_s[0] = 5.0
    assert answers("slai", "wake", view, (0,)) == [inf]
    view.engines.reported_s[0] = 5.1
    assert answers("slai", "wake", view, (0,), 5.1) == [5.5]
    view.tiers.tpot_s[0] = inf  # no pace: late, but never +inf
    tell("slai", view, 0, TOKEN)
    assert answers("slai", "serve", view, (0,))[0] < inf


def test_slo_guard_adds_up_the_prompts_ahead():
    view = a_view("slo-guard")
    view.tiers.ttft_s[0] = 2.05
    # v = 100 / (0.01 + 0.01 + 1e-4) tokens a second; request 1 owes 40, request 2 has 250 tokens
    rate = 100 / 0.0201
    moments = [
        3 + 2.05 - 40 / rate - prefill_s(250),
        4 + 2.05 - 290 / rate - prefill_s(30),
    ]
    answers("slo-guard", "budget", view, (0,))
    assert answers("slo-guard", "admit", view, (2, 3), moments[0] - 0.001) == [TAKE, TAKE]
    assert answers("slo-guard", "wake", view, (0,)) == pytest.approx([moments[0]])
    answers("slo-guard", "budget", view, (0,))
    assert answers("slo-guard", "admit", view, (2, 3), moments[0] + 0.001) == [REFUSE, TAKE]
    view.requests.generated_tokens[2] = 3  # it has begun
    for moment_s, says in ((moments[1] - 0.001, TAKE), (moments[1] + 0.001, REFUSE)):
        answers("slo-guard", "budget", view, (0,))
        assert answers("slo-guard", "admit", view, (2, 3), moment_s) == [TAKE, says]


def test_slo_guard_counts_slots_in_the_tightest_pace():
    view = a_view("slo-guard")
    view.tiers.ttft_s[:] = 100.0
    view.requests.tier[:] = (0, 1, 1, 0)
    # beside A: 0.5 and 0.5, 2 slots, 54 + 80 + 250 KV tokens: 0.01 + 0.002 + 0.00384 s
    for pace_s, says in ((0.0159, TAKE), (0.0157, WAIT)):
        view.tiers.tpot_s[:] = (pace_s, 2 * pace_s)
        answers("slo-guard", "budget", view, (0,))
        assert answers("slo-guard", "admit", view, (2,)) == [says]
    # a tight candidate is a whole slot: 3 with 164 tokens: 0.01 + 0.003 + 0.00164
    for pace_s, says in ((0.0147, TAKE), (0.0146, WAIT)):
        view.tiers.tpot_s[:] = (pace_s, 2 * pace_s)
        answers("slo-guard", "budget", view, (0,))
        assert answers("slo-guard", "admit", view, (3,)) == [says]
    view.requests.tier[0] = 1  # the candidate alone is tight: 0.5 + 0.5 + 1 = 2 slots, a decode less
    for pace_s, says in ((0.0137, TAKE), (0.0136, WAIT)):
        view.tiers.tpot_s[:] = (pace_s, 2 * pace_s)
        answers("slo-guard", "budget", view, (0,))
        assert answers("slo-guard", "admit", view, (3,)) == [says]


def test_slo_guard_saves_credits_and_pays_them():
    view = a_view("slo-guard")
    view.requests.computed_tokens[1], view.requests.tier[1] = 80, 1  # both decode, at 0.1 and 0.2 s
    answers("slo-guard", "budget", view, (0,))
    assert memo_of(view, (0, 0), (1, 0)) == [1.0, 0.5]
    assert answers("slo-guard", "serve", view, (0, 1)) == [1 + 1 + 5 * 0.1, inf]
    assert answers("slo-guard", "wake", view, (0,)) == [5.0]  # the next step may serve other decodes
    tell("slo-guard", view, 0, TOKEN)
    assert memo_of(view, (0, 0)) == [0.0]
    tell("slo-guard", view, 1, TOKEN)  # the token that ends a prompt costs nothing
    assert memo_of(view, (1, 0)) == [0.5]
    answers("slo-guard", "budget", view, (0,))
    assert answers("slo-guard", "serve", view, (1,)) == [2.0 + 2.0]
    tell("slo-guard", view, 1, EVICT)
    assert memo_of(view, (1, 0)) == [0.0]
    view.tiers.tpot_s[1] = inf  # no pace: a 64th of a slot
    answers("slo-guard", "budget", view, (0,))
    assert memo_of(view, (1, 0)) == [1 / 64]


def test_hybrid_keys_and_relegation():
    view = a_view("hybrid-ageing:alpha=2")
    due_s = [4.0, 5.0]
    keys = [due + 2 * prefill_s(tokens) for due, tokens in zip(due_s, (250, 30), strict=True)]
    assert answers("hybrid-ageing", "order", view, (2, 3), 3.9) == pytest.approx(keys)
    moment_s = 4.0 - prefill_s(250)
    assert answers("hybrid-ageing", "order", view, (2,), moment_s + 0.001) == pytest.approx([2e6 + keys[0]])
    view.tiers.weight[:] = (1.0, 2.0)  # a heavier tier goes before
    assert answers("hybrid-ageing", "order", view, (2,), 5.0) == pytest.approx([3e6 + keys[0]])
    view.requests.computed_tokens[2] = 240  # after chunks it can make it again
    assert answers("hybrid-ageing", "order", view, (2,), 3.95) == pytest.approx([4.0 + 2 * prefill_s(10)])
    view.tiers.ttft_s[1], view.requests.tier[3] = inf, 1  # an end only: W is all that remains
    left_s = prefill_s(30) + 40 * TAU_S
    assert answers("hybrid-ageing", "order", view, (3,)) == pytest.approx([34.0 + 2 * left_s])


def test_hybrid_evicts_the_relegated_first():
    view = a_view("hybrid-ageing")
    view.requests.first_token_s[0] = 1.9
    decode, prompt = answers("hybrid-ageing", "evict", view, (0, 1), 2.0)
    assert (decode, prompt) == pytest.approx((2.0, 3.0 + prefill_s(40)))
    view.requests.first_token_s[0] = 2.1  # its first token was late
    assert answers("hybrid-ageing", "evict", view, (0,), 2.0)[0] == pytest.approx(2e6 + 2.0)
    assert answers("hybrid-ageing", "serve", view, (0, 1), 2.0) == pytest.approx([-1e6 + 1.0, prompt])


def test_hybrid_budget_fills_the_time_that_decodes_have():
    view = a_view("hybrid-ageing:min_chunk=7")
    view.engines.budget_max[0], view.requests.first_token_s[0] = 10_000, 1.9
    # due at 1 + 1 + 5*0.1 = 2.5; one decode of 55 KV tokens: 0.00155 s; 0.01 + 1e-4 n + 1e-8 n^2 <= 0.5 - 0.00155
    tokens = answers("hybrid-ageing", "budget", view, (0,), 2.0)[0] - 1
    assert 0.01 + 1e-4 * tokens + 1e-8 * tokens**2 == pytest.approx(0.5 - 0.00155)
    view.requests.computed_tokens[1], view.requests.first_token_s[1] = 80, 2.0  # a decode that is due at 3
    two = answers("hybrid-ageing", "budget", view, (0,), 2.0)[0] - 2
    assert 0.01 + 1e-4 * two + 1e-8 * two**2 == pytest.approx(0.5 - 0.00155 - 0.00181)
    view.requests.computed_tokens[1] = 40
    view.costs[0, 0] = 0.45  # a floor: the attention beyond it has what is left
    floored = answers("hybrid-ageing", "budget", view, (0,), 2.0)[0] - 1
    assert 1e-8 * floored**2 == pytest.approx(0.05 - 0.00155)
    assert answers("hybrid-ageing", "budget", view, (0,), 2.49) == [8.0]  # min_chunk and the decode
    view.requests.first_token_s[0] = 2.1  # relegated: nothing slows down for it
    assert answers("hybrid-ageing", "budget", view, (0,), 2.49) == [10_000.0]


def test_hybrid_looks_again_while_a_smaller_chunk_may_fit():
    view = a_view("hybrid-ageing")
    assert answers("hybrid-ageing", "wake", view, (0,), 3.0) == [3.0]
    view.engines.running[0] = 4
    assert answers("hybrid-ageing", "wake", view, (0,), 3.0) == pytest.approx([4.0 - prefill_s(250)])
    assert answers("hybrid-ageing", "wake", view, (0,), 4.5) == pytest.approx([5.0 - prefill_s(30)])
