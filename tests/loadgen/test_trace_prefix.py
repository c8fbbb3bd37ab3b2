"""Bailian and Mooncake: block ids, parents, sessions, batches (Q1-Q7, M1-M3)."""

from decimal import Decimal

import numpy as np
import pytest

from loadgen.describe import binned, reuse
from loadgen.formats.lineage import chain, coarsen
from loadgen.formats.ties import scatter
from loadgen.trace import ORPHAN, SPREAD, read, stream
from schedulers.errors import InputError
from tests.loadgen.trace_rows import batch, chat, write_json


def bailian(tmp_path, *records):
    return read(write_json(tmp_path / "qwen_traceA_blksz_16.jsonl", records), unpinned=True)


def ids(trace, row):
    return trace.hash_ids[trace.hash_offsets[row] : trace.hash_offsets[row + 1]].tolist()


def test_the_number_of_block_ids_must_fit_the_prompt(tmp_path):
    trace = bailian(
        tmp_path,
        chat(1, -1, 0.0, [1, 2], tokens=32),
        chat(2, -1, 1.0, [1, 2], tokens=17),
        chat(3, -1, 2.0, [1, 2], tokens=33),
        chat(4, -1, 3.0, [1, 2], tokens=16),
        chat(5, -1, 4.0, [1, -2]),
        chat(6, -1, 5.0, [1, None]),
    )
    assert trace.info.dropped == {"bad_row": 4}
    assert trace.info.block_tokens == 16
    assert trace.info.source == "bailian-a"


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"timestamp": "soon"}, "bad_row"),
        ({"timestamp": -0.5}, "negative_time"),
        ({"timestamp": float("nan")}, "not_a_number"),
        ({"input_length": 15.5}, "bad_row"),
        ({"output_length": 0}, "zero_tokens"),
        ({"output_length": -4}, "negative_tokens"),
        ({"type": "video"}, "unknown_type"),
        ({"type": 3}, "bad_row"),
        ({"hash_ids": None}, "bad_row"),
    ],
)
def test_broken_fields_have_reasons(tmp_path, broken, reason):
    trace = bailian(tmp_path, chat(1, -1, 0.0, [1]), chat(2, -1, 1.0, [1]) | broken)
    assert trace.info.dropped == {reason: 1}


def test_one_id_at_two_places_is_no_shared_prefix(tmp_path):
    trace = bailian(
        tmp_path, chat(1, -1, 0.0, [5, 7, 8]), chat(2, -1, 1.0, [7, 5, 8]), chat(3, -1, 2.0, [5, 7, 9])
    )
    first, second, third = (ids(trace, row) for row in range(3))
    assert not set(first) & set(second)
    assert first[:2] == third[:2]
    assert first[2] != third[2]
    assert (first, second, third) == ([0, 1, 2], [3, 4, 5], [0, 1, 6])


def test_chained_ids_equal_those_of_a_dictionary():
    drawn = np.random.Generator(np.random.PCG64(3))
    lists = [drawn.integers(0, 4, drawn.integers(0, 9)).tolist() for _ in range(400)]
    offsets = np.r_[0, np.cumsum([len(one) for one in lists])]
    numbers: dict[tuple[int, ...], int] = {}
    expected = [
        numbers.setdefault(tuple(one[: place + 1]), len(numbers))
        for one in lists
        for place in range(len(one))
    ]
    assert chain(offsets, np.array([block for one in lists for block in one])).tolist() == expected


def test_a_childs_prompt_may_be_shorter_than_its_history(tmp_path):
    parent = chat(1, -1, 0.0, [1, 2, 3], output=400)
    child = chat(2, 1, 60.0, [1, 2, 9, 10], output=5)  # all but the parent's last block, thinking dropped
    trace = bailian(tmp_path, parent, child)
    assert trace.info.kept == 2
    assert trace.parent.tolist() == [-1, 0]
    assert ids(trace, 0)[:2] == ids(trace, 1)[:2]
    assert trace.prompt_tokens.tolist() == [47, 63]


def test_history_is_not_added_again(tmp_path):
    trace = bailian(tmp_path, chat(1, -1, 0.0, [1], tokens=10), chat(2, 1, 9.0, [1, 2], tokens=30))
    assert trace.prompt_tokens.tolist() == [10, 30]


def test_sessions_follow_parents(tmp_path):
    trace = bailian(
        tmp_path,
        chat(10, -1, 0.0, [1]),
        chat(11, -1, 1.0, [2]),
        chat(12, 10, 2.0, [1, 3]),
        chat(13, 12, 3.0, [1, 3, 4]),
        chat(14, 11, 4.0, [2, 5]),
    )
    assert trace.session.tolist() == [0, 1, 0, 0, 1]
    assert trace.parent.tolist() == [-1, -1, 0, 2, 1]


def test_roots_alone_are_sessions_of_their_own(tmp_path):
    trace = bailian(tmp_path, *(chat(number, -1, number * 0.1, [1, 2], kind="api") for number in range(20)))
    assert trace.session.tolist() == list(range(20))


def test_children_of_an_absent_parent_are_orphans_of_one_session(tmp_path):
    trace = bailian(
        tmp_path,
        chat(1, -1, 0.0, [1]),
        chat(2, 99, 1.0, [2]),
        chat(3, 99, 2.0, [2, 3]),
        chat(4, 2, 3.0, [2, 3, 4]),
        chat(5, 77, 4.0, [5]),
    )
    assert trace.parent.tolist() == [-1, -1, -1, 1, -1]
    assert trace.flags.tolist() == [0, ORPHAN, ORPHAN, 0, ORPHAN]
    assert trace.session.tolist() == [0, 1, 1, 1, 2]


def test_a_parent_that_comes_later_is_absent(tmp_path):
    trace = bailian(tmp_path, chat(1, 2, 0.0, [1]), chat(2, -1, 1.0, [2]))
    assert trace.parent.tolist() == [-1, -1]
    assert trace.flags.tolist() == [ORPHAN, 0]


def test_milliseconds_are_exact(tmp_path):
    trace = bailian(tmp_path, chat(1, -1, 0.289, [1]), chat(2, -1, 7199.999, [1]))
    assert trace.arrival_ns.tolist() == [0, 7_199_710_000_000]
    assert trace.info.t0 == "0.289"


def test_coarser_blocks_lose_reuse(tmp_path):
    drawn = np.random.Generator(np.random.PCG64(1))
    shared = drawn.integers(0, 1000, (5, 300))
    records = []
    for number in range(200):
        prefix = shared[number % 5, : drawn.integers(1, 300)].tolist()
        records.append(chat(number, -1, number * 0.1, [*prefix, *drawn.integers(2000, 9**9, 20).tolist()]))
    trace = bailian(tmp_path, *records)
    fine, coarse = reuse(trace), reuse(trace, 512)
    assert (fine.block_tokens, coarse.block_tokens) == (16, 512)
    assert fine.token_share > coarse.token_share > 0
    with pytest.raises(InputError, match="500"):
        reuse(trace, 500)


def test_coarsened_blocks_are_ends_of_groups():
    offsets, merged = coarsen(np.array([0, 5, 5, 7]), np.arange(10, 17, dtype=np.int32), 2)
    assert offsets.tolist() == [0, 3, 3, 4]
    assert merged.tolist() == [11, 13, 14, 16]


def test_hits_are_capped_at_the_prompt(tmp_path):
    trace = bailian(tmp_path, chat(1, -1, 0.0, [1, 2], tokens=20), chat(2, -1, 1.0, [1, 2], tokens=20))
    assert reuse(trace).token_share == 0.5


def mooncake(tmp_path, records, name="conversation_trace.jsonl"):
    return read(write_json(tmp_path / name, records), unpinned=True)


def test_milliseconds_and_blocks_of_512(tmp_path):
    trace = mooncake(tmp_path, [batch(0, [0]), batch(1_500, [0, 1]), batch(3_536_999, [2], tokens=600)])
    assert trace.info.dropped == {"bad_row": 1}
    assert trace.arrival_ns.tolist() == [0, 1_500_000_000]
    assert trace.info.block_tokens == 512


def test_batches_are_spread_over_their_period(tmp_path):
    records = [batch(at, [0, at + row]) for at in range(0, 300_000, 3_000) for row in range(10)]
    trace = mooncake(tmp_path, records)
    assert set(trace.flags.tolist()) == {SPREAD}
    assert bool(np.all(np.diff(trace.arrival_ns) >= 0))
    assert trace.source_row.tolist() == list(range(1000))
    shift = trace.info.transforms["spread"]["first_shift_ns"]
    assert np.array_equal((trace.arrival_ns + shift) // (3 * 10**9), np.arange(1000) // 10)
    before = binned(np.repeat(np.arange(100) * 3 * 10**9, 10), 1.0).iod
    assert before > 6
    assert binned(trace.arrival_ns, 1.0).iod < 1.5


def test_a_batch_never_reaches_into_the_next():
    stamp = np.repeat(np.array([0, 1_000, 6_000]) * 10**6, 50)
    spread = scatter(stamp, 3 * 10**9, "hand-made")
    assert bool(np.all(np.diff(spread) >= 0))
    assert spread[49] < 1_000 * 10**6
    assert spread[99] > 2_000 * 10**6


def test_a_file_without_batches_is_left_alone(tmp_path):
    trace = mooncake(tmp_path, [batch(at, [at]) for at in (0, 10, 10, 35)], "synthetic_trace.jsonl")
    assert trace.arrival_ns.tolist() == [0, 10**7, 10**7, 35 * 10**6]
    assert set(trace.flags.tolist()) == {0}


def test_the_floor_of_hits_is_reported(tmp_path):
    trace = mooncake(tmp_path, [batch(0, [0, 1]), batch(5, [0, 2]), batch(9, [0, 3]), batch(11, [4])])
    assert reuse(trace).first_block_share == 0.75


GOLDEN = {
    "conversation": (12_031, 144_793_823, 4_122_048, 288_500, 182_790, 0.374, 0.366),
    "synthetic": (3_993, 61_194_628, 595_432, 121_877, 43_924, 0.651, 0.640),
}


@pytest.mark.parametrize("part", ["conversation", "synthetic"])
def test_golden_numbers_of_the_real_files(traces_dir, part):
    trace = read(traces_dir / "mooncake" / f"{part}_trace.jsonl.gz")
    assert (trace.info.label, trace.info.source) == ("real", f"mooncake-{part}")
    found = reuse(trace)
    assert (
        len(trace.arrival_ns),
        int(trace.prompt_tokens.sum(dtype=np.int64)),
        int(trace.output_tokens.sum(dtype=np.int64)),
        found.blocks,
        found.distinct,
        round(found.token_share, 3),
        round(found.block_share, 3),
    ) == GOLDEN[part]


def test_batches_of_the_real_file(traces_dir):
    path = traces_dir / "mooncake" / "conversation_trace.jsonl.gz"
    raw = np.concatenate([part["stamp_ns"].to_numpy() for part in stream(path)])
    assert (len(np.unique(raw)), raw[-1]) == (1_180, 3_536_999_000_000)
    assert round(binned(raw, 1.0).iod, 1) == 7.9
    trace = read(path)
    shift = trace.info.transforms["spread"]["first_shift_ns"]
    assert bool(np.all(trace.arrival_ns + shift - raw < 3 * 10**9))
    assert bool(np.all(trace.arrival_ns + shift >= raw))
    told = [binned(trace.arrival_ns, width).iod for width in (1.0, 10.0, 60.0)]
    assert told == pytest.approx([1.05, 1.5, 2.9], abs=0.1)
    assert reuse(trace).first_block_share == 1.0
    assert Decimal(trace.info.t0) == 0


def test_synthetic_stamps_of_the_real_file(traces_dir):
    trace = read(traces_dir / "mooncake" / "synthetic_trace.jsonl.gz")
    assert len(np.unique(trace.arrival_ns)) == 3_982
    assert set(trace.flags.tolist()) == {0}
