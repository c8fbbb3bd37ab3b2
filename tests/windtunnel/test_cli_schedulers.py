"""``windtunnel schedulers``: list, show and check, in words and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from windtunnel.cli import app
from windtunnel.policies import CANON, SETS

FAULTY = '''"""Reads what it does not declare."""

from schedulers.policy import EnginePolicy


def order(view, request, now_s):
    return float(view.requests.forecast_tokens[request])


POLICY = EnginePolicy(name="faulty", order=order)
BADLY = EnginePolicy(name="badly", scan="sometimes", params=((1, 2),))
'''

HIDDEN = '''"""Arrivals in spans of a third of a second, the shortest of each first."""

from schedulers.policy import EnginePolicy


def order(view, request, now_s):
    return float(view.requests.arrival_s[request] // 0.3) * 1000.0 - view.requests.prompt_tokens[request]


POLICY = EnginePolicy(name="hidden-seconds", order=order)
'''


def run(*args):
    return CliRunner().invoke(app, ["schedulers", *args])


def test_list_names_every_policy():
    """The bare command is the list."""
    from schedulers.load import shipped_names

    result = run()
    assert result.exit_code == 0
    for name in shipped_names():
        assert name.removesuffix("@published") in result.stdout
    listed = json.loads(run("list", "--json").stdout)["policies"]
    assert json.loads(run("--json").stdout)["policies"] == listed
    assert {policy["name"] for policy in listed} == set(shipped_names())
    assert all(policy["idea"].endswith(".") for policy in listed)


def test_every_policy_belongs_to_one_set():
    listed = json.loads(run("list", "--json").stdout)["policies"]
    members = {name: {p["name"] for p in listed if p["set"] == name} for name in SETS}
    assert sum(map(len, members.values())) == len(listed)
    assert members["canon"] == set(CANON)
    assert len(CANON) == 13
    assert len(members["as-published"]) == 13
    assert len(members["second"]) >= 12
    assert len(members["cluster"]) >= 10
    assert members["control"] == {policy["name"] for policy in listed if policy["control"]}
    assert all(policy["layer"] == "engine" for policy in listed if policy["set"] in ("canon", "second"))


def test_list_as_markdown_is_a_table():
    lines = run("list", "--markdown").stdout.splitlines()
    listed = json.loads(run("list", "--json").stdout)["policies"]
    assert len(lines) == 2 + len([policy for policy in listed if policy["set"] != "as-published"])
    assert {line.count("|") for line in lines} == {6}


def test_show_tells_parameters_with_ranges():
    result = run("show", "sarathi:phi=0.5")
    assert result.exit_code == 0
    assert "phi = 0.5, from 0.05 to 10 share" in result.stdout
    facts = json.loads(run("show", "sjf-pred", "--json").stdout)
    assert facts["hooks"] == ["order", "evict", "wake"]
    assert facts["params"][0]["value"] == "inf"


def test_show_tells_the_rule_in_the_words_of_the_hooks():
    from schedulers.engine.sjf_pred import POLICY

    shown = run("show", "sjf-pred").stdout
    for hook in ("order", "evict", "wake"):
        assert f"  {hook:9}{getattr(POLICY, hook).__doc__.strip().splitlines()[0]}" in shown


def test_the_worked_example_shows_who_waits_runs_and_is_evicted():
    """Six requests; a step carries 64 tokens.

    A (120 prompt tokens) and B (60) come together and B has the lower luck: step 1 is B's 60 and 4 of A, step 2 B's
    first decode and 63 of A, step 3 a decode and A's last 53. C comes in step 1 and is taken in step 3.
    """
    edf, plain = (
        json.loads(run("show", name, "--json").stdout)["example"] for name in ("edf", "fcfs-chunked")
    )
    a, b, c = plain["rows"][:3]
    assert (a[:4], b[:4], c[:3]) == ("▒▒▒█", "▒███", " ·▒")
    for one in (edf, plain):
        assert [len(row) for row in one["rows"]] == [len(one["edges_s"]) - 1] * 6
        for row, request in zip(one["rows"], one["requests"], strict=True):
            assert row.count("x") == request["preemptions"]
            if request["preemptions"] == 0:
                assert row.count("█") == request["output_tokens"] - 1, (
                    "the prompt's last step makes the first token"
                )
    assert sum(request["preemptions"] for request in plain["requests"]) > 0
    assert edf["requests"][3]["finished_s"] < plain["requests"][3]["finished_s"], "D is of the strict tier"
    assert f"|{edf['rows'][0]}|" in run("show", "edf").stdout


def test_show_tells_where_a_cluster_policy_sends_the_example():
    example = json.loads(run("show", "round-robin", "--json").stdout)["example"]
    assert [request["engine"] for request in example["requests"]] == [0, 1, 2, 0, 1, 2]
    assert "3 small engines" in run("show", "round-robin").stdout


def test_new_writes_a_policy_that_keeps_the_contract(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = json.loads(run("new", "my-own.rule", "--json").stdout)
    assert written == {"file": "my_own_rule.py", "name": "my-own.rule", "spec": "my_own_rule.py:POLICY"}
    checked = run("check", written["spec"])
    assert checked.exit_code == 0, checked.output
    assert checked.stdout == "my_own_rule.py:POLICY: good\n"
    assert run("show", written["spec"]).exit_code == 0
    before = (tmp_path / "my_own_rule.py").read_text()
    again = run("new", "my-own-rule")
    assert again.exit_code == 2
    assert "there already" in again.stderr
    assert (tmp_path / "my_own_rule.py").read_text() == before


@pytest.mark.parametrize("name", ["edf", "-x", "a b", "../up", "edf@published"])
def test_new_refuses_names_that_can_not_be(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("new", "--", name)
    assert result.exit_code == 2
    assert "Fix:" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_says_good():
    result = run("check", "edf+least-requests", "sarathi")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["edf: good", "least-requests: good", "sarathi: good"]


def test_check_runs_whole_windows_unless_quick(tmp_path):
    """A policy whose every answer is sound on a view, and which wants two seconds to count as one."""
    path = tmp_path / "hidden.py"
    path.write_text(HIDDEN)
    quick = run("check", f"{path}:POLICY", "--quick")
    assert (quick.exit_code, quick.stderr) == (0, "")
    whole = run("check", f"{path}:POLICY")
    assert whole.exit_code == 1
    assert "units: E8" in whole.stdout


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
    for command in ("list", "show", "new", "check", "pages"):
        assert "Example: windtunnel schedulers" in run(command, "--help").stdout


def test_show_tells_the_budget_that_a_plan_makes_sarathi_choose(tmp_path):
    """B*: the largest multiple of 64 whose step, 128 decodes over half the memory in it, keeps 0.9 of the pace."""
    from schedulers.cost import step_s
    from sim import profile

    path = tmp_path / "plan.toml"
    tier = '[[tiers]]\nname = "a"\nttft_s = 1.0\ntpot_s = {}\nshare = 1.0\n'
    fleet = '[fleet]\nprofile = "llama-3.1-8b/a100-80g"\nsequences_max = 256\nbudget_max = 2048\n'
    path.write_text(f'name = "paced"\nschedulers = ["fcfs-chunked"]\n{fleet}{tier.format(0.1)}')
    told = json.loads(run("show", "sarathi", "--plan", str(path), "--json").stdout)["first_budget"]
    known, tokens = profile.load("llama-3.1-8b/a100-80g"), told["tokens"]

    def span_s(size):
        prefill = size - 128.0
        return step_s(known.costs, prefill, prefill * prefill / 2.0, 128.0, known.blocks(16) * 16 / 2.0)

    assert (told["plan"], told["limit_tokens"], told["tightest_tpot_s"]) == ("paced", 2048, 0.1)
    assert tokens % 64 == 0
    assert 256 < tokens < 2048
    assert span_s(tokens) <= 0.09 < span_s(tokens + 64)
    assert f"budget   {tokens} of 2048 tokens a step" in run("show", "sarathi", "--plan", str(path)).stdout
    assert json.loads(run("show", "edf", "--json").stdout)["first_budget"] is None
