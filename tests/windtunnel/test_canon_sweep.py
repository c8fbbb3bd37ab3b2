"""The canon on all three sources in all six regions: no two alike, none flat in load, no prompt left over."""

import json

import pytest

from loadgen.result import read_runs
from windtunnel.policies import CANON

SOURCES = ("azure_surrogate", "burstgpt_surrogate", "bailian_surrogate")
WINDOWS = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def canon(windtunnel, tmp_path_factory):
    """What `windtunnel sweep canon` leaves on two windows of each source: its ranked runs and its folder."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from windtunnel.traffic import generated

    windows, out = tmp_path_factory.mktemp("frozen"), tmp_path_factory.mktemp("swept") / "out"
    recipe = Recipe(count=WINDOWS, seed=1)
    for source in SOURCES:
        freeze(generated(source, WINDOWS, recipe.kind, 1), windows, recipe)
    ran = windtunnel("sweep", "canon", "--windows", windows, "--out", out, "--jobs", 2, "--json")
    assert ran.code == 0, ran.said
    assert json.loads(ran.out)["failures"] == []
    runs = read_runs(out, sketches=False)
    return runs[~runs["control"]], out


def test_every_run_is_there(canon):
    runs, _ = canon
    assert set(runs["scheduler"]) == set(CANON)
    assert set(runs["source"]) == set(SOURCES)
    assert len(runs) == len(CANON) * len(SOURCES) * 6 * WINDOWS


def test_no_two_give_the_same_bytes(canon, windtunnel):
    _, out = canon
    assert json.loads(windtunnel("rank", out, "--json").out)["merged_duplicates"] == {}


@pytest.mark.parametrize("name", CANON)
def test_attainment_falls_as_load_rises(canon, name):
    runs, _ = canon
    own = runs[runs["scheduler"] == name]
    for column in ("attainment_tier", "attainment_S2"):
        means = own.groupby(["source", "rho"])[column].mean().unstack()
        assert (means[means.columns.min()] > means[means.columns.max()]).all(), means


def test_every_prompt_ends(canon):
    """Finished or rejected with a reason: nobody is lost, and only slo-guard turns anybody away."""
    runs, _ = canon
    assert (runs["finished"] + runs["rejected"] == runs["arrivals"]).all()
    assert set(runs.loc[runs["rejected"] > 0, "scheduler"]) <= {"slo-guard"}
