"""Which conditions a fidelity study picks: those that tell schedulers apart, turn them round, and fit the time."""

import pandas as pd
import pytest

from analysis.conditions import choose, in_units, metric_of, pooled_draws, spreads, telling

NAMES = ("a", "b", "c")


def made(rows):
    """Simulated attainment, a tuple of the schedulers' values a condition."""
    return {
        (condition, name): value
        for condition, row in rows.items()
        for name, value in zip(NAMES, row, strict=True)
    }


WORLD = pooled_draws(
    [
        made(
            {
                ("w1", "0.7"): (0.99, 0.99, 0.99),  # nobody waits
                ("w1", "1.2"): (0.2, 0.5, 0.8),
                ("w1", "1.5"): (0.1, 0.5, 0.9),
                ("w2", "1.2"): (0.8, 0.5, 0.2),  # everything turned round
                ("w3", "1.2"): (0.3, 0.5, 0.7),
            }
        )
    ],
    0.02,
)


def seconds(each=10.0, **more):
    return {key: more.get(key[0][0], each) for key in WORLD.mean}


def test_conditions_in_which_everybody_turns_round_are_picked():
    found = choose(WORLD, seconds(), 2, 1e9)
    assert found.conditions == (("w1", "1.5"), ("w2", "1.2"))
    assert found.seconds == 60.0
    assert "reversals" in found.why
    assert found.spreads == pytest.approx((20.0, 15.0))


def test_what_takes_too_long_is_not_picked():
    found = choose(WORLD, seconds(w2=100.0), 2, 100.0)
    assert {window for window, _ in found.conditions} == {"w1", "w3"}
    assert "differences" in found.why
    assert "no other fits" in choose(WORLD, seconds(), 2, 1.0).why


def test_a_condition_in_which_nobody_differs_is_never_picked():
    found = choose(WORLD, seconds(), 0, 1e9)
    assert len(found.conditions) == 4
    assert ("w1", "0.7") not in found.conditions
    assert choose(pooled_draws([made({("w1", "0.7"): (0.99, 0.99, 0.99)})], 0.02), seconds(), 2, 1e9) is None


@pytest.mark.parametrize(("count", "windows"), [(1, 1), (2, 2), (3, 3)])
def test_windows_differ_as_far_as_there_are_enough(count, windows):
    found = choose(WORLD, seconds(), count, 1e9)
    assert len(found.conditions) == count
    assert len({window for window, _ in found.conditions}) == windows


def test_metrics_that_tell_nobody_apart_are_not_named():
    runs = pd.DataFrame(
        {
            "window_id": ["w"] * 3, "region": ["1"] * 3, "scheduler": list(NAMES),
            "attainment_tier": [1.0, 1.0, 0.99], "e2e_mean_s": [1.0, 2.0, 4.0], "ttft_p95_s": [1.0, 1.01, 1.02],
        }
    )  # fmt: skip
    assert telling([runs], "attainment:tier") == [("e2e_mean_s", 1)]
    assert spreads(metric_of([runs], "e2e_mean_s"))[("w", "1")] == pytest.approx(0.6931 / 0.05, rel=1e-3)


def test_where_shaken_arrivals_move_values_more_than_the_margin_they_are_the_unit():
    """Draws that lie 0.1 apart make a gap of 0.3 worth three units, where quiet ones make it worth fifteen."""
    draws = [
        made({("w1", "1.2"): (0.5 + off, 0.8 - off, 0.2), ("w2", "1.2"): (0.5, 0.8, 0.2)})
        for off in (-0.1, 0.0, 0.1)
    ]
    found = pooled_draws(draws, 0.02)
    assert found.mean[("w1", "1.2"), "a"] == pytest.approx(0.5)
    assert found.unit == {("w1", "1.2"): pytest.approx(0.1 * (2 / 3) ** 0.5), ("w2", "1.2"): 0.02}
    scaled = in_units(found, [("w2", "1.2")])
    assert scaled[("w2", "1.2"), "b"] - scaled[("w2", "1.2"), "a"] == pytest.approx(15.0)
    assert len(scaled) == 3
