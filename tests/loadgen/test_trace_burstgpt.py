"""BurstGPT: columns by name, ties in order, failures, line ends, whole seconds (B1, B2, B4, B6, B7)."""

import csv
from decimal import Decimal

import numpy as np
import pytest

from loadgen.formats.ties import dither
from loadgen.trace import DITHERED, read, stream
from tests.loadgen.trace_rows import BURST, BURST_3, BURST_3_ROWS, BURST_ROWS, digest, write

SECOND = 10**9


def raw_seconds(trace):
    """Undo the spread within the second, by what the trace says about itself."""
    shift = trace.info.transforms["dithered"]["first_shift_ns"]
    return (trace.arrival_ns + shift) // SECOND + int(Decimal(trace.info.t0))


def test_part_3_reads_model_and_session_by_name(tmp_path):
    trace = read(write(tmp_path / "b.csv", BURST_3, BURST_3_ROWS), unpinned=True)
    assert trace.info.source == "burstgpt-3"
    assert [trace.kinds[kind] for kind in trace.kind] == [
        "gpt-4-conversation",
        "chatgpt-conversation",
        "chatgpt-api",
        "gpt-4-conversation",
    ]
    assert trace.session.tolist() == [0, 1, -1, 0]
    assert trace.parent.tolist() == [-1] * 4
    assert trace.prompt_tokens.tolist() == [906, 36, 900, 1400]


@pytest.mark.parametrize(
    ("name", "second", "source"),
    [
        ("BurstGPT_1.csv", 5, "burstgpt-1"),
        ("BurstGPT_2.csv", 61 * 86_400, "burstgpt-2"),
        ("renamed.csv", 61 * 86_400 - 1, "burstgpt-1"),
        ("BurstGPT_without_fails_2.csv", 6_000_000, "burstgpt-2-ok"),
    ],
)
def test_parts_1_and_2_are_told_apart_by_their_clock(tmp_path, name, second, source):
    rows = [f"{second},GPT-4,10,10,20,API log", f"{second + 2},GPT-4,10,10,20,API log"]
    assert read(write(tmp_path / name, BURST, rows), unpinned=True).info.source == source


def test_ties_are_spread_within_their_second_in_order(tmp_path):
    trace = read(write(tmp_path / "b.csv", BURST, BURST_ROWS), unpinned=True)
    assert trace.source_row.tolist() == [0, 1, 2, 3, 5]
    assert raw_seconds(trace).tolist() == [5, 45, 45, 45, 119]
    assert bool(np.all(np.diff(trace.arrival_ns) > 0))
    assert set(trace.flags.tolist()) == {DITHERED}
    assert trace.arrival_ns[0] == 0
    assert digest(trace) == digest(read(tmp_path / "b.csv", unpinned=True))


def test_a_tie_of_k_has_one_row_in_each_kth_of_the_second():
    stamp = np.repeat(np.array([3, 7, 8]) * SECOND, [4, 1, 10])
    spread = dither(stamp, SECOND, "hand-made")
    assert ((spread[:4] - 3 * SECOND) * 4 // SECOND).tolist() == [0, 1, 2, 3]
    assert ((spread[5:] - 8 * SECOND) * 10 // SECOND).tolist() == list(range(10))
    assert np.array_equal(spread // SECOND * SECOND, stamp)
    assert not np.array_equal(spread, dither(stamp, SECOND, "hand-made", seed=1))


def test_rows_without_an_answer_are_dropped_as_failed(tmp_path):
    rows = [*BURST_ROWS, "120,GPT-4,55,0,55,API log"]
    info = read(write(tmp_path / "b.csv", BURST, rows), unpinned=True).info
    assert info.dropped == {"failed": 2}


def test_whole_seconds_are_required(tmp_path):
    rows = [*BURST_3_ROWS, "19440300.5,,0,GPT-4,1,1,2,API log", "19440300.0,,0,GPT-4,1,1,2,API log"]
    trace = read(write(tmp_path / "b.csv", BURST_3, rows), unpinned=True)
    assert trace.info.dropped == {"bad_row": 1}
    assert raw_seconds(trace)[-1] == 19_440_300


def test_golden_numbers_of_part_1(traces_dir):
    path = traces_dir / "burstgpt" / "BurstGPT_1_head400.csv"
    trace = read(path, unpinned=True)
    assert trace.info.label == "unpinned"
    assert (trace.info.rows_read, trace.info.dropped) == (400, {"failed": 17})
    assert (int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())) == (208_189, 110_612)
    gone = sorted(set(range(400)) - set(trace.source_row.tolist()))
    assert gone[:4] == [20, 38, 40, 41]
    seconds = raw_seconds(trace)
    assert (seconds[0], seconds[-1]) == (5, 37_274)
    with path.open() as handle:
        raw = [int(row["Timestamp"]) for row in csv.DictReader(handle)]
    assert [row for row in range(1, 400) if raw[row] == raw[row - 1]] == [71, 195, 220, 399]
    assert seconds.tolist() == [raw[row] for row in trace.source_row]
    assert bool(np.all(np.diff(trace.arrival_ns) > 0))


def test_golden_numbers_of_part_3(traces_dir):
    path = traces_dir / "burstgpt" / "BurstGPT_3_head400.csv"
    trace = read(path, unpinned=True)
    assert (trace.info.rows_read, trace.info.dropped) == (400, {"failed": 1})
    assert (int(trace.prompt_tokens.sum()), int(trace.output_tokens.sum())) == (246_941, 68_350)
    assert set(range(400)) - set(trace.source_row.tolist()) == {115}
    assert (raw_seconds(trace)[0], raw_seconds(trace)[-1]) == (19_440_110, 19_481_563)
    # One of the 135 sessions is the failed row alone.
    assert int(trace.session.max()) + 1 == 134
    assert int((trace.session < 0).sum()) == 6


def test_stream_keeps_the_raw_second(traces_dir):
    parts = list(stream(traces_dir / "burstgpt" / "BurstGPT_1_head400.csv", unpinned=True))
    assert parts[0]["stamp_ns"][0].as_py() == 5 * SECOND
