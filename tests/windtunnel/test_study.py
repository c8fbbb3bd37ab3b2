"""``windtunnel study portability``: every stage once, again from where it stopped, and refusals."""

import json
from pathlib import Path

import pytest

from loadgen.result import frozen_plan, read_runs, verify
from tests.windtunnel.conftest import PLAN

DECLARED = """\
window_set = "published-120"
panel = ["ttft_p95_s"]
families = ["sources"]
planned_pairs = [["sjf-pred", "fcfs-chunked"]]
planned_regions = [1.1]
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[object]:
    """A study of 2 schedulers, 1 control, 2 regions, and 3 windows of each of two surrogates."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.toml").write_text(
        DECLARED + PLAN.replace('keep = "requests"', 'primary = "attainment:tier"')
    )
    sources = ["--from", "azure_surrogate", "--from", "burstgpt_surrogate", "--count", 3]
    return ["study", "portability", "--plan", folder / "tiny.toml", *sources, "--out", folder / "out"]


@pytest.fixture(scope="module")
def studied(command, windtunnel) -> Path:
    """The folder of the study, done with one process."""
    ran = windtunnel(*command, "--jobs", 1, "--json")
    assert ran.code == 0, ran.said
    told = json.loads(ran.out)
    assert (told["plan"], told["runs"], told["now"], told["failures"]) == ("small", 36, 36, 0)
    assert told["headline"]["sentences"]
    return command[-1]


def test_each_stage_leaves_its_part(studied):
    assert len(list((studied / "windows" / "windows").glob("*.parquet"))) == 6
    runs = read_runs(studied / "results")
    assert len(runs) == 36
    assert verify(studied / "results") == []
    assert (studied / "report.html").stat().st_size > 10_000
    families = json.loads((studied / "statistics.json").read_text())["families"]
    assert "planned" in {family["name"] for family in families}


def test_what_was_declared_is_in_every_row(studied):
    frozen = frozen_plan(studied / "results")
    assert frozen["planned_pairs"] == [["sjf-pred", "fcfs-chunked"]]
    assert set(read_runs(studied / "results")["plan_sha256"]) == {frozen["digest"]}


def test_again_it_does_nothing_but_look(studied, command, windtunnel):
    page = (studied / "report.html").read_bytes()
    ran = windtunnel(*command, "--jobs", 1, "--json")
    assert ran.code == 0, ran.said
    assert json.loads(ran.out)["now"] == 0
    assert "as frozen" in ran.said
    assert (studied / "report.html").read_bytes() == page


def test_what_was_declared_cannot_be_changed_afterwards(studied, command, windtunnel, tmp_path):
    plan = tmp_path / "tiny.toml"
    plan.write_text(command[3].read_text().replace("planned_regions = [1.1]", "planned_regions = [0.7]"))
    ran = windtunnel(*command[:3], plan, *command[4:])
    assert ran.code == 2
    assert "changed: planned_regions" in ran.said


def test_a_folder_of_another_set_is_refused(studied, command, windtunnel):
    ran = windtunnel(*command[:4], "--from", "azure_surrogate", "--out", studied)
    assert ran.code == 2
    assert "this folder holds published-120 of azure_surrogate, burstgpt_surrogate" in ran.said


@pytest.mark.parametrize(
    ("swap", "more", "says"),
    [
        (('window_set = "published-120"\n', ""), [], "names no window set"),
        (("", ""), ["--from", "azure2023"], "neither files nor a surrogate"),
        (("published-120", "published-12"), [], "no window set"),
    ],
)
def test_bad_usage_says_what_to_do(windtunnel, tmp_path, swap, more, says):
    plan = tmp_path / "tiny.toml"
    plan.write_text((DECLARED + PLAN).replace(*swap))
    ran = windtunnel("study", "portability", "--plan", plan, "--out", tmp_path / "out", *more)
    assert ran.code == 2
    assert says in ran.said


def test_frozen_windows_are_taken_as_they_are(windtunnel, windows, tmp_path):
    words = ["study", "portability", "--plan", "quick", "--windows", windows, "--out", tmp_path]
    ran = windtunnel(*words, "--count", 2)
    assert ran.code == 2
    assert "taken as they are" in ran.said
