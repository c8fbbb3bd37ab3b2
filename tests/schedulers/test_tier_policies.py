"""Cluster policies that know tiers, by hand: classes, parts of a fleet, shedding, holding, and counted work."""

from math import inf

import numpy as np
import pytest

from schedulers.cluster.llumnix_binary import load as binary_load
from schedulers.cluster.partition import part
from schedulers.cluster.tier_shed import mark
from schedulers.load import find
from schedulers.policy import REFUSE, TAKE, WAIT
from schedulers.pressure import add_work, work_rate
from schedulers.scaling import averaged, elapsed_s, lasting, paced, work_s
from schedulers.view import Tiers, View, allocate

TIERS = Tiers(*(np.array(row, float) for row in ([0.5, 1, 2], [0.05, 0.1, 0.2], [inf] * 3, [3, 2, 1])))


def fleet(spec: str, running, tiers: Tiers = TIERS) -> View:
    """Engines of 200 blocks of 16 tokens that run so many requests; 512 prompt tokens take 0.532 s."""
    found = find(spec)
    view = allocate(8, len(running), tiers, np.ones(1), found.policy.memo)._replace(
        params=np.array([*found.values, 0.0])
    )
    engines = view.engines
    engines.sequences_max[:], engines.budget_max[:], engines.block_tokens[:] = 16, 512, 16
    engines.blocks_total[:] = engines.blocks_free[:] = 200
    engines.running[:] = running
    view.costs[:, 1], view.costs[:, 2], view.costs[:, 5] = 0.02, 1e-3, 2e-3
    view.requests.prompt_tokens[:], view.requests.forecast_tokens[:] = 512, 160
    return view


def test_two_classes_keep_out_of_each_others_way():
    """(100 - 2)/4 on both; 1,600 tokens are 100 blocks, so 100 more seem taken where the other class is."""
    view = fleet("llumnix-binary", [4, 4])
    view.engines.blocks_free[:] = 100
    view.engines.tier_running[:] = [[1, 3, 0], [0, 4, 0]]
    assert [binary_load(view, engine, False) for engine in (0, 1)] == [0.5, -24.5]
    assert [binary_load(view, engine, True) for engine in (0, 1)] == [-24.5, 0.5]
    dispatch = find("llumnix-binary").policy.dispatch
    view.requests.tier[:2] = (0, 1)
    assert [dispatch(view, request, 0.0) for request in (0, 1)] == [0.0, 1.0], "high ones cluster"
    view.engines.running[1] = 0
    assert binary_load(view, 1, True) == -inf


def test_a_partition_gives_each_tier_the_engines_of_its_share():
    """Work 1 : 2 : 1 over four engines: one, two and one; 1 : 1 : 2 over three meets inside engines."""
    view = fleet("partition:learn=0", [0, 0, 0, 0])
    view.engines.memo[0, :3] = (1.0, 2.0, 1.0)
    assert [part(view, tier, 4) for tier in range(3)] == [(0, 0), (1, 2), (3, 3)]
    view.engines.memo[0, :3] = (1.0, 1.0, 2.0)
    assert [part(view, tier, 3) for tier in range(3)] == [(0, 0), (0, 1), (1, 2)]
    assert part(view, 5, 3) == (0, 2), "who was never seen goes anywhere"


def test_who_finds_its_part_crowded_spills():
    view = fleet("partition:learn=0", [6, 5, 5, 4])
    view.engines.memo[0, :3] = (1.0, 2.0, 1.0)
    dispatch = find("partition").policy.dispatch
    view.requests.tier[:3] = (0, 1, 2)
    assert [dispatch(view, request, 0.0) for request in range(3)] == [0.0, 1.0, 3.0]
    view.engines.running[0] = 12  # of 26: 1.85 x the mean
    assert dispatch(view, 0, 0.0) == 3.0
    view.engines.draining[0] = 1
    assert dispatch(view, 0, 0.0) == 1.0, "parts are of the engines that serve"


def test_the_work_of_a_request():
    """512 tokens at 512 in 0.532 s, and 160 decodes of 0.052 s shared by 16: 0.532 + 0.52 s."""
    view = fleet("scale-rho", [0, 0])
    assert work_s(view, 0) == pytest.approx(1.052)


def test_work_is_forgotten_after_the_window():
    view = fleet("scale-rho", [0])
    for second in range(20):
        add_work(view, 6, 3.0, float(second), 10.0)
    assert work_rate(view, 6, 19.0, 10.0) == 3.0
    assert work_rate(view, 6, 23.5, 10.0) == pytest.approx(6 * 3.0 / 10)
    assert work_rate(view, 6, 40.0, 10.0) == 0.0


def test_marks_fall_from_the_first_tier_to_the_last():
    view = fleet("tier-shed", [0])
    assert [mark(view, tier) for tier in range(3)] == pytest.approx([1.4, 1.2, 1.0])
    one = fleet("tier-shed", [0], Tiers(*(column[:1] for column in TIERS)))
    assert mark(one, 0) == pytest.approx(1.2)


def test_shedding_begins_with_the_last_tier_and_ends_below_its_mark():
    """One engine, a second of work a request: the eleventh within ten seconds is over 1.0, for tier 2 alone."""
    view = fleet("tier-shed:low=0.5,high=0.7", [0])
    admit = find("tier-shed").policy.admit
    view.requests.tier[:] = (2, 2, 2, 2, 2, 2, 1, 0)
    said = [admit(view, request, request * 0.1) for request in range(8)]
    assert said == [TAKE] * 5 + [REFUSE, TAKE, TAKE]  # 0.526 > 0.5 for tier 2; 0.526 < 0.6 for tier 1
    assert admit(view, 0, 1.0) == TAKE, "who was let in is not turned away while it is held"
    assert admit(view, 5, 9.9) == REFUSE
    assert admit(view, 5, 12.0) == TAKE


def test_lower_tiers_are_held_while_every_engine_has_a_queue():
    view = fleet("tier-degrade", [4, 4])
    admit = find("tier-degrade").policy.admit
    view.requests.tier[:3] = (0, 1, 2)
    for waiting, said in (
        ((0, 9), (TAKE, TAKE, TAKE)),
        ((1, 9), (TAKE, TAKE, WAIT)),
        ((2, 2), (TAKE, WAIT, WAIT)),
    ):
        view.engines.waiting[:] = waiting
        assert tuple(admit(view, request, 0.0) for request in range(3)) == said
    view.engines.alive[:] = 0
    assert admit(view, 2, 0.0) == TAKE, "nobody serves: whoever may come is asked again"


def test_a_scaler_counts_time_by_its_questions():
    view = fleet("scale-freeness", [0, 0, 0])
    view.engines.alive[:] = (1, 1, 0)
    assert [elapsed_s(view, now_s) for now_s in (5.0, 7.0)] == [0.0, 2.0]
    assert averaged(view, 6, 8.0, 0.0, 10.0) == 8.0
    assert averaged(view, 6, 18.0, 2.0, 10.0) == 10.0
    assert [lasting(view, 4, holds, now_s, 3.0) for holds, now_s in ((True, 1), (True, 3.9), (True, 4))] == [
        False,
        False,
        True,
    ]
    assert not lasting(view, 4, False, 5.0, 3.0)
    assert not lasting(view, 4, True, 6.0, 3.0), "a gap begins anew"


def test_changes_are_paced():
    """Two at most, and no more than there are; an order 30 s after any change, a drain 60 s; the last one stays."""
    view = fleet("scale-freeness", [0] * 6)
    view.engines.alive[:] = (1, 1, 0, 0, 0, 0)
    assert [paced(view, 9.0, now_s, 30.0, 60.0) for now_s in (0.0, 29.0, 30.0)] == [2.0, 0.0, 2.0]
    assert [paced(view, -5.0, now_s, 30.0, 60.0) for now_s in (89.0, 90.0, 91.0)] == [0.0, -1.0, 0.0]
    view.engines.draining[1] = 1
    assert paced(view, 1.0, 119.0, 30.0, 60.0) == 0.0
    view.engines.draining[1] = 0
    assert paced(view, 1.0, 119.0, 30.0, 60.0) == 1.0, "the floor let nobody drain: that holds no order up"
    view.engines.alive[:] = (1, 1, 1, 1, 1, 0)
    assert [paced(view, 9.0, now_s, 30.0, 60.0) for now_s in (148.0, 149.0)] == [0.0, 1.0]
    view.engines.alive[:] = (1, 0, 0, 0, 0, 0)
    assert paced(view, -1.0, 999.0, 30.0, 60.0) == 0.0
