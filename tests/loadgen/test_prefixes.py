"""What prompts share: told by ids that two rows have, by number, and carried with the demand."""

import numpy as np

from loadgen.demand import part, prepare
from loadgen.formats.lineage import chain
from loadgen.prefixes import heads, shared, some
from tests.loadgen.test_demand import PLAN, window

LISTS = [[7, 8, 9], [7, 8, 5], [3], [7, 8, 9, 4], [3, 8]]
"""Ids of blocks by content, as Bailian tells them: 8 stands after 7 and after 3."""


def listed(lists):
    offsets = np.cumsum([0, *map(len, lists)])
    return shared(offsets, chain(offsets, np.concatenate(lists)), 16)


def rows_of(prefixes):
    return [
        prefixes.ids[low:high].tolist()
        for low, high in zip(prefixes.offsets[:-1], prefixes.offsets[1:], strict=True)
    ]


def test_only_what_two_rows_have_is_told_and_equal_numbers_are_equal_prefixes():
    """7, 7 8 and 7 8 9 stand in several rows, 3 in two; 3 8 and 7 8 5 in one alone."""
    told = rows_of(listed(LISTS))
    assert told == [[0, 1, 2], [0, 1], [3], [0, 1, 2], [3]]
    assert listed(LISTS).distinct == 4


def test_rows_without_anything_in_common_share_nothing():
    told = listed([[1, 2], [3]])
    assert (rows_of(told), told.distinct) == ([[], []], 0)
    assert listed([[]]).distinct == 0


def test_prompts_that_begin_alike_have_equal_heads():
    """Two blocks of 16 tokens make 32: rows 0, 1 and 3 share them; 2 and 4 share one; 20 tokens are too few."""
    told = heads(listed(LISTS), np.array([48, 48, 16, 64, 32]))
    assert told[0] == told[1] == told[3] == 1
    assert told[2] == -1
    assert told[4] not in (told[0], -1)
    coarse = listed(LISTS)._replace(block_tokens=512)
    told = heads(coarse, np.array([900, 900, 100, 1600, 600]))
    assert told[2] == told[4] != told[0] == told[1] == told[3]


def test_some_rows_keep_their_prefixes_in_the_order_asked():
    assert rows_of(some(listed(LISTS), np.array([3, 2, 3, 1]))) == [[0, 1, 2], [3], [0, 1, 2], [0, 1]]
    assert rows_of(some(listed(LISTS), np.array([], np.int64))) == []


def test_demand_carries_what_the_window_tells():
    plain = window(5)
    assert prepare(plain, PLAN, 1.0).prefixes is None
    offsets = np.cumsum([0, *map(len, LISTS)])
    plain.hash_offsets, plain.hash_ids = offsets, chain(offsets, np.concatenate(LISTS))
    plain.line = type("Line", (), {"block_tokens": 16})
    demand = prepare(plain, PLAN, 2.0)
    assert rows_of(demand.prefixes) == [[0, 1, 2], [0, 1], [3], [0, 1, 2], [3]]
    few = part(demand, np.array([4, 0]))
    assert rows_of(few.prefixes) == [[3], [0, 1, 2]]
    assert few.arrival_s.tolist() == demand.arrival_s[[4, 0]].tolist()
    assert part(prepare(window(5), PLAN, 1.0), np.array([1])).prefixes is None
