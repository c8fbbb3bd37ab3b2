"""Sizing on made-up fleets: the search, the interval, and worlds in which more engines are not better."""

import numpy as np
import pytest

from schedulers.errors import InputError
from sim.sizing import DRAWS, Trial, drawn_answers, fewest, fraction, size


def fleet(engines: int, attained, arrived: int = 1000) -> Trial:
    """A fleet that attains so much: (tiers,) alike on four windows, or (windows, tiers)."""
    rows = np.atleast_2d(np.asarray(attained, float))
    rows = np.tile(rows, (4, 1)) if len(rows) == 1 else rows
    met = np.round(rows * arrived).astype(int)
    return Trial(
        engines, np.full(rows.shape, arrived), met, met.sum(axis=1), np.full(len(rows), 10.0 * engines),
        np.full(len(rows), 10.0),
    )  # fmt: skip


class World:
    """Counts what is tried; a rule gives the attainment of a size."""

    def __init__(self, rule) -> None:
        self.rule, self.asked = rule, []

    def __call__(self, engines: int) -> Trial:
        self.asked.append(engines)
        return fleet(engines, self.rule(engines))


@pytest.mark.parametrize("need", [1, 2, 3, 7, 16, 40, 63, 64])
@pytest.mark.parametrize("guess", [1, 5, 64])
def test_any_guess_finds_the_fewest_and_tries_none_twice(need, guess):
    world = World(lambda engines: [0.99 if engines >= need else 0.5])
    sized = size(world, np.array([0.95]), guess, 64)
    assert sized.engines == need
    assert (sized.low, sized.high) == (need, need)
    assert len(world.asked) == len(set(world.asked)) <= 18
    assert max(world.asked) <= 64
    if need > 1:
        assert need - 1 in world.asked, "the next smaller one was seen to fail"


def test_every_tier_counts():
    rule = {1: [0.99, 0.5], 2: [0.8, 0.9], 3: [0.99, 0.9]}
    sized = size(lambda engines: fleet(engines, rule.get(engines, [1.0, 1.0])), np.array([0.95, 0.9]), 1, 8)
    assert sized.engines == 3


def test_not_even_the_largest():
    sized = size(World(lambda engines: [0.5]), np.array([0.95]), 2, 6)
    assert sized.engines == 0
    assert sized.high == 7
    assert np.isnan(sized.fraction)


def test_more_engines_that_attain_less_are_told_and_not_trusted():
    """Three are enough, four are not, five are: the answer is five, and the fall is told."""
    rule = {1: 0.5, 2: 0.6, 3: 0.96, 4: 0.9}
    sized = size(World(lambda engines: [rule.get(engines, 0.99)]), np.array([0.95]), 3, 16)
    assert sized.engines == 5
    assert sized.falls == ((4, 0, pytest.approx(0.06)),)


def test_a_fraction_lies_where_the_line_crosses():
    tried = {2: fleet(2, [0.85]), 3: fleet(3, [0.95])}
    assert fraction(tried, np.array([0.9]), 3) == pytest.approx(2.5)
    assert fraction({1: fleet(1, [1.0])}, np.array([0.9]), 1) == pytest.approx(0.9)
    assert fewest(tried, np.array([0.9])) == 3


def test_the_interval_is_that_of_draws_of_windows():
    """Two fail on one window of four: in a draw that is rich in it three are needed, in most two are enough."""
    poor = np.array([[0.99], [0.99], [0.99], [0.80]])
    trials = (fleet(1, [0.5]), fleet(2, poor), fleet(3, [0.99]))
    answers = drawn_answers(trials, np.array([0.9]), 0, 8)
    assert answers.shape == (DRAWS,)
    # enough with at most one bad window in four: 0.99 - 0.0475 k >= 0.9 for k <= 1
    assert (answers == 2).mean() == pytest.approx(0.75**4 + 4 * 0.25 * 0.75**3, abs=0.04)
    assert set(answers.tolist()) == {2, 3}
    sized = size(lambda n: trials[min(n, 3) - 1]._replace(engines=n), np.array([0.9]), 1, 8)
    assert (sized.engines, sized.low, sized.high) == (2, 2, 3)
    assert sized.chance[2] == pytest.approx((answers == 2).mean())


def test_cost_is_what_is_billed():
    trial = fleet(3, [0.5])
    assert trial.billed == pytest.approx(3.0)
    assert trial.engine_s_per_good == pytest.approx(120.0 / 2000)
    assert fleet(1, [0.0]).engine_s_per_good == np.inf


def test_no_fleet_is_no_fleet():
    with pytest.raises(InputError, match="at most 0"):
        size(World(lambda engines: [1.0]), np.array([0.9]), 1, 0)
