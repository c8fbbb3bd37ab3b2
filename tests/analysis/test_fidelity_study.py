"""A fidelity study brought to its answer: on a made-up one whose answer is known, and the page that shows it."""

import json
import re

import altair as alt
import pytest
import vl_convert

from analysis.charts import still
from analysis.fidelity_figures import figures
from analysis.fidelity_study import judged, read_study, write
from analysis.fidelity_words import sentences, tables
from analysis.report import render
from loadgen.result import InputError
from tests.analysis.fidelity_world import NAMES, WINDOWS, make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study in which the simulator is right."""
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def told(study):
    return judged(study, 3, "paced")


def test_a_simulator_that_is_right_is_said_to_be(told):
    assert told["verdict"]["words"].startswith("The simulator's order holds as far")
    assert (told["verdict"]["tau"], told["verdict"]["clear"], told["verdict"]["same"]) == (1.0, 6, 6)
    assert [one["tau"] for one in told["conditions"]] == [1.0, 1.0]
    (turned,) = [
        one for one in told["pairs"] if {one["pair"]["first"], one["pair"]["second"]} == set(NAMES[:2])
    ]
    assert (turned["pair"]["kind"], turned["held"], turned["says"]) == ("reversal", 2, "held")
    places = {
        row["scheduler"]: (row["rank_simulated"], row["rank_live"])
        for row in told["conditions"][0]["schedulers"]
    }
    assert places == {NAMES[0]: (1, 1), NAMES[1]: (3, 3), NAMES[2]: (2, 2)}
    assert any("3 reversals that were predicted 3 occurred" in one for one in sentences(told))


def test_an_engine_that_says_the_opposite_is_heard(tmp_path):
    told = judged(make_study(tmp_path / "turned", turned=True), 3, "vllm")
    assert "does not hold" in told["verdict"]["words"]
    assert (told["verdict"]["tau"], told["verdict"]["same"]) == (-1.0, 0)
    assert {one["says"] for one in told["pairs"]} == {"broken"}


def test_errors_stand_in_shares_seconds_and_steps_beside_those_between_repeats(told):
    """Everybody is 25 ms late, half a step of 50 ms; a TTFT of 0.2 s is off by an eighth, repeats agree exactly."""
    ttft = told["errors"]["simulated"]["ttft"]
    assert ttft["p50"] == ttft["signed_p50"] == pytest.approx(0.125)
    assert ttft["p50_s"] == pytest.approx(0.025)
    assert ttft["p90_steps"] == pytest.approx(0.5)
    assert told["errors"]["simulated"]["tpot"]["p50"] == pytest.approx(0.0, abs=1e-9)
    assert told["errors"]["repeats"]["e2e"]["p90"] == 0.0
    assert told["errors"]["same_engine"] == {"simulated": pytest.approx(1 / 3), "repeats": 0.0}
    assert told["attainment"]["size_max"] < 0.02


def test_a_run_whose_engines_were_slow_missed_its_pressure(tmp_path):
    """Steps that took 1.3 times as long pushed 1.3 times as hard; where that was expected nothing is flagged."""
    folder = make_study(tmp_path / "slow", slowness=1.3)
    told = judged(folder, 3, "paced")
    missed = [one for one in told["pressure"] if one["missed"]]
    assert {one["repeat"] for one in missed} == {3}
    assert {round(one["live"] / one["simulated"], 6) for one in missed} == {1.3}
    assert told["drift"][2]["slowness"] == pytest.approx(1.3)
    assert any("6 of 18 live runs missed" in one for one in sentences(told))
    known = judged(folder, 3, "vllm", 1.3)
    assert {one["repeat"] for one in known["pressure"] if one["missed"]} == {1, 2}


def test_noise_as_large_as_the_effect_gets_no_verdict(tmp_path):
    told = judged(make_study(tmp_path / "noisy", noise=1.0), 3, "vllm")
    assert told["verdict"]["words"].startswith("No verdict")
    assert "held" not in {one["says"] for one in told["pairs"]}


def test_a_run_that_is_missing_is_said_and_its_scheduler_left_out_there(tmp_path):
    folder = make_study(tmp_path / "gap")
    shard = sorted((folder / "live" / "repeat-2" / "runs").iterdir())[0]
    shard.unlink()
    told = judged(folder, 3, "paced")
    assert sorted(len(one["schedulers"]) for one in told["conditions"]) == [2, 3]
    assert any("1 of 18 live runs are missing" in one for one in sentences(told))


def test_one_repeat_is_judged_and_gets_no_verdict(study):
    told = judged(study, 1, "paced")
    assert "without repeats" in told["verdict"]["words"]
    json.dumps(told, allow_nan=False)
    assert all(isinstance(cell, str) for one in tables(told).values() for row in one.shown() for cell in row)


def test_the_answer_is_written_and_read_again(study, told, tmp_path):
    assert read_study(tmp_path) is None
    write(told, tmp_path)
    assert read_study(tmp_path) == json.loads(json.dumps(told))
    text = (tmp_path / "fidelity.md").read_text()
    assert text.splitlines()[2] == f"**{told['verdict']['words']}**"
    assert "| reversal | edf | lifo |" in text
    (tmp_path / "fidelity.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        read_study(tmp_path)
    with pytest.raises(InputError, match="no claims"):
        judged(tmp_path, 3, "paced")


def test_the_page_shows_it_and_says_so_where_nobody_asked(found, usual, stats, told):
    text = render(found, usual, stats, told)
    assert told["verdict"]["words"].replace("'", "&#39;") in text
    for window in WINDOWS:
        assert f'data-chart="fidelity-{window}-1-2"' in text
    assert "Claims registered before anything ran live" in text
    without = render(found, usual, stats)
    assert "nobody held this against live runs" in without
    assert "fidelity-made" not in without


def test_its_figures_are_valid_and_hold_every_live_run(told):
    (one, other) = figures(told)
    rows = one.spec["data"]["values"]
    assert [row["what"] for row in rows].count("live run") == 9
    assert [row["what"] for row in rows].count("arrivals shaken") == 6
    assert "edf 0.8 simulated" in one.told
    assert one.name != other.name
    alt.Chart.from_dict(one.spec, validate=True)
    drawn = vl_convert.vegalite_to_svg(still(one))
    assert "NaN" not in drawn
    assert "var(" not in drawn
    assert drawn.count("<path") >= 12
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(", json.dumps(one.spec, allow_nan=False))


def test_a_latency_is_drawn_on_a_scale_of_ratios(told):
    drawn = vl_convert.vegalite_to_svg(still(figures({**told, "metric": "e2e_mean_s"})[0]))
    assert "NaN" not in drawn
