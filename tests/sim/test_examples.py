"""Worked examples of the canon: small schedules derived by hand from each paper's rule, then simulated.

Unless an example says otherwise a step takes one second whatever it carries, so that times are step numbers, a
predicted token costs one second and a prompt one second a chunk. Blocks hold ten tokens, requests are lettered in
order of arrival (of luck, if they arrive together), outputs are as forecast.
"""

from math import inf

import numpy as np
import pytest

from loadgen.demand import Demand
from schedulers.cost import BASE, DECODE, PREFILL
from schedulers.load import load
from schedulers.view import Tiers
from sim.run import Setup, simulate

FREE = Tiers(np.array([1000.0]), np.array([1000.0]), np.array([inf]), np.ones(1))


def costs(**parts):
    row = np.zeros(7)
    for place, seconds in parts.items():
        row[{"base": BASE, "prefill": PREFILL, "decode": DECODE}[place]] = seconds
    return row


def tiers(ttft_s, tpot_s=None, e2e_s=None, weight=None):
    n = len(ttft_s)
    rows = (ttft_s, tpot_s or [1000.0] * n, e2e_s or [inf] * n, weight or [1.0] * n)
    return Tiers(*(np.array(row, float) for row in rows))


def play(spec, requests, *, budget=100, slots=8, blocks=1000, targets=FREE, seconds=None):
    """Facts of a run; a request is (arrival, prompt, output, tier, tenant), the last two may be left out."""
    rows = [(*request, *(0,) * (5 - len(request))) for request in requests]
    arrival, prompt, output, tier, tenant = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    demand = Demand(
        arrival.astype(float), prompt, output, output.astype(float), tier, tenant, np.full(count, -1),
        (np.arange(count) + 0.5) / count,
    )  # fmt: skip
    place = Setup(
        1, slots, budget, 10, blocks, 10_000, costs(base=1.0) if seconds is None else seconds, targets
    )
    told = simulate(demand, load(spec), place, "interpreted", audit=True)
    jumped = simulate(demand, load(spec), place, "interpreted-jumped")
    assert told.facts.first_token_s == pytest.approx(jumped.facts.first_token_s, nan_ok=True)
    assert told.facts.finished_s == pytest.approx(jumped.facts.finished_s, nan_ok=True)
    return told.facts


def times(column):
    return [float(value) for value in column]


def test_fcfs_prefill_pauses_decodes_for_prompts_and_takes_them_whole():
    """vLLM v0 (2309.06180): a step carries prompts or decodes, prompts while the head can be admitted.

    A (10 tokens, 3 to give) starts at 0: first token at 1. B (10, 2) is there at 1: A pauses, B's first token at 2.
    C (250, 1) is there at 2: one step though the budget says 100, first and only token at 3. Nobody waits now:
    3 to 4 gives A its second token and B its last, 4 to 5 gives A its last.
    """
    facts = play("fcfs-prefill", [(0, 10, 3), (1, 10, 2), (2, 250, 1)])
    assert times(facts.first_token_s) == [1, 2, 3]
    assert times(facts.finished_s) == [5, 4, 3]
    assert facts.longest_gap_s[0] == 3


def test_fcfs_chunked_shares_one_budget_in_order_of_arrival():
    """vLLM V1: running requests first, decode or prompt alike, then the waiting, all out of one budget of 100.

    A (10, 3) at 0: first token at 1. B (150, 1), C (20, 2) arrive at 1. 1 to 2: A decodes, B gets the other 99.
    2 to 3: A's last token; B's last 51: its token; C's 20 fit beside: first token at 3. 3 to 4: C ends.
    """
    facts = play("fcfs-chunked", [(0, 10, 3), (1, 150, 1), (1, 20, 2)])
    assert times(facts.first_token_s) == [1, 3, 3]
    assert times(facts.finished_s) == [3, 3, 4]


def test_fcfs_chunked_evicts_the_newest_and_lets_nobody_pass_it():
    """vLLM V1: where a running request lacks a block the newest leaves, goes to the front of the queue and
    recomputes all it had; in that step nobody joins.

    Six blocks. A (28, 6) and B (18, 6) hold 3 + 2 from 0 to 1, first tokens. C (5, 1) comes at 1: its 5 tokens and
    the next fill the last block, but the watermark wants 0.06 of a block left: it waits. 1 to 2: A 29, B 19
    tokens; 2 to 3: A 30, B 20. 3 to 4: A needs its 4th block, the last; B a 3rd: B, the newest, leaves with 3 tokens
    out; C could join now and may not. 4 to 5: B is first again: 21 tokens and one want 3 blocks, 2 are free; C
    stands behind it. A's 6th token at 6: six blocks are free. 6 to 7: B's 21 tokens, its 4th token; C's beside it.
    """
    facts = play("fcfs-chunked", [(0, 28, 6), (0, 18, 6), (1, 5, 1)], blocks=6)
    assert times(facts.first_token_s) == [1, 1, 7]
    assert times(facts.finished_s) == [6, 9, 7]
    assert facts.preemptions.tolist() == [0, 1, 0]


def test_sarathi_never_stalls_a_decode():
    """Sarathi-Serve (2403.02310): decodes, then started prompts, then new ones, in a budget of 64 tokens.

    A (10, 4) at 0: token at 1. B (150, 1) and C (10, 1) arrive at 1. 1 to 2: A 1, B 63; 2 to 3: A 1, B 63 (126);
    3 to 4: A's last, B's last 24, and C's 10 in the 39 that are left. A never waits more than a step.
    """
    facts = play("sarathi:budget_tokens=64", [(0, 10, 4), (1, 150, 1), (1, 10, 1)])
    assert times(facts.first_token_s) == [1, 4, 4]
    assert facts.finished_s[0] == 4
    assert facts.longest_gap_s[0] == 1


def test_sarathi_reserves_the_whole_prompt():
    """A prompt starts only if all its blocks are there, and nobody passes it (vLLM V1 would start the chunk).

    20 blocks. A (95, 3) holds 10. B (100, 1) wants 10 and a watermark of 0.2: it waits, and C (10, 1), which
    would fit, behind it. A ends at 3; B's first token at 4; its chunk took the budget: C's at 5.
    """
    facts = play("sarathi:budget_tokens=100", [(0, 95, 3), (1, 100, 1), (1, 10, 1)], blocks=20)
    assert times(facts.first_token_s) == [1, 4, 5]


def test_edf_goes_by_the_deadline_of_the_next_token():
    """Earliest deadline, a + F + g*T: F is 20, 5, 12 s for tiers 0, 1, 2, one prompt fills a step.

    A, B, C (100 tokens, tiers 0, 1, 2) are due at 20, 5, 12: B, C, A.
    """
    targets = tiers([20.0, 5.0, 12.0])
    facts = play("edf", [(0, 100, 1, 0), (0, 100, 1, 1), (0, 100, 1, 2)], targets=targets)
    assert times(facts.first_token_s) == [3, 1, 2]


def test_edf_lets_a_prompt_that_is_due_go_before_a_decode_that_is_not():
    """Budget 10. A (5, 3; F 5, T 10) has its token at 1. B (29, 1; F 6) comes at 1, due at 7.

    1 to 2: running first: A decodes, B gets 9. From then on A's next token is due at 0 + 5 + 2*10 = 25: B goes
    first, 10 tokens to 3, 10 to 4; A gets nothing. 4 to 5: B's last token is none of A's: A decodes, last at 5.
    """
    targets = tiers([5.0, 6.0], [10.0, 10.0])
    facts = play("edf", [(0, 5, 3, 0), (1, 30, 1, 1)], budget=10, targets=targets)
    assert times(facts.first_token_s) == [1, 5]
    assert facts.finished_s[0] == 5
    assert facts.longest_gap_s[0] == 3


SLACK = [(0, 100, 15, 0), (0, 100, 2, 1), (0, 100, 5, 2)]


def test_least_slack_goes_by_the_latest_start():
    """Slack is deadline - now - remaining service; one slot, deadlines at 20, 10, 30.

    A needs 1 + 15 s: latest start 4. B 1 + 2: 7. C 1 + 5: 24. EDF would say B, A, C; slack says A, B, C. A runs
    0 to 15 (15 tokens, the first with the prompt), B 15 to 17, C from 17.
    """
    targets = tiers([inf] * 3, [inf] * 3, [20.0, 10.0, 30.0])
    facts = play("least-slack", SLACK, slots=1, targets=targets)
    assert times(facts.first_token_s) == [1, 16, 18]


def test_least_slack_may_put_the_late_last():
    """The same with late_last: at 15 B should have started by 7: its slack is gone, C goes first, 15 to 20."""
    targets = tiers([inf] * 3, [inf] * 3, [20.0, 10.0, 30.0])
    facts = play("least-slack:late_last=1", SLACK, slots=1, targets=targets)
    assert times(facts.first_token_s) == [1, 21, 16]


def test_sjf_pred_takes_the_shortest_and_displaces_nobody():
    """Shortest predicted job, Pre(p) + o*tau; one slot.

    A, B, C (100 tokens; 5, 2, 3 to give) are 6, 3, 4 s: B, C, A. B 0 to 2, C 2 to 5, A from 5. D (100, 1) comes
    at 6, shorter than what remains of A, and waits for its end at 10.
    """
    facts = play("sjf-pred", [(0, 100, 5), (0, 100, 2), (0, 100, 3), (6, 100, 1)], slots=1)
    assert times(facts.first_token_s) == [6, 1, 3, 11]
    assert facts.preemptions.sum() == 0


def test_srpt_displaces_the_early_only():
    """TRAIL (2410.01035): displace what remains longer, while less than c = 0.5 of its forecast is out; one slot.

    A (10, 10) at 0. At 3 it has 3 of 10 tokens, 7 s remain; B (10, 2) comes with 1 + 2 s: it displaces A, runs 3
    to 5. A comes back and recomputes 10 + 3 tokens in a step, which gives its 4th token at 6; the 7th is out at 9.
    There comes C (10, 1) with 2 s: 3 s remain of A, but 7 of 10 are out: it waits for A's end at 12.
    """
    facts = play("srpt-limited:c=0.5", [(0, 10, 10), (3, 10, 2), (9, 10, 1)], slots=1)
    assert times(facts.first_token_s) == [1, 4, 13]
    assert times(facts.finished_s) == [12, 5, 13]
    assert facts.preemptions.tolist() == [1, 0, 0]


def test_mlfq_lets_long_prompts_skip_down_and_demotes_by_service():
    """FastServe (2305.05920): quanta of 1 and 2 s, then none; a prompt joins the first level it fits; one slot.

    A (100: 1 s, level 0; 4 to give) at 0; after 2 s of service its quantum is exceeded: level 1 from 2. B (100,
    1; level 0) comes at 2 and displaces it: token at 3. A recomputes 102 tokens in two steps: its 3rd token at 5,
    its last at 6. C (200: 2 s, level 1) at 4 does not displace A, which is on level 1 too; nor does D (300: 3 s,
    level 2) at 5. E (100, level 0) at 6, when the slot comes free, passes both: token at 7. Then C at 9, D at 12.
    """
    rule = "mlfq-skipjoin:q0_s=1,levels=3,starve_s=100"
    asked = [(0, 100, 4), (2, 100, 1), (4, 200, 1), (5, 300, 1), (6, 100, 1)]
    facts = play(rule, asked, slots=1)
    assert times(facts.first_token_s) == [1, 3, 9, 12, 7]
    assert facts.finished_s[0] == 6
    assert facts.preemptions.tolist() == [1, 0, 0, 0, 0]


def test_mlfq_lifts_who_starves():
    """Not served for more than starve_s = 2.5 s: back to level 0.

    A (100, 8; level 0) and B (300, 1; level 2) at 0. A is on level 1 from 2. At 3 B has had nothing for 3 s: level
    0, it displaces A (3 tokens out) and has its token at 6, on level 1 since 5, which does not let A back in. A
    recomputes 103 tokens in two steps: 4th token at 8, 8th at 12.
    """
    facts = play("mlfq-skipjoin:q0_s=1,levels=3,starve_s=2.5", [(0, 100, 8), (0, 300, 1)], slots=1)
    assert times(facts.first_token_s) == [1, 6]
    assert times(facts.finished_s) == [12, 6]


def test_vtc_serves_the_poorest_tenant_and_lifts_a_newcomer():
    """VTC (2401.00588): 1 a prompt token, 2 an output token; the poorest tenant's head is next; one slot.

    A, B, C of tenant 0 and D of tenant 1 (100 tokens, 1 to give) at 0. A at the tie: V0 = 102. V1 = 0: D next,
    V1 = 102. E of tenant 2 comes at 2, lifted to the least V of those who wait, 102: no earlier claim than B's,
    which came first. B: V0 = 204. E at 102 before C. Without the lift E would pass B; FCFS would say A, B, C, D, E.
    """
    asked = [(0, 100, 1, 0, 0), (0, 100, 1, 0, 0), (0, 100, 1, 0, 0), (0, 100, 1, 0, 1), (2, 100, 1, 0, 2)]
    facts = play("vtc", asked, slots=1)
    assert times(facts.first_token_s) == [1, 3, 5, 2, 4]


def test_kv_peak_admits_by_the_peak_to_come():
    """Past-Future (2507.10150): 20 blocks, 200 tokens; each answer is believed to have 50 tokens.

    A (50, 3) at 0. B (50, 4), C (10, 1) come at 1. A holds 50 and 49 are to come; with B (50 and 50) the peak is
    max(50*1 + 50, 49*2 + 100) = 198 <= 200: taken. With C (10 and 50) too it is 49*3 + 110 = 257: held, though its
    two blocks are free. A ends at 3; B holds 51 and 48 are to come: max(50 + 10, 48*2 + 61) = 157: C's token at 4.
    """
    facts = play("kv-peak:cold_tokens=50,reserve=0", [(0, 50, 3), (1, 50, 4), (1, 10, 1)], blocks=20)
    assert times(facts.first_token_s) == [1, 2, 4]
    assert times(play("fcfs-chunked", [(0, 50, 3), (1, 50, 4), (1, 10, 1)], blocks=20).first_token_s) == [
        1,
        2,
        2,
    ]


def test_slai_holds_decodes_until_their_last_schedulable_time():
    """SLAI (2508.01002): critical decodes, started prompts, the waiting by (T, p), other decodes; budget 10.

    T is 5 and 10 s, the offset two mean steps of 1 s. A (10, 3; T 5) has its token at 1: LST = 1 + 5 - 2 = 4. B
    (40, 1; T 5), C (5, 1; T 10), D (8, 1; T 5) come at 1: D, B, C. 1 to 2: D 8 and ends, B 2, A is held. B 10 to
    3, B 10 to 4 (22). At 4 A is critical: its 2nd token at 5, B 9 (31); LST = 8. 5 to 6: B's last 9, C's first
    token of prompt takes what is left, A is held. 6 to 7: C's 4 others, and A its last.
    """
    asked = [(0, 10, 3, 0), (1, 40, 1, 0), (1, 5, 1, 1), (1, 8, 1, 0)]
    facts = play("slai:off_low=2,off_high=2", asked, budget=10, targets=tiers([100.0] * 2, [5.0, 10.0]))
    assert times(facts.first_token_s) == [1, 6, 7, 2]
    assert facts.finished_s[0] == 7
    assert facts.longest_gap_s[0] == 4


def test_slo_guard_rejects_what_cannot_make_it():
    """SCORPIO (2505.23022): reject once now + prompts ahead + own prompt is past a + F; F = 3, a prompt a step.

    A, B, C, D come at 0. A 0 to 1, B to 2, C to 3, just in time. D at 3 would have its token at 4 > 3: rejected.
    """
    facts = play("slo-guard", [(0, 100, 1)] * 4, targets=tiers([3.0]))
    assert times(facts.first_token_s)[:3] == [1, 2, 3]
    assert facts.outcome.tolist() == [0, 0, 0, 1]
    assert np.isnan(facts.finished_s[3]), "a rejected request never finishes"


def test_slo_guard_counts_loose_paces_as_parts_of_a_slot():
    """A decode costs 1 s, a prompt token 0.1 s. T is 2 s (tier 0) and 4 s (tier 1: half a slot, every other step).

    A (tier 0), B, C (tier 1; 10 tokens each) come at 0: 1 + 0.5 + 0.5 = 2 slots, 2 s <= T: all taken, first tokens
    at 3. D (tier 0) would make 3 slots, 3 s: held. Credits: at 3 A has 1, B and C 0.5: A alone to 4. At 4 all have
    1: to 7. At 7 A alone again, its 4th and last token at 8. At 8 B, C and D are 0.5 + 0.5 + 1 = 2: D is taken;
    B and C, the tightest now, have 0.5 + 1: both decode beside D's prompt, 2 + 1 s: to 11, their 3rd and last.
    """
    asked = [(0, 10, 4, 0), (0, 10, 3, 1), (0, 10, 3, 1), (0, 10, 1, 0)]
    targets = tiers([100.0] * 2, [2.0, 4.0])
    facts = play("slo-guard", asked, targets=targets, seconds=costs(decode=1.0, prefill=0.1))
    assert facts.first_token_s == pytest.approx([3.0, 3.0, 3.0, 11.0])
    assert facts.finished_s == pytest.approx([8.0, 11.0, 11.0, 11.0])


HYBRID = [(0, 300, 1, 0), (0, 100, 1, 1), (0, 200, 1, 2)]


@pytest.mark.parametrize(("alpha", "firsts"), [(1, [4, 1, 6]), (0, [3, 4, 6])])
def test_hybrid_ageing_weighs_work_and_sets_the_hopeless_aside(alpha, firsts):
    """Niyama (2503.22562): deadline + alpha * work; F is 5, 6, 1 s, prompts of 3, 1, 2 s; one slot.

    alpha 1: A 5 + 3, B 6 + 1: B first, 0 to 1; A, which may start until 2, to 4. alpha 0, by deadline: A to 3, B,
    which may start until 5, to 4. C should have started by -1: it can't make it and goes last, though it is due
    first, in two steps to 6.
    """
    facts = play(f"hybrid-ageing:alpha={alpha}", HYBRID, slots=1, targets=tiers([5.0, 6.0, 1.0]))
    assert times(facts.first_token_s) == firsts


def test_hybrid_ageing_fills_the_slack_of_decodes_with_prompt():
    """A step is 1 s and 1/8 s a prompt token. A (8, 6; F 2, T 3) has its token at 2, its next is due at 5.

    B (80, 1) comes at 2: 3 s are left, 2 of them for prompt: 16 tokens beside A's decode, to 5. The same each step:
    five chunks, B's token at 17, and A has each token when it is due: 5, 8, 11, 14, 17.
    """
    facts = play(
        "hybrid-ageing:min_chunk=1",
        [(0, 8, 6), (2, 80, 1)],
        targets=tiers([2.0], [3.0]),
        seconds=costs(base=1.0, prefill=0.125),
    )
    assert times(facts.first_token_s) == [2, 17]
    assert facts.finished_s[0] == 17
    assert facts.longest_gap_s[0] == 3
