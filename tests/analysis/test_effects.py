"""Effect sizes, against scipy's statistics of the same data."""

import numpy as np
import pytest
from scipy import stats

from analysis.effects import cliffs_delta, effects_of, rank_biserial


def test_rank_biserial_is_wilcoxons_share():
    x = np.random.default_rng(1).normal(0.3, 1, 15)
    least = stats.wilcoxon(x).statistic
    assert rank_biserial(x[None])[0] == pytest.approx(1 - 2 * least / (15 * 16 / 2))
    assert rank_biserial(np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-1.0, -1.0, 0.0]])).tolist() == [
        1.0,
        0.0,
        -1.0,
    ]


def test_cliffs_delta_is_mann_whitneys():
    a, b = np.random.default_rng(2).integers(0, 6, (2, 12)).astype(np.float64)
    assert cliffs_delta(a, b) == pytest.approx(2 * stats.mannwhitneyu(a, b).statistic / 144 - 1)


def test_effects_of_a_condition(condition):
    cell = condition([[1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 2.0, 2.0]])
    found = effects_of(cell)
    interval = stats.ttest_rel(cell.values[0], cell.values[1]).confidence_interval()
    assert found.difference[0, 1] == -found.difference[1, 0] == 1.0
    assert (found.low[0, 1], found.high[0, 1]) == pytest.approx(tuple(interval))
    assert (found.low[1, 0], found.high[1, 0]) == pytest.approx((-interval.high, -interval.low))
    assert (found.wins[0, 1], found.wins[1, 0], found.wins[0, 0]) == (0.875, 0.125, 0.5)
    assert found.standardised[0, 1] == pytest.approx(1 / np.std([1, 0, 1, 2], ddof=1))
    assert effects_of(condition([[2.0, 2.0], [1.0, 1.0]])).standardised[0, 1] == np.inf
    assert np.isnan(effects_of(condition(np.zeros((2, 0)))).difference).all()
