"""``windtunnel profiles``: tables, JSON, own fits, and docs that are current."""

import errno
import json
import os
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from sim.fit import COLUMNS, draw
from sim.profile import load, names
from windtunnel.cli import app
from windtunnel.profiles import table_for, table_markdown

DOCS = Path(__file__).resolve().parents[2] / "docs" / "profiles.md"


def run(*words):
    return CliRunner().invoke(app, ["profiles", *(str(word) for word in words)])


def steps(path, name="llama-3.1-8b/h100", count=100):
    lines = [",".join(COLUMNS)]
    rows = draw(load(name).costs, count, 1)
    lines += [",".join(repr(float(value)) for value in row) for row in zip(*rows, strict=True)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("words", [(), ("list",)])
def test_list_names_all(words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert [name for name in names() if name not in result.stdout] == []
    assert "qwen2.5-0.5b" in result.stdout
    assert "MODEL/ACCELERATOR[xCARDS]" in result.stdout
    assert "3.2" in result.stdout
    assert "457,056" in result.stdout


@pytest.mark.parametrize("words", [("--json",), ("list", "--json")])
def test_list_as_json(words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [one["name"] for one in told["profiles"]] == list(names())
    assert all(one["origin"] and one["error"]["mape_percent"] > 0 for one in told["profiles"])
    assert "h100" in told["roofline"]["accelerators"]
    assert "NaN" not in result.stdout


@pytest.mark.parametrize("width", [80, 100, 140])
def test_names_stay_whole_in_any_terminal(width):
    screen = Console(width=width, record=True, file=StringIO())
    screen.print(table_for(width))
    text = screen.export_text()
    assert [name for name in names() if f"{name} " not in text] == []
    assert ("origin" in text) == (width == 140)


def test_docs_are_current():
    text = DOCS.read_text()
    table = text.split("--markdown -->\n")[1].split("<!-- end of the table -->")[0]
    assert table == table_markdown()
    assert run("list", "--markdown").stdout == table


def test_show_prints_what_decides():
    result = run("show", "llama-3.1-8b/a100-80g")
    assert result.exit_code == 0, result.output
    for word in (
        "hinge",
        "Vidur",
        "MAPE 3.2 %",
        "28,566 blocks",
        "0.9 x memory",
        "floor_ms 11.41",
        "launch gaps",
    ):
        assert word in result.stdout


def test_show_labels_a_roofline():
    result = run("show", "qwen2.5-0.5b/a100-80g")
    assert result.exit_code == 0, result.output
    assert "roofline" in result.stdout
    assert "21 %" in result.stdout
    told = json.loads(run("show", "qwen2.5-0.5b/a100-80g", "--json").stdout)
    assert told["level"] == "roofline"
    assert told["error"]["mape_percent"] is None
    assert told["steps_ms"]["decode, 1 sequence of 1,000 tokens"] == pytest.approx(1.28, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "llama-3.1-8b/h10"), "llama-3.1-8b/h100"),
        (("show", "llama-3.1-70b/h100"), "llama-3.1-70b/h100x2"),
        (("show", "none.toml"), "none.toml"),
        (("roofline", "gpt-9", "h100"), "gpt-9"),
        (
            ("fit", "none.csv", "--model", "llama-3.1-8b", "--accelerator", "h100", "--out", "x.toml"),
            "none.csv",
        ),
        (("fit", "x.csv", "--model", "qwen3-8b", "--accelerator", "abacus", "--out", "x.toml"), "abacus"),
        (
            (
                "fit",
                "x.csv",
                "--model",
                "qwen3-8b",
                "--accelerator",
                "h100",
                "--out",
                "x.toml",
                "--form",
                "cubic",
            ),
            "five-term",
        ),
    ],
)
def test_bad_input_exits_with_2(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Fix:" in result.stderr
    told = json.loads(run(*words, "--json").stdout)
    assert said in json.dumps(told)
    assert list(tmp_path.iterdir()) == []


def test_fit_writes_a_profile(tmp_path):
    rows, out = steps(tmp_path / "steps.csv"), tmp_path / "my.toml"
    result = run(
        "fit", rows, "--model", "llama-3.1-8b", "--accelerator", "h100", "--cards", 2, "--out", out, "--json"
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["name"] == "llama-3.1-8b/h100x2@own"
    assert told["error"]["held_out_percent"] < 0.01
    assert str(out) in result.stderr
    np.testing.assert_allclose(load(str(out)).costs, load("llama-3.1-8b/h100").costs, rtol=1e-6)
    assert load(str(out)).kv_tokens == load("llama-3.1-8b/h100x2").kv_tokens
    assert "own rows: steps.csv" in run("show", out).stdout


def test_fit_takes_blocks_by_hand(tmp_path):
    rows, out = steps(tmp_path / "steps.csv"), tmp_path / "my.toml"
    words = ("--model", "llama-3.1-8b", "--accelerator", "h100", "--blocks", 1234, "--form", "five-term")
    assert run("fit", rows, *words, "--out", out).exit_code == 0
    assert load(str(out)).blocks(16) == 1234
    assert load(str(out)).form == "five-term"
    assert load(str(out)).memory.kv_from == "given by hand"


def test_roofline_writes_a_profile(tmp_path):
    out = tmp_path / "my.toml"
    result = run("roofline", "qwen3-14b", "h100", "--cards", 2, "--out", out)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(load(str(out)).costs, load("qwen3-14b/h100x2").costs, rtol=1e-11)


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = run("roofline", "qwen3-14b", "h100", "--out", tmp_path / "my.toml")
    assert result.exit_code == 2
    assert "my.toml" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("list",), ("show",), ("fit",), ("roofline",)])
def test_help_has_an_example(words):
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "Example: windtunnel profiles" in result.stdout
