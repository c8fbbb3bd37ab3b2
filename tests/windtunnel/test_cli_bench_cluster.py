"""``windtunnel bench cluster``: what is timed beside what, and what is told of it; never how long it took."""

import json
from math import log

import numpy as np
import pytest

from windtunnel.bench_cluster import growth, tiered_job
from windtunnel.bench_job import fixed_job


@pytest.fixture(scope="module")
def told(windtunnel):
    ran = windtunnel(
        "bench", "cluster", "--requests", "400", "--runs", "1", "--engines", "2", "--engines", "4",
        "--scheduler", "edf+infaas", "--json",
    )  # fmt: skip
    assert ran.code == 0
    return json.loads(ran.out)


def test_each_case_is_timed_on_each_size_beside_one_engine(told):
    first, *rows = told["rows"]
    assert (first["case"], first["engines"]) == ("one engine", 1)
    sizes = {}
    for row in rows:
        sizes.setdefault(row["case"], []).append(row["engines"])
        assert row["per_s"] * row["us_per_request"] == pytest.approx(1e6)
    assert set(sizes) == {"plain", "moves", "moves, reports", "little memory", "edf+infaas"}
    assert all(found == [2, 4] for found in sizes.values())


def test_moves_happen_where_they_are_timed(told):
    moves = {row["case"]: row["moves"] for row in told["rows"] if row["engines"] == 4}
    assert moves["plain"] == moves["edf+infaas"] == 0
    assert moves["moves"] > 0
    assert moves["moves, reports"] > 0


def test_a_larger_cluster_meets_the_same_load_an_engine():
    (one, _), (four, place) = fixed_job(200), tiered_job(200, 4)
    assert place.engines == 4
    np.testing.assert_allclose(one.arrival_s, 4 * four.arrival_s)
    assert np.array_equal(one.prompt_tokens, four.prompt_tokens)
    assert set(four.tier) == {0, 1, 2, 3}


def test_growth_is_the_exponent_of_the_cost():
    rows = [
        {"case": "a", "engines": engines, "us_per_request": cost}
        for engines, cost in ((4, 2.0), (16, 3.0), (64, 8.0))
    ]
    assert growth([*rows, {"case": "b", "engines": 1, "us_per_request": 1.0}]) == {"a": log(4) / log(16)}
