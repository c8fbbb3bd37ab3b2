"""`rank`, `report` and `results verify` as a user calls them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windtunnel.cli import app

SPEC = importlib.util.spec_from_file_location(
    "made_sweeps", Path(__file__).parent.parent / "analysis/conftest.py"
)
assert SPEC is not None
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sources = ("azure_surrogate", "burstgpt_surrogate")
    return made.make_sweep(tmp_path_factory.mktemp("cli") / "sweep", made.Made(sources, (0.85, 0.95), 8))


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_rank_prints_tables_intervals_and_the_summary(folder):
    answer = call("rank", folder)
    assert answer.exit_code == 0, answer.output
    for wanted in (
        "First place",
        "rho 0.95",
        "noise ceiling",
        "sjf-pred",
        "control",
        "Other traffic",
        "surrogate",
    ):
        assert wanted in answer.stdout, wanted
    assert "CONTROLS CAME OUT WRONGLY" not in answer.stdout


def test_rank_answers_with_one_json_object(folder):
    answer = call("rank", folder, "--metric", "ttft_p95_s", "--region", "0.85", "--json")
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert found["primary"] == "ttft_p95_s"
    assert {one["region"] for one in found["rankings"]} == {"0.85"}
    assert found["controls_broken"] == []


@pytest.mark.parametrize(
    ("words", "what"),
    [(("--metric", "speed"), "no metric is called"), (("--region", "0.3"), "no region 0.3 in these results")],
)
def test_rank_names_what_is_wrong_and_exits_with_two(folder, words, what):
    answer = call("rank", folder, *words)
    assert answer.exit_code == 2
    assert what in answer.stderr
    assert "Fix:" in answer.stderr


def test_a_folder_without_results_is_bad_input(tmp_path):
    for command in (("rank",), ("report",), ("results", "verify")):
        answer = call(*command, tmp_path)
        assert answer.exit_code == 2
        assert "no results here" in answer.stderr


def test_broken_controls_are_loud_but_no_failure(tmp_path):
    wrong = made.Made(
        ("azure_surrogate",), (0.95,), 6, controls={"lifo": 9.0, "oracle-srpt": -2.0, "random": -1.0}
    )
    folder = made.make_sweep(tmp_path / "wrong", wrong)
    for command in ("rank", "report"):
        answer = call(command, folder)
        assert answer.exit_code == 0
        assert "CONTROLS CAME OUT WRONGLY" in answer.stdout
    assert json.loads(call("report", folder, "--json").stdout)["broken_controls"] == ["oracle-srpt", "lifo"]


def test_report_writes_where_it_is_told(folder, tmp_path):
    out = tmp_path / "deep" / "page.html"
    answer = call("report", folder, "--out", out, "--json")
    assert answer.exit_code == 0
    assert json.loads(answer.stdout)["report"] == str(out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(folder / "report.html") in call("report", folder).stdout.replace("\n", "")


def test_verify_says_yes_or_no_by_exit_code(tmp_path):
    folder = made.make_sweep(tmp_path / "sweep", made.Made(("azure_surrogate",), (0.95,), 2))
    answer = call("results", "verify", folder)
    assert answer.exit_code == 0
    assert "16 runs" in answer.stdout
    [shard] = (folder / "runs").glob("*.parquet")
    shard.write_bytes(shard.read_bytes()[:1000])
    answer = call("results", "verify", folder)
    assert answer.exit_code == 1
    assert shard.name in answer.stderr
    assert "delete this shard" in answer.stderr
    found = json.loads(call("results", "verify", folder, "--json").stdout)
    assert (found["good"], len(found["problems"])) == (False, 1)
    assert call("rank", folder).exit_code == 2


@pytest.mark.parametrize("words", [("rank",), ("report",), ("results", "verify")])
def test_help_has_an_example(words):
    answer = call(*words, "--help")
    assert answer.exit_code == 0
    assert "Example: windtunnel" in answer.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys, windtunnel.ranks; print([m for m in ('numpy', 'pandas', 'scipy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_incomplete_sweep_is_said_by_every_command_and_is_no_failure(tmp_path):
    """The sweep lies in `results` of the named folder, as a demo leaves it."""
    outer = tmp_path / "demo"
    folder = made.make_sweep(outer / "results", made.Made(("azure_surrogate",), (0.95,), 2))
    plan = {"regions": [0.95], "schedulers": list("abcde"), "controls": list("xyz")}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "calibration.jsonl").write_text("".join(f'{{"window_id": "{name}"}}\n' for name in "abc"))
    for command in (("rank",), ("report",), ("results", "verify")):
        answer = call(*command, outer)
        assert answer.exit_code == 0, answer.output
        assert "16 of 24 runs: incomplete" in answer.stdout
    assert (outer / "report.html").is_file()
    found = json.loads(call("results", "verify", outer, "--json").stdout)
    assert (found["good"], found["stored"], found["expected"], found["incomplete"]) == (True, 16, 24, True)
    assert "untestable" in call("rank", outer).stdout


def test_failed_runs_are_loud_in_every_command_and_no_failure(tmp_path):
    from loadgen.result import write_failures

    folder = made.make_sweep(tmp_path / "sweep", made.Made(("azure_surrogate",), (0.95,), 4))
    lost = [
        ("ghost", f"azure_surrogate-{number}", "0.95", "admit raised ValueError: no") for number in range(3)
    ]
    write_failures(folder, lost)
    answer = call("rank", folder)
    assert answer.exit_code == 0, answer.output
    assert "3 RUNS FAILED" in answer.stdout
    assert "undefined: failed in 3 of 4 windows" in answer.stdout
    assert "3 RUNS FAILED" in call("report", folder).stdout
    assert "3 more runs failed and left no result (ghost)" in call("results", "verify", folder).stdout
    for command in (("rank",), ("report",), ("results", "verify")):
        found = json.loads(call(*command, folder, "--json").stdout)
        assert len(found["failures"]) == 3


def test_a_damaged_plan_has_one_remedy_in_every_command(tmp_path):
    folder = made.make_sweep(tmp_path / "sweep", made.Made(("azure_surrogate",), (0.95,), 2))
    (folder / "plan.json").write_text('{"name": "ma')
    for command, code in ((("rank",), 2), (("report",), 2), (("results", "verify"), 1)):
        answer = call(*command, folder)
        assert answer.exit_code == code
        assert "plan.json" in answer.stderr
        assert "delete plan.json and run the same `windtunnel sweep` again" in answer.stderr
