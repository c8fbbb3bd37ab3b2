"""Hybrid windows: what each axis carries, that all axes of one window are that window, and what is frozen."""

from dataclasses import replace

import numpy as np
import pytest

from loadgen.hybrid import COLUMNS, cross, freeze_made, has_tenants
from loadgen.manifest import EQUAL, read_manifest, verify
from loadgen.window import Window, cut, read_window, to_parquet
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made, with_prefixes

ALL = frozenset(COLUMNS)


def window(seed: int, rows: int = 200, sessions: bool = False) -> Window:
    trace = hand_made(rows, seed=seed, source=f"own-{seed}", family=f"own{seed}")
    if sessions:
        trace = trace._replace(session=(np.arange(rows) // 3).astype(np.int32))
    return cut(trace, 0, rows, "published", seed)


def same(one: Window, two: Window, names) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in names)


@pytest.mark.parametrize("taken", [frozenset(), ALL])
def test_all_axes_of_one_window_are_that_window_to_the_bit(taken):
    one, two = window(1), window(2, sessions=True)
    made, whole = cross(one, two, taken), two if taken else one
    assert made.line == whole.line
    assert to_parquet(made) == to_parquet(whole)


def test_every_column_travels_with_one_axis():
    carried = [name for names in COLUMNS.values() for name in names]
    assert sorted(carried) == sorted(set(Window._fields) - {"line"})


@pytest.mark.parametrize("axis", sorted(COLUMNS))
def test_an_axis_brings_its_columns_and_no_other(axis):
    one, two = window(1), window(2, sessions=True)
    made = cross(one, two, frozenset({axis}))
    assert same(made, two, COLUMNS[axis])
    for left in ALL - {axis}:
        assert same(made, one, COLUMNS[left])
    assert made.line.content_sha256 not in (one.line.content_sha256, two.line.content_sha256)


def test_lengths_stay_pairs_with_their_prefixes():
    plain = window(1)
    rich = cut(with_prefixes(hand_made(200, seed=2, family="rich")), 0, 200, "published", 1)
    made = cross(plain, rich, frozenset({"lengths"}))
    pairs = list(zip(made.prompt_tokens.tolist(), made.output_tokens.tolist(), strict=True))
    assert pairs == list(zip(rich.prompt_tokens.tolist(), rich.output_tokens.tolist(), strict=True))
    assert made.line.block_tokens == 16
    assert np.array_equal(made.hash_ids, rich.hash_ids)
    assert np.array_equal(made.arrival_s, plain.arrival_s)


def test_a_hybrid_says_what_it_is():
    one, two = window(1), window(2)
    line = cross(one, two, frozenset({"arrivals", "tenants"})).line
    assert (line.label, line.source) == ("hybrid", "arrivals-own2.lengths-own1")
    assert line.transforms["hybrid"] == {
        "arrivals": two.line.id, "lengths": one.line.id, "tenants": two.line.id
    }  # fmt: skip
    assert line.span_s == two.line.span_s
    assert line.descriptors["gap_cv"] == two.line.descriptors["gap_cv"]
    assert line.descriptors["work_s"] == one.line.descriptors["work_s"]
    assert cross(one, two, frozenset({"tenants"})).line.source == "arrivals-own1.lengths-own1.tenants-own2"


def test_windows_of_other_sizes_are_not_crossed():
    with pytest.raises(InputError, match="can't be crossed"):
        cross(window(1), window(2, rows=199), frozenset({"lengths"}))


def test_tenants_are_an_axis_where_somebody_tells_conversations():
    assert has_tenants([window(1), window(2, sessions=True)])
    assert not has_tenants([window(1), window(2)])


def test_made_windows_are_frozen_read_and_verified(tmp_path):
    one, two = window(1), window(2, sessions=True)
    made = [one, cross(one, two, frozenset({"lengths"})), cross(one, two, frozenset({"arrivals"}))]
    lines = freeze_made(tmp_path, made)
    assert sorted(line.id for line in lines) == [line.id for line in read_manifest(tmp_path)]
    for line, window_ in zip(lines, made, strict=True):
        back = read_window(tmp_path, line)
        assert same(back, window_, ("arrival_s", "prompt_tokens", "session", "tier_luck", "forecast_luck"))
    assert {verdict.answer for verdict in verify(tmp_path)} == {EQUAL}
    assert lines[0] == replace(one.line, file_sha256=lines[0].file_sha256)
