"""The contract suite: planted faults are found and named, honest policies are left alone."""

import itertools
from math import inf, nan

import numpy as np
import pytest

from schedulers.checks import check, declared, defaults
from schedulers.cost import remaining_s
from schedulers.load import find
from schedulers.policy import HOLD, TAKE, WAIT, ClusterPolicy, EnginePolicy, Memo, Param
from schedulers.samples import COSTS, NOW_S, SHAPES, changed, copied, draw, renamed
from schedulers.view import DONE, FINISH, FIRST_TOKEN, RUNNING, STEP, TOKEN, WAITING

IDEA = "An idea."


def broken_rules(policy, idea=IDEA):
    """Pairs of hook and rule that the suite reports."""
    return {(finding.hook, finding.rule) for finding in check(policy, idea=idea)}


def arrival(view, request, now_s):
    return float(view.requests.arrival_s[request])


def engine(**parts):
    return EnginePolicy(name="planted", **parts)


def cluster(**parts):
    return ClusterPolicy(name="planted", **parts)


def fewest(view, request, now_s):
    fleet, best = view.engines, -1
    for e in range(len(fleet.alive)):
        able = fleet.alive[e] == 1 and fleet.draining[e] == 0
        if able and (
            best < 0 or fleet.running[e] + fleet.waiting[e] < fleet.running[best] + fleet.waiting[best]
        ):
            best = e
    return float(best)


COUNTER = itertools.count()


def counts(view, request, now_s):
    return float(next(COUNTER))


def writes_arrival(view, request, now_s):
    view.requests.arrival_s[request] = 0.0
    return 1.0


def writes_memo(view, request, now_s):
    view.requests.memo[request, 0] += 1.0
    return 1.0


def raises(view, request, now_s):
    raise ValueError("no luck today")


def divides(view, request, now_s):
    return view.requests.arrival_s[request] / (view.requests.cached_tokens[request] * 0.0)


def multiplies(view, request, now_s):
    return float(view.requests.prompt_tokens[request] * np.int64(6364136223846793005) % 1000)


def reads_forecast(view, request, now_s):
    return float(view.requests.forecast_tokens[request])


def reads_targets(view, request, now_s):
    return float(view.tiers.tpot_s[0])


def reads_tier(view, request, now_s):
    return float(view.requests.tier[request])


def reads_weight(view, request, now_s):
    return float(view.tiers.weight[view.requests.tier[request]])


def reads_tenant(view, request, now_s):
    return float(view.tenants.waiting[view.requests.tenant[request]])


def reads_prefix(view, request, now_s):
    return float(view.requests.cached_tokens[request])


def by_engine_number(view, request, now_s):
    return float(view.requests.engine[request])


def turns_late(view, request, now_s):
    late = now_s - view.requests.arrival_s[request] > 70.0
    return 1e6 + view.requests.arrival_s[request] if late else view.requests.arrival_s[request]


def told_when(view, engine, now_s):
    moments = [
        view.requests.arrival_s[r] + 70.0 for r in view.waiting[engine, : view.engines.waiting[engine]]
    ]
    return min((float(moment) for moment in moments if moment > now_s), default=inf)


def waited(view, request, now_s):
    return float(view.requests.arrival_s[request] - now_s)


def holds_untargeted(view, request, now_s):
    return float(view.tiers.ttft_s[view.requests.tier[request]])


def holds_the_unpromised(view, request, now_s):
    tiers, tier = view.tiers, view.requests.tier[request]
    return min(float(tiers.ttft_s[tier]), float(tiers.tpot_s[tier]), float(tiers.e2e_s[tier]))


def big_reserve(view, request, now_s):
    return TAKE if view.engines.blocks_free[0] > 0.9 * view.engines.blocks_total[0] + 50 else WAIT


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (engine(order=lambda v, r, t: nan), {("order", "kind")}),
        (engine(order=lambda v, r, t: None), {("order", "kind")}),
        (engine(serve=lambda v, r, t: -inf), {("serve", "kind")}),
        (engine(admit=lambda v, r, t: 4.0), {("admit", "kind")}),
        (cluster(dispatch=fewest, admit=lambda v, r, t: 2.0), {("admit", "kind")}),
        (engine(budget=lambda v, e, t: 0.0), {("budget", "kind")}),
        (engine(preempt=lambda v, w, r, t: 0.5), {("preempt", "kind")}),
        (engine(evict=raises), {("evict", "raises")}),
        (engine(evict=divides), {("evict", "raises")}),
        (engine(evict=multiplies), {("evict", "raises")}),
        (engine(order=writes_arrival), {("", "writes")}),
        (engine(evict=writes_memo), {("", "writes")}),
        (engine(evict=writes_memo, memo=Memo(requests=1)), set()),
        (engine(order=counts), {("order", "repeat"), ("order", "reads forecast")}),
        (engine(evict=reads_forecast), {("evict", "reads forecast")}),
        (engine(evict=reads_forecast, reads=("forecast",)), set()),
        (engine(evict=reads_targets), {("evict", "reads targets")}),
        (engine(evict=reads_targets, reads=("targets",)), set()),
        (engine(evict=reads_tier), {("evict", "reads tier")}),
        (engine(evict=reads_weight, reads=("targets",)), {("evict", "reads tier")}),
        (engine(evict=reads_tenant), {("evict", "reads tenant")}),
        (engine(evict=reads_prefix), {("evict", "reads prefix")}),
        (engine(evict=by_engine_number), {("evict", "renaming")}),
        (engine(order=turns_late), {("order", "time")}),
        (engine(order=turns_late, wake=told_when), set()),
        (engine(order=waited), set()),  # all keys shift alike
        (engine(serve=lambda v, r, t: inf), {("serve", "stall")}),
        (engine(serve=lambda v, r, t: inf, wake=lambda v, e, t: t + 1.0), set()),
        (engine(serve=holds_untargeted, reads=("targets", "tier")), {("serve", "stall")}),
        (engine(order=holds_the_unpromised, reads=("targets", "tier")), {("order", "stall")}),
        (engine(admit=big_reserve), {("admit", "stall")}),
        (engine(observe=lambda v, r, k, t: 1.0, watches=(TOKEN,)), {("observe", "kind")}),
        (engine(observe=lambda v, e, k, t: raises(v, e, t), watches=(STEP,)), {("observe", "raises")}),
        (cluster(dispatch=lambda v, r, t: 7.0), {("dispatch", "kind")}),
        (cluster(dispatch=lambda v, r, t: 0.5), {("dispatch", "kind")}),
        (cluster(dispatch=lambda v, r, t: 0.0), {("dispatch", "kind"), ("dispatch", "renaming")}),
        (cluster(dispatch=lambda v, r, t: HOLD), {("dispatch", "stall")}),
        (cluster(dispatch=fewest), set()),
        (cluster(dispatch=fewest, admit=lambda v, r, t: WAIT), {("admit", "stall")}),
        (cluster(scale=lambda v, e, t: 0.5, period_s=1.0), {("scale", "kind")}),
        (cluster(migrate=lambda v, e, t: 7.0, period_s=1.0), {("migrate", "kind")}),
    ],
)
def test_planted_faults_are_found_and_nothing_else(policy, expected):
    found = broken_rules(policy)
    assert expected <= found
    if not any(rule.startswith("reads") or rule == "repeat" for _, rule in expected):
        assert found == expected
    if not expected:
        assert found == set()


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (engine(order=lambda v, r: 1.0), "arity"),
        (engine(preempt=arrival), "arity"),
        (engine(order=3), "arity"),
        (cluster(dispatch=lambda: 0.0), "arity"),
        (EnginePolicy(name="a+b"), "name"),
        (engine(reads=("luck",)), "reads"),
        (engine(reads="forecast"), "reads"),
        (engine(observe=lambda v, r, k, t: None), "watches"),
        (engine(watches=(TOKEN,)), "watches"),
        (engine(observe=lambda v, r, k, t: None, watches=(99,)), "watches"),
        (engine(oracle=True), "oracle"),
        (engine(params=(Param("x", 3.0, 0.0, 2.0, "", ""),)), "parameter"),
        (engine(params=(Param("x", 1.0, 0.0, 2.0, "", ""),) * 2), "parameter"),
        (engine(params=(("x", 1.0),)), "parameter"),
        (engine(memo=(1, 0, 0)), "memo"),
        (engine(scan="maybe"), "scan"),
        (cluster(scale=arrival), "period"),
    ],
)
def test_faulty_declarations_are_named_before_any_hook_runs(policy, rule):
    assert [finding.rule for finding in declared(policy)] == [rule]
    assert check(policy) == declared(policy)


def test_a_wrong_number_of_arguments_is_shown_with_the_right_one():
    (finding,) = declared(engine(order=lambda view, request: 1.0))
    assert finding.hook == "order"
    assert "(view, request)" in finding.message
    assert "(view, request, now_s)" in finding.message


def test_a_fault_names_its_line_and_its_sample():
    (finding,) = check(engine(evict=raises), idea=IDEA)
    assert "ValueError: no luck today" in finding.message
    assert "test_checks.py" in finding.message
    assert "[random]" in finding.message


def scaled(view, request, now_s):
    return 1.0 if view.params[0] > 0.0 else nan


def test_both_ends_of_a_parameter_are_tried():
    policy = engine(evict=scaled, params=(Param("x", 1.0, 0.0, 2.0, "", ""),))
    assert broken_rules(policy) == {("evict", "kind")}
    (finding,) = check(policy, idea=IDEA)
    assert "x=0" in finding.message
    assert check(engine(evict=scaled, params=(Param("x", 1.0, 0.5, 2.0, "", ""),)), idea=IDEA) == []


def test_an_idea_is_asked_for():
    assert broken_rules(engine(order=arrival), idea="") == {("", "idea")}
    assert broken_rules(engine(order=arrival), idea="no sentence") == {("", "idea")}
    assert broken_rules(engine(order=arrival), idea="Two lines\nof one idea.\n\nAnd more") == set()
    assert check(engine(order=arrival)) == []  # this module's docstring


def test_luck_history_and_session_excuse_a_dispatcher_from_renaming():
    def by_luck(view, request, now_s):
        return float(int(view.requests.luck[request] * len(view.engines.alive)))

    assert ("dispatch", "renaming") not in broken_rules(cluster(dispatch=by_luck))
    assert check(find("round-robin").policy, idea=IDEA) == []


def test_state_in_memo_survives_between_hooks_and_is_no_fault():
    def note(view, request, event, now_s):
        view.requests.memo[request, 0] = now_s

    def last(view, request, now_s):
        return float(view.requests.memo[request, 0])

    policy = engine(order=last, observe=note, watches=(FIRST_TOKEN, FINISH), memo=Memo(requests=1))
    assert check(policy, idea=IDEA) == []


def test_equal_seeds_give_equal_findings():
    policy = engine(order=turns_late, evict=reads_forecast)
    assert check(policy, seed=3) == check(policy, seed=3)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.label for shape in SHAPES])
@pytest.mark.parametrize("name", ["sarathi", "round-robin"])
def test_samples_agree_with_themselves(shape, name):
    policy = find(name).policy
    view = draw(shape, policy, defaults(policy), np.random.default_rng(1))
    table, fleet = view.requests, view.engines
    assert len(table.state) == shape.requests
    for e in range(shape.engines):
        queue, batch = view.waiting[e, : fleet.waiting[e]], view.running[e, : fleet.running[e]]
        assert {(table.state[r], table.engine[r]) for r in queue} <= {(WAITING, e)}
        assert {(table.state[r], table.engine[r]) for r in batch} <= {(RUNNING, e)}
        assert fleet.blocks_total[e] - fleet.blocks_free[e] == table.blocks[batch].sum()
        assert fleet.running[e] <= fleet.sequences_max[e]
        if fleet.alive[e] == 0 or fleet.draining[e] == 1:
            assert fleet.running[e] + fleet.waiting[e] == 0
    assert view.tenants.waiting.sum() == fleet.waiting.sum()
    assert (table.blocks[table.state == RUNNING] * 16 >= table.computed_tokens[table.state == RUNNING]).all()
    assert np.isnan(table.first_token_s[table.generated_tokens == 0]).all()
    assert (table.arrival_s < NOW_S).all()
    assert len(COSTS) == view.costs.shape[1]


def test_samples_hold_every_kind_of_request():
    policy = find("sarathi").policy
    table = draw(SHAPES[0], policy, defaults(policy), np.random.default_rng(0)).requests
    running = table.state == RUNNING
    assert (running & (table.computed_tokens < table.prefill_tokens)).any()
    assert (running & (table.generated_tokens > 0)).any()
    assert ((table.state == WAITING) & (table.evictions > 0)).any()
    assert (table.state == DONE).any()


def test_renaming_moves_rows_and_numbers_together():
    policy = find("oracle-srpt").policy
    view = draw(SHAPES[0], policy, defaults(policy), np.random.default_rng(2))
    other = renamed(view, (2, 0, 1))
    assert other.engines.blocks_total[2] == view.engines.blocks_total[0]
    assert (other.requests.engine[view.requests.engine == 1] == 0).all()
    assert (other.requests.engine[view.requests.engine == -1] == -1).all()
    for request in view.running[1, : view.engines.running[1]]:
        assert remaining_s(view, int(request), 1) == remaining_s(other, int(request), 0)


def test_copies_share_no_memory():
    policy = find("edf").policy
    view = draw(SHAPES[0], policy, (), np.random.default_rng(0))
    copy, forecast = copied(view), changed(view, "forecast", np.random.default_rng(1))
    copy.requests.arrival_s[:] = -1.0
    copy.waiting[:] = -1
    assert view.requests.arrival_s.min() > 0.0
    assert view.waiting.min() >= 0
    assert not np.array_equal(forecast.requests.forecast_tokens, view.requests.forecast_tokens)
    assert np.array_equal(forecast.requests.prompt_tokens, view.requests.prompt_tokens)
