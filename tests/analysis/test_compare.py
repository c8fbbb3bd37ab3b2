"""Comparison of whole groups, against scipy, against pairs by themselves, and on data of known truth."""

import numpy as np
import pytest
from scipy import stats

from analysis.compare import SPLITS, compare, half_weights, pair_signs, taus
from analysis.portability import agree

STEPS = np.arange(8.0)


def test_tau_and_its_weighted_kin_are_scipys(condition):
    rng = np.random.default_rng(1)
    values = rng.normal(0, 1, (5, 9, 3))
    cells = [condition(one, region=str(at)) for at, one in enumerate(values)]
    found = compare(cells)
    means = values.mean(axis=2)
    for i in range(5):
        for j in range(5):
            assert found.tau[i, j] == pytest.approx(stats.kendalltau(means[i], means[j]).statistic, abs=1e-12)
            assert found.top[i, j] == pytest.approx(
                stats.weightedtau(means[i], means[j]).statistic, abs=1e-12
            )


def test_ties_count_in_tau_as_scipy_counts_them():
    a, b = np.random.default_rng(2).integers(0, 4, (2, 9)).astype(np.float64)
    found = taus(pair_signs(np.stack([a, b])).astype(np.float64))
    assert found[0, 1] == pytest.approx(stats.kendalltau(a, b, variant="b").statistic)


def test_a_group_says_what_its_pairs_say_alone(drawn):
    cells = [
        drawn(STEPS * 0.05, 20, 0.3, 1, source="s", region="1"),
        drawn(STEPS * 0.05, 20, 0.3, 2, source="s", region="2"),
        drawn(STEPS[::-1] * 0.05, 24, 0.3, 3, source="t", region="1"),
    ]
    whole, pair = compare(cells), compare(cells[1:])
    for name in ("tau", "tau_low", "top_high", "within", "cross", "gap", "gap_low", "gap_high"):
        assert getattr(whole, name)[1:, 1:] == pytest.approx(getattr(pair, name), abs=1e-9), name
    for part in whole[2:]:
        if part is not whole.within:
            assert part == pytest.approx(part.T, nan_ok=True)


def test_conditions_that_rank_others_are_compared_over_what_they_share(drawn):
    a, b, c = (drawn(STEPS * 0.1, 20, 0.3, seed, source=f"s{seed}") for seed in (1, 2, 3))
    fewer = b._replace(schedulers=b.schedulers[1:], values=b.values[1:])
    found = compare([a, fewer, c])
    assert found.schedulers.tolist() == [[8, 7, 8], [7, 7, 7], [8, 7, 8]]
    assert found.tau[0, 2] == compare([a, c]).tau[0, 1]
    wanted = stats.kendalltau(a.means[1:], b.means[1:]).statistic
    assert found.tau[0, 1] == found.tau[1, 0] == pytest.approx(wanted)
    assert agree(a, fewer).within_a == pytest.approx(found.within[0, 1])


def test_cross_takes_halves_of_different_windows(drawn):
    """One condition against its own copy: the same windows may not stand on both sides."""
    one = drawn(STEPS * 0.02, 40, 0.5, 4)
    found = compare([one, one._replace(region="1.1")])
    assert found.tau[0, 1] == 1.0
    assert found.cross[0, 1] == pytest.approx(found.within[0, 0])
    assert found.gap[0, 1] == pytest.approx(0.0, abs=1e-12)


def test_halves_are_disjoint_and_of_all_windows(drawn):
    weights = half_weights(drawn(STEPS, 20, 1.0, 0))
    assert ((weights[:, 0] > 0) & (weights[:, 1] > 0)).sum() == 0
    assert ((weights[:SPLITS] > 0).sum(axis=(1, 2)) == 20).all()
    assert ((weights[SPLITS:] > 0).sum(axis=(1, 2)) == 10).all()


def test_the_interval_of_tau_covers_its_mean(drawn):
    """Over 80 pairs of sources with partly different orders; the least are cut at 1."""
    other = np.array([1, 0, 2, 3, 4, 7, 6, 5.0])
    found = [
        compare([drawn(STEPS * 0.1, 40, 0.5, s), drawn(other * 0.1, 40, 0.5, s + 500, source="t")])
        for s in range(80)
    ]
    for low, middle, high in (("tau_low", "tau", "tau_high"), ("top_low", "top", "top_high")):
        truth = np.mean([getattr(one, middle)[0, 1] for one in found])
        covers = np.mean([getattr(one, low)[0, 1] <= truth <= getattr(one, high)[0, 1] for one in found])
        assert covers > 0.87


@pytest.mark.slow
def test_the_interval_of_the_gap_covers_the_gap(drawn):
    """The gap of two sources whose orders differ in the middle, as the mean of 300 studies has it."""
    other = np.array([0, 1, 5, 4, 3, 2, 6, 7.0])
    found = [
        compare([drawn(STEPS * 0.1, 40, 0.4, s), drawn(other * 0.1, 40, 0.4, s + 900, source="t")])
        for s in range(300)
    ]
    truth = np.mean([one.gap[0, 1] for one in found])
    assert 0.15 < truth < 0.7
    covers = np.mean([one.gap_low[0, 1] <= truth <= one.gap_high[0, 1] for one in found])
    assert 0.91 <= covers <= 0.995


@pytest.mark.slow
def test_one_true_order_is_not_called_different(drawn):
    """Interval, margin and permutation must all say so: at most one study in twenty does, at any noise."""
    for step in (0.02, 0.05, 0.1):
        found = [
            agree(drawn(STEPS * step, 40, 0.5, s), drawn(STEPS * step, 40, 0.5, s + 900, source="t"))
            for s in range(200)
        ]
        assert np.mean([one.verdict == "order differs" and one.p_same <= 0.05 for one in found]) <= 0.05
        assert np.mean([one.p_same <= 0.05 for one in found]) <= 0.085
