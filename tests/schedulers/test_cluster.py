"""Which engine each cluster policy chooses, computed by hand on small views."""

from math import inf

import numpy as np
import pytest

from schedulers.cluster.early_reject import first_token_s, token_gap_s
from schedulers.cluster.infaas import load as infaas_load
from schedulers.cluster.llumnix import freeness
from schedulers.cluster.session import PRIME, home, scattered
from schedulers.cost import BASE, DECODE, KV, PREFILL
from schedulers.load import cluster_names, find
from schedulers.policy import HOLD, REFUSE, TAKE
from schedulers.usage import tier_freeness
from schedulers.view import WAITING, Tiers, View, allocate

RANDOM_CHOICE = ("p2c", "random-engine")
PINNED = [499727614, 1412671408, 522285455, 1998034754]
SENDERS = [name for name in cluster_names() if find(name).policy.dispatch]
LOADED = [name for name in SENDERS if name not in ("round-robin", "session", *RANDOM_CHOICE)]


def fleet(spec: str, running, waiting, *, used=0, queued=0, pending=0, luck=0.0, session=-1) -> View:
    """Engines of 100 blocks of 10 tokens and 8 slots, so loaded; request 0 is at the dispatcher."""
    found = find(spec)
    tiers = Tiers(np.array([1.0, inf]), np.array([0.1, inf]), np.array([inf, inf]), np.ones(2))
    view = allocate(4, len(running), tiers, np.ones(1), found.policy.memo)
    view = view._replace(params=np.array([*found.values, 0.0]))
    view.costs[:, BASE], view.costs[:, PREFILL] = 0.01, 1e-4
    view.costs[:, DECODE], view.costs[:, KV] = 1e-3, 1e-5
    engines, table = view.engines, view.requests
    engines.sequences_max[:], engines.budget_max[:], engines.block_tokens[:] = 8, 100, 10
    engines.blocks_total[:] = 100
    engines.running[:], engines.waiting[:] = running, waiting
    engines.blocks_free[:] = 100 - np.asarray(used)
    engines.queued_blocks[:], engines.pending_tokens[:] = queued, pending
    table.luck[:], table.session[:], table.state[:] = luck, session, WAITING
    table.prompt_tokens[:] = table.prefill_tokens[:] = 50
    table.arrival_s[:] = 5.0
    return view


def choice(spec: str, view: View) -> int:
    return int(find(spec).policy.dispatch(view, 0, 5.0))


def choices(spec: str, view: View, lucks=400) -> list[int]:
    """How often each engine is chosen over evenly spread luck."""
    chosen = []
    for luck in (np.arange(lucks) + 0.5) / lucks:
        view.requests.luck[0] = luck
        chosen.append(choice(spec, view))
    return np.bincount(chosen, minlength=len(view.engines.alive)).tolist()


def test_least_kv_counts_what_is_held_and_what_the_queue_asks_for():
    # (40 + 20)/100, (50 + 0)/100, (10 + 45)/100
    assert (
        choice("least-kv", fleet("least-kv", [9, 1, 9], [0, 0, 0], used=[40, 50, 10], queued=[20, 0, 45]))
        == 1
    )
    view = fleet("least-kv", [1, 1], [0, 0], used=[40, 50])
    view.engines.blocks_total[1], view.engines.blocks_free[1] = 200, 150  # 50 of 200 is less than 40 of 100
    assert choice("least-kv", view) == 1


def test_least_prefill_counts_prompt_tokens_owed_and_not_requests():
    assert (
        choice("least-prefill", fleet("least-prefill", [1, 30, 2], [0, 5, 0], pending=[900, 100, 101])) == 1
    )


def test_infaas_takes_the_most_blocks_a_request():
    # (100 - 40 - 10)/5 = 10, (100 - 76)/2 = 12, (100 - 20 - 30)/10 = 5
    view = fleet("infaas", [4, 2, 7], [1, 0, 3], used=[40, 76, 20], queued=[10, 0, 30])
    assert [infaas_load(view, engine) for engine in range(3)] == [-10.0, -12.0, -5.0]
    assert choice("infaas", view) == 1
    view.engines.running[2] = view.engines.waiting[2] = 0
    assert infaas_load(view, 2) == -inf
    assert choice("infaas", view) == 2


def test_llumnix_divides_virtually_free_blocks_by_running_requests_only():
    # (100 - 40 - 10)/4 = 12.5, (100 - 76)/2 = 12, (100 - 20 - 90)/7 < 0; infaas would take engine 1
    view = fleet("llumnix", [4, 2, 7], [1, 0, 3], used=[40, 76, 20], queued=[10, 0, 90])
    assert [freeness(view, engine) for engine in range(3)] == [12.5, 12.0, pytest.approx(-10 / 7)]
    assert choice("llumnix", view) == 0
    view.engines.running[1], view.engines.blocks_free[1] = 0, 20  # nobody runs: divided by 1
    assert freeness(view, 1) == 20.0


def test_llumnix_as_published_sees_the_head_of_the_queue_only():
    """Two wait, one asks for 6 blocks and one for 13; reports say what the first in the queue asks for."""
    view = fleet("llumnix:demand=0", [1, 1], [2, 0], used=[50, 60], queued=[19, 0])
    view.engines.head_blocks[0] = 13
    assert freeness(view, 0) == 100 - 50 - 13
    assert choice("llumnix:demand=0", view) == 1
    view.engines.head_blocks[0] = 6
    assert freeness(view, 0) == 100 - 50 - 6
    assert choice("llumnix:demand=0", view) == 0
    half = fleet("llumnix:demand=0.5", [1, 1], [2, 0], used=[50, 60], queued=[19, 0])
    half.engines.head_blocks[0] = 13
    assert freeness(half, 0) == 100 - 50 - (13 + 0.5 * 6)
    assert freeness(fleet("llumnix", [1], [2], used=[50], queued=[19]), 0) == 100 - 50 - 19


def by_tier(spec: str, used, running) -> View:
    """Two engines of 100 blocks that hold so much for each of two tiers; 20 and 5 blocks are set aside."""
    view = fleet(spec, np.sum(running, 1), [0, 0], used=np.sum(used, 1))
    view.engines.tier_blocks[:], view.engines.tier_running[:] = used, running
    view.engines.reserve[:] = (20, 5)
    return view


def test_llumnix_charges_the_reserve_of_tiers_that_are_present():
    """(100 - 40 - 25)/4 against (100 - 60 - 5)/2: only lower tiers are on engine 1; without headroom 15 to 20."""
    view = by_tier("llumnix:headroom=1", [[10, 30], [0, 60]], [[1, 3], [0, 2]])
    assert [freeness(view, engine) for engine in (0, 1)] == [8.75, 17.5]
    view.engines.tier_waiting[1, 0] = 1  # one of tier 0 waits there: present, too
    assert freeness(view, 1) == 7.5
    view.params[1] = 0.0
    assert [freeness(view, engine) for engine in (0, 1)] == [15.0, 20.0]


def test_lower_tiers_memory_is_free_to_a_higher_tier_and_reserves_are_taken_from_a_lower_one():
    """Tier 0: (100 - 10)/1 and (100 - 30)/1. Tier 1: (100 - 90 - (20 - 10))/4 and (100 - 60 - 0)/3."""
    view = by_tier("tier-freeness", [[10, 80], [30, 30]], [[1, 3], [1, 2]])
    assert [tier_freeness(view, engine, 0) for engine in (0, 1)] == [90.0, 70.0]
    assert [tier_freeness(view, engine, 1) for engine in (0, 1)] == [0.0, pytest.approx(40 / 3)]
    assert choice("tier-freeness", view) == 0
    view.requests.tier[0] = 1
    assert choice("tier-freeness", view) == 1
    view.engines.queued_blocks[0] = view.engines.tier_queued[0, 1] = 7  # tier 1's queue is nothing to tier 0
    assert [tier_freeness(view, 0, tier) for tier in (0, 1)] == [90.0, -7 / 4]
    view.engines.blocks_free[0] -= 6  # kept for a request that moves here: it binds all
    assert tier_freeness(view, 0, 0) == 84.0


def test_lmetric_without_cache_hits_is_least_requests():
    loads = np.random.default_rng(3).integers(0, 4, (40, 2, 4))
    for running, waiting in loads:
        view = fleet("lmetric", running, waiting, pending=[9, 0, 5, 3])
        assert choices("lmetric", view, 12) == choices("least-requests", view, 12)


def test_lmetric_can_count_the_tokens_that_an_engine_owes():
    # (50 + 300)*2 = 700, (50 + 0)*3 = 150, (50 + 20)*2 = 140, idle 0
    view = fleet("lmetric:pending=1", [1, 3, 2], [1, 0, 0], pending=[300, 0, 20])
    assert choice("lmetric:pending=1", view) == 2
    view.engines.running[1] = 0
    assert choice("lmetric:pending=1", view) == 1


def test_p2c_draws_every_pair_alike_and_takes_the_less_loaded():
    """Three engines, loads 1, 2, 3: of the three pairs, engine 0 is better in two and engine 1 in one."""
    assert choices("p2c", fleet("p2c", [1, 2, 3], [0, 0, 0]), 600) == [400, 200, 0]
    assert choices("p2c", fleet("p2c", [1, 1, 1], [1, 1, 1]), 600) == [200, 200, 200]
    assert choices("p2c", fleet("p2c", [2, 1], [0, 0]), 10) == [0, 10]
    view = fleet("p2c", [3, 2, 1, 0], [0, 0, 0, 0])
    view.engines.alive[3], view.engines.draining[1] = 0, 1
    assert choices("p2c", view, 10) == [0, 0, 10, 0]
    view.engines.alive[2] = 0
    assert choices("p2c", view, 10) == [10, 0, 0, 0]
    view.requests.luck[0] = np.nextafter(1.0, 0.0)
    assert choice("p2c", fleet("p2c", [1, 1, 0], [0, 0, 0], luck=np.nextafter(1.0, 0.0))) == 2


def test_the_controls():
    assert choice("most-loaded", fleet("most-loaded", [2, 1, 0], [0, 3, 3])) == 1
    assert choices("most-loaded", fleet("most-loaded", [0, 0], [0, 0])) == [200, 200]
    view = fleet("random-engine", [5, 0, 0, 0], [0, 0, 0, 0])
    assert choices("random-engine", view) == [100] * 4
    view.engines.draining[1] = 1
    assert choices("random-engine", view, 300) == [100, 0, 100, 100]


def test_equals_are_told_apart_by_luck():
    for name in LOADED:
        assert choices(name, fleet(name, [1, 1, 1, 1], [0, 0, 0, 0])) == [100] * 4, name
    # lowest number, rotated by luck: from 0, 1 and 2 on, the better of the two is the first one met
    assert choices("least-kv", fleet("least-kv", [1, 1, 1], [0, 0, 0], used=[9, 0, 0]), 300) == [0, 200, 100]


@pytest.mark.parametrize("name", SENDERS)
def test_nobody_is_sent_to_a_dead_or_a_draining_engine(name):
    running = [0, 9, 0] if name != "most-loaded" else [9, 0, 9]
    view = fleet(name, running, [0, 0, 0], used=running, pending=running, session=7)
    view.engines.alive[0], view.engines.draining[2] = 0, 1
    assert choices(name, view, 20) == [0, 20, 0]
    view.engines.alive[1] = 0
    assert choice(name, view) == HOLD


def test_scattering_never_leaves_31_bits_and_is_spread():
    """The largest product is below 2^62; values are checked, since stored results rest on them."""
    places = np.array([scattered(number) for number in range(20_000)])
    assert places.min() >= 0
    assert places.max() <= PRIME
    assert np.histogram(places, 20, (0, PRIME))[0] == pytest.approx([1000] * 20, rel=0.15)
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.03
    assert [scattered(number) for number in (0, 1, 2**40, 2**62 + 7)] == PINNED
    assert scattered(np.int64(2**62 + 7)) == PINNED[3]


def test_the_ring_gives_each_engine_a_share_and_moves_only_whom_it_must():
    view = fleet("session", [0] * 5, [0] * 5)
    homes = np.array([home(view, session) for session in range(3000)])
    assert np.bincount(homes).min() > 0.4 * 600
    assert np.bincount(homes).max() < 1.8 * 600
    view.engines.draining[2] = 1
    moved = np.array([home(view, session) for session in range(3000)])
    assert (moved[homes != 2] == homes[homes != 2]).all()
    assert set(moved[homes == 2].tolist()) == {0, 1, 3, 4}


def test_a_session_stays_until_its_home_holds_too_much():
    view = fleet("session", [4, 4, 4], [0, 0, 0], session=11)
    here = home(view, 11)
    assert choice("session", view) == here
    view.engines.running[here], view.engines.waiting[here] = 3, 2  # 5 of 13: 1.15 x the mean
    assert choice("session", view) == here
    view.engines.waiting[here] = 3  # 6 of 14: 1.29 x the mean
    assert choice("session", view) == choice("least-requests", view) != here
    patient = fleet("session:spill=2", [4, 4, 4], [0, 0, 0], session=11)
    patient.engines.waiting[here] = 3
    assert choice("session:spill=2", patient) == here


def test_who_has_no_session_goes_to_the_fewest_requests():
    assert choice("session", fleet("session", [4, 1, 4], [0, 0, 0])) == 1
    assert choices("session", fleet("session", [2, 2, 2], [0, 0, 0]), 30) == [10, 10, 10]


def test_early_rejection_predicts_the_first_token():
    """Owed 400 tokens at 100 in 0.02 s: 0.08 s; own prompt of 50 tokens: 0.01 + 50*1e-4 = 0.015 s."""
    view = fleet("early-reject", [2, 5], [0, 0], pending=[400, 0])
    assert first_token_s(view, 0, 0, 5.0) == pytest.approx(0.08 + 0.015)
    assert first_token_s(view, 0, 0, 5.3) == pytest.approx(0.3 + 0.08 + 0.015)
    verdict = find("early-reject").policy.admit
    assert verdict(view, 0, 5.0) == TAKE
    view.engines.pending_tokens[0] = 4920  # 0.984 + 0.015 = 0.999 s of 1 s
    assert verdict(view, 0, 5.0) == TAKE
    view.engines.pending_tokens[0] = 4930  # 1.001 s; engine 1 would do, but fewest requests decide
    assert verdict(view, 0, 5.0) == REFUSE
    assert choice("early-reject", view) == 0
    view.requests.tier[0] = 1  # no target, no rejection
    assert verdict(view, 0, 5.0) == TAKE


def test_early_rejection_predicts_the_time_between_tokens():
    """Four decodes, 60 + 10 blocks of 10 and 50 tokens of KV: 0.01 + 4*1e-3 + 750*1e-5 = 0.0215 s."""
    view = fleet("early-reject", [2], [1], used=[60], queued=[10])
    assert token_gap_s(view, 0, 0) == pytest.approx(0.0215)
    view.engines.waiting[0], view.engines.queued_blocks[0] = 40, 900  # 8 slots and 1000 tokens at the most
    assert token_gap_s(view, 0, 0) == pytest.approx(0.01 + 0.008 + 0.01)
    view.tiers.tpot_s[0] = 0.0279
    assert find("early-reject").policy.admit(view, 0, 5.0) == REFUSE
    view.tiers.tpot_s[0] = 0.0281
    assert find("early-reject").policy.admit(view, 0, 5.0) == TAKE


def test_early_rejection_holds_while_nobody_serves():
    view = fleet("early-reject", [2], [1], pending=[10**9])
    view.engines.alive[0] = 0
    assert find("early-reject").policy.admit(view, 0, 5.0) == TAKE
    assert choice("early-reject", view) == HOLD
