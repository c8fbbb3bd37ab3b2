"""Judging whether a simulator's order holds live: on made-up values whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from analysis.validity import (
    BORDERLINE,
    FAILS,
    HOLDS,
    IN_PART,
    OPEN,
    REVERSAL,
    STABLE,
    Pair,
    cells_of,
    expected,
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
    told = verdict(of((1, 2, 3, 4), (4, 3, 2, 1)), repeats(of((2, 1, 3, 4), (4, 3, 2, 1)), 0.001), "score")
    assert told.tau == pytest.approx(5.0 / 6.0)
    assert told.says == IN_PART
    assert "holds in part" in told.words
    assert sentence(told._replace(effect=told.noise / 2.0))[0] == OPEN
    assert sentence(told._replace(same=told.clear, ceiling=0.9))[0] == HOLDS


def test_one_clear_difference_the_other_way_round_leaves_an_order_that_holds_in_part():
    told = verdict(of((1, 2, 3, 4), (4, 3, 2, 1)), repeats(of((1, 2, 3, 4), (4, 3, 2, 1)), 0.01), "score")
    assert sentence(told)[0] == HOLDS
    assert sentence(told._replace(same=told.clear - 1))[0] == IN_PART


def test_there_is_no_verdict_where_a_random_order_agrees_as_well():
    """Two schedulers agree by chance in every second order; that says nothing, however quiet repeats are."""
    truth = {key: value for key, value in of((1, 2, 3, 4)).items() if key[1] in "ab"}
    told = verdict(truth, repeats(truth, 0.001), "score")
    assert (told.tau, told.ceiling, told.says) == (1.0, 1.0, OPEN)
    assert "in 50% of draws" in told.words
    assert sentence(told._replace(tau=-1.0, chance=1.0))[0] == FAILS, (
        "repeats agree that it is the other way round"
    )
    assert sentence(told._replace(tau=-1.0, chance=1.0, ceiling=0.3))[0] == OPEN


def test_drift_is_how_far_whole_repeats_lie_apart():
    truth = of((1, 2, 3, 4))
    slow = {key: value * 1.5 for key, value in truth.items()}
    assert verdict(truth, [truth, slow], "score").drift == pytest.approx(1.25)


def test_claims_are_the_sharpest_reversals_the_surest_stable_pairs_and_the_nearest():
    simulated = of((1.0, 2.0, 9.0, 9.3), (2.0, 1.0, 9.0, 9.4))
    pairs = register(simulated, most=1)
    assert [(pair.kind, pair.first, pair.second) for pair in pairs] == [
        (REVERSAL, "a", "b"),
        (STABLE, "a", "d"),
        (BORDERLINE, "c", "d"),
    ]
    assert pairs[0].signs == {"w1 0.7": -1, "w1 1.2": 1}
    told = judge(pairs, repeats(simulated, 0.001))
    assert [(one.held, one.broken, one.unclear) for one in told] == [(2, 0, 0), (2, 0, 0), (2, 0, 0)]
    turned = judge(pairs, repeats(of((2.0, 1.0, 9.0, 9.3), (2.0, 1.0, 9.0, 9.4)), 0.001))
    assert (turned[0].held, turned[0].broken) == (1, 1)


def test_a_reversal_claims_no_condition_that_the_simulator_cannot_tell():
    third = {(("w2", "0.7"), name): value for name, value in zip(NAMES, (5.1, 5.0, 0.0, 0.0), strict=True)}
    (pair, *_) = register(of((1.0, 3.0, 0.0, 0.0), (3.0, 1.0, 0.0, 0.0)) | third)
    assert (pair.kind, pair.signs) == (REVERSAL, {"w1 0.7": -1, "w1 1.2": 1})


def test_a_pair_that_ties_somewhere_is_claimed_where_it_does_not():
    """Attainment ties where nobody waits; a claim is made of the other condition, and it counts as no sure one."""
    (pair,) = register(
        {key: value for key, value in of((1, 1, 0, 0), (2, 1, 0, 0)).items() if key[1] in "ab"}
    )
    assert (pair.kind, pair.signs, pair.least_gap) == (BORDERLINE, {"w1 1.2": 1}, 0.0)
    assert register(dict.fromkeys(of((1, 1, 1, 1)), 1.0)) == []


def test_what_the_simulator_cannot_tell_itself_is_borderline():
    kinds = {(pair.first, pair.second): pair.kind for pair in register(of((1.0, 1.5, 3.0, 6.0)), most=9)}
    assert kinds["a", "b"] == BORDERLINE
    assert {kind for pair, kind in kinds.items() if pair != ("a", "b")} == {STABLE}


def test_the_simulators_own_draws_say_how_well_repeats_may_agree():
    quiet = {(HERE, name): [float(place)] * 3 for place, name in enumerate(NAMES)}
    assert expected(quiet, HERE) == 1.0
    shaken = quiet | {(HERE, "a"): [0.0, 9.0, 0.0]}
    assert expected(shaken, HERE) < 0.7
    assert expected({cell: values[:1] for cell, values in quiet.items()}, HERE) is None


def test_a_difference_within_the_noise_is_unclear_not_broken():
    pair = Pair(STABLE, "a", "b", {"w1 0.7": 1}, 0.1)
    told = judge([pair], repeats(of((1.0, 1.0, 0.0, 0.0)), 1.0, count=4))
    assert (told[0].held, told[0].broken, told[0].unclear) == (0, 0, 1)
    assert judge([pair], [of((2.0, 1.0, 0.0, 0.0))])[0].unclear == 1


def test_what_noise_explains_is_called_clear_once_in_twenty_times():
    """Two schedulers that are equal, of six with three repeats each: Student's t with ten degrees of freedom."""
    draw, called = np.random.default_rng(3), 0
    for _ in range(2000):
        made = [{(HERE, name): draw.normal() for name in "abcdef"} for _ in range(3)]
        cells = cells_of("w1 0.7", made)
        means = cells.live.mean(axis=1)
        called += abs(means[0] - means[1]) > cells.least
    assert 0.035 < called / 2000 < 0.065


def test_what_drifts_between_repeats_is_no_noise_of_a_difference():
    truth = of((1.0, 2.0, 3.0, 4.0))
    drifting = [{key: value + 5.0 * number for key, value in truth.items()} for number in range(3)]
    assert cells_of("w1 0.7", drifting).least == pytest.approx(0.0, abs=1e-9)
    assert judge(register(truth), drifting)[0].held == 1
    told = verdict(truth, drifting, "score")
    assert (told.drift, told.noise, told.says) == (pytest.approx(10.0), pytest.approx(0.0, abs=1e-9), HOLDS)


def test_a_reversal_held_only_if_both_sides_did():
    pair = Pair(REVERSAL, "a", "b", {"w1 0.7": -1, "w1 1.2": 1}, 1.0)
    turned = judge([pair], repeats(of((1.0, 2.0, 0.0, 0.0), (2.0, 1.0, 0.0, 0.0)), 0.01))
    assert turned[0].says == "held"
    same = judge([pair], repeats(of((1.0, 2.0, 0.0, 0.0), (1.0, 2.0, 0.0, 0.0)), 0.01))
    assert (same[0].held, same[0].broken, same[0].says) == (1, 1, "broken")
    near = judge([pair], repeats(of((1.0, 2.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0)), 0.01))
    assert near[0].says == "unclear"


def test_a_condition_that_no_scheduler_ran_in_every_repeat_says_nothing():
    cells = cells_of("w1 0.7", [{(HERE, "a"): 1.0}, {(HERE, "b"): 1.0}])
    assert (cells.names, cells.live.shape) == ((), (0, 2))
    assert np.isnan(cells.least)


def test_chance_and_clear_differences_are_counted():
    """Six differences of four schedulers, all clear; one of 24 orders agrees as well as the same one."""
    told = verdict(of((1, 2, 3, 4)), repeats(of((2, 1, 3, 4)), 0.001), "score")
    assert (told.clear, told.same) == (6, 5)
    exact = verdict(of((1, 2, 3, 4)), repeats(of((1, 2, 3, 4)), 0.001), "score")
    assert exact.chance == pytest.approx(1 / 24, abs=0.01)
    assert told.chance == pytest.approx(4 / 24, abs=0.02)


def test_a_latency_counts_the_smaller_the_better():
    runs = pd.DataFrame(
        {"window_id": ["w", "w"], "region": ["1", "1"], "scheduler": ["a", "b"], "ttft_p95_s": [2.0, 1.0]}
    )
    found = values(runs, "ttft_p95_s")
    assert found[("w", "1"), "b"] > found[("w", "1"), "a"]
    assert values(runs, "e2e_mean_s") == {}
