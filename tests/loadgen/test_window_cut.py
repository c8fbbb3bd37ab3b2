"""Cutting: the same arguments give the same bytes, and a window says what it lost at its edges."""

import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from loadgen.candidate import describe
from loadgen.trace import DITHERED, ORPHAN
from loadgen.window import (
    DRAWN,
    content_sha256,
    cut,
    from_parquet,
    later,
    named,
    scored_rows,
    to_parquet,
    with_luck,
)
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made, with_prefixes


def same(one, other):
    for name in one._fields:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, np.ndarray) and name != "kind":  # codes may differ, names may not
            np.testing.assert_array_equal(left, right, err_msg=name)
            assert left.dtype == right.dtype, name
    assert [one.kinds[code] for code in one.kind] == [other.kinds[code] for code in other.kind]


def test_a_window_starts_at_zero_and_keeps_its_rows():
    trace = hand_made(1000)
    window = cut(trace, 300, 200, "published", seed=0)
    assert window.arrival_s[0] == 0.0
    np.testing.assert_array_equal(window.arrival_s, (trace.arrival_ns[300:500] - trace.arrival_ns[300]) / 1e9)
    np.testing.assert_array_equal(window.source_row, np.arange(300, 500))
    np.testing.assert_array_equal(window.prompt_tokens, trace.prompt_tokens[300:500])
    line = window.line
    assert (line.first_row, line.rows, line.kind, line.source, line.label) == (
        300,
        200,
        "published",
        "own",
        "own",
    )
    assert line.id == f"own-published-{line.content_sha256[:10]}"
    assert line.span_s == window.arrival_s[-1]


def test_same_arguments_same_bytes():
    one = cut(with_prefixes(hand_made(300)), 50, 200, "published", seed=4)
    other = cut(with_prefixes(hand_made(300)), 50, 200, "published", seed=4)
    assert to_parquet(one) == to_parquet(other)
    assert one.line == other.line
    same(one, other)


def test_seed_changes_luck_and_nothing_else():
    one, other = (cut(hand_made(300), 0, 200, "published", seed=seed) for seed in (0, 1))
    assert content_sha256(one, drawn=False) == content_sha256(other, drawn=False)
    assert one.line.content_sha256 != other.line.content_sha256
    for name in DRAWN:
        assert (getattr(one, name) != getattr(other, name)).all()


def test_luck_does_not_depend_on_the_order_of_cutting():
    trace = hand_made(600)
    first = cut(trace, 200, 200, "published", seed=0)
    cut(trace, 0, 200, "published", seed=0)
    same(first, cut(trace, 200, 200, "published", seed=0))


def test_columns_of_luck_are_independent_and_in_range():
    window = cut(hand_made(1250), 0, 1250, "main", seed=0)
    flat = [window.luck, window.tier_luck, window.tenant_luck]
    assert all(((column >= 0) & (column < 1)).all() for column in flat)
    assert window.forecast_luck.min() < -2
    assert np.abs(np.corrcoef([*flat, window.forecast_luck]) - np.eye(4)).max() < 0.1


@pytest.mark.parametrize(
    ("kind", "rows", "scored"),
    [
        ("main", 1250, (125, 1125)),
        ("tier", 2500, (250, 2250)),
        ("short", 625, (62, 562)),
        ("published", 200, (0, 200)),
    ],
)
def test_scored_rows(kind, rows, scored):
    assert scored_rows(kind, rows) == scored
    window = cut(hand_made(rows), 0, rows, kind, seed=0)
    assert window.scored == scored


def test_a_child_cut_from_its_parent_is_an_orphan():
    """Trap Q6: kept, parent null, flag orphan; children inside point at rows of the window."""
    window = cut(with_prefixes(hand_made(300)), 40, 200, "published", seed=0)
    assert window.parent[0] == -1
    assert window.flags[0] & ORPHAN
    np.testing.assert_array_equal(window.parent[1:], np.arange(199))
    assert not (window.flags[1:] & ORPHAN).any()
    assert (window.session == 0).all()


def test_a_root_is_no_orphan_and_flags_stay():
    trace = hand_made(300)
    trace.flags[:] = DITHERED
    window = cut(trace, 10, 200, "published", seed=0)
    assert (window.flags == DITHERED).all()
    assert (window.parent == -1).all()


def test_cutting_leaves_the_trace_alone():
    trace = with_prefixes(hand_made(300))
    before = [np.array(column) for column in (trace.flags, trace.parent, trace.hash_offsets)]
    cut(trace, 40, 200, "published", seed=0)
    for kept, column in zip(before, (trace.flags, trace.parent, trace.hash_offsets), strict=True):
        np.testing.assert_array_equal(kept, column)


def test_prefix_ids_follow_their_rows():
    trace = with_prefixes(hand_made(300))
    window = cut(trace, 7, 200, "published", seed=0)
    assert window.hash_offsets[0] == 0
    for row in (0, 1, 199):
        mine = window.hash_ids[window.hash_offsets[row] : window.hash_offsets[row + 1]]
        theirs = trace.hash_ids[trace.hash_offsets[7 + row] : trace.hash_offsets[8 + row]]
        np.testing.assert_array_equal(mine, theirs)
    assert window.line.block_tokens == 16


@pytest.mark.parametrize(("first", "rows"), [(-1, 200), (101, 200), (0, 0)])
def test_rows_outside_the_trace_are_refused(first, rows):
    with pytest.raises(InputError, match=r"300 were kept.*rows\.csv"):
        cut(hand_made(300), first, rows, "published", seed=0)


def test_unknown_kind_is_refused():
    with pytest.raises(InputError, match=r"unknown kind.*main"):
        cut(hand_made(300), 0, 200, "huge", seed=0)


def test_parquet_gives_the_window_back():
    for trace in (hand_made(300), with_prefixes(hand_made(300))):
        window = cut(
            trace._replace(kinds=("api", "chat"), kind=(np.arange(300) % 2).astype(np.int8)),
            5,
            200,
            "published",
            0,
        )
        again = from_parquet(to_parquet(window), window.line, "w.parquet")
        same(window, again)
        assert again.line == window.line


def test_the_dump_is_as_documented():
    """Recomputed here by hand, byte by byte: the digest must outlive every library."""
    trace = hand_made(3)._replace(
        arrival_ns=np.array([5, 5 + 10**9, 5 + 2 * 10**9]),
        prompt_tokens=np.array([10, 20, 30], np.int32),
        output_tokens=np.array([1, 2, 3], np.int32),
        session=np.array([-1, 4, 4], np.int32),
        parent=np.array([-1, -1, 1], np.int32),
        hash_offsets=np.array([0, 1, 1, 3]),
        hash_ids=np.array([7, 8, 9], np.int32),
        flags=np.array([0, 2, 0], np.uint8),
        kinds=("é", "b"),
        kind=np.array([0, 1, 0], np.int8),
    )
    window = cut(trace, 0, 3, "published", seed=0)
    expected = b"".join(
        [
            struct.pack("<q", 3),
            b"arrival_s\0float64\0" + struct.pack("<3d", 0, 1, 2),
            b"prompt_tokens\0int32\0" + struct.pack("<3i", 10, 20, 30),
            b"output_tokens\0int32\0" + struct.pack("<3i", 1, 2, 3),
            b"session\0int32\0" + struct.pack("<3i", 0, 4, 4) + bytes([0b110]),
            b"parent\0int32\0" + struct.pack("<3i", 0, 0, 1) + bytes([0b100]),
            b"source_row\0int64\0" + struct.pack("<3q", 0, 1, 2),
            b"class\0utf8\0" + struct.pack("<4q", 0, 2, 3, 5) + "ébé".encode(),
            b"hash_ids\0list<int32>\0" + struct.pack("<4q", 0, 1, 1, 3) + struct.pack("<3i", 7, 8, 9),
            b"flags\0uint8\0" + bytes([0, 2, 0]),
        ]
    )
    assert content_sha256(window, drawn=False) == hashlib.sha256(expected).hexdigest()
    luck = b"".join(f"{n}\0float64\0".encode() + struct.pack("<3d", *getattr(window, n)) for n in DRAWN)
    assert content_sha256(window) == hashlib.sha256(expected + luck).hexdigest() == window.line.content_sha256


def test_every_column_counts_in_the_digest():
    window = cut(with_prefixes(hand_made(300)), 0, 200, "published", seed=0)
    digests = {content_sha256(window)}
    for name in (
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "session",
        "parent",
        "source_row",
        "flags",
        *DRAWN,
    ):
        changed = np.array(getattr(window, name))
        changed[17] += 1
        digests.add(content_sha256(window._replace(**{name: changed})))
    ids = np.array(window.hash_ids)
    ids[3] += 1
    digests.add(content_sha256(window._replace(hash_ids=ids)))
    digests.add(content_sha256(window._replace(hash_ids=None, hash_offsets=None)))
    digests.add(content_sha256(window._replace(kinds=("other",))))
    assert len(digests) == 15


def test_order_of_class_names_does_not_count():
    trace = hand_made(300)._replace(kinds=("a", "b"), kind=(np.arange(300) % 2).astype(np.int8))
    swapped = trace._replace(kinds=("b", "a"), kind=(1 - trace.kind).astype(np.int8))
    one, other = (cut(each, 0, 200, "published", 0) for each in (trace, swapped))
    assert one.line.content_sha256 == other.line.content_sha256


def test_a_changed_value_in_the_file_is_noticed():
    window = cut(hand_made(300), 0, 200, "published", seed=0)
    prompts = np.array(window.prompt_tokens)
    prompts[0] += 1
    with pytest.raises(InputError, match=r"not the one that was frozen.*w\.parquet.*freeze it again"):
        from_parquet(to_parquet(window._replace(prompt_tokens=prompts)), window.line, "w.parquet")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"PAR1" + b"x" * 50])
def test_damaged_bytes_are_named(damage):
    window = cut(hand_made(300), 0, 200, "published", seed=0)
    with pytest.raises(InputError, match=r"cannot be read.*w\.parquet.*freeze it again"):
        from_parquet(damage(to_parquet(window)), window.line, "w.parquet")


def test_a_parquet_file_of_something_else_is_named():
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"arrival_s": [1.0]}), sink)
    line = cut(hand_made(300), 0, 200, "published", seed=0).line
    with pytest.raises(InputError, match=r"cannot be read.*w\.parquet"):
        from_parquet(sink.getvalue().to_pybytes(), line, "w.parquet")


@pytest.mark.parametrize("stretch", [0.25, 0.5, 2.0, 4.0])
def test_a_stretch_keeps_burstiness_and_gap_shape(stretch):
    """reference/traces.md 8: after a stretch by s, IoD(s w) is the old IoD(w) and gap ratios stay."""
    from loadgen.candidate import counts

    trace = hand_made(1250, rate=5.0)
    slow = trace._replace(arrival_ns=(trace.arrival_ns * stretch).astype(np.int64))
    width_s = 4
    old, new = counts(trace.arrival_ns, width_s), counts(slow.arrival_ns, int(width_s * stretch))
    np.testing.assert_array_equal(old, new)
    before, after = describe(trace, 0, 1250), describe(slow, 0, 1250)
    assert after["gap_cv"] == pytest.approx(before["gap_cv"], rel=1e-6)
    assert after["requests_per_s"] == pytest.approx(before["requests_per_s"] / stretch, rel=1e-6)
    for name in ("output_share", "prompt_p99_tokens", "largest_prompt_share", "work_s", "edge_silence_share"):
        assert after[name] == pytest.approx(before[name], rel=1e-6)
    one, other = cut(trace, 0, 1250, "main", 0), cut(slow, 0, 1250, "main", 0)
    np.testing.assert_allclose(other.arrival_s, one.arrival_s * stretch, atol=1e-8)
    np.testing.assert_array_equal(one.prompt_tokens, other.prompt_tokens)


@pytest.mark.parametrize(
    ("t0", "elapsed_ns", "expected"),
    [
        ("5", 0, "5"),
        ("19440110.0", 500_000_000, "19440110.5"),
        ("0", 3_000_000_001, "3.000000001"),
        ("2023-11-16 18:17:03.9799600", 100, "2023-11-16 18:17:03.979960100"),
        ("2023-11-16 18:17:03.9799600", 60_020_040_000, "2023-11-16 18:18:04.000000000"),
        ("2024-05-10 00:00:00.009930+00:00", 10**9, "2024-05-10 00:00:01.009930000+00:00"),
        ("2024-05-10 23:59:59+00:00", 1_500_000_000, "2024-05-11 00:00:00.500000000+00:00"),
        ("2024-10-15T12:00:00.269Z", 1, "2024-10-15T12:00:00.269000001Z"),
        ("row one", 2 * 10**9, "row one + 2.000000000 s"),
    ],
)
def test_the_window_tells_time_as_its_file_does(t0, elapsed_ns, expected):
    assert later(t0, elapsed_ns) == expected


def test_luck_is_keyed_by_content():
    """Two windows that differ in one token share no luck: nobody can pick rows by their luck."""
    window = cut(hand_made(300), 0, 200, "published", seed=0)
    prompts = np.array(window.prompt_tokens)
    prompts[199] += 1
    other = with_luck(window._replace(prompt_tokens=prompts), 0)
    assert (other.luck != window.luck).all()
    assert named(other).line == replace(
        window.line, id=named(other).line.id, content_sha256=content_sha256(other)
    )
