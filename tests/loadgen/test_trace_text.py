"""Bytes and lines: pointers, line ends, packed and broken files, columns by name, order, blocks (G1-G9)."""

import gzip
import itertools
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from loadgen.formats.reading import SCHEMA
from loadgen.trace import read, stream
from schedulers.errors import InputError
from tests.loadgen.trace_rows import (
    AZURE,
    AZURE_2023,
    BURST,
    BURST_ROWS,
    azure_2023,
    batch,
    chat,
    digest,
    write,
    write_json,
)

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 56354493\n"


def refused(path, **arguments) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path, unpinned=True, **arguments)
    assert path.name in caught.value.where
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("name", ["qwen_traceA_blksz_16.jsonl", "BurstGPT_1.csv"])
def test_pointer_is_refused_with_its_cure(tmp_path, name):
    path = tmp_path / name
    path.write_text(POINTER)
    error = refused(path)
    assert "LFS pointer" in error.what
    assert "https://media.githubusercontent.com/media/" in error.fix


def test_line_ends_last_line_and_mark_do_not_matter(tmp_path):
    seen = set()
    for number, (end, last, bom) in enumerate(
        itertools.product(("\r\n", "\n"), (True, False), (True, False))
    ):
        path = write(tmp_path / f"{number}.csv", AZURE, AZURE_2023, end=end, last=last, bom=bom)
        trace = read(path, unpinned=True)
        assert len(trace.arrival_ns) == len(AZURE_2023)
        seen.add(digest(trace))
    assert len(seen) == 1


def test_blank_lines_are_no_rows(tmp_path):
    plain = read(write(tmp_path / "a.csv", AZURE, AZURE_2023), unpinned=True)
    for end in ("\n", "\r\n"):
        rows = [AZURE_2023[0], "", *AZURE_2023[1:], "", "  "]
        spaced = read(write(tmp_path / "b.csv", AZURE, rows, end=end), unpinned=True)
        assert digest(spaced) == digest(plain)
        assert spaced.info.rows_read == 4


def test_each_defect_is_counted_under_its_reason(tmp_path):
    rows = [
        *BURST_ROWS,
        "120,Claude,10,10,20,API log",
        "121,GPT-4,10,10,20,Batch log",
        "122.5,GPT-4,10,10,20,API log",
        "-3,GPT-4,10,10,20,API log",
        "123,GPT-4,-10,10,0,API log",
        "124,GPT-4,0,10,10,API log",
        "125,GPT-4,nan,10,10,API log",
        "126,GPT-4,ten,10,20,API log",
        "127,GPT-4,99999999999,10,20,API log",
        "128,GPT-4,10",
        "129,GPT-4,10,10,20,API log,more",
    ]
    info = read(write(tmp_path / "BurstGPT_1.csv", BURST, rows), unpinned=True).info
    assert info.dropped == {
        "bad_row": 4,
        "failed": 1,
        "negative_time": 1,
        "negative_tokens": 1,
        "not_a_number": 1,
        "too_large": 1,
        "unknown_log_type": 1,
        "unknown_model": 1,
        "zero_tokens": 1,
    }
    assert info.rows_read == len(rows) == info.kept + sum(info.dropped.values())


def test_broken_json_is_counted(tmp_path):
    records = [chat(1, -1, 0.5, [1]), '{"chat_id": 2, "par', "[1, 2]", "null", chat(3, -1, 1.0, [2])]
    trace = read(write_json(tmp_path / "qwen_traceA.jsonl", records), unpinned=True)
    assert trace.info.dropped == {"broken_json": 3}
    assert trace.source_row.tolist() == [0, 4]


def test_blocks_of_any_size_give_the_same_rows(tmp_path):
    rows = azure_2023(300)
    rows[50] = "torn"
    rows[51] = ""
    rows[120] = '2023-11-16 00:02:00.0000000,"12,3'  # a stray quote must not swallow what follows
    rows[200] = "2023-11-16 00:03:00.0000000,many,3"
    table = write(tmp_path / "a_code.csv", AZURE, rows)
    burst = write(tmp_path / "b.csv", BURST, BURST_ROWS)
    records = [chat(n, n - 1 if n % 3 else -1, n * 0.25, [7, n, n + 1]) for n in range(200)]
    records[10] = "{broken"
    records[20] = chat(20, -1, 5.0, [1, 2], tokens=100)
    chats = write_json(tmp_path / "traceA.jsonl", records)
    batches = write_json(tmp_path / "conversation.jsonl", [batch(3000 * (n // 9), [0, n]) for n in range(90)])
    for path in (table, burst, chats, batches):
        whole = read(path, unpinned=True)
        for size in (1, 7, 4096):
            again = read(path, unpinned=True, rows=size)
            assert digest(again) == digest(whole)
            assert again.info == whole.info
        sizes = [len(part) for part in stream(path, unpinned=True, rows=7)]
        assert set(sizes[:-1]) <= {7}
        assert sum(sizes) == whole.info.kept
    assert read(table, unpinned=True).info.dropped == {"bad_row": 3}


def test_stream_is_in_the_files_order_and_form(tmp_path):
    path = write(tmp_path / "a.csv", AZURE, [*AZURE_2023[2:], *AZURE_2023[:2]])
    parts = list(stream(path, unpinned=True))
    assert parts[0].schema == SCHEMA
    assert parts[0]["source_row"].to_pylist() == [0, 1, 2, 3]
    assert parts[0]["prompt_tokens"].to_pylist() == [110, 7434, 4808, 3180]


def peak_of_stream(path) -> int:
    """Most bytes held at once, by Python and numpy and by Arrow together."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        assert sum(len(part) for part in stream(path, unpinned=True)) > 0
        return tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def test_memory_stays_flat_from_1e5_to_1e6_rows(tmp_path):
    rows = "\n".join(azure_2023(100_000)).encode()
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_bytes(AZURE.encode() + b"\n" + rows)
    large.write_bytes(AZURE.encode() + b"\n" + b"\n".join([rows] * 10))
    assert peak_of_stream(large) < 1.3 * peak_of_stream(small)


def test_columns_are_found_by_name(tmp_path):
    plain = read(write(tmp_path / "a.csv", AZURE, AZURE_2023), unpinned=True)
    names = AZURE.split(",")
    for order in itertools.permutations(range(3)):
        rows = [",".join(row.split(",")[place] for place in order) for row in AZURE_2023]
        header = ",".join(names[place] for place in order)
        assert digest(read(write(tmp_path / "b.csv", header, rows), unpinned=True)) == digest(plain)


def test_unknown_header_lists_the_known_ones(tmp_path):
    error = refused(write(tmp_path / "a.csv", "when,what,why", ["1,2,3"]))
    assert "when, what, why" in error.what
    for known in ("TIMESTAMP, ContextTokens, GeneratedTokens", "Request tokens", "hash_ids", "--columns"):
        assert known in error.fix


def test_unsorted_rows_are_sorted_and_counted(tmp_path):
    rows = azure_2023(200)
    plain = read(write(tmp_path / "a.csv", AZURE, rows), unpinned=True)
    random.Random(7).shuffle(rows)
    shuffled = read(write(tmp_path / "b.csv", AZURE, rows), unpinned=True)
    assert digest(shuffled, rows=False) == digest(plain, rows=False)
    assert plain.info.moved == 0
    assert shuffled.info.moved > 100
    assert np.array_equal(np.sort(shuffled.source_row), plain.source_row)


def test_one_late_row_counts_as_one_moved(tmp_path):
    rows = [AZURE_2023[1], AZURE_2023[0], *AZURE_2023[2:]]
    assert read(write(tmp_path / "a.csv", AZURE, rows), unpinned=True).info.moved == 1


def test_equal_stamps_keep_the_files_order(tmp_path):
    tokens = [1 + place * 7919 % 1000 for place in range(1000)]
    rows = [f"2023-11-16 18:17:0{place % 2}.0000000,{token},5" for place, token in enumerate(tokens)]
    trace = read(write(tmp_path / "a.csv", AZURE, rows), unpinned=True)
    assert trace.prompt_tokens.tolist() == tokens[0::2] + tokens[1::2]


def test_a_mark_before_json_does_not_matter(tmp_path):
    path = write_json(tmp_path / "conversation.jsonl", [batch(0, [0]), "{torn", batch(1, [1])])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path, unpinned=True).info.kept == 2


def test_packed_file_reads_as_the_plain_one(tmp_path):
    plain = write_json(tmp_path / "conversation.jsonl", [batch(n * 1000, [0, n]) for n in range(20)])
    packed = tmp_path / "conversation.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read(plain, unpinned=True), read(packed, unpinned=True)
    assert digest(one) == digest(other)
    assert one.info.sha256 == other.info.sha256
    assert one.info.bytes == other.info.bytes == plain.stat().st_size


def test_packed_file_cut_short_says_so(tmp_path):
    path = tmp_path / "conversation.jsonl.gz"
    plain = write_json(tmp_path / "conversation.jsonl", [batch(n, [n % 97, n]) for n in range(20_000)])
    whole = gzip.compress(plain.read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in refused(path).what


def test_missing_file_and_folder(tmp_path):
    assert "no such file" in refused(tmp_path / "absent.csv").what
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "folder" in refused(folder).what


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf\r\n \n", "empty"),
        (AZURE.encode() + b"\r\n", "no data rows"),
        (AZURE.encode(), "no data rows"),
        (AZURE.encode() + b"\n\n\n", "no data rows"),
        (AZURE.encode() + b"\nx,y,z\nu,v,w\n", "none of 2 rows"),
        ((AZURE + "\n" + AZURE_2023[0]).encode("utf-16"), "UTF-16"),
        (b"PAR1....", "parquet"),
        (b"a,b\n\0\0\0\n", "binary"),
        (b'[{"timestamp": 0}]', "JSON array"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content, words):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert words in refused(path).what


def test_unusable_rows_are_shown_with_their_lines(tmp_path):
    error = refused(write(tmp_path / "a.csv", AZURE, ["", "x,1,1", "2023-11-16 18:17:03,0,1"]))
    assert "line 3 (bad_row)" in error.where
    assert "TIMESTAMP='x'" in error.where
    assert "line 4 (zero_tokens)" in error.where


def test_text_that_is_not_utf8_costs_only_its_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join([AZURE, *AZURE_2023]).encode() + b"\n2023-11-16 18:17:10,\xff,3\n")
    trace = read(path, unpinned=True)
    assert (trace.info.kept, trace.info.dropped) == (4, {"bad_row": 1})


@pytest.mark.parametrize(
    ("source", "words"),
    [("azure1999", "unknown source"), ("burstgpt", "looks like azure2023"), ("azure2024-code", "looks like")],
)
def test_a_source_that_the_file_is_not(tmp_path, source, words):
    path = write(tmp_path / "a.csv", AZURE, AZURE_2023)
    with pytest.raises(InputError, match=words):
        read(path, source=source, unpinned=True)


def test_a_named_source_is_taken(tmp_path):
    path = write(tmp_path / "renamed.csv", AZURE, AZURE_2023)
    assert read(path, unpinned=True).info.source == "azure2023"
    assert read(path, source="azure2023-code", unpinned=True).info.source == "azure2023-code"
