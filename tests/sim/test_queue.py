"""Rows kept in order, against Python's own sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schedulers.view import Tiers, allocate
from sim.gaps import BINS, HIGHEST_S, LOWEST_S, bin_of, count_stretch
from sim.queue import find, insert, remove_at, sort
from sim.stretch import span_s, steps_within

SMALL = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def table_of(arrivals):
    tiers = Tiers(*(np.zeros(1) for _ in Tiers._fields))
    table = allocate(len(arrivals), 1, tiers, np.ones(1), (0, 0, 0)).requests
    table.arrival_s[:] = arrivals
    table.luck[:] = np.random.default_rng(1).integers(0, 2, len(arrivals))
    return table


def expected(table, key, rows):
    return sorted(rows, key=lambda r: (key[r], table.arrival_s[r], table.luck[r], r))


@given(SMALL, st.randoms())
def test_sort_and_insert_keep_the_order(keys, random):
    key, table = np.array(keys, float), table_of(np.array(keys) % 3)
    rows = list(range(len(keys)))
    random.shuffle(rows)
    row = np.array(rows)
    sort(table, key, row, len(rows), np.zeros(len(rows), np.int64))
    assert row.tolist() == expected(table, key, rows)
    grown = np.zeros(len(rows), np.int64)
    for count, request in enumerate(rows):
        insert(table, key, grown, count, request)
    assert grown.tolist() == row.tolist()


@given(st.lists(SMALL, min_size=1, max_size=6), st.integers(0, 3))
def test_stretches_that_are_in_order_are_merged(stretches, strays):
    """As after a tenant's turn or a lifted level: a few stretches in order, and some requests out of place."""
    key = np.array([value for stretch in stretches for value in stretch], float)
    table, count = table_of(np.arange(len(key)) % 3), len(key)
    ends = np.cumsum([len(stretch) for stretch in stretches])
    row = [
        r
        for end, s in zip(ends, stretches, strict=True)
        for r in expected(table, key, range(end - len(s), end))
    ]
    for stray in range(strays):
        row.insert(stray, row.pop(count * (stray + 1) // 4))
    told = np.array(row)
    sort(table, key, told, count, np.zeros(count, np.int64))
    assert told.tolist() == expected(table, key, row)


@given(SMALL)
def test_remove_and_find(keys):
    row = np.arange(len(keys))
    place = len(keys) // 2
    assert find(row, len(keys), place) == place
    remove_at(row, len(keys), place)
    assert row[: len(keys) - 1].tolist() == [value for value in range(len(keys)) if value != place]
    assert find(row, len(keys) - 1, place) == -1


def test_bins_match_their_edges():
    from loadgen.result import GAP_BINS, GAP_EDGES_S

    assert GAP_BINS == BINS
    assert np.allclose([GAP_EDGES_S[0], GAP_EDGES_S[-1]], [LOWEST_S, HIGHEST_S])
    for place in range(BINS):
        assert bin_of(float(np.sqrt(GAP_EDGES_S[place] * GAP_EDGES_S[place + 1]))) == place
    assert bin_of(0.0) == 0
    assert bin_of(1e9) == BINS - 1


@given(st.floats(1e-3, 1.0), st.floats(0.0, 1e-2), st.integers(1, 300), st.integers(1, 5))
def test_a_stretch_counts_what_single_gaps_count(first, rise, steps, times):
    whole, single = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    count_stretch(whole, first, rise, steps, times)
    for step in range(1, steps):
        single[bin_of(first + step * rise)] += times
    assert whole.tolist() == single.tolist()


@given(st.floats(1e-3, 1.0), st.floats(0.0, 1e-2), st.floats(0.0, 500.0))
def test_most_steps_within_a_limit(first, rise, limit):
    steps = steps_within(first, rise, limit)
    assert span_s(first, rise, steps) <= limit
    assert span_s(first, rise, steps + 1) > limit


def test_reasons_have_their_names():
    from loadgen.result import FINISHED, REASONS, REJECTED
    from sim.rig import REASON_LENGTH, REASON_POLICY

    assert (REASONS[REASON_LENGTH], REASONS[REASON_POLICY]) == ("prompt_too_long", "policy")
    assert (FINISHED, REJECTED) == (0, 1)
