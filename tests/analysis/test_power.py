"""Power, against the reference's tables and against scipy's Wilcoxon on simulated windows."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from analysis.power import least_effect, least_shift, power_of, reversal_power, wilcoxon_power


@pytest.mark.parametrize(
    ("windows", "powers"),
    [(20, (0.14, 0.24, 0.55, 0.91)), (40, (0.23, 0.45, 0.85, 1.0)), (80, (0.41, 0.73, 0.99, 1.0)),
     (120, (0.56, 0.89, 1.0, 1.0))],
)  # fmt: skip
def test_power_of_wilcoxon_is_the_references(windows, powers):
    found = [wilcoxon_power(windows, effect) for effect in (0.2, 0.3, 0.5, 0.8)]
    assert found == pytest.approx(powers, abs=0.012)


@pytest.mark.parametrize(
    ("windows", "powers"),
    [(40, (0.01, 0.05, 0.20, 0.47, 0.92)), (80, (0.02, 0.17, 0.57, 0.89, 1.0)),
     (120, (0.04, 0.34, 0.82, 0.98, 1.0))],
)  # fmt: skip
def test_power_of_a_reversal_is_the_references(windows, powers):
    found = [reversal_power(difference, 0.02, 0.1, windows) for difference in (0.03, 0.04, 0.05, 0.06, 0.08)]
    assert found == pytest.approx(powers, abs=0.015)


def test_least_effects_are_above_those_by_normal_quantiles_and_near_them_with_many_windows():
    """The reference: 0.63, 0.44, 0.31, 0.26 at 5 % by normal quantiles, which promise too much at n = 20."""
    found = [least_effect(windows) for windows in (20, 40, 80, 120)]
    normal = [2.8016 / np.sqrt(windows) for windows in (20, 40, 80, 120)]
    assert all(a > b for a, b in zip(found, normal, strict=True))
    assert found[2:] == pytest.approx([0.31, 0.26], rel=0.05)


def test_the_least_effect_is_found_four_times_in_five():
    rng = np.random.default_rng(1)
    x = rng.normal(least_effect(20), 1, (4000, 20))
    assert (stats.wilcoxon(x, axis=1).pvalue <= 0.05).mean() == pytest.approx(0.8, abs=0.025)


def test_least_shift_is_statsmodels():
    for windows, level in ((8, 0.05), (40, 0.025), (80, 1e-4)):
        wanted = TTestPower().solve_power(nobs=windows, alpha=level, power=0.8, alternative="larger")
        assert least_shift(windows, level) == pytest.approx(wanted, rel=1e-3)
    assert np.isnan(least_shift(2, 0.05))
    assert np.isfinite(least_shift(6, 1e-8))


def test_power_of_a_condition(drawn):
    found = power_of(drawn(np.linspace(0, 1, 9), 40, 0.1, 1))
    assert found.spread == pytest.approx(0.1 * np.sqrt(2), rel=0.15)
    assert found.difference == pytest.approx(found.spread * least_effect(40))
    assert found.difference < found.corrected
    assert found.beyond_margin > 0.02
    assert np.isnan(power_of(drawn([0.5], 40, 0.1, 1)).spread)
