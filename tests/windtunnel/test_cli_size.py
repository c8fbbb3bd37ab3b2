"""``windtunnel size``: traffic made for so many engines sizes to so many, and clear words for bad input."""

import json

import numpy as np
import pytest

from windtunnel.scene import Place, Traffic, plan_of, staged, window_of

SCHEDULER = "fcfs-chunked+least-requests"
ALL = "all:ttft=3,tpot=1,attain=0.95"
PROMPT, OUTPUT = 500, 50


@pytest.fixture(scope="module")
def capacity_per_s():
    """What one engine completes a second of the requests of ``steady``."""
    from loadgen.demand import Demand
    from schedulers.load import load
    from sim.calibrate import completions_per_s, saturate
    from sim.run import simulate

    zeros = np.zeros(600, np.int64)
    demand = Demand(
        np.zeros(600), zeros + PROMPT, zeros + OUTPUT, np.full(600, 50.0), zeros, zeros, zeros - 1,
        (np.arange(600) + 0.5) / 600,
    )  # fmt: skip
    setup = staged(plan_of(SCHEDULER, Place(engines=1)), Place(engines=1))
    return completions_per_s(simulate(saturate(demand), load("fcfs-chunked"), setup).facts.finished_s)


def steady(path, rate_per_s: float, count: int = 2400):
    rows = [f"{k / rate_per_s:.6f},{PROMPT},{OUTPUT}" for k in range(count)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("engines", [1, 3])
def test_traffic_made_for_n_engines_sizes_to_n(windtunnel, tmp_path, capacity_per_s, engines):
    """A rate of n - 0.3 engines' capacity, evenly spaced: n serve it with room, n - 1 fall behind for ever."""
    file = steady(tmp_path / "own.csv", (engines - 0.3) * capacity_per_s)
    ran = windtunnel(
        "size", file, "--tiers", ALL, "--scheduler", SCHEDULER, "--windows", "2", "--scaler", "none", "--json"
    )
    assert ran.code == 0, ran.said
    told = json.loads(ran.out)
    assert told["engines"] == engines
    assert engines - 1 < told["fraction"] <= engines
    fleets = {row["engines"]: row for row in told["fleets"]}
    assert fleets[engines]["attained"]["all"] > 0.95
    if engines > 1:
        assert fleets[engines - 1]["attained"]["all"] < 0.9
    assert fleets[engines]["engine_hours_an_hour"] == pytest.approx(engines)


def test_twice_the_rate_takes_twice_the_engines(windtunnel, tmp_path, capacity_per_s):
    file = steady(tmp_path / "own.csv", 0.8 * capacity_per_s)
    ran = windtunnel(
        "size", file, "--tiers", ALL, "--scheduler", SCHEDULER, "--windows", "2", "--rate-scale", "4", "--price", "2",
    )  # fmt: skip
    assert ran.code == 0, ran.said
    assert "4 engines of llama" in ran.out
    assert "8.00" in ran.out, "four engines at 2 an hour"
    assert "Autoscaling (scale-freeness)" in ran.out
    assert "windows for an interval" in ran.out


def test_too_few_engines_exit_1(windtunnel, tmp_path, capacity_per_s):
    file = steady(tmp_path / "own.csv", 5 * capacity_per_s)
    ran = windtunnel(
        "size", file, "--tiers", ALL, "--scheduler", SCHEDULER, "--windows", "1", "--max-engines", "2"
    )
    assert ran.code == 1
    assert "Not even 2 engines" in ran.out


def test_windows_cover_the_file_evenly(tmp_path):
    from loadgen.trace import read
    from windtunnel.size import ROWS_MAX, spread

    trace = read(steady(tmp_path / "own.csv", 10.0))
    cuts = spread(trace, 4, 0)
    assert [(window.line.first_row, len(window.arrival_s)) for window in cuts] == [
        (k * 600, 600) for k in range(4)
    ]
    assert len(spread(trace, 100, 0)) == 12, "at least 200 requests each"
    assert ROWS_MAX >= 2400
    assert len(window_of(Traffic(tmp_path / "own.csv", rows=70, first_row=5)).arrival_s) == 70


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tiers", "gold"), "is no tier"),
        (("--profile", "gpt-9/x"), "no profile"),
        (("--scheduler", "nothing"), "nothing"),
        (("--rate-scale", "0"), "times the rate"),
        (("--price", "inf"), "inf an hour"),
        (("--wiring", "speed=1"), "speed"),
        (("--scaler", "nothing"), "nothing"),
    ],
)
def test_bad_input_exits_2(windtunnel, tmp_path, options, said):
    ran = windtunnel("size", steady(tmp_path / "own.csv", 5.0, 300), *options)
    assert ran.code == 2
    assert said in ran.said


@pytest.mark.parametrize("text", ["arrival_s,prompt_tokens,output_tokens\n1,5,5\n1,5,5\n", "a,b\n1,2\n"])
def test_files_that_are_no_traffic(windtunnel, tmp_path, text):
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert windtunnel("size", path).code == 2


@pytest.mark.parametrize("wiring", ["start=2", "least=3"])
def test_what_sizing_varies_is_not_for_the_wiring(windtunnel, tmp_path, wiring):
    """Said before the file is read."""
    ran = windtunnel("size", tmp_path / "nowhere.csv", "--wiring", wiring, "--max-engines", "8")
    assert ran.code == 2
    assert "leave out start and least" in ran.said
