"""``windtunnel windows``: freeze, list, verify, and what they say when they can't."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from loadgen.manifest import read_manifest
from loadgen.window import read_window, window_path
from windtunnel.cli import app
from windtunnel.traffic import files_of, without_failed
from windtunnel.windows import table_for


def run(*words):
    return CliRunner().invoke(app, ["windows", *(str(word) for word in words)])


def told(*words, code=0):
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def own_file(path, rows=1000, header="arrival_s,prompt_tokens,output_tokens"):
    """A file of the user's own, a request each fifth of a second or so."""
    drawn = np.random.Generator(np.random.PCG64(7))
    arrival_s = np.cumsum(drawn.exponential(0.2, rows))
    tokens = drawn.integers(10, 900, (rows, 2))
    lines = [f"{at:.6f},{prompt},{output}" for at, (prompt, output) in zip(arrival_s, tokens, strict=True)]
    path.write_text("\n".join([header, *lines]))
    return path


def frozen(tmp_path, *more):
    folder = tmp_path / "windows"
    file = own_file(tmp_path / "mine.csv")
    return folder, told(
        "freeze", "--source", "own", "--from", file, "--kind", "published", "--out", folder, *more
    )


def test_own_file_from_freeze_to_verify(tmp_path):
    folder, said = frozen(tmp_path)
    assert (said["frozen"], said["asked"], said["written"], said["in_folder"]) == (5, 80, 5, 5)
    assert (said["labels"], said["source"], said["kind"]) == (["own"], "own", "published")
    assert said["splits"] == {"dev": 3, "test": 2}
    assert sum(said["strata"].values()) == 5
    assert said["traces"][0]["rows_read"] == said["traces"][0]["kept"] == 1000
    listed = told("list", folder)
    assert sorted(said["windows"]) == [line["id"] for line in listed["windows"]]
    assert listed["manifest_sha256"] == said["manifest_sha256"]
    checked = told("verify", folder, "--from", tmp_path)
    assert (checked["equal"], checked["differs"], checked["cannot_tell"]) == (5, 0, 0)


def test_the_words_say_the_same(tmp_path):
    folder = tmp_path / "windows"
    file = own_file(tmp_path / "mine.csv", rows=1050)
    options = ("freeze", "--source", "own", "--from", file, "--kind", "published", "--out", folder)
    first = run(*options)
    assert first.exit_code == 0, first.output
    assert "csv:mine (own): 1,050 of 1,050 rows kept" in first.stdout
    assert "5 published windows of own (own): 3 dev, 2 test" in first.stdout
    assert "rejected: few_rows 1" in first.stdout
    assert "80 were asked for; there are no more." in first.stdout
    assert "5 there already" in run(*options).stdout
    listed = run("list", folder)
    assert "5 windows, manifest" in listed.stdout
    assert all(line.id in listed.stdout for line in read_manifest(folder))
    assert "equal 5" in run("verify", folder, "--from", file).stdout


@pytest.mark.parametrize("width", [80, 118, 200])
def test_names_stay_whole_in_any_terminal(tmp_path, width):
    folder, _ = frozen(tmp_path)
    screen = Console(width=width, record=True, file=StringIO())
    screen.print(table_for(read_manifest(folder), screen.width))
    text = screen.export_text()
    assert all(line.id in text for line in read_manifest(folder))
    assert len(text.strip().splitlines()) == 2 + 5
    assert "…" not in text
    assert ("trace" in text) == (width == 200)
    assert "split" in text


def test_one_window_is_no_windows_and_a_shorter_kind_is_proposed(tmp_path):
    file, folder = own_file(tmp_path / "mine.csv", rows=1300), tmp_path / "windows"
    said = run("freeze", "--source", "own", "--from", file, "--out", folder).stdout
    assert "1 main window of own" in said
    assert "there are no more. Shorter windows are more: --kind short, published or brief." in said
    assert "1 window, manifest" in run("list", folder).stdout


def test_names_of_columns_are_the_users_and_verify_remembers_them(tmp_path):
    file, folder = own_file(tmp_path / "odd.csv", header="aa,bb,cc"), tmp_path / "windows"
    names = "arrival_s=aa, prompt_tokens=bb,output_tokens=cc"
    options = ("--source", "own", "--from", file, "--kind", "published", "--out", folder)
    assert told("freeze", *options, "--columns", names)["frozen"] == 5
    assert told("verify", folder, "--from", file)["equal"] == 5


@pytest.mark.parametrize("text", ["arrival_s", "arrival_s=", "a=b,c"])
def test_columns_that_are_no_pairs_are_refused(tmp_path, text):
    result = run("freeze", "--source", "own", "--from", tmp_path, "--out", tmp_path, "--columns", text)
    assert result.exit_code == 2
    assert "--columns" in result.stderr


def test_a_surrogate_needs_no_files_and_says_what_it_is(tmp_path):
    options = ("--source", "azure_surrogate", "--count", 3, "--kind", "published", "--out", tmp_path)
    said = told("freeze", *options)
    assert (said["frozen"], said["labels"], said["source"]) == (3, ["surrogate"], "azure_surrogate")
    assert {trace["source"] for trace in said["traces"]} == {"azure_surrogate-conv", "azure_surrogate-code"}
    assert all(name.startswith("azure_surrogate-published-") for name in said["windows"])
    assert told("verify", tmp_path)["equal"] == 3
    again = told("freeze", *options)
    assert (again["written"], again["kept"], again["manifest_sha256"]) == (0, 3, said["manifest_sha256"])
    assert "surrogate" in run("list", tmp_path).stdout


def test_another_seed_is_other_traffic(tmp_path):
    options = ("--source", "azure_surrogate", "--count", 2, "--kind", "published", "--out", tmp_path)
    one, two = (set(told("freeze", *options, "--seed", seed)["windows"]) for seed in (0, 1))
    assert not one & two
    assert told("list", tmp_path)["windows"][3]["rows"] == 200


def test_verify_exits_with_1_if_a_window_differs(tmp_path):
    folder, _ = frozen(tmp_path)
    line = read_manifest(folder)[1]
    path = window_path(folder, line)
    path.write_bytes(path.read_bytes()[:-100])
    said = told("verify", folder, code=1)
    assert (said["equal"], said["differs"]) == (4, 1)
    assert [one["id"] for one in said["windows"] if one["answer"] == "differs"] == [line.id]
    words = run("verify", folder)
    assert words.exit_code == 1
    assert f"{line.id} differs" in words.stdout
    assert "freeze it again" in words.stdout.replace("\n", " ")


def test_verify_without_the_source_cannot_tell_and_is_no_failure(tmp_path):
    folder, _ = frozen(tmp_path)
    (tmp_path / "empty").mkdir()
    said = told("verify", folder, "--from", tmp_path / "empty")
    assert (said["equal"], said["cannot_tell"]) == (0, 5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("freeze", "--source", "own", "--out", "x"), "--from"),
        (("freeze", "--source", "azure2023", "--from", "nowhere", "--out", "x"), "no such file"),
        (("freeze", "--source", "azure2023", "--from", ".", "--out", "x"), "traces fetch azure2023"),
        (("freeze", "--source", "own", "--from", ".", "--out", "x"), "name your file"),
        (("freeze", "--source", "gone_surrogate", "--out", "x"), "azure_surrogate"),
        (("freeze", "--source", "azure_surrogate", "--from", ".", "--out", "x"), "azure files"),
        (("freeze", "--source", "azure_surrogate", "--kind", "huge", "--out", "x"), "published"),
        (("list", "nowhere"), "windows freeze"),
        (("verify", "nowhere"), "manifest.jsonl"),
    ],
)
def test_bad_usage_says_what_to_do(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert says in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output
    assert list(Path.cwd().iterdir()) == []


def test_a_file_with_too_few_rows_says_what_would_fit(tmp_path):
    file = own_file(tmp_path / "mine.csv", rows=700)
    result = run("freeze", "--source", "own", "--from", file, "--out", tmp_path / "windows")
    assert result.exit_code == 2
    assert "--kind short" in result.stderr
    assert not (tmp_path / "windows").exists()


@pytest.mark.parametrize("command", ["verify", "list"])
def test_a_manifest_without_windows_is_bad_input(tmp_path, command):
    (tmp_path / "manifest.jsonl").write_bytes(b"")
    error = told(command, tmp_path, code=2)["error"]
    assert error["where"] == str(tmp_path / "manifest.jsonl")
    assert "no windows" in error["what"]
    assert "Fix: " in run(command, tmp_path).stderr


def test_ctrl_c_ends_with_130_and_no_half_file(tmp_path, monkeypatch):
    def stop(path, data):
        raise KeyboardInterrupt

    file = own_file(tmp_path / "mine.csv")
    monkeypatch.setattr(Path, "write_bytes", stop)
    result = run(
        "freeze", "--source", "own", "--from", file, "--kind", "published", "--out", tmp_path / "windows"
    )
    assert result.exit_code == 130
    assert [path for path in (tmp_path / "windows").rglob("*") if path.is_file()] == []


def test_a_file_changed_by_one_byte_is_refused_or_labelled(tmp_path):
    """Trap G2: it looks like Azure, but nobody published it."""
    file, folder = tmp_path / "AzureLLMInferenceTrace_conv.csv", tmp_path / "windows"
    stamps = [f"2023-11-16 18:{at // 60:02d}:{at % 60:02d}.5000000" for at in range(900)]
    lines = [f"{stamp},{100 + 7 * at % 900},{20 + at % 50}" for at, stamp in enumerate(stamps)]
    file.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    options = ("freeze", "--source", "azure2023", "--from", tmp_path, "--kind", "short", "--out", folder)
    refused = run(*options)
    assert refused.exit_code == 2
    assert "--unpinned" in refused.stderr
    said = told(*options, "--unpinned")
    assert said["labels"] == ["unpinned"]
    assert {line.label for line in read_manifest(folder)} == {"unpinned"}
    assert told("verify", folder, "--from", tmp_path)["equal"] == 1


def test_files_of_a_family_are_found_in_a_folder_and_one_below(tmp_path):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.5000000,3,4\n"
    for place in ("AzureLLMInferenceTrace_code.csv", "azure/AzureLLMInferenceTrace_conv.csv", "a/b/deep.csv"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(header)
    own_file(tmp_path / "mine.csv", rows=3)
    found = [path.name for path in files_of("azure2023", tmp_path)]
    assert sorted(found) == ["AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv"]
    assert [path.name for path in files_of("azure2023-code", tmp_path)] == ["AzureLLMInferenceTrace_code.csv"]


def test_files_without_failed_requests_are_preferred():
    names = ("BurstGPT_1.csv", "BurstGPT_without_fails_1.csv", "BurstGPT_2.csv.gz", "BurstGPT_3.csv")
    chosen = [path.name for path in without_failed([Path(name) for name in names])]
    assert chosen == ["BurstGPT_without_fails_1.csv", "BurstGPT_2.csv.gz", "BurstGPT_3.csv"]


def test_help_shows_examples():
    for command in ("freeze", "list", "verify"):
        text = run(command, "--help").stdout
        assert f"Example: windtunnel windows {command}" in text


def test_the_real_azure_folder(tmp_path, traces_dir):
    said = told("freeze", "--source", "azure2023", "--from", traces_dir / "azure", "--out", tmp_path)
    assert (said["frozen"], said["labels"]) == (22, ["real"])
    assert said["rejected"] == {"few_rows": 2}
    more = told("freeze", "--source", "mooncake", "--from", traces_dir, "--out", tmp_path)  # a folder below
    assert (more["frozen"], more["in_folder"]) == (12, 34)
    assert told("verify", tmp_path, "--from", traces_dir)["equal"] == 34
    for line in read_manifest(tmp_path):
        assert (read_window(tmp_path, line).hash_ids is not None) == (line.source == "mooncake")


def test_one_service_of_the_real_azure_folder(tmp_path, traces_dir):
    options = ("--from", traces_dir / "azure", "--out", tmp_path)
    said = told("freeze", "--source", "azure2023-code", *options)
    assert (said["frozen"], said["source"]) == (7, "azure2023")


def test_burstgpt_heads_are_too_short(tmp_path, traces_dir):
    options = ("--source", "burstgpt", "--from", traces_dir / "burstgpt", "--out", tmp_path)
    assert "--unpinned" in run("freeze", *options).stderr
    result = run("freeze", *options, "--unpinned")
    assert result.exit_code == 2
    assert "few_rows" in result.stderr
