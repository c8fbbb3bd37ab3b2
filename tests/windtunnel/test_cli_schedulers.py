"""``windtunnel schedulers``: list, show and check, in words and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from windtunnel.cli import app

FAULTY = '''"""Reads what it does not declare."""

from schedulers.policy import EnginePolicy


def order(view, request, now_s):
    return float(view.requests.forecast_tokens[request])


POLICY = EnginePolicy(name="faulty", order=order)
BADLY = EnginePolicy(name="badly", scan="sometimes", params=((1, 2),))
'''


def run(*args):
    return CliRunner().invoke(app, ["schedulers", *args])


def test_list_names_every_policy():
    result = run("list")
    assert result.exit_code == 0
    for name in ("edf", "sarathi", "least-requests", "oracle-srpt"):
        assert name in result.stdout
    listed = json.loads(run("list", "--json").stdout)["policies"]
    assert {"edf", "fcfs-prefill", "round-robin", "random"} <= {policy["name"] for policy in listed}
    assert all(policy["idea"].endswith(".") for policy in listed)


def test_list_as_markdown_is_a_table():
    lines = run("list", "--markdown").stdout.splitlines()
    assert len(lines) == 2 + len(json.loads(run("list", "--json").stdout)["policies"])
    assert {line.count("|") for line in lines} == {6}


def test_show_tells_parameters_with_ranges():
    result = run("show", "sarathi:phi=0.5")
    assert result.exit_code == 0
    assert "phi = 0.5, from 0.05 to 10 share" in result.stdout
    facts = json.loads(run("show", "sjf-pred", "--json").stdout)
    assert facts["hooks"] == ["order", "evict", "wake"]
    assert facts["params"][0]["value"] == "inf"


def test_check_says_good():
    result = run("check", "edf+least-requests", "sarathi")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["edf: good", "least-requests: good", "sarathi: good"]


def test_check_exits_1_on_a_finding(tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    result = run("check", "edf", f"{path}:POLICY")
    assert result.exit_code == 1
    assert "edf: good" in result.stdout
    assert "reads forecast: order(" in result.stdout
    report = json.loads(run("check", f"{path}:POLICY", "--json").stdout)
    assert not report["good"]
    assert report["checked"][0]["findings"][0]["rule"] == "reads forecast"
    faulty = run("check", f"{path}:BADLY")
    assert faulty.exit_code == 1
    assert "scan is 'sometimes'" in faulty.stdout
    assert "params is a tuple of Param" in faulty.stdout


@pytest.mark.parametrize("args", [("show", "edff"), ("check", "edff"), ("check", "no_such.py:POLICY")])
def test_unknown_policies_exit_2(args):
    result = run(*args)
    assert result.exit_code == 2
    assert "Error:" in result.stderr
    assert "Fix:" in result.stderr
    assert "Traceback" not in result.output


def test_help_has_an_example():
    for command in ("list", "show", "check"):
        assert "Example: windtunnel schedulers" in run(command, "--help").stdout
