"""Traces joined: parts of one clock, holes, declared superpositions, ids kept apart (A4, B3, Q8)."""

import pytest

from loadgen.describe import reuse
from loadgen.formats.joining import join
from loadgen.trace import read
from schedulers.errors import InputError
from tests.loadgen.trace_rows import (
    AZURE,
    AZURE_2024,
    BURST,
    BURST_3,
    BURST_3_ROWS,
    batch,
    chat,
    write,
    write_json,
)


def burst(path, *seconds):
    rows = [f"{second},GPT-4,{second % 97 + 1},10,20,API log" for second in seconds]
    return read(write(path, BURST, rows), unpinned=True)


def test_parts_of_one_clock_follow_each_other(tmp_path):
    one = burst(tmp_path / "BurstGPT_1.csv", 100, 5_270_390)
    two = burst(tmp_path / "BurstGPT_2.csv", 5_270_401, 5_270_402)
    both = join([one, two])
    shift = one.info.transforms["dithered"]["first_shift_ns"]
    assert ((both.arrival_ns + shift) // 10**9 + 100).tolist() == [100, 5_270_390, 5_270_401, 5_270_402]
    assert both.info.source == "burstgpt-1+burstgpt-2"
    assert both.info.rows_read == 4
    assert both.info.label == "unpinned"


def test_nothing_spans_the_hole_between_parts_2_and_3(tmp_path):
    two = burst(tmp_path / "BurstGPT_2.csv", 10_454_000, 10_454_300)
    three = read(write(tmp_path / "BurstGPT_3.csv", BURST_3, BURST_3_ROWS), unpinned=True)
    with pytest.raises(InputError, match=r"a hole of 104\.0 days"):
        join([two, three])
    with pytest.raises(InputError, match="an overlap"):
        join([three, two])


def test_different_weeks_are_joined_only_by_declaration(tmp_path):
    code = read(write(tmp_path / "code_1week.csv", AZURE, AZURE_2024), unpinned=True)
    later = [row.replace("2024-05-10", "2024-05-12") for row in AZURE_2024]
    conv = read(write(tmp_path / "conv_1week.csv", AZURE, later), unpinned=True)
    with pytest.raises(InputError, match="do not share a clock"):
        join([code, conv])
    both = join([code, conv], superposed=True, shifts_s=(0.0, 0.25))
    assert both.arrival_ns[:3].tolist() == [0, 250_000_000, 990_070_000]
    assert both.kinds == ("code", "conv")
    assert both.kind.tolist() == [0, 1, 0, 1, 0, 1]
    assert both.info.transforms["joined"]["superposed"] is True
    with pytest.raises(InputError, match="1 shifts for 2 traces"):
        join([code, conv], superposed=True, shifts_s=(1.0,))


def test_ids_of_two_copies_are_kept_apart(tmp_path):
    records = [chat(1, -1, 0.0, [5, 6]), chat(2, 1, 10.0, [5, 7]), chat(3, -1, 11.0, [5, 6])]
    one = read(write_json(tmp_path / "traceA.jsonl", records), unpinned=True)
    both = join([one, one], superposed=True, shifts_s=(0.0, 5.0))
    assert both.arrival_ns.tolist() == [0, 5 * 10**9, 10**10, 11 * 10**9, 15 * 10**9, 16 * 10**9]
    assert both.session.tolist() == [0, 2, 0, 1, 2, 3]
    assert both.parent.tolist() == [-1, -1, 0, -1, 1, -1]
    lists = [both.hash_ids[both.hash_offsets[row] : both.hash_offsets[row + 1]].tolist() for row in range(6)]
    assert lists == [[0, 1], [3, 4], [0, 2], [0, 1], [3, 5], [3, 4]]
    assert reuse(both).block_share == reuse(one).block_share


def test_blocks_of_different_sizes_are_not_joined(tmp_path):
    small = read(write_json(tmp_path / "traceA.jsonl", [chat(1, -1, 0.0, [5])]), unpinned=True)
    large = read(write_json(tmp_path / "conversation.jsonl", [batch(0, [5])]), unpinned=True)
    with pytest.raises(InputError, match="different sizes"):
        join([small, large], superposed=True)
