"""Keys and answers of those second-tier policies that keep an account of service or weigh deadlines, by hand."""

from math import exp, inf, log

import numpy as np
import pytest

from schedulers.load import find
from schedulers.view import ARRIVAL, FINISH, TOKEN
from schedulers.view import TAKE as TAKEN
from tests.schedulers.test_policies import TAU_S, a_view, answers, prefill_s
from tests.schedulers.test_second import tell


def test_boost_puts_short_prefills_back_in_time():
    view = a_view("boost")
    for theta in (0.001, 0.5, 1000.0):
        view.params[0] = theta
        expected = [a + log(1.0 - exp(-theta * prefill_s(p))) / theta for a, p in ((3.0, 250), (4.0, 30))]
        assert answers("boost", "order", view, (2, 3)) == pytest.approx(expected)
    # 0.013009 s of prefill put it back ln(154.2) / 0.5 s, 0.055625 s only ln(36.45) / 0.5 s; it came 1 s later
    view.params[0] = 0.5
    slow, quick = answers("boost", "order", view, (2, 3))
    assert slow - quick == pytest.approx((log(154.2) - log(36.45)) / 0.5 - 1.0, abs=0.001)
    view.params[0] = 1000.0
    assert answers("boost", "order", view, (2, 3)) == pytest.approx([3.0, 4.0], abs=1e-6)


def test_plas_sinks_a_session_by_all_its_calls():
    view = a_view("plas")
    view.requests.session[:] = (7, -1, 7, 8)
    tell("plas", view, ARRIVAL, 0, 1, 2, 3, now_s=5.0)
    tell("plas", view, TAKEN, 0, now_s=5.0)
    tell("plas", view, TOKEN, 0, now_s=5.25)
    # 0.25 s: past 0.05 and past 0.05 + 0.1, not past 0.05 + 0.1 + 0.2
    assert answers("plas", "serve", view, (0,), 5.25) == [2e6 + 1.0]
    assert answers("plas", "evict", view, (0, 1), 5.25) == [2e6 + 1.0, 2.0]
    assert answers("plas", "order", view, (2, 3), 5.25) == [2e6 + 3.0, 4.0]
    assert find("plas").policy.preempt(view, 3, 0, 5.25) == 1.0
    assert find("plas").policy.preempt(view, 2, 0, 5.25) == 0.0
    assert answers("plas", "wake", view, (0,), 5.25) == pytest.approx(
        [5.35 - 0.05]
    )  # request 1 leaves level 0
    view.requests.memo[1, 1] = 0.04
    assert answers("plas", "wake", view, (0,), 5.25) == pytest.approx([5.25 + 0.01])
    view.requests.memo[1, 1] = 100.0  # on the last level
    assert answers("plas", "wake", view, (0,), 5.25) == pytest.approx([5.25 + 0.1])
    tell(
        "plas", view, TAKEN, 2, now_s=5.25
    )  # two calls at once use the session's quantum up in half the time
    assert answers("plas", "wake", view, (0,), 5.25) == pytest.approx([5.25 + 0.05])
    tell("plas", view, FINISH, 0)
    assert answers("plas", "wake", view, (0,), 5.25) == pytest.approx([5.25 + 0.1])
    view.requests.engine[3], view.requests.session[3] = 1, 7
    tell("plas", view, ARRIVAL, 3, now_s=5.0)  # another engine knows nothing of it
    assert view.requests.memo[3, 0] == 4.0


def test_plas_brings_the_starved_back_to_the_first_level():
    view = a_view("plas")
    tell("plas", view, ARRIVAL, 0, 1, 2, 3, now_s=5.0)
    view.requests.memo[:, 1] = 10.0  # all on the last level
    assert answers("plas", "order", view, (2,), 7.9) == [7e6 + 3.0]
    assert answers("plas", "order", view, (2,), 8.0) == [3.0]
    for last_s in np.linspace(5.0, 6.0, 50):  # at its own time it has starved, whatever sums round to
        view.requests.memo[2, 5] = view.requests.memo[3, 5] = last_s
        (moment_s,) = answers("plas", "wake", view, (0,), last_s)
        view.requests.memo[2, 1] = 10.0
        assert moment_s > last_s
        if moment_s == last_s + 3.0:
            assert answers("plas", "order", view, (2,), moment_s) == [3.0]
    view.requests.memo[2, 5] = 5.0
    tell("plas", view, TAKEN, 2, now_s=8.0)
    tell("plas", view, TOKEN, 2, now_s=8.125)
    assert view.requests.memo[2, 1] == 0.125
    assert answers("plas", "order", view, (2,), 8.125) == [1e6 + 3.0]


def test_plas_charges_chunks_that_gave_no_token():
    view = a_view("plas")
    tell("plas", view, ARRIVAL, 1, now_s=5.0)
    view.requests.computed_tokens[1] = 0
    tell("plas", view, TAKEN, 1, now_s=5.0)
    view.requests.computed_tokens[1] = 40
    assert answers("plas", "serve", view, (1,), 5.125) == [1e6 + 2.0]
    assert answers("plas", "serve", view, (1,), 5.25) == [1e6 + 2.0]  # held: nothing was computed
    assert view.requests.memo[1, 1] == 0.125


def test_proserve_goes_by_deadline_while_all_can_be_served():
    view = a_view("proserve")
    assert answers("proserve", "budget", view, (0,)) == [100.0]
    # 362 tokens are owed by 6 s, 100 / 0.0201 can be done
    assert answers("proserve", "serve", view, (0, 1)) == [2.5, 3.0]
    assert answers("proserve", "order", view, (2, 3)) == [4.0, 5.0]
    view.tiers.ttft_s[0] = inf
    assert answers("proserve", "order", view, (3,)) == [1e6 + 4.0]


def test_proserve_goes_by_gain_past_the_share_that_can_be_served():
    view = a_view("proserve:horizon_s=0.01")
    view.requests.tier[3], view.tiers.weight[1] = 1, 4.0
    view.tiers.ttft_s[1] = 1.0
    # owed by 5.01 s: 15, 40 + 9, 250 + 9 and 30 tokens; 49.75 can be done, so 14.1 of 100 go by deadline:
    # one of request 0, the rest of request 1
    answers("proserve", "budget", view, (0,))
    assert view.engines.memo[0].tolist() == [1.0, 3.0]
    assert answers("proserve", "serve", view, (0, 1)) == [2.5, 3.0]
    gain = [1e6 + prefill_s(250) + 10 * TAU_S, 1e6 + (prefill_s(30) + 40 * TAU_S) / 4.0]
    assert answers("proserve", "order", view, (2, 3)) == pytest.approx(gain)
    view.requests.forecast_tokens[0] = (
        200.0  # 26 tokens late by 5.01 s, at 0.1 s each: the share shrinks a little
    )
    answers("proserve", "budget", view, (0,))
    assert view.engines.memo[0].tolist() == [1.0, 3.0]
    view.requests.generated_tokens[0] = 35  # nothing of request 0 is due
    answers("proserve", "budget", view, (0,))
    assert view.engines.memo[0].tolist() == [1.0, 3.0]
    assert answers("proserve", "serve", view, (0,))[0] == pytest.approx(1e6 + 165 * TAU_S)


def test_proserve_counts_an_end_as_one_deadline_for_all():
    view = a_view("proserve")
    owed_by = find("proserve").module.owed_by
    view.tiers.ttft_s[1] = view.tiers.tpot_s[1] = inf
    view.requests.tier[0] = 1
    assert [owed_by(view, 0, until_s) for until_s in (31.0, 31.5)] == [0.0, 15.0]  # 1 + 30 s, 20 - 5 tokens
    view.tiers.ttft_s[1], view.tiers.e2e_s[1] = 1.0, inf
    view.requests.tier[3] = 1
    assert owed_by(view, 3, 6.0) == 30.0  # a first token only
    assert owed_by(view, 0, 100.0) == 0.0
