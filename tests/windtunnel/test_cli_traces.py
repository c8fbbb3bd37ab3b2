"""``windtunnel traces``: list, fetch and inspect, as a user calls them."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from loadgen import catalogue
from loadgen.catalogue import ENTRIES
from loadgen.trace import parse_columns
from schedulers.errors import InputError
from tests.loadgen.trace_rows import BURST, BURST_ROWS, azure_2023, write
from tests.loadgen.trace_server import serving
from windtunnel.traces import app, bars

RUNNER = CliRunner()
CONTENT = "\r\n".join([BURST, *BURST_ROWS]).encode()


def traces(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path / "cache" / "traces"


@pytest.fixture
def pinned(monkeypatch):
    pin = replace(
        catalogue.entry("burstgpt-1"), bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(), rows=6
    )
    monkeypatch.setattr(catalogue, "ENTRIES", (pin,))
    return pin


def test_list_names_each_file():
    result = traces("list")
    assert result.exit_code == 0
    assert all(entry.name in result.stdout for entry in ENTRIES)


def test_list_as_json(cache):
    told = json.loads(traces("list", "--json").stdout)
    assert told["cache"] == str(cache)
    first = told["traces"][0]
    assert (first["name"], first["rows"], first["here"]) == ("azure2023-code", 8819, False)
    assert next(one for one in told["traces"] if one["name"] == "azure2025-mm")["sha256"] is None


def test_fetch_prints_path_licence_and_citation_once(cache, pinned):
    with serving({pinned.file: CONTENT}) as shelf:
        first = traces("fetch", "burstgpt-1", "--base-url", shelf.url)
        second = traces("fetch", "burstgpt-1", "--base-url", shelf.url)
    assert first.stdout.strip() == second.stdout.strip() == str(cache / "BurstGPT_1.csv")
    assert "CC-BY-4.0" in first.stderr
    assert "KDD 2025" in first.stderr
    assert "KDD 2025" not in second.stderr
    assert (cache / "BurstGPT_1.csv").read_bytes() == CONTENT


def test_fetch_as_json_puts_nothing_else_on_stdout(pinned):
    with serving({pinned.file: CONTENT}) as shelf:
        told = json.loads(traces("fetch", "burstgpt-1", "--base-url", shelf.url, "--json").stdout)
    assert (told["label"], told["sha256"], told["fresh"]) == ("real", pinned.sha256, True)


def test_fetch_refuses_another_digest_unless_told(cache, pinned):
    with serving({pinned.file: CONTENT + b"\r\n"}) as shelf:
        with pytest.raises(InputError, match="not the published"):
            traces("fetch", "burstgpt-1", "--base-url", shelf.url)
        assert not (cache / "BurstGPT_1.csv").exists()
        told = traces("fetch", "burstgpt-1", "--base-url", shelf.url, "--unpinned", "--json")
    assert json.loads(told.stdout)["label"] == "unpinned"


def test_fetch_from_a_local_file(cache, pinned, tmp_path):
    (tmp_path / "copy.csv").write_bytes(CONTENT)
    result = traces("fetch", "burstgpt-1", "--from", tmp_path / "copy.csv")
    assert result.exit_code == 0
    assert (cache / "BurstGPT_1.csv").exists()


def test_inspect_shows_numbers_reasons_and_a_plot(tmp_path):
    result = traces("inspect", write(tmp_path / "BurstGPT_1.csv", BURST, BURST_ROWS))
    assert result.exit_code == 0
    for words in (
        "label unpinned",
        "6 rows read, 5 kept",
        "1 failed",
        "IoD",
        "kappa",
        "p99",
        "█",
        "CC-BY-4.0",
    ):
        assert words in result.stdout


def test_inspect_own_columns_as_json(tmp_path):
    path = write(tmp_path / "mine.csv", "ts,in,out", ["0,10,1", "1,20,2", "2.5,x,3", "4,30,5"])
    result = traces(
        "inspect", path, "--columns", "arrival_s=ts, prompt_tokens=in,output_tokens=out", "--json"
    )
    told = json.loads(result.stdout)
    assert told["trace"]["source"] == "csv:mine"
    assert told["trace"]["dropped"] == {"bad_row": 1}
    assert told["statistics"]["rate_per_s"] == 0.75
    assert told["statistics"]["prompt"]["sum"] == 60
    assert [one["width_s"] for one in told["statistics"]["bins"]] == [1.0, 10.0, 60.0]


def test_a_single_row_has_a_plot_too(tmp_path):
    path = write(tmp_path / "mine.csv", "arrival_s,prompt_tokens,output_tokens", ["5,1,1"])
    assert traces("inspect", path).exit_code == 0


def test_errors_come_as_words_and_exit_code_2(tmp_path):
    path = write(tmp_path / "mine.csv", "a,b", ["1,2"])
    command = [sys.executable, "-m", "windtunnel", "traces", "inspect", str(path)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"NO_COLOR": "1"}
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert "mine.csv:1" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["list", "fetch", "inspect"])
def test_help_has_an_example(command):
    assert f"windtunnel traces {command}" in traces(command, "--help").stdout


@pytest.mark.parametrize(
    ("text", "words"), [("a", "not ours=theirs"), ("a=", "not ours=theirs"), ("a=b,a=c", "given twice")]
)
def test_columns_that_can_not_be_read(text, words):
    assert parse_columns("a=b, c = d,") == {"a": "b", "c": "d"}
    with pytest.raises(InputError, match=words):
        parse_columns(text)


def test_bars_are_scaled_to_the_peak():
    assert bars([0.0, 1.0, 2.0], rows=2) == ["  █", " ██"]
    assert bars([0.0, 0.001, 2.0], rows=2) == ["  █", " ▁█"]
    assert bars([0.0, 0.0], rows=1) == ["  "]


def test_inspect_of_a_real_file(traces_dir):
    result = traces("inspect", traces_dir / "azure" / "AzureLLMInferenceTrace_conv.csv", "--json")
    told = json.loads(result.stdout)
    assert told["trace"]["label"] == "real"
    assert round(told["statistics"]["bins"][2]["iod"], 1) == 16.4


def test_inspect_of_many_rows_by_hand(tmp_path):
    path = write(tmp_path / "x_code.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", azure_2023(500))
    assert "azure2023-code" in traces("inspect", path).stdout
