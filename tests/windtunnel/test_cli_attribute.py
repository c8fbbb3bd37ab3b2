"""`windtunnel attribute` on a small sweep: what it prints, writes, keeps and refuses."""

import json

import pytest

from loadgen.candidate import Recipe
from loadgen.manifest import freeze
from tests.windtunnel.conftest import PLAN
from windtunnel.windows import generated

SOURCES = ("azure_surrogate", "burstgpt_surrogate")


@pytest.fixture(scope="module")
def swept(windtunnel, tmp_path_factory):
    """Four windows of either source, swept in one region; attributions are added to it."""
    folder = tmp_path_factory.mktemp("swept")
    for source in SOURCES:
        freeze(generated(source, 4, "published", 1), folder / "windows", Recipe("published", 4, 1))
    plan = PLAN.replace("[0.7, 1.1]", "[1.1]").replace('"sjf-pred"', '"sjf-pred", "edf"')
    (folder / "plan.toml").write_text(plan.replace('"requests"', '"sketch"'))
    ran = windtunnel(
        "sweep", folder / "plan.toml", "--windows", folder / "windows", "--out", folder / "out", "--jobs", 1
    )
    assert ran.code == 0, ran.said
    return folder / "out"


def test_an_attribution_is_printed_written_and_not_run_twice(windtunnel, swept):
    ask = ("attribute", swept, "--sources", *SOURCES, "--region", 1.1, "--jobs", 1)
    ran = windtunnel(*ask, "--json")
    assert ran.code == 0, ran.said
    told = json.loads(ran.out)
    assert told["sources"] == list(SOURCES)
    assert told["axes"] == ["arrivals", "lengths", "slo"]
    assert told["labels"] == dict.fromkeys(SOURCES, "surrogate")
    assert (told["windows"], told["runs"], told["runs_now"]) == (4, 8 * 4 * 3, 8 * 4 * 3)
    assert sum(one["value"] for one in told["shares"]) == pytest.approx(told["distance"]["value"], abs=1e-12)
    assert told["unlike_the_sweep"] == 0
    assert {tuple(one["from_b"]) for one in told["hybrids"]} >= {(), ("slo",), ("arrivals", "lengths", "slo")}
    written = json.loads((swept / "attribution.json").read_text())
    assert written == {"schema": 1, "attributions": [told]}

    again = windtunnel(*ask)
    assert again.code == 0, again.said
    assert "96 runs, 0 now" in again.out
    for axis in told["axes"]:
        assert axis in again.out
    assert len(json.loads((swept / "attribution.json").read_text())["attributions"]) == 1


@pytest.mark.slow
def test_with_absolute_targets_the_slo_axis_has_no_part(windtunnel, swept):
    ran = windtunnel(
        "attribute", swept, "--sources", *SOURCES, "--region", 1.1, "--slo", "absolute", "--json", "--jobs", 1
    )
    told = json.loads(ran.out)
    slo = next(one for one in told["shares"] if one["axis"] == "slo")
    assert (slo["value"], slo["low"], slo["high"]) == (0.0, 0.0, 0.0)
    assert told["slo"]["same"]
    assert told["runs"] == 4 * 4 * 3


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--sources", "azure_surrogate", "nobody"), "no windows of nobody"),
        (("--sources", *SOURCES, "--windows", 9), "9 windows were asked for"),
        (("--sources", *SOURCES, "--windows", 3), "3 pairs of windows"),
        (("--sources", *SOURCES, "--region", 99), "rho 99 is no pressure"),
        (("--sources", *SOURCES, "--slo", "unheard-of"), "no such plan"),
        (("--sources", *SOURCES, "--metric", "beauty"), "beauty"),
    ],
)
def test_bad_questions_are_answered_with_the_remedy(windtunnel, swept, options, what):
    if "--region" not in options:
        options = (*options, "--region", 1.1)
    ran = windtunnel("attribute", swept, *options, "--jobs", 1)
    assert ran.code == 2
    assert what in ran.said
    assert "Fix:" in ran.said


def test_windows_that_were_not_swept_are_refused(windtunnel, swept, windows):
    ran = windtunnel("attribute", swept, "--sources", *SOURCES, "--frozen", windows)
    assert ran.code == 2
    assert "not those of the sweep" in ran.said
