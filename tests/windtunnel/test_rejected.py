"""Prompts that no engine of the fleet can hold: rejected, counted as missed, and no part of capacity or pressure."""

import json

import numpy as np
import pytest

from loadgen.result import read_requests, read_runs

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture(scope="module")
def ran(windtunnel, tmp_path_factory):
    """The same traffic twice, swept: as it is, and with a prompt of 200,000 tokens after each two rows."""
    folder, draw = tmp_path_factory.mktemp("long"), np.random.default_rng(3)
    plan = folder / "plan.toml"
    plan.write_text(
        'name = "long"\nschedulers = ["fcfs-chunked", "sjf-pred"]\ncontrols = []\nregions = [0.95, 1.4]\n'
        'keep = "requests"\n[[tiers]]\nname = "server"\nttft_s = 2.0\ntpot_s = 0.1\nshare = 1.0\n'
    )
    rows = [(f"{number:.1f}", draw.integers(100, 900), draw.integers(20, 200)) for number in range(300)]
    found = {}
    for name in ("plain", "long"):
        text = HEAD
        for place, (arrival_s, prompt, output) in enumerate(rows):
            text += f"{arrival_s},{prompt},{output}\n"
            if name == "long" and place % 2:
                text += f"{arrival_s}1,200000,50\n"
        (folder / f"{name}.csv").write_text(text)
        windows, out = folder / f"w-{name}", folder / name
        source = ("--source", "own", "--from", folder / f"{name}.csv", "--kind", "published", "--count", 1)
        assert windtunnel("windows", "freeze", *source, "--out", windows).code == 0
        swept = windtunnel("sweep", plan, "--windows", windows, "--out", out, "--jobs", 1)
        assert swept.code == 0, swept.said
        found[name] = out
    return found


def test_results_keep_every_law(ran, windtunnel):
    for out in ran.values():
        told = windtunnel("results", "verify", out, "--json")
        assert told.code == 0, told.out
    runs = read_runs(ran["long"])
    assert (runs["rejected"] > 50).all()
    for _, facts in read_requests(ran["long"]):
        assert np.isnan(facts.finished_s[facts.outcome == 1]).all()
        assert (facts.outcome == 1).sum() == (facts.prompt_tokens == 200_000).sum()


def test_what_is_rejected_is_no_capacity_and_no_pressure(ran):
    lines = {name: json.loads((out / "calibration.jsonl").read_text()) for name, out in ran.items()}
    assert lines["long"]["served"] < lines["long"]["rows"]
    runs = read_runs(ran["long"])
    assert lines["long"]["served"] == 200 - runs["rejected"].iloc[0]
    # the requests that fit are of the same kind, so the fleet completes about as many a second
    assert lines["long"]["capacity_per_s"] == pytest.approx(lines["plain"]["capacity_per_s"], rel=0.15)
    offered = lines["long"]["served"] / (
        lines["long"]["span_s"] * runs["stretch"] * lines["long"]["capacity_per_s"]
    )
    assert np.allclose(offered, runs["rho"])
    # published windows score every row, so the scored part's own pressure is about the aim
    assert np.allclose(runs["rho_reached"], runs["rho"], rtol=0.02)
