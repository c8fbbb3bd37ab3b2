"""Uniforms by counter and the inverse distribution functions of the surrogates."""

import numpy as np
import pytest

from loadgen.surrogate.sampling import (
    Knots,
    Quantiles,
    Stream,
    autoregressive,
    gamma_gaps,
    nanoseconds,
    ticks,
    tokens,
    warp,
)


def test_a_column_depends_on_name_seed_and_column_and_on_nothing_else():
    column = Stream("x", 1).uniforms("gap", 1_000)
    assert (Stream("x", 1).uniforms("gap", 10) == column[:10]).all()
    for other in (Stream("y", 1).uniforms("gap", 10), Stream("x", 2).uniforms("gap", 10)):
        assert (other != column[:10]).all()
    assert (Stream("x", 1).uniforms("size", 10) != column[:10]).all()


def test_uniforms_are_pinned():
    """Another numpy that drew another stream would silently change every surrogate."""
    assert Stream("azure_surrogate-code", 7).uniforms("gap", 3).tolist() == PINNED


PINNED = [0.9143394562036687, 0.5745766687082529, 0.22223838993350664]


def test_uniforms_are_inside_the_unit_interval_and_even():
    drawn = Stream("x", 3).uniforms("gap", 100_000)
    assert 0.0 < drawn.min() < 1e-4
    assert 1.0 - 1e-4 < drawn.max() < 1.0
    assert drawn.mean() == pytest.approx(0.5, abs=0.004)


def test_quantiles_are_log_linear_between_points():
    law = Quantiles((0, 0.5, 1), (1, 100, 10_000))
    assert law.at(np.array([0.0, 0.25, 0.5, 0.75, 1.0])) == pytest.approx([1, 10, 100, 1_000, 10_000])


def test_knots_hit_their_points_keep_slopes_and_stop_at_the_cap():
    law = Knots((0.0, 1.0, 2.0), (100, 1_000, 2_000), 5_000)
    assert law.at(np.array([0.0, 0.5, 1.0, 2.0])) == pytest.approx([100, 316.2278, 1_000, 2_000])
    assert law.at(np.array([-1.0, 3.0, 9.0, -99.0])) == pytest.approx([100 * np.exp(-0.9), 4_000, 5_000, 1])


def test_gamma_gaps_have_mean_one_and_their_shape():
    gaps = gamma_gaps(Stream("x", 1).uniforms("gap", 100_000), 0.5)
    assert gaps.mean() == pytest.approx(1.0, rel=0.02)
    assert gaps.std() == pytest.approx(2.0**0.5, rel=0.02)


def test_drift_is_stationary_from_the_first_bin():
    starts = np.array([autoregressive(Stream("x", seed).normals("e", 3), 0.7, 0.9) for seed in range(2_000)])
    assert starts.std(axis=0) == pytest.approx([0.7, 0.7, 0.7], rel=0.08)
    assert np.corrcoef(starts[:, 0], starts[:, 1])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert autoregressive(np.empty(0), 0.7, 0.9).size == 0


def test_warp_inverts_the_integral_of_the_rate():
    def rates(bins):
        return np.resize([2.0, 0.5], bins)

    assert warp(np.array([1.0, 2.0, 2.25, 4.5]), rates, 1.0) == pytest.approx([0.5, 1.0, 1.5, 3.0])
    assert warp(np.array([5_000.0]), rates, 1.0) == pytest.approx([4_000.0])


def test_ticks_are_complete_up_to_the_limit():
    assert ticks(lambda number: np.full(number, 0.25), 100.0) == pytest.approx(0.25 * np.arange(1, 401))


def test_times_are_rounded_to_a_microsecond_and_tokens_to_at_least_one():
    assert nanoseconds(np.array([1.000_000_4, 2.000_000_6])).tolist() == [1_000_000_000, 2_000_001_000]
    assert tokens(np.array([0.2, 1.5, 2.6])).tolist() == [1, 2, 3]
