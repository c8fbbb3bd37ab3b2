"""`windtunnel study tiers` end to end on tiny worlds: where tiers can't help they don't, where they must they do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.tiers_answer import answer
from analysis.tiers_results import read_results
from loadgen.candidate import Recipe
from loadgen.demand import prepare
from loadgen.manifest import freeze, read_manifest
from loadgen.plan import read_plan
from loadgen.plan_arms import runs_as
from loadgen.surrogate import generate
from loadgen.window import read_window
from schedulers.load import load
from sim.calibrate import setup_of
from sim.run import simulate

PLAN = """\
name = "tiny"
schedulers = ["tiered+least-kv", "tiered:order=1+least-kv"]
controls = []
regions = [0.3, 2.5]
slo_sets = ["tier"]
primary = "weighted_attainment:tier"

[fleet]
engines = 2
sequences_max = 8

[atoms]
tiers = 4
ratio = 32.0
ladder = "flat"

[[arms]]
name = "levels"
tiers = [1, 2, 4]

[[arms]]
name = "placebo"
tiers = [4]
mix = ["shuffled"]
"""

ORDER = "tiered:order=1+least-kv"


@pytest.fixture(scope="module")
def told(tmp_path_factory, windtunnel) -> tuple[Path, dict]:
    """The study, run once."""
    folder = tmp_path_factory.mktemp("tiers")
    traces = [generate("azure_surrogate-conv", rows=2400, seed=1)]
    freeze(traces, folder / "windows", Recipe("published", 8, 1))
    (folder / "plan.toml").write_text(PLAN)
    out = folder / "out"
    ran = windtunnel(
        "study", "tiers", "--plan", folder / "plan.toml", "--windows", folder / "windows", "--out", out,
        "--page", folder / "page.md", "--jobs", 1, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.said
    return out, json.loads(ran.out)


def test_tiers_help_where_they_must_and_not_where_they_cannot(told):
    found = answer(told[0] / "results", runs_as)
    by_region = {one.setting.region: one for one in found.levels if one.system == "queue order"}
    idle, pressed = by_region["0.3"], by_region["2.5"]
    assert 1 in idle.survivors
    assert abs(idle.against_one[4].mean) < 0.02
    assert pressed.against_one[4].low > 0.02
    assert 1 not in pressed.survivors
    placebo = {setting.region: effect for setting, spec, effect in found.placebo if spec == ORDER}
    assert placebo["2.5"].mean < pressed.against_one[4].low


def test_the_same_requests_are_scored_at_every_number_of_tiers(told):
    of = read_results(told[0] / "results", runs_as)
    arrivals = {
        (at.region, at.tiers, at.mix): cell.total("arrivals").tolist() for (at, _), cell in of.cells.items()
    }
    assert len(arrivals) == 8
    assert all(one == arrivals["0.3", 1, "enterprise"] for one in arrivals.values())
    weighted = np.array([1 / 32 ** (atom / 9) * 32 for atom in range(10)])
    assert next(iter(of.cells.values())).weights == pytest.approx(weighted)


def test_report_page_and_json_are_written(told):
    out, said = told
    assert said["runs"] == 8 * 2 * (
        1 + 1 + 1 + 1
    )  # both are one at one tier; then the tiered one alone differs
    assert {one["check"]: one["holds"] for one in said["checks"]}["every arrival ends once"] is True
    assert "How many priority tiers" in (out / "report.html").read_text()
    assert said["sentences"][0] in (out.parent / "page.md").read_text()
    assert json.loads((out / "tiers.json").read_text())["sentences"] == said["sentences"]


@pytest.mark.parametrize(
    "spec", ["tiered:order=1,headroom=1,victim=1+least-kv", "tiered:order=2+least-kv", "tiered+least-kv"]
)
def test_cells_that_are_run_once_are_one_to_the_bit(told, spec):
    """At one tier a tiered scheduler is what its cell is filed under; so is one that no tier reaches at four."""
    plan = read_plan(str(told[0].parent / "plan.toml"), windows=told[0].parent / "windows")
    line = read_manifest(Path(plan.windows))[0]
    window = read_window(Path(plan.windows), line)
    tiers = 4 if spec == "tiered+least-kv" else 1
    named, at = runs_as(spec, tiers)
    assert at == 1
    outcomes = []
    for name, count in ((spec, tiers), (named, 1)):
        from loadgen.plan import shown

        atoms = replace(plan.atoms, tiers=count)
        one = replace(plan, atoms=atoms, tiers=shown(atoms))
        outcomes.append(simulate(prepare(window, one, 0.01), load(name), setup_of(one)).facts)
    for column in ("first_token_s", "finished_s", "engine", "preemptions"):
        assert np.array_equal(getattr(outcomes[0], column), getattr(outcomes[1], column), equal_nan=True)


def test_a_plan_without_arms_is_refused(windtunnel, tmp_path):
    ran = windtunnel("study", "tiers", "--plan", "quick", "--out", tmp_path)
    assert ran.code == 2
    assert "no arms" in ran.said


def test_the_results_of_another_study_are_refused(tmp_path, windtunnel):
    from schedulers.errors import InputError

    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="no study of tiers"):
        read_results(tmp_path, runs_as)


async def test_pages_tell_the_same(told):
    """The analysis service answers a study of tiers with the sentences and tables of its report."""
    import httpx

    from analysis.tiers_report import page_tables
    from services.analysis.app import application
    from services.analysis.config import AnalysisConfig, checked
    from services.analysis.service import Analysis

    found = answer(told[0] / "results", runs_as)
    config = checked(AnalysisConfig(results=(told[0] / "results",), patience_s=240.0))
    transport = httpx.ASGITransport(application(Analysis(config)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=300) as client:
        shown = (await client.get("/api/tiers/results/answer")).json()
        assert shown["sentences"] == found.sentences
        assert [one["rows"] for one in shown["tables"]] == [one.shown() for one in page_tables(found)]
        text = (await client.get("/tiers/results")).text
        assert "How many tiers pay?" in text
        assert text.count("<caption>") == 1 + len(shown["tables"])
