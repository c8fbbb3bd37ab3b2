"""Judging whether a simulator's order holds live: on made-up values whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from analysis.validity import (
    BORDERLINE,
    REVERSAL,
    STABLE,
    Pair,
    as_table,
    judge,
    register,
    sentence,
    values,
    verdict,
)

NAMES = ("a", "b", "c", "d")
HERE, THERE = ("w1", "0.7"), ("w1", "1.2")


def of(*by_condition):
    """Values of the four schedulers in one or two conditions."""
    return {
        (condition, name): float(value)
        for condition, row in zip((HERE, THERE), by_condition, strict=False)
        for name, value in zip(NAMES, row, strict=True)
    }


def repeats(truth, noise, count=3, seed=1):
    draw = np.random.default_rng(seed)
    return [{key: value + draw.normal(0.0, noise) for key, value in truth.items()} for _ in range(count)]


def test_the_order_holds_where_repeats_are_quiet_and_the_order_is_the_same():
    simulated = of((1, 2, 3, 4), (4, 3, 2, 1))
    told = verdict(simulated, repeats(simulated, 0.01), "score")
    assert told.tau == told.ceiling == 1.0
    assert told.words.startswith("The simulator's order holds as far")
    assert (told.schedulers, told.conditions, told.repeats) == (4, 2, 3)


def test_an_order_turned_round_does_not_hold():
    told = verdict(of((1, 2, 3, 4)), repeats(of((4, 3, 2, 1)), 0.01), "score")
    assert told.tau == -1.0
    assert "does not hold" in told.words


def test_there_is_no_verdict_where_repeats_differ_as_much_as_schedulers():
    told = verdict(of((1, 1.01, 1.02, 1.03)), repeats(of((1, 1.01, 1.02, 1.03)), 1.0), "score")
    assert told.words.startswith("No verdict: repeats of one cell lie")
    alone = verdict(of((1, 2, 3, 4)), repeats(of((1, 2, 3, 4)), 0.0, count=1), "score")
    assert alone.words.startswith("No verdict: without repeats")
    assert verdict({}, [], "score").words.startswith("No verdict: simulator and engine have no order")


def test_an_order_in_between_holds_in_part():
    told = verdict(of((1, 2, 3, 4)), repeats(of((2, 1, 3, 4)), 0.001), "score")
    assert told.tau == pytest.approx(2.0 / 3.0)
    assert "holds in part" in told.words
    assert sentence(told._replace(effect=told.noise / 2.0)).startswith("No verdict")
    assert sentence(told._replace(ceiling=0.3)).startswith("No verdict: two repeats agree only 0.30")


def test_drift_is_how_far_whole_repeats_lie_apart():
    truth = of((1, 2, 3, 4))
    slow = {key: value * 1.5 for key, value in truth.items()}
    assert verdict(truth, [truth, slow], "score").drift == pytest.approx(0.5 / 1.25)


def test_claims_are_the_sharpest_reversals_the_surest_stable_pairs_and_the_nearest():
    simulated = of((1.0, 2.0, 9.0, 9.01), (2.0, 1.0, 9.0, 9.02))
    pairs = register(simulated, most=1)
    assert [(pair.kind, pair.first, pair.second) for pair in pairs] == [
        (REVERSAL, "a", "b"),
        (STABLE, "a", "d"),
        (BORDERLINE, "c", "d"),
    ]
    assert pairs[0].signs == {"w1 0.7": -1, "w1 1.2": 1}
    told = judge(pairs, repeats(simulated, 0.001))
    assert [(one.held, one.broken, one.unclear) for one in told] == [(2, 0, 0), (2, 0, 0), (2, 0, 0)]
    turned = judge(pairs, repeats(of((2.0, 1.0, 9.0, 9.01), (2.0, 1.0, 9.0, 9.02)), 0.001))
    assert (turned[0].held, turned[0].broken) == (1, 1)


def test_a_difference_within_the_noise_is_unclear_not_broken():
    pair = Pair(STABLE, "a", "b", {"w1 0.7": 1}, 0.1)
    told = judge([pair], repeats(of((1.0, 1.0, 0.0, 0.0)), 1.0, count=4))
    assert (told[0].held, told[0].broken, told[0].unclear) == (0, 0, 1)
    assert judge([pair], [of((2.0, 1.0, 0.0, 0.0))])[0].unclear == 1


def test_a_latency_counts_the_smaller_the_better_and_the_table_says_all():
    runs = pd.DataFrame(
        {"window_id": ["w", "w"], "region": ["1", "1"], "scheduler": ["a", "b"], "ttft_p95_s": [2.0, 1.0]}
    )
    found = values(runs, "ttft_p95_s")
    assert found[("w", "1"), "b"] > found[("w", "1"), "a"]
    assert values(runs, "e2e_mean_s") == {}
    told = verdict(found, [found, found], "ttft_p95_s")
    text = as_table(
        told, judge(register(found), [found, found]), {"ttft": {"p50": 0.1, "p90": 0.3, "signed_p50": -0.05}}
    )
    assert "| ttft of a request, median error | 10%, p90 30%, signed -5% |" in text
    assert "| stable | a and b | 1 | 0 | 0 |" in text
