"""Reshaped windows: no change is no change, a change comes out as large as asked, and rows stay legal."""

import numpy as np
import pytest

from loadgen.hybrid import freeze_made
from loadgen.manifest import EQUAL, read_manifest, verify
from loadgen.reshape import (
    Change,
    gamma_quantiles,
    hunted,
    reach,
    reshaped,
    take,
    tilt,
    warp,
    with_luck_of,
)
from loadgen.trace import ORPHAN
from loadgen.window import DRAWN, Window, cut, read_window, to_parquet
from tests.loadgen.window_rows import hand_made, with_prefixes


def window(rows: int = 200, prefixes: bool = False) -> Window:
    trace = hand_made(rows, seed=3)
    return cut(with_prefixes(trace) if prefixes else trace, 0, rows, "published", 3)


def cv(arrival_s) -> float:
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean())


def test_distance_is_the_norm_of_log_ratios():
    assert Change(rate=np.log(2.0)).distance == pytest.approx(np.log(2.0))
    assert Change(3.0, -4.0).distance == 5.0
    assert Change(slo=np.log(0.5)).ratios == {"rate": 1, "burstiness": 1, "lengths": 1, "slo": 0.5}


def test_no_change_gives_the_window_back_to_the_bit():
    one = window(prefixes=True)
    assert to_parquet(reshaped(one, Change(rate=0.5, slo=-0.5))) == to_parquet(one)
    assert np.array_equal(tilt(one.prompt_tokens, 0.0), np.arange(200))
    assert np.array_equal(take(one, np.arange(200)).hash_ids, one.hash_ids)


@pytest.mark.parametrize("burstiness", [-1.0, -0.3, 0.2, 0.7, 1.2])
def test_a_warp_keeps_order_number_and_span_and_varies_gaps_as_asked(burstiness):
    before = window(1000).arrival_s
    after = warp(before, burstiness)
    assert np.all(np.diff(after) >= 0.0)
    assert (after[0], after[-1]) == (before[0], before[-1])
    assert np.log(cv(after) / cv(before)) == pytest.approx(burstiness, abs=0.01)
    order = np.argsort(np.diff(before), kind="stable")
    if burstiness > 0:  # the long gaps stay the long ones
        assert np.all(np.diff(np.diff(after)[order]) >= -1e-9)


def test_gamma_gaps_stay_gamma():
    places = (np.random.default_rng(1).permutation(400) + 0.5) / 400
    gaps = gamma_quantiles(places, 0.6)
    after = np.diff(warp(np.concatenate([[0.0], np.cumsum(gaps)]), 0.5))
    wanted = gamma_quantiles(places, float(after.std() / after.mean()))
    assert after == pytest.approx(wanted * after.mean() / wanted.mean(), rel=0.05, abs=0.01)
    assert np.log(after.std() / gaps.std()) == pytest.approx(0.5, abs=0.01)


def test_even_gaps_stay_even():
    even = np.arange(50) * 0.5
    assert np.array_equal(warp(even, 1.0), even)


@pytest.mark.parametrize("lengths", [-0.6, -0.2, 0.1, 0.4])
def test_a_tilt_reaches_its_mean_with_pairs_that_were_asked_for(lengths):
    one = window(1000)
    made = reshaped(one, Change(lengths=lengths))
    tokens, before = made.prompt_tokens + made.output_tokens, one.prompt_tokens + one.output_tokens
    assert np.log(tokens.mean() / before.mean()) == pytest.approx(lengths, abs=0.01)
    pairs = set(zip(one.prompt_tokens.tolist(), one.output_tokens.tolist(), strict=True))
    assert set(zip(made.prompt_tokens.tolist(), made.output_tokens.tolist(), strict=True)) <= pairs
    order = np.argsort(before, kind="stable")
    assert np.all(np.diff(tokens[order]) >= 0)
    assert np.array_equal(made.arrival_s, one.arrival_s)


def test_prefix_ids_go_where_lengths_change_and_only_there():
    one = window(prefixes=True)
    assert reshaped(one, Change(lengths=0.2)).hash_ids is None
    assert reshaped(one, Change(burstiness=0.2)).hash_ids is not None


def test_what_can_not_be_reached_comes_as_near_as_it_gets():
    one = window()
    least, most = reach(one)
    tokens = one.prompt_tokens + one.output_tokens
    far = tokens[tilt(tokens, 50.0)].mean()
    assert np.log(far / tokens.mean()) == pytest.approx(most.lengths, abs=1e-9)
    assert least.lengths < -0.5 < 0.5 < most.lengths
    assert least.burstiness < -1.0 < 0.5 < most.burstiness
    even = one._replace(arrival_s=np.arange(200) * 1.0)
    assert [end.burstiness for end in reach(even)] == [0.0, 0.0]


def test_luck_belongs_to_the_row_whatever_is_changed():
    one, two = with_luck_of(window(), 5), with_luck_of(reshaped(window(), Change(0, 0.5, 0.3)), 5)
    for name in DRAWN:
        assert np.array_equal(getattr(one, name), getattr(two, name))
        assert not np.array_equal(getattr(one, name), getattr(with_luck_of(window(), 6), name))
    rows = np.array([3, 7, 50])
    assert np.array_equal(take(one, rows).tier_luck, one.tier_luck[rows])


def test_rows_taken_keep_their_own_and_lose_parents_that_are_gone():
    one = window(prefixes=True)  # each row goes on from the one before
    rows = np.array([4, 5, 9])
    made = take(one, rows)
    assert made.arrival_s.tolist() == (one.arrival_s[rows] - one.arrival_s[4]).tolist()
    assert made.parent.tolist() == [-1, 0, -1]
    assert (made.flags & ORPHAN > 0).tolist() == [True, False, True]
    ids = [one.hash_ids[one.hash_offsets[row] : one.hash_offsets[row + 1]].tolist() for row in rows]
    assert [
        made.hash_ids[low:high].tolist()
        for low, high in zip(made.hash_offsets[:-1], made.hash_offsets[1:], strict=True)
    ] == ids


def test_a_hunted_window_is_frozen_labelled_and_read_back(tmp_path):
    one, change, rows = window(), Change(0.1, 0.5, 0.0, -0.2), np.arange(20, 60)
    made = hunted(take(reshaped(with_luck_of(one, 9), change), rows), change, rows, {"luck": 9})
    (line,) = freeze_made(tmp_path, [made])
    assert (line.label, line.source, line.rows) == ("hunted", "hunted-own", 40)
    recipe = line.transforms["hunted"]
    assert (recipe["base"], recipe["luck"], recipe["rows"]) == (one.line.id, 9, rows.tolist())
    assert recipe["ratios"]["slo"] == pytest.approx(np.exp(-0.2))
    (found,) = read_manifest(tmp_path)
    assert np.array_equal(read_window(tmp_path, found).arrival_s, made.arrival_s)
    assert verify(tmp_path)[0].answer == EQUAL
