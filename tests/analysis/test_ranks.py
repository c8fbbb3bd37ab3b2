"""Ranks, intervals and the top set, against scipy, by hand, and on data of known truth."""

import numpy as np
import pytest
from scipy import stats

from analysis.ranks import bootstrap_means, holm, one_sided, rank, rank_vector, tau_b
from analysis.scores import Scores

NAMES = tuple("abcdefgh")


def condition(values, source="s", region="0.95", column="attainment_S2") -> Scores:
    values = np.asarray(values, np.float64)
    k, n = values.shape
    windows = tuple(f"{source}-{i}" for i in range(n))
    return Scores(source, region, column, NAMES[:k], windows, ("",) * n, values, {}, 0)


def drawn(means, windows, sd, seed=0, **where) -> Scores:
    means = np.asarray(means, np.float64)
    noise = np.random.default_rng(seed).normal(0, sd, (len(means), windows))
    return condition(means[:, None] + noise, **where)


@pytest.mark.parametrize("seed", range(20))
def test_tau_b_is_scipys(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, 9)).astype(np.float64)  # small integers, so that there are ties
    assert tau_b(a, b) == pytest.approx(stats.kendalltau(a, b, variant="b").statistic, abs=1e-6)


def test_tau_b_by_hand():
    """Five concordant pairs and one discordant of six; with a tie on one side, 4 / sqrt(5 * 6) of them."""
    assert tau_b(np.array([4.0, 3, 2, 1]), np.array([4.0, 3, 1, 2])) == pytest.approx((5 - 1) / 6)
    assert tau_b(np.array([4.0, 3, 1, 1]), np.array([4.0, 3, 1, 2])) == pytest.approx(5 / np.sqrt(5 * 6))
    assert tau_b(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == -1
    assert np.isnan(tau_b(np.array([1.0, 1, 1]), np.array([3.0, 2, 1])))


def test_ties_are_relative():
    assert rank_vector(np.array([3.0, 1.0, 3.0 + 1e-10])).tolist() == [1.5, 3.0, 1.5]
    assert rank_vector(np.array([3.0, 1.0, 3.0 + 1e-10]), tied="min").tolist() == [1.0, 3.0, 1.0]
    assert rank_vector(np.array([3.0, 1.0, 3.1])).tolist() == [2.0, 3.0, 1.0]


def test_ranking_by_hand():
    ranking = rank(condition([[0.5, 0.7], [0.9, 0.7], [0.1, 0.1]]))
    assert [row.scheduler for row in ranking.rows] == ["b", "a", "c"]
    assert [row.rank for row in ranking.rows] == [1, 2, 3]
    assert [row.mean for row in ranking.rows] == pytest.approx([0.8, 0.6, 0.1])
    assert [row.difference for row in ranking.rows] == pytest.approx([0.0, -0.2, -0.7])
    assert ranking.informative


def test_latencies_are_shown_as_geometric_means_in_their_unit():
    ranking = rank(condition(-np.log([[1.0, 4.0], [3.0, 3.0]]), column="ttft_p95_s"))
    assert [row.scheduler for row in ranking.rows] == ["a", "b"]
    assert [row.mean for row in ranking.rows] == pytest.approx([2.0, 3.0])
    assert all(row.low <= row.mean <= row.high for row in ranking.rows)


def test_bootstrap_interval_covers_a_mean_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        of = drawn([0.5], 40, 0.1, seed)
        low, high = np.quantile(bootstrap_means(of, 400), [0.025, 0.975])
        covered += bool(low <= 0.5 <= high)
    assert 180 <= covered <= 198


def test_bootstrap_draws_are_the_same_each_time_and_paired():
    of = drawn([0.5, 0.5], 20, 0.1)
    assert np.array_equal(bootstrap_means(of), bootstrap_means(of))
    twin = of._replace(values=np.stack([of.values[0], of.values[0] + 0.3]))
    means = bootstrap_means(twin)
    assert np.allclose(means[:, 1] - means[:, 0], 0.3)


def test_rank_interval_is_tight_for_clear_orders_and_wide_for_noise():
    clear = rank(drawn([0.9, 0.5, 0.1], 40, 0.05))
    assert [(row.rank_low, row.rank_high) for row in clear.rows] == [(1, 1), (2, 2), (3, 3)]
    noisy = rank(drawn([0.5, 0.5, 0.5], 40, 0.05))
    assert any(row.rank_high - row.rank_low >= 1 for row in noisy.rows)


def test_top_set_keeps_those_within_the_margin_and_drops_those_beyond():
    ranking = rank(drawn([0.80, 0.795, 0.60], 40, 0.01))
    assert [row.in_top for row in ranking.rows] == [True, True, False]
    few = rank(drawn([0.80, 0.79, 0.60], 10, 0.01))
    assert [row.in_top for row in few.rows] == [True, True, False]


def test_top_set_holds_the_best_nineteen_times_in_twenty():
    """Three schedulers at exactly the margin behind: wrongly dropping any must stay below 5 %."""
    dropped = 0
    for seed in range(200):
        ranking = rank(drawn([0.82, 0.80, 0.80, 0.80], 40, 0.05, seed))
        dropped += sum(row.in_top for row in ranking.rows) < 4 and ranking.rows[0].scheduler == "a"
    assert dropped <= 18


def test_one_sided_is_the_t_test_with_many_windows():
    x = np.random.default_rng(1).normal(0.1, 1, (2, 50))
    expected = [stats.ttest_1samp(row, 0, alternative="greater").pvalue for row in x]
    assert one_sided(x) == pytest.approx(expected)


def test_one_sided_flips_signs_with_few_windows():
    """All eight differences positive: 1 of 2^8 patterns reaches the mean."""
    assert one_sided(np.arange(1.0, 9.0)[None]) == pytest.approx([1 / 256])
    x = np.random.default_rng(2).normal(0.3, 1, 20)
    wanted = stats.permutation_test(
        (x,), np.mean, permutation_type="samples", alternative="greater", n_resamples=20_000, vectorized=True
    ).pvalue
    assert one_sided(x[None])[0] == pytest.approx(wanted, abs=0.015)
    assert one_sided(np.array([[0.3]])).tolist() == [1.0]


def test_holm_by_hand():
    assert holm(np.array([0.01, 0.04, 0.03, np.nan])) == pytest.approx(
        [0.03, 0.06, 0.06, np.nan], nan_ok=True
    )
    assert holm(np.array([0.6, 0.9])) == pytest.approx([1.0, 1.0])


def test_a_few_windows_that_dominate_are_noticed():
    """b wins by a hair in most windows, a by a mile in one: mean and within-window ranks disagree."""
    values = np.full((2, 10), 0.5)
    values[1] += 0.001
    values[0, 0] = 0.9
    assert rank(condition(values)).window_rank_tau == -1


def test_an_empty_condition_has_no_rows():
    assert rank(condition(np.zeros((0, 0)))).rows == ()
    assert rank(condition([[0.5, 0.4]])).rows[0].in_top


def test_few_windows_can_show_nobody_worse():
    """Four comparisons by sign flips: 4 / 2^6 is above 5 %, 4 / 2^7 isn't."""
    few, enough = (rank(drawn([5.0, 4, 3, 2, 1], n, 1e-3)) for n in (6, 7))
    assert (few.least_p, few.testable, few.windows_needed) == (4 / 64, False, 7)
    assert all(row.in_top for row in few.rows)
    assert np.isnan(few.detectable)
    assert enough.testable
    assert [row.in_top for row in enough.rows] == [True, False, False, False, False]
    assert min(row.p_worse for row in enough.rows) == pytest.approx(enough.least_p)


def test_a_detectable_difference_is_detected_four_times_in_five():
    spread, windows = 0.05, 40
    detectable = rank(drawn([0.5, 0.5], windows, spread)).detectable
    shown = sum(
        not rank(drawn([0.5 + detectable, 0.5], windows, spread, seed)).rows[1].in_top for seed in range(100)
    )
    assert 65 <= shown <= 95
