"""`windtunnel hunt`: what it prints and writes, the example replayed by a sweep, and how it ends."""

import json
from pathlib import Path

import pytest

from loadgen.manifest import read_manifest
from loadgen.result import read_runs
from loadgen.window import read_window

ALONE = f"{Path(__file__).parent.parent / 'sim' / 'alone.py'}:POLICY"
"""Turns away whoever would join somebody: it loses as soon as requests overlap."""


@pytest.fixture(scope="module")
def ask(windows, tmp_path_factory):
    """Options of a short hunt on small windows."""
    plan = tmp_path_factory.mktemp("plan") / "plan.toml"
    tier = '[[tiers]]\nname = "a"\nttft_s = 20.0\ntpot_s = 1.0\nshare = 1.0\n'
    fleet = "[fleet]\nbudget_max = 512\nsequences_max = 4\n"
    plan.write_text(f'name = "small"\nschedulers = ["fcfs-chunked"]\n{tier}{fleet}')
    return ("--plan", plan, "--windows", windows, "--knob", "rate", "--budget", 10, "--region", 0.5)


def test_the_example_is_frozen_and_a_sweep_shows_it_again(windtunnel, ask, tmp_path):
    out = tmp_path / "hunt"
    ran = windtunnel("hunt", ALONE, "fcfs-chunked", *ask, "--out", out, "--json")
    assert ran.code == 0, ran.said
    told = json.loads(ran.out)
    assert told == json.loads((out / "hunt.json").read_text())
    assert (told["found"], told["a"], told["b"]) == (True, "alone", "fcfs-chunked")
    assert told["margin"] == 0.02
    small = told["smallest"]
    assert small["d"] > 0.02
    assert small["fresh"]["p"] <= 0.01
    (line,) = read_manifest(out / "windows")
    assert (line.id, line.label, line.rows) == (small["window"], "hunted", small["rows"])
    assert len(read_window(out / "windows", line).arrival_s) < 200

    again = windtunnel("sweep", out / "plan.toml", "--out", out / "results", "--jobs", 1)
    assert again.code == 0, again.said
    met = read_runs(out / "results").set_index("scheduler")["attainment_tier"]
    assert met["fcfs-chunked"] - met["alone"] == small["d"]


def test_nothing_found_says_how_hard_it_looked_and_exits_with_one(windtunnel, ask, tmp_path):
    ran = windtunnel("hunt", "fcfs-chunked", ALONE, *ask, "--out", tmp_path)
    assert ran.code == 1
    assert "Not found: nothing was seen" in ran.out
    assert "Looked at 10 changed workloads" in ran.out
    assert not (tmp_path / "plan.toml").exists()
    told = json.loads((tmp_path / "hunt.json").read_text())
    assert (told["found"], told["smallest"], told["edge"]) == (False, None, None)
    assert told["looked"]["evaluations"] == 10
    assert told["looked"]["largest_d"] <= 0.02
    assert told["looked"]["space"] == {"rate": pytest.approx([0.3 / 0.5, 1.6 / 0.5])}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--window", "nobody"), "no window is called nobody"),
        (("--region", 5), "rho 5 is no place to start from"),
        (("--knob", "weather"), "no knob 'weather'"),
        (("--metric", "beauty"), "beauty"),
    ],
)
def test_bad_hunts_are_refused_with_the_remedy(windtunnel, ask, options, what):
    ran = windtunnel("hunt", "fcfs-chunked", "sjf-pred", *ask, *options)
    assert ran.code == 2
    assert what in ran.said
    assert "Fix:" in ran.said


def test_a_hunt_needs_windows(windtunnel):
    ran = windtunnel("hunt", "fcfs-chunked", "sjf-pred")
    assert ran.code == 2
    assert "no windows to change" in ran.said
