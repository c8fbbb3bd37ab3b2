"""``windtunnel cluster run``: one window on one fleet, what is told of it, and clear words for bad input."""

import json
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from schedulers.load import load
from sim.run import build
from windtunnel.scene import Place, Traffic, plan_of, scene_of, staged
from windtunnel.staging import Audience, Wanted, frame, perform

SMALL = ("--rows", "150", "--engines", "3", "--limits", "blocks=1500")
SCHEDULER = "strict-tiers+llumnix+rebalance:low=60,high=70"


@pytest.fixture(scope="module")
def ran(windtunnel, tmp_path_factory):
    """One small run with everything asked for."""
    folder = tmp_path_factory.mktemp("run")
    asked = ("--faults", "2:die:1,4:return:1", "--rho", "0.9", "--scheduler", SCHEDULER)
    files = ("--trace", folder / "t.json", "--timeline", folder / "t.html", "--out", folder / "out")
    told = windtunnel("cluster", "run", *SMALL, *asked, *files, "--json")
    assert told.code == 0, told.said
    return json.loads(told.out), folder


def test_the_run_is_told_by_tier_and_engine(ran):
    told, _ = ran
    assert [tier["name"] for tier in told["tiers"]] == ["premium", "standard", "batch"]
    assert sum(tier["arrivals"] for tier in told["tiers"]) == 120, "the middle 80 % are scored"
    assert sum(engine["finished"] for engine in told["engines"]) == 150
    assert told["deaths"] == 1
    assert told["rho"] == 0.9
    assert told["label"] == "surrogate"
    assert told["engine_s"] > 2 * told["span_s"]
    assert sum(engine["moved_in"] for engine in told["engines"]) == told["moves"]["committed"]


def test_the_tables_are_whole_and_one_run(ran, windtunnel):
    from loadgen.result import read_requests, read_runs

    told, folder = ran
    runs = read_runs(folder / "out")
    assert runs["run_id"].tolist() == [told["run_id"]]
    assert runs["scheduler"].tolist() == [told["scheduler"]]
    ((run_id, facts),) = read_requests(folder / "out")
    assert (run_id, len(facts.arrival_s)) == (told["run_id"], 150)
    assert windtunnel("results", "verify", folder / "out").code == 0


def test_trace_and_picture_are_written(ran):
    _, folder = ran
    made = json.loads((folder / "t.json").read_text())["traceEvents"]
    assert Counter(one["ph"] for one in made)["b"] == 150
    assert "dead" in (folder / "t.html").read_text()


def test_the_same_words_give_the_same_run(ran, windtunnel):
    told, _ = ran
    asked = ("--faults", "2:die:1,4:return:1", "--rho", "0.9", "--scheduler", SCHEDULER)
    again = json.loads(windtunnel("cluster", "run", *SMALL, *asked, "--json").out)
    for key in ("tiers", "engines", "moves", "engine_s", "attainment"):
        assert again[key] == told[key]


def test_tables_for_people_fit_and_nothing_is_drawn_where_nobody_watches(windtunnel):
    told = windtunnel("cluster", "run", *SMALL, "--mix", "enterprise", "--levels", "2", "--rate", "true")
    assert told.code == 0
    assert "tier-1" in told.out
    assert "engine-seconds" in told.out
    assert "█" not in told.out + told.said
    assert max(map(len, told.out.splitlines())) <= 80


def test_a_frozen_window_and_a_file(windtunnel, tmp_path):
    csv = tmp_path / "own.csv"
    rows = [f"{0.2 * k:.3f},{100 + k % 7},{20 + k % 5}" for k in range(100)]
    csv.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    told = json.loads(windtunnel("cluster", "run", csv, "--engines", "2", "--rate", "10", "--json").out)
    assert told["requests"] == 100
    assert told["requests"] / told["span_s"] == pytest.approx(10, rel=0.02)
    folder = tmp_path / "windows"
    windtunnel(
        "windows",
        "freeze",
        "--source",
        "azure_surrogate",
        "--count",
        "2",
        "--kind",
        "published",
        "--out",
        folder,
    )
    told = json.loads(windtunnel("cluster", "run", "--windows", folder, "--engines", "2", "--json").out)
    assert told["requests"] == 200


def test_engines_of_two_kinds():
    place = Place(fleet="1xllama-3.1-8b/a100,1xllama-3.1-8b/h100", mix="enterprise", levels=3)
    scene = scene_of(Traffic(rows=60), place, "strict-tiers+llumnix", (0.8, ""))
    assert scene.engines == ("0 a100-80g", "1 h100")
    assert scene.setup.reserve.shape == (2, 3)
    told = perform(scene, Wanted())
    assert sum(engine["finished"] for engine in told["engines"]) == 60


def test_an_audience_sees_frames_no_faster_than_it_can_read():
    """A clock of its own, 10 ms a reading: a frame at most every 0.08 s, and the wait is not counted as work."""
    place = Place(engines=2)
    scene = scene_of(Traffic(rows=40), place, "edf", (0.8, ""))
    clock = iter(k * 0.01 for k in range(100_000))
    audience = Audience(scene, float(scene.demand.arrival_s[-1]), 0.0, lambda: next(clock))
    rig = build(scene.demand, load("edf"), staged(plan_of("edf", place), place), jump=True, audit=False)
    drawn = []
    with audience:
        for look in range(60):
            before_s = audience.rested_s
            audience(rig, look / 60)
            drawn += [look] if audience.rested_s > before_s else []
    assert 5 <= len(drawn) <= 12
    screen = Console(file=StringIO(), width=100)
    screen.print(frame(scene, rig, 1.0))
    for words in ("KV memory", "premium", "batch", "/40 arrived"):
        assert words in screen.file.getvalue()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tiers", "gold"), "is no tier"),
        (("--tiers", "gold:ttft=1", "--mix", "free"), "two ways"),
        (("--mix", "nothing"), "unknown mix"),
        (("--source", "nowhere"), "no surrogate"),
        (("--faults", "1:die:7"), "there is no engine 7"),
        (("--fleet", "2xllama-3.1-8b/a100,1xllama-2-7b/h100"), "fleet of"),
        (("--scheduler", "nothing"), "nothing"),
        (("--rho", "0"), "rho is 0"),
        (("--rho", "1e-9"), "rho is 1e-09"),
        (("--rate", "1e-6"), "the run would last"),
        (("--faults", "99999999:die:1"), "until its last fault"),
        (("--wiring", "period_s=1e-12"), "period_s is 1e-12"),
        (("--rate", "fast"), "is no rate"),
        (("--rate", "-1"), "is no rate"),
        (("--wiring", "start=9"), "start is more than the fleet has"),
        (("--wiring", "speed=9"), "speed"),
        (("--wiring", "period_s"), "no list"),
        (("--limits", "blocks=-1"), "blocks is not in 0"),
        (("--limits", "engines=3"), "an option of its own"),
        (("--limits", "wings=2"), "wings"),
        (("--windows", "nowhere"), "nowhere"),
        (("--window", "azure"), "of which folder"),
        (("--profile", "gpt-9/x"), "no profile"),
        (("nowhere.csv",), "nowhere.csv"),
        (("nowhere.csv", "--source", "azure2023"), "two ways"),
    ],
)
def test_bad_input_exits_2(windtunnel, options, said):
    told = windtunnel("cluster", "run", "--rows", "50", *options)
    assert told.code == 2
    assert said in told.said
    assert "Fix: " in told.said


@pytest.mark.parametrize(
    ("options", "fix"), [((), "use a longer file"), (("--first-row", "1"), "smaller --first-row")]
)
def test_one_request_is_no_run(windtunnel, tmp_path, options, fix):
    (tmp_path / "one.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    told = windtunnel("cluster", "run", tmp_path / "one.csv", *options)
    assert told.code == 2
    assert "a run needs two" in told.said
    assert fix in told.said


def test_a_folder_is_no_file(windtunnel, tmp_path):
    told = windtunnel("cluster", "run", *SMALL, "--trace", tmp_path)
    assert told.code == 2
    assert "a folder stands" in told.said
