"""`windtunnel validate` around its live runs: claims that stay, conditions that decide, turns, missed pressure."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.validity import values
from loadgen.plan import read_plan
from loadgen.result import read_runs
from schedulers.errors import InputError
from sim.profile import load
from windtunnel.claims import OVERHEAD_S, REGISTERED, Wanted, claimed, sealed, seconds_of, simulated
from windtunnel.rounds import DISTURBED, _tried, in_turns, missed, set_aside, slowed
from windtunnel.shaken import DRAWS, late_s, shaken
from windtunnel.validate import listing


def test_shaken_arrivals_come_up_to_a_step_later_and_the_first_draw_as_they_are(swept, tmp_path):
    """Six draws of every cell, the first of them the sweep's own run to the last digit."""
    (tmp_path / "sim").symlink_to(swept)
    said = []
    plan = read_plan(str(swept / "plan.toml"))
    draws = shaken(plan, tmp_path, ("e2e_mean_s", "attainment:tier"), said.append)
    assert len(draws) == DRAWS
    assert {len(one) for one in draws} == {2 * 2 * 4}
    own = values(read_runs(swept, sketches=False), "e2e_mean_s")
    first, other = values(draws[0], "e2e_mean_s"), values(draws[1], "e2e_mean_s")
    assert all(value == pytest.approx(own[cell], rel=1e-12) for cell, value in first.items())
    assert any(value != other[cell] for cell, value in first.items())
    late = late_s(1000, 3, 0.2)
    assert 0.0 <= late.min() < 0.01
    assert 0.19 < late.max() <= 0.2
    assert not late_s(5, 0, 0.2).any()
    shaken(plan, tmp_path, ("e2e_mean_s",), said.append)
    assert len(said) == 1, "kept, not made again"
    assert "ttft_p95_s" in shaken(plan, tmp_path, ("ttft_p95_s",), said.append)[0], "unless of another metric"


WANTED = Wanted("e2e_mean_s", 2, 3, 600.0, frozenset())


@pytest.fixture
def study(swept, tmp_path):
    """A study's folder whose simulated runs are done, and its plan."""
    (tmp_path / "sim").symlink_to(swept)
    return read_plan(str(swept / "plan.toml")), tmp_path


def test_claims_are_registered_once_and_kept(study):
    plan, out = study
    first = claimed(plan, out, WANTED, 1.0)
    text = (out / REGISTERED).read_text()
    assert len(first.conditions) == 2
    assert {one["kind"] for one in first.told["pairs"]} <= {"reversal", "stable", "borderline"}
    assert first.told["candidates"] == 8
    assert first.seconds == pytest.approx(sum(one["seconds"] for one in first.told["conditions"]))
    assert claimed(plan, out, WANTED._replace(metric="", conditions=5), 1.0) == first
    assert (out / REGISTERED).read_text() == text


def test_another_metric_or_another_simulator_is_refused(study):
    plan, out = study
    told = claimed(plan, out, WANTED, 1.0).told
    with pytest.raises(InputError, match="claims were made by e2e_mean_s"):
        claimed(plan, out, WANTED._replace(metric="ttft_mean_s"), 1.0)
    (out / REGISTERED).write_text(json.dumps(sealed(told | {"simulated_sha256": "0" * 64})))
    with pytest.raises(InputError, match="something else than when claims were made"):
        claimed(plan, out, WANTED, 1.0)
    (out / REGISTERED).unlink()
    (out / "live").mkdir()
    with pytest.raises(InputError, match="live runs and no claims"):
        claimed(plan, out, WANTED, 1.0)


def test_claims_that_were_damaged_or_changed_are_refused(study):
    plan, out = study
    told = claimed(plan, out, WANTED, 1.0).told
    turned = told | {"conditions": told["conditions"][:1]}
    for text in ("", "{", "[]", "{}", json.dumps(turned)):
        (out / REGISTERED).write_text(text)
        with pytest.raises(InputError, match="not as they were registered"):
            claimed(plan, out, WANTED, 1.0)


def test_a_metric_that_tells_nobody_apart_is_refused_with_those_that_do(study):
    """Nobody is rejected in these runs: before anything runs live it is said that this decides nothing."""
    plan, out = study
    with pytest.raises(InputError, match="apart by rejected_share nowhere") as told:
        claimed(plan, out, WANTED._replace(metric="rejected_share"), 1.0)
    assert "e2e_mean_s" in told.value.fix
    assert not (out / REGISTERED).exists()


def test_a_run_takes_as_long_as_the_simulators_at_the_speed(study):
    _, out = study
    runs = simulated(out, frozenset())
    slow, fast = seconds_of(out, runs, 1.0), seconds_of(out, runs, 4.0)
    assert min(slow.values()) > 2 * OVERHEAD_S
    for cell, took_s in slow.items():
        assert took_s - OVERHEAD_S == pytest.approx(4.0 * (fast[cell] - OVERHEAD_S))


def test_the_listing_says_what_runs_and_how_long(study):
    plan, out = study
    claims = claimed(plan, out, WANTED, 1.0)
    text = listing(claims, WANTED)
    assert f"{2 * len(plan.schedulers) * 3} live runs" in text
    assert f"about {claims.seconds * 3 / 60.0:.0f} min" in text


def test_schedulers_and_conditions_take_turns():
    """No scheduler is always first, no condition always last, and each repeat has every run once."""

    def cell(window, spec):
        region, line = SimpleNamespace(name="1"), SimpleNamespace(id=window)
        return SimpleNamespace(window=SimpleNamespace(line=line), region=region, spec=spec)

    every = [cell(window, spec) for window in "uv" for spec in "abc"]
    orders = [[(one.window.line.id + one.spec) for one in in_turns(every, turn)] for turn in range(3)]
    assert orders[0] == ["ua", "ub", "uc", "va", "vb", "vc"]
    assert orders[1] == ["vb", "vc", "va", "ub", "uc", "ua"]
    assert {order[0][1] for order in orders} == set("abc")
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


@pytest.mark.parametrize(
    ("slowness", "usual", "so"),
    [(None, 1.0, False), (1.05, 1.0, False), (1.2, 1.0, True), (1.2, 1.25, False), (0.8, 1.0, True)],
)
def test_pressure_is_missed_by_steps_of_another_length(slowness, usual, so):
    assert missed(slowness, usual) == so


def test_a_disturbed_run_leaves_the_results_and_is_kept_beside_them(tmp_path):
    job = SimpleNamespace(out=tmp_path)
    live = SimpleNamespace(
        task=SimpleNamespace(job=job),
        window=SimpleNamespace(line=SimpleNamespace(id="w")),
        region=SimpleNamespace(name="1.2"),
    )
    names = ("runs/w-1.2-abc.parquet", "requests/w-1.2-abc.parquet", "replays/abc.json")
    for name in (*names, "runs/w-1.2-other.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    set_aside(live, "abc")
    assert all((tmp_path / DISTURBED / name).exists() and not (tmp_path / name).exists() for name in names)
    assert (tmp_path / "runs/w-1.2-other.parquet").exists()


@pytest.mark.parametrize("slow", [[], [1.5]], ids=["at once", "in the run made again"])
def test_a_study_stops_when_an_engine_dies(tmp_path, monkeypatch, slow):
    """Half a fleet is another fleet: the run does not stay among the results, and none follows it."""
    (tmp_path / "runs").mkdir()
    runs = iter([(slow[0] if slow else None, 0), (None, 1)])

    def one_run(live, watch):
        slowness, gone = next(runs)
        (tmp_path / "runs" / "w-1-abc.parquet").touch()
        told = {"slowness": slowness, "engines_gone": gone, "faults": []}
        return SimpleNamespace(run_id="abc", kept_in="runs", summary=told)

    monkeypatch.setattr("windtunnel.replay.one_run", one_run)
    live = SimpleNamespace(
        spec="edf", region=SimpleNamespace(name="1"), window=SimpleNamespace(line=SimpleNamespace(id="w")),
        task=SimpleNamespace(job=SimpleNamespace(out=tmp_path)),
    )  # fmt: skip
    if not slow:
        assert _tried(live, 1.0, 2, print)[1] == 2, "simulated workers don't say how slow they were"
    with pytest.raises(InputError, match="an engine died"):
        _tried(live, 1.0, 2, print)
    assert not any((tmp_path / "runs").iterdir())
    assert any((tmp_path / DISTURBED / "runs").iterdir())


def test_the_profile_of_raw_engines_is_as_slow_as_a_pilot_found_them(swept, tmp_path):
    plan = read_plan(str(swept / "plan.toml"))
    changed = slowed(plan, 1.25, tmp_path)
    np.testing.assert_allclose(
        load(changed.fleet.profile).costs, 1.25 * load(plan.fleet.profile).costs, rtol=1e-6
    )
    assert any("1.2500 times" in note for note in load(changed.fleet.profile).notes)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_on_the_testbed_from_claims_to_the_page(windtunnel, windows, tmp_path):
    """Two schedulers on simulated workers: registered, replayed twice, judged; the same command repeats nothing."""
    place, out = tmp_path / "testbed", tmp_path / "study"
    named = ("--scheduler", "fcfs-chunked+least-requests", "--scheduler", "lifo+least-requests")
    asked = (
        windows,
        "--out",
        out,
        "--dir",
        place,
        "--conditions",
        1,
        "--repeats",
        2,
        "--lag-p99-ms",
        2000,
        *named,
    )
    up = windtunnel("up", "--workers", 1, "--speed", 10, "--dir", place)
    assert up.code == 0, up.said
    try:
        dry = windtunnel("validate", *asked, "--dry-run")
        assert dry.code == 0, dry.said
        assert "4 live runs" in dry.out
        assert not (out / "live").exists()
        ran = windtunnel("validate", *asked)
        assert ran.code in (0, 1), ran.said
        assert "run 4 of 4" in ran.said
        again = windtunnel("validate", *asked, "--json")
        assert again.code == ran.code
        assert "4 of 4 runs are stored already" in again.said
    finally:
        windtunnel("down", "--dir", place, "--now")
    told = json.loads(again.out)
    assert (told["verdict"]["schedulers"], told["verdict"]["repeats"], told["driver"]) == (2, 2, "live")
    assert {"signed_p50", "p90", "p90_s", "p90_steps"} <= set(told["errors"]["simulated"]["ttft"])
    assert {"p50", "p90"} <= set(told["errors"]["repeats"]["e2e"])
    assert windtunnel("report", out).code == 0
    page = (out / "report.html").read_text()
    assert told["verdict"]["words"].replace("'", "&#39;") in page
