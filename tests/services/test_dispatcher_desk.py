"""What the desk decides by time, faults and policies with every hook, one message at a time."""

from math import inf, nan

import numpy as np
import pytest

from schedulers.board import Account, Arrival, Place
from schedulers.decisions import EXPIRED, LOST, MOVE, REFUSED, SCALE, SEND, STALLED, Bounds
from schedulers.desk import Desk
from schedulers.errors import PolicyError
from schedulers.load import find, values_of
from schedulers.policy import HOLD, WAIT, ClusterPolicy, Memo, Part
from schedulers.view import ARRIVAL, EVICT, FINISH, FIRST_TOKEN, STEP, TAKE, TOKEN, Tiers

TIERS = Tiers(np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([inf, inf]), np.ones(2))
COSTS = np.array([0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6])
PLACE = Place(8, 512, 100, 16, 1600, COSTS)
LEAST = find("least-requests").policy


def desk(policy=LEAST, engines=2, **bounds):
    """A desk with idle engines at time 0."""
    made = Desk(policy, (), TIERS, Bounds(**{"queue_max": np.array([inf, inf]), **bounds}), strict=True)
    for _ in range(engines):
        made.join(PLACE, 0.0)
    return made


def arrival(number, at=0.0, **more):
    return Arrival(number, at, 10, **more)


def kinds(decisions):
    return [(one.kind, one.number, one.engine) for one in decisions]


def test_sent_requests_count_until_a_report_counts_them():
    """A stale report does not make an engine look idle: what it has not seen is added."""
    made = desk()
    for number in range(4):
        made.arrive(arrival(number), 0.0)
    fleet = made.board.view.engines
    assert (fleet.waiting.tolist(), fleet.pending_tokens.tolist()) == ([2, 2], [20, 20])
    first = [number for number in range(4) if made.board.view.requests.engine[made.board.row_of[number]] == 0]
    made.report(
        0, Account(1, running=(first[0],), computed_tokens=(10,), blocks_free=99, pending_tokens=0), 0.1
    )
    assert (fleet.running[0], fleet.waiting[0], fleet.pending_tokens[0], fleet.queued_blocks[0]) == (
        1,
        1,
        10,
        1,
    )
    made.report(0, Account(2, (first[1],), (first[0],), (11,), 99, 1, 10), 0.2)
    assert (fleet.running[0], fleet.waiting[0], fleet.pending_tokens[0]) == (1, 1, 10)
    made.finish(first[0], 0.3)
    assert (fleet.running[0], fleet.blocks_free[0]) == (0, 100)
    made.arrive(arrival(9), 0.4)
    made.report(0, Account(3, blocks_free=100), 0.5)
    assert fleet.waiting[0] == 0, "what it has seen and does not hold has ended there"


def test_queue_bounds_are_a_tiers_own():
    made = desk(queue_max=np.array([2.0, inf]))
    said = [made.arrive(arrival(number), 0.0)[0] for number in range(3)]
    assert [one.kind for one in said] == [SEND, SEND, REFUSED]
    assert said[2].reason == "queue_full"
    assert made.arrive(arrival(3, tier=1), 0.0)[0].kind == SEND
    assert made.arrive(arrival(5, attempts=1), 0.0)[0].kind == SEND, "let in before a restart"
    made.finish(5, 0.0)
    made.tokens(0, 1, 0.1)
    assert made.arrive(arrival(4), 0.1)[0].kind == SEND, "who has a token waits no more"


def test_rows_are_bounded():
    made = desk(rows_max=70)
    said = [made.arrive(arrival(number), 0.0)[0].kind for number in range(80)]
    assert said.count(SEND) == 70
    assert len(made.board.number) == 70


def test_who_waits_too_long_expires():
    made = desk(queue_s=5.0)
    for number in range(2):
        made.arrive(arrival(number), 0.0)
    made.tokens(1, 1, 4.0)
    assert made.tick(5.0) == []
    assert kinds(made.tick(5.1)) == [(EXPIRED, 0, 0)]
    assert made.tick(99.0) == []


@pytest.mark.parametrize("first", [True, False])
def test_a_silent_engine_loses_its_request_to_another(first):
    """Before the first token and between tokens, each with its own limit; then no attempt is left."""
    made = desk(first_token_s=2.0, between_tokens_s=1.0, attempts_max=2)
    made.arrive(arrival(7), 0.0)
    if not first:
        made.tokens(7, 3, 0.5)
    assert made.tick(1.4 if not first else 1.9) == []
    said = made.tick(2.1)
    assert kinds(said) == [(STALLED, 7, 0), (SEND, 7, 1)]
    table = made.board.view.requests
    assert table.prefill_tokens[made.board.row_of[7]] == 10 + (0 if first else 3)
    assert kinds(made.tick(4.2)) == [(STALLED, 7, said[1].engine), (LOST, 7, -1)]
    assert made.board.row_of == {}


def test_an_engine_that_fails_in_a_row_rests_and_may_try_again():
    """R6: healthy means that it completes; one success forgives. A request goes elsewhere if it can."""
    made = desk(engines=1, failures_max=3, rest_s=5.0, attempts_max=99)
    made.arrive(arrival(1), 0.0)
    for _ in range(2):
        assert kinds(made.fail(1, "engine_error", 1.0)) == [(SEND, 1, 0)]
    made.finish(1, 1.5)
    made.arrive(arrival(2), 2.0)
    assert [len(made.fail(2, "engine_error", 2.0)) for _ in range(3)] == [1, 1, 0]
    assert made.board.view.engines.alive.tolist() == [0]
    assert made.tick(6.9) == []
    assert made.tick(7.0) == []
    assert kinds(made.offer_held(7.0)) == [(SEND, 2, 0)]
    made.join(PLACE, 8.0)
    assert kinds(made.fail(2, "engine_error", 8.0)) == [(SEND, 2, 1)]


def test_stale_reports_mean_busy():
    """R5: nothing goes to an engine that has not reported for three periods; what it holds stays."""
    made = desk(busy_s=0.3)
    made.arrive(arrival(1), 0.0)
    made.report(1, Account(0), 1.0)
    made.tick(1.0)
    assert made.board.view.engines.alive.tolist() == [0, 1]
    assert kinds(made.arrive(arrival(2), 1.0)) == [(SEND, 2, 1)]
    made.tick(2.0)
    assert made.arrive(arrival(3), 2.0) == []
    made.report(0, Account(1, running=(1,)), 2.0)
    assert kinds(made.offer_held(2.0)) == [(SEND, 3, 0)]


def test_a_dead_engines_requests_are_held_until_somebody_serves():
    made = desk(engines=1)
    for number in range(3):
        made.arrive(arrival(number), 0.1 * number)
    made.tokens(1, 4, 0.5)
    assert made.die(0, 1.0) == []
    assert len(made.held) == 3
    assert made.offer_held(1.1) == []
    made.join(PLACE, 2.0)
    assert kinds(made.offer_held(2.0)) == [(SEND, 0, 1), (SEND, 1, 1), (SEND, 2, 1)]


def test_a_begun_request_waits_for_another_engine_no_longer_than_a_new_one():
    """Its engine dies after a token and nobody else is there: after queue_s it is lost, and says why."""
    made = desk(engines=1, queue_s=5.0, between_tokens_s=2.0)
    made.arrive(arrival(1), 0.0)
    made.tokens(1, 3, 0.5)
    assert made.die(0, 1.0) == []
    assert made.tick(5.9) == []
    (lost,) = made.tick(6.1)
    assert (lost.kind, lost.number, lost.reason) == (LOST, 1, "engine_lost")
    assert made.board.row_of == {}


def test_moves_are_no_failed_attempts():
    """Moved three times, then its engine dies: one failure, so another engine gets it."""
    made = desk(attempts_max=2)
    made.arrive(arrival(1), 0.0)
    made.tokens(1, 1, 0.1)
    for turn in range(3):
        made.moved(1, 1 - int(made.board.view.requests.engine[made.board.row_of[1]]), 0.2 + turn)
    here = int(made.board.view.requests.engine[made.board.row_of[1]])
    assert kinds(made.die(here, 4.0)) == [(SEND, 1, 1 - here)]
    assert [one.kind for one in made.die(1 - here, 5.0)] == [LOST]


def test_a_drained_engine_takes_nothing_new():
    made = desk()
    made.drain(0)
    assert {made.arrive(arrival(number), 0.0)[0].engine for number in range(3)} == {1}
    made.drain(0, False)
    assert made.arrive(arrival(9), 0.0)[0].engine == 0


def test_after_a_restart_the_engine_keeps_what_it_holds():
    made = desk()
    assert made.adopt(arrival(5, generated=7), 1, 3, 0.0)
    assert made.attempts[5] == 3
    made.report(1, Account(0, running=(5,), computed_tokens=(17,)), 0.1)
    fleet = made.board.view.engines
    assert (fleet.running[1], fleet.waiting[1]) == (1, 0)


def moves(view, engine, now_s):
    return float(1 - engine) if view.engines.running[engine] > 0 else HOLD


def test_migrate_and_scale_are_asked_at_their_period():
    """A request moves once at a time; the rest of the books follows the commit."""
    policy = ClusterPolicy(
        "mover",
        migrate=moves,
        pick=lambda view, request, now_s: 0.0,
        scale=lambda view, none, now_s: 1.0,
        period_s=1.0,
    )
    made = desk(policy)
    made.arrive(arrival(1), 0.0)
    made.report(0, Account(1, running=(1,), computed_tokens=(10,), blocks_free=99), 0.1)
    said = made.tick(1.0)
    assert kinds(said) == [(MOVE, 1, 1), (SCALE, 1, -1)]
    assert said[0].source == 0
    assert [one.kind for one in made.tick(1.5)] == []
    assert [one.kind for one in made.tick(2.0)] == [SCALE], "it is moving already"
    assert made.moved(1, 1, 2.1) == 1
    fleet = made.board.view.engines
    assert (fleet.running.tolist(), fleet.waiting.tolist()) == ([0, 0], [0, 1])
    made.report(1, Account(1, running=(1,), computed_tokens=(12,)), 2.2)
    assert (fleet.running.tolist(), fleet.waiting.tolist()) == ([0, 1], [0, 0])
    assert kinds(made.tick(3.0))[0] == (MOVE, 1, 0)
    made.stayed(1)
    assert made.board.view.requests.engine[made.board.row_of[1]] == 1


def test_the_central_queue_goes_in_the_policys_order():
    policy = ClusterPolicy("tiers", order=lambda view, request, now_s: float(view.requests.tier[request]))
    made = desk(policy, engines=0)
    for number, tier in ((0, 1), (1, 0), (2, 1), (3, 0)):
        assert made.arrive(arrival(number, float(number), tier=tier), float(number)) == []
    made.join(PLACE, 5.0)
    assert [one.number for one in made.offer_held(5.0)] == [1, 3, 0, 2]


def test_who_is_refused_out_of_the_central_queue_takes_nobody_along():
    """Whoever stands behind one that turns out too long is offered, too, and not forgotten."""
    made = desk(engines=0)
    for number, prompt in enumerate((5000, 10, 6000, 10)):
        assert made.arrive(Arrival(number, float(number), prompt), float(number)) == []
    made.join(PLACE, 5.0)
    told = made.offer_held(5.0)
    assert kinds(told) == [(REFUSED, 0, 0), (SEND, 1, 0), (REFUSED, 2, 0), (SEND, 3, 0)]
    assert {one.reason for one in told if one.kind == REFUSED} == {"too_long"}
    assert made.held == []
    assert sorted(made.board.row_of) == [1, 3]


def test_a_policy_may_hold_and_refuse():
    state = {"say": WAIT}
    policy = ClusterPolicy("moody", admit=lambda view, request, now_s: state["say"])
    made = desk(policy)
    assert made.arrive(arrival(1), 0.0) == []
    state["say"] = -1.0
    assert made.offer_held(1.0)[0].reason == "shed"
    state["say"] = 1.0
    made.switch(policy._replace(dispatch=lambda view, request, now_s: HOLD), ())
    assert made.arrive(arrival(2), 0.0) == []


def test_what_happens_is_told_to_who_watches():
    seen = []
    events = (ARRIVAL, TAKE, FIRST_TOKEN, TOKEN, FINISH, EVICT, STEP)
    policy = ClusterPolicy(
        "watcher",
        observe=lambda view, request, event, now_s: seen.append(event),
        watches=events,
        memo=Memo(1),
    )
    made = desk(policy)
    made.arrive(arrival(1), 0.0)
    made.report(0, Account(1, running=(1,), steps=1), 0.1)
    made.tokens(1, 1, 0.2)
    made.tokens(1, 3, 0.3)
    made.report(0, Account(1, waiting=(1,), steps=2, evicted=(1,)), 0.4)
    made.finish(1, 0.5)
    assert seen == [ARRIVAL, TAKE, STEP, FIRST_TOKEN, TOKEN, TOKEN, EVICT, STEP, FINISH]


@pytest.mark.parametrize(
    ("answer", "word"), [(nan, "NaN"), (7.0, "not serving"), (0.5, "not serving"), (None, "raised")]
)
def test_a_faulty_policy_is_overruled_live_and_an_error_when_strict(answer, word):
    policy = ClusterPolicy("faulty", dispatch=lambda view, request, now_s: answer)
    made = desk(policy)
    with pytest.raises(PolicyError, match=word):
        made.arrive(arrival(1), 0.0)
    made = desk(policy)
    made.strict = False
    assert made.arrive(arrival(1), 0.0)[0].kind == SEND
    assert word in made.faults[0]


def test_another_policy_takes_over_in_mid_flight():
    made = desk(find("round-robin").policy)
    for number in range(5):
        made.arrive(arrival(number), 0.0)
    made.switch(find("llumnix").policy, (0.5, 0.0))
    assert made.board.view.params.tolist() == [0.5, 0.0]
    for number in range(5, 9):
        made.arrive(arrival(number), 0.0)
    assert sorted(made.board.view.engines.waiting.tolist()) == [4, 5]
    made.join(PLACE, 1.0)
    assert made.board.view.requests.prompt_tokens[made.board.row_of[3]] == 10


def test_a_second_policy_answers_what_the_first_leaves_open():
    """With its own parameters: rebalance moves from the engine without free blocks to the idle one."""
    rebalance = find("rebalance").policy
    made = desk(find("round-robin").policy).with_more((Part(rebalance, values_of(rebalance, None)),))
    made.arrive(arrival(1), 0.0)
    here = int(made.board.view.requests.engine[made.board.row_of[1]])
    made.tokens(1, 1, 0.1)
    made.report(here, Account(1, running=(1,), computed_tokens=(11,), blocks_free=2, step_s=0.05), 0.2)
    assert kinds(made.tick(1.0)) == [(MOVE, 1, 1 - here)]
    assert made.board.view.engines.moving.tolist() == [1, 1]
    assert made.tick(2.0) == []
    made.stayed(1)
    assert kinds(made.tick(3.0)) == [(MOVE, 1, 1 - here)]


def test_a_second_policy_has_a_memory_of_its_own():
    """Round robin as the second answers what a mover leaves open, and keeps the turns for itself."""
    made = desk(find("rebalance").policy).with_more((Part(find("round-robin").policy, ()),))
    sent = [made.arrive(arrival(number), 0.0)[0].engine for number in range(6)]
    assert sent == [0, 1, 0, 1, 0, 1]
    assert made.memories[0].engines[:2, 0].tolist() == [5.0, 6.0]
    assert not made.board.view.engines.memo.any()
