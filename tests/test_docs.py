"""Generated pages are current: the policy files are the source, ``windtunnel schedulers pages --write`` the way."""

import json
import re

import pytest
from typer.testing import CliRunner

from schedulers.load import shipped_names
from windtunnel import schedulers
from windtunnel.cli import app
from windtunnel.policies import FIDELITY, fidelity, page, shipped, table


def run(*args):
    return CliRunner().invoke(app, ["schedulers", "pages", *args])


def test_the_page_of_schedulers_is_current():
    assert schedulers.DOCS.read_text() == page(), "run `windtunnel schedulers pages --write`"


def test_the_page_has_a_section_a_policy_and_no_dead_link():
    text = schedulers.DOCS.read_text()
    headings = re.findall("^### (.*)$", text, re.MULTILINE)
    assert sorted(headings) == sorted(shipped_names())
    anchors = {re.sub(r"[^a-z0-9_-]", "", heading.lower()) for heading in headings}
    assert len(anchors) == len(headings), "two sections have one anchor"
    assert set(re.findall(r"\]\(#(.*?)\)", text)) == anchors


def test_every_ranked_policy_says_how_near_it_is_to_its_source():
    ours = {policy["name"] for policy in shipped() if policy["set"] in ("canon", "second", "cluster")}
    assert set(fidelity()) == ours, "say it in schedulers/fidelity.toml"
    text = page()
    for name, said in fidelity().items():
        assert tuple(said) == FIDELITY, name
        assert said["faithful"], name
        assert said["choice"], name
        assert f"| {said['faithful']} | {said['choice']} | {said['unverified'] or 'nothing'} |" in text


def test_pages_are_written_where_they_differ_and_only_there(tmp_path, monkeypatch):
    readme = tmp_path / "schedulers" / "README.md"
    readme.parent.mkdir()
    readme.write_text("before\n<!-- table -->\nold\n<!-- /table -->\nafter\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(schedulers, "ROOT", tmp_path)
    monkeypatch.setattr(schedulers, "DOCS", tmp_path / "docs" / "schedulers.md")
    monkeypatch.setattr(schedulers, "README", readme)
    assert run("--write").stdout == "Rewrote docs/schedulers.md and schedulers/README.md.\n"
    assert readme.read_text() == f"before\n<!-- table -->\n{table()}<!-- /table -->\nafter\n"
    assert (tmp_path / "docs" / "schedulers.md").read_text() == page()
    assert json.loads(run("--write", "--json").stdout) == {"changed": []}


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_pages_are_printed(args):
    said = run(*args).stdout
    assert (json.loads(said)["page"] if args else said) == page()


def test_without_a_checkout_there_is_nothing_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(schedulers, "DOCS", tmp_path / "docs" / "schedulers.md")
    result = run("--write")
    assert result.exit_code == 2
    assert "checkout" in result.stderr
