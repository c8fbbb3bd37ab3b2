"""A user's own CSV or JSONL: named columns, exact times, sessions, and errors that show the rows."""

import json

import pytest

from loadgen.trace import read
from schedulers.errors import InputError
from tests.loadgen.trace_rows import digest, write, write_json

NAMED = {"arrival_s": "ts", "prompt_tokens": "in", "output_tokens": "out", "session": "chat"}
HEADER = "ts,in,out,chat,note"
ROWS = ("0.5,100,10,a,x", "1.25,200,20,b,y", "2.000000001,300,30,a,z", "9,400,40,,w")


def test_named_columns(tmp_path):
    trace = read(write(tmp_path / "mine.csv", HEADER, ROWS), columns=NAMED)
    assert trace.arrival_ns.tolist() == [0, 750_000_000, 1_500_000_001, 8_500_000_000]
    assert trace.prompt_tokens.tolist() == [100, 200, 300, 400]
    assert trace.output_tokens.tolist() == [10, 20, 30, 40]
    assert trace.session.tolist() == [0, 1, 0, -1]
    info = trace.info
    assert (info.source, info.family, info.label, info.t0) == ("csv:mine", "own", "own", "0.5")
    assert info.transforms["columns"] == NAMED


def test_jsonl_reads_as_the_same_rows(tmp_path):
    records = []
    for row in ROWS:
        second, prompt, output, session, note = row.split(",")
        records.append(
            {
                "ts": float(second),
                "in": int(prompt),
                "out": output,
                "chat": session or None,
                "note": {"n": note},
            }
        )
    table = read(write(tmp_path / "mine.csv", HEADER, ROWS), columns=NAMED)
    lines = read(write_json(tmp_path / "mine.jsonl", records), columns=NAMED)
    assert digest(lines) == digest(table)
    assert lines.info.source == "jsonl:mine"
    assert digest(read(tmp_path / "mine.jsonl", columns=NAMED, rows=1)) == digest(lines)


def test_our_own_names_need_no_mapping(tmp_path):
    path = write(
        tmp_path / "a.csv", "session_id,Output_Tokens,arrival_s,input_tokens", ["k,5,1,7", "k,6,2,8"]
    )
    trace = read(path)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [5, 6])
    assert trace.session.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        ("arrival_s", ("1700000000.123456789", "1700000000.1234567891234"), [0, 0]),
        ("arrival_s", ("1e3", " 1000.5 "), [0, 500_000_000]),
        ("arrival_ms", ("1700000000123.5", "1700000000124"), [0, 500_000]),
        ("arrival_us", ("10", "12.25"), [0, 2_250]),
        ("arrival_ns", ("1700000000123456789", "1700000000123456790"), [0, 1]),
        ("arrival_time", ("2024-01-01T00:00:00Z", "2024-01-01 02:00:00.5+02:00"), [0, 500_000_000]),
        ("arrival_time", ("2024-01-01T00:00:00", "2024-01-01 00:00:01"), [0, 10**9]),
    ],
)
def test_times_are_exact_in_each_unit(tmp_path, name, texts, expected):
    path = write(tmp_path / "a.csv", f"{name},prompt_tokens,output_tokens", [f"{text},1,1" for text in texts])
    assert read(path).arrival_ns.tolist() == expected


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(tmp_path, delimiter):
    rows = [row.replace(",", delimiter) for row in ROWS]
    trace = read(write(tmp_path / "mine.csv", HEADER.replace(",", delimiter), rows), columns=NAMED)
    assert trace.prompt_tokens.tolist() == [100, 200, 300, 400]


def test_quoted_cells(tmp_path):
    rows = ['"0.5","1","2","a","x, y"', '1,1,2,a,"a ""quote"""']
    assert read(write(tmp_path / "mine.csv", HEADER, rows), columns=NAMED).info.kept == 2


def test_kinds_are_named_in_the_order_seen(tmp_path):
    path = write(
        tmp_path / "a.csv", "arrival_s,prompt_tokens,output_tokens,model", ["1,1,1,big", "2,1,1,small"]
    )
    trace = read(path)
    assert [trace.kinds[kind] for kind in trace.kind] == ["big", "small"]


def test_bad_rows_are_dropped_with_reasons(tmp_path):
    bad = [
        "-1,1,1,a,",
        "3,0,1,a,",
        "4,1,0,a,",
        "5,nan,1,a,",
        "6,,1,a,",
        "inf,1,1,a,",
        "7,-2,1,a,",
        "8,1",
        "x,1,1,a,",
    ]
    good = [f"{second},5,5,a," for second in range(20)]
    info = read(write(tmp_path / "mine.csv", HEADER, [*good, *bad]), columns=NAMED).info
    assert info.dropped == {
        "bad_row": 2,
        "negative_time": 1,
        "negative_tokens": 1,
        "not_a_number": 3,
        "zero_tokens": 2,
    }
    assert info.rows_read == info.kept + sum(info.dropped.values()) == 29


def test_mostly_bad_rows_are_refused_and_shown(tmp_path):
    path = write(tmp_path / "mine.csv", HEADER, ["1,5,5,a,", "2,0,5,a,", "later,5,5,a,"])
    with pytest.raises(InputError) as caught:
        read(path, columns=NAMED)
    error = caught.value
    assert "1 of 3 rows" in error.what
    assert "mine.csv" in error.where
    assert "line 3 (zero_tokens): ts='2', in='0'" in error.where
    assert "line 4 (bad_row): ts='later'" in error.where
    assert "--columns" in error.fix


def test_half_the_rows_are_enough(tmp_path):
    path = write(tmp_path / "mine.csv", HEADER, ["1,5,5,a,", "2,0,5,a,"])
    assert read(path, columns=NAMED).info.kept == 1


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"arrival_s": "time"}, "no column 'time'; the file has: ts, in, out, chat, note"),
        ({"when": "ts"}, "'when' is none of our column names"),
        ({"arrival_s": "ts", "prompt_tokens": "in"}, "needs output_tokens"),
        ({"prompt_tokens": "in", "output_tokens": "out"}, "arrival_s or arrival_ms"),
        ({**NAMED, "arrival_ms": "ts"}, "one time column"),
    ],
)
def test_wrong_mappings_are_explained(tmp_path, columns, words):
    path = write(tmp_path / "mine.csv", HEADER, ROWS)
    with pytest.raises(InputError) as caught:
        read(path, columns=columns)
    assert words in caught.value.what
    assert caught.value.fix


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="occur twice: in"):
        read(write(tmp_path / "mine.csv", "ts,in,in,out", ["1,1,1,1"]), columns=NAMED)


def test_a_published_header_may_be_read_as_ones_own(tmp_path):
    path = write(tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", ["2023-11-16 18:17:03,5,6"])
    named = {
        "arrival_time": "TIMESTAMP",
        "prompt_tokens": "ContextTokens",
        "output_tokens": "GeneratedTokens",
    }
    trace = read(path, columns=named)
    assert (trace.info.label, trace.info.kept) == ("own", 1)


def test_truncated_jsonl_costs_its_last_row(tmp_path):
    lines = [json.dumps({"ts": n, "in": 3, "out": 4}) for n in range(10)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines)[:-8])
    info = read(path, columns={"arrival_s": "ts", "prompt_tokens": "in", "output_tokens": "out"}).info
    assert (info.kept, info.dropped) == (9, {"broken_json": 1})
