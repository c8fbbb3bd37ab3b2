"""The desk under policies that know tiers: use by tier, reserves, holding and scaling, each with its own memory."""

from math import inf

import numpy as np

from schedulers.board import Account, Arrival, Place
from schedulers.decisions import SCALE, SEND, Bounds
from schedulers.desk import Desk
from schedulers.load import load
from schedulers.view import Tiers

TIERS = Tiers(np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([inf, inf]), np.ones(2))
COSTS = np.array([0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6])
PLACE = Place(8, 512, 100, 16, 1600, COSTS, reserve=(20, 5))


def desk(cluster: str, engines: int = 2) -> Desk:
    """A desk with idle engines at time 0 under the cluster half of a scheduler."""
    scheduler = load(f"fcfs-chunked+{cluster}")
    bounds = Bounds(queue_max=np.array([inf, inf]))
    made = Desk(scheduler.cluster, scheduler.cluster_params, TIERS, bounds, strict=True).with_more(
        scheduler.more
    )
    for _ in range(engines):
        made.join(PLACE, 0.0)
    return made


def arrival(number: int, tier: int = 0, at: float = 0.0, prompt: int = 40) -> Arrival:
    return Arrival(number, at, prompt, tier=tier)


def test_use_by_tier_follows_sendings_reports_and_ends():
    """What an engine says it holds is believed; where it says no blocks, what its tokens need."""
    made = desk("tier-freeness", 1)
    fleet = made.board.view.engines
    assert fleet.reserve.tolist() == [[20, 5]]
    for number, tier in ((1, 0), (2, 1), (3, 1)):
        made.arrive(arrival(number, tier), 0.0)
    made.board.count_tiers()
    assert (fleet.tier_waiting.tolist(), fleet.tier_queued.tolist()) == ([[1, 2]], [[3, 6]])
    made.report(0, Account(3, (3,), (1, 2), (40, 33), 90, 3, blocks=(4, 5)), 0.1)
    made.board.count_tiers()
    assert (fleet.tier_running.tolist(), fleet.tier_blocks.tolist()) == ([[1, 1]], [[4, 5]])
    assert (fleet.tier_queued.tolist(), fleet.head_blocks.tolist()) == ([[0, 3]], [3])
    made.report(0, Account(3, (), (1, 2, 3), (40, 33, 20), 90), 0.2)
    made.finish(2, 0.2)
    made.board.count_tiers()
    assert (fleet.tier_running.tolist(), fleet.tier_blocks.tolist()) == ([[1, 1]], [[3, 2]])
    assert fleet.head_blocks[0] == 0


def test_held_requests_are_offered_by_tier_once_an_engine_has_no_queue():
    """With a request waiting in every engine tier 1 is held and tier 0 sent; then the oldest of tier 1 goes first."""
    made = desk("tier-degrade")
    assert [made.arrive(arrival(number), 0.0)[0].kind for number in (1, 2)] == [SEND, SEND]
    assert made.arrive(arrival(3, 1, 0.1), 0.1) == made.arrive(arrival(4, 1, 0.2), 0.2) == []
    assert made.arrive(arrival(5, 0, 0.3), 0.3)[0].kind == SEND
    assert made.offer_held(0.4) == []
    engine = int(made.board.view.requests.engine[made.board.row_of[2]])
    waits = [
        number for number in (1, 2, 5) if made.board.view.requests.engine[made.board.row_of[number]] == engine
    ]
    made.report(engine, Account(9, (), tuple(waits), (40,) * len(waits), 90), 0.5)
    assert [(one.kind, one.number) for one in made.offer_held(0.5)] == [(SEND, 3)]
    assert made.held == [made.board.row_of[4]], "the queue that 3 joined holds 4 back"


def test_a_scaler_sees_arrivals_and_keeps_its_own_memory():
    """Eight seconds of work a second on one engine: it orders, and not again within its cool-down."""
    made = desk("least-requests+scale-rho", 1)
    made.join(PLACE, 0.0)
    made.away(1)
    for number in range(200):
        made.arrive(arrival(number, at=number * 0.05, prompt=1000), number * 0.05)
    assert [(one.kind, one.number) for one in made.tick(10.0)] == [(SCALE, 1)]
    assert made.tick(12.0) == []
    assert made.memories[0].tenants.any()
    assert not made.board.view.tenants.memo.any()


def test_a_request_has_no_memory_of_the_last_one_in_its_row():
    """Shedding as a second policy counts each request's work once, in a row that is used again."""
    made = desk("least-requests+tier-shed:low=0.0001,high=0.0001", 1)
    assert made.arrive(arrival(1), 0.0)[0].kind == SEND
    row = made.board.row_of[1]
    assert made.memories[0].requests[row, 0] == 1.0
    made.finish(1, 0.1)
    (said,) = made.arrive(arrival(2, at=0.2), 0.2)
    assert (said.kind, said.reason) == ("refuse", "shed")
