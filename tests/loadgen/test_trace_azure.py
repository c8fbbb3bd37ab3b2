"""Azure 2023, 2024 and 2025: fractions, zones, dates, walls, images, golden numbers (A1-A6)."""

import numpy as np
import pytest

from loadgen.trace import CAPPED, read
from tests.loadgen.trace_rows import AZURE, AZURE_2023, AZURE_2024, AZURE_2025, write

IMAGES = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"


def test_seven_fraction_digits_become_exact_ns(tmp_path):
    trace = read(write(tmp_path / "a_code.csv", AZURE, AZURE_2023), unpinned=True)
    assert trace.arrival_ns.tolist() == [0, 52_000_000, 98_189_000, 5_020_040_100]


def test_six_digits_or_none_with_a_zone(tmp_path):
    trace = read(write(tmp_path / "a_code_1week.csv", AZURE, AZURE_2024), unpinned=True)
    assert trace.arrival_ns.tolist() == [0, 990_070_000, 1_490_070_000]
    assert trace.info.t0 == "2024-05-10 00:00:00.009930+00:00"


def test_three_digits_and_z(tmp_path):
    trace = read(write(tmp_path / "mm.csv", IMAGES, AZURE_2025), unpinned=True)
    assert trace.arrival_ns.tolist() == [0, 31_000_000]
    assert trace.info.t0 == "2024-10-15T12:00:00.269Z"


def test_years_are_told_apart_by_the_zone(tmp_path):
    sources = [
        read(write(tmp_path / f"{number}_conv.csv", AZURE, rows), unpinned=True).info
        for number, rows in enumerate((AZURE_2023, AZURE_2024))
    ]
    assert [info.source for info in sources] == ["azure2023-conv", "azure2024-conv"]
    assert [info.family for info in sources] == ["azure2023", "azure2024"]


def test_rows_of_the_other_year_are_bad(tmp_path):
    trace = read(write(tmp_path / "a.csv", AZURE, [*AZURE_2023, AZURE_2024[0]]), unpinned=True)
    assert trace.info.dropped == {"bad_row": 1}


def test_date_comes_from_the_rows(tmp_path):
    trace = read(write(tmp_path / "a.csv", AZURE, AZURE_2023), unpinned=True)
    assert trace.info.t0 == "2023-11-16 18:17:03.9799600"


@pytest.mark.parametrize(
    ("source", "wall", "below", "rows"),
    [
        ("azure2023-code", 7434, 7433, AZURE_2023),
        ("azure2023-conv", 4100, 4200, AZURE_2023),
        ("azure2024-code", 7743, 7742, AZURE_2024),
        ("azure2024-conv", 7999, 7743, AZURE_2024),
    ],
)
def test_prompts_at_the_wall_are_kept_and_flagged(tmp_path, source, wall, below, rows):
    stamp = rows[-1].split(",")[0]
    path = write(tmp_path / "a.csv", AZURE, [*rows, f"{stamp},{wall},5", f"{stamp},{below},5"])
    trace = read(path, source=source, unpinned=True)
    assert trace.prompt_tokens[-2:].tolist() == [wall, below]
    assert (trace.flags[-2:] & CAPPED).tolist() == [CAPPED, 0]


def test_images_are_not_counted_twice(tmp_path):
    trace = read(write(tmp_path / "mm.csv", IMAGES, AZURE_2025), unpinned=True)
    assert trace.prompt_tokens.tolist() == [100, 1234]
    assert [trace.kinds[kind] for kind in trace.kind] == ["text", "image"]
    assert trace.info.source == "azure2025-mm"


def test_no_prefixes_and_no_sessions_are_invented(tmp_path):
    trace = read(write(tmp_path / "a.csv", AZURE, AZURE_2023), unpinned=True)
    assert (trace.hash_offsets, trace.hash_ids, trace.info.block_tokens) == (None, None, 0)
    assert set(trace.session.tolist()) == set(trace.parent.tolist()) == {-1}


GOLDEN = {
    "code": (8_819, 18_059_974, 245_896, 3_435_948_056_000, 2_593_364, 35_210, 574_338_986_000, 549, 173),
    "conv": (19_366, 22_361_870, 4_088_665, 3_501_721_937_000, 1_302_493, 307_930, 262_064_063_000, 197, 183),
}


@pytest.mark.parametrize("part", ["code", "conv"])
def test_golden_numbers_of_the_real_files(traces_dir, part):
    trace = read(traces_dir / "azure" / f"AzureLLMInferenceTrace_{part}.csv")
    prompt, output, arrival = trace.prompt_tokens, trace.output_tokens, trace.arrival_ns
    found = (
        len(arrival),
        int(prompt.sum(dtype=np.int64)),
        int(output.sum(dtype=np.int64)),
        int(arrival[-1]),
        int(prompt[:1250].sum()),
        int(output[:1250].sum()),
        int(arrival[1249]),
        int(prompt[-1]),
        int(output[-1]),
    )
    assert found == GOLDEN[part]
    assert trace.info.label == "real"
    assert trace.info.source == f"azure2023-{part}"
    assert trace.info.rows_read == trace.info.kept
    assert bool(np.all(np.diff(arrival) > 0))


def test_share_at_the_wall_of_the_real_file(traces_dir):
    trace = read(traces_dir / "azure" / "AzureLLMInferenceTrace_code.csv")
    assert round(float(np.mean(trace.prompt_tokens >= 7434)), 4) == 0.0382
    assert np.array_equal(trace.flags == CAPPED, trace.prompt_tokens >= 7434)
