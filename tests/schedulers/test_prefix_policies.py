"""Answers of the policies that read prefixes, computed by hand on small views."""

import pytest

from schedulers.cluster.early_reject import first_token_s
from schedulers.cost import RANK_S
from schedulers.load import find
from schedulers.view import ARRIVAL, EVICT, TAKE, TOKEN
from tests.schedulers.test_cluster import choice, choices, fleet
from tests.schedulers.test_policies import a_view, answers
from tests.schedulers.test_second import tell, with_tenants


def test_lpm_orders_by_cached_tokens():
    view = a_view("lpm")
    view.requests.cached_tokens[2:] = (40, 20)
    assert answers("lpm", "order", view, (2, 3)) == [-40.0, -20.0]
    view.engines.waiting[0] = 129
    assert answers("lpm", "order", view, (2, 3)) == [3.0, 4.0]


@pytest.mark.parametrize(
    ("cached", "heads", "late"),
    [((0, 0), (5, 5), True), ((0, 33), (5, 5), False), ((33, 0), (5, 5), False), ((0, 32), (5, 5), True),
     ((0, 0), (5, 6), False), ((0, 0), (-1, -1), False)],
)  # fmt: skip
def test_lpm_puts_the_later_of_two_alike_last_if_neither_is_cached(cached, heads, late):
    """Request 3 came after request 2; 32 tokens cached are the most that count as none."""
    view = a_view("lpm")
    view.requests.cached_tokens[2:], view.requests.head[2:] = cached, heads
    keys = answers("lpm", "order", view, (2, 3))
    assert keys == [-float(cached[0]), RANK_S if late else -float(cached[1])]


def test_dlpm_charges_what_was_computed_and_refills_when_no_waiting_tenant_has_credit():
    view = with_tenants(a_view("dlpm:quantum=100"), (1.0, 1.0), (0, 0, 0, 1))
    view.requests.cached_tokens[2:] = (40, 20)
    assert answers("dlpm", "order", view, (2, 3)) == [-40.0, -20.0]
    tell("dlpm", view, TAKE, 2)  # tenant 0 pays for 250 - 40 tokens; tenant 1 still has its 100
    assert view.tenants.memo[:, 0].tolist() == [210.0, 0.0]
    assert answers("dlpm", "order", view, (2, 3)) == [RANK_S - 40.0, -20.0]
    view.requests.fresh_tokens[3] = 50
    tell("dlpm", view, TOKEN, 3)  # tenant 1 is at 0 now, tenant 0 at -110: one quantum each lets tenant 1 on
    assert view.tenants.memo[:, 0].tolist() == [110.0, 0.0]
    view.tenants.waiting[1] = 0
    tell("dlpm", view, ARRIVAL, 2)  # tenant 0 alone waits, at -10: a quantum
    assert view.tenants.memo[:, 0].tolist() == [10.0, 0.0]
    view.requests.evictions[2] = 1
    tell("dlpm", view, TAKE, 2)
    assert view.tenants.memo[0, 0] == 10.0, "a recompute is not charged"
    view.tenants.memo[1, 0], view.tenants.waiting[:] = 350.0, 0
    tell("dlpm", view, EVICT, 3)  # tenant 1 comes back at -250: three quanta
    assert view.tenants.memo[:, 0].tolist() == [10.0, 50.0]


def test_response_ratio_is_over_what_is_left_to_compute():
    """500 tokens were prefilled since they came: 500/(250 - 240) passes 500/(30 - 0)."""
    view = a_view("hrrn")
    view.engines.prefilled_tokens[0] = 500
    view.requests.cached_tokens[2:] = (240, 0)
    assert answers("hrrn", "order", view, (2, 3)) == [-50.0, pytest.approx(-500 / 30)]


def test_prefix_goes_where_most_of_the_prompt_was_sent():
    view = fleet("prefix", [2, 2, 2], [0, 0, 0])
    view.sent[:, 0] = (10, 40, 20)
    assert choice("prefix", view) == 1
    view.engines.running[1] = 6  # 6 of 10, mean 10/3, over 5
    assert choice("prefix", view) == 0
    view.engines.running[1] = 2
    view.engines.draining[1] = 1
    assert choice("prefix", view) == 2
    view.sent[:, 0] = 0
    assert choices("prefix", view, 12) == choices("least-requests", view, 12)


def test_least_prefill_counts_what_the_engine_was_sent_of_the_prompt():
    view = fleet("least-prefill", [1, 1, 1], [0, 0, 0], pending=[100, 90, 95])
    assert choice("least-prefill", view) == 1
    view.sent[:, 0] = (40, 10, 30)  # 60, 80, 65
    assert choice("least-prefill", view) == 0


def test_lmetric_multiplies_new_tokens_with_requests():
    """50 tokens: 50 * 2, 50 * 3, (50 - 40) * 5; two idle engines: the one with fewer new tokens."""
    view = fleet("lmetric", [2, 3, 5], [0, 0, 0])
    assert choice("lmetric", view) == 0
    view.sent[2, 0] = 40
    assert choice("lmetric", view) == 2
    view.engines.running[:] = (0, 0, 5)
    view.sent[:2, 0] = (10, 20)
    assert choices("lmetric", view, 12) == [0, 12, 0]


def test_early_rejection_counts_new_tokens():
    """40 of 50 prompt tokens need not be computed: a step of 10 instead of one of 50, at 0.1 ms a token."""
    view = fleet("early-reject", [1, 1], [0, 0])
    cold_s = first_token_s(view, 0, 0, 5.0)
    view.sent[0, 0] = 40
    assert first_token_s(view, 0, 0, 5.0) == pytest.approx(cold_s - 40 * 1e-4)
    assert first_token_s(view, 0, 1, 5.0) == cold_s


def test_all_that_read_prefixes_say_so():
    for name in (
        "lpm",
        "dlpm",
        "hrrn",
        "shortest-uncached",
        "prefix",
        "least-prefill",
        "lmetric",
        "early-reject",
    ):
        assert "prefix" in find(name).policy.reads
