"""Bayesian signed-rank probabilities, against baycomp."""

import baycomp
import numpy as np
import pytest

from analysis.bayes import bayes_of, signed_rank


@pytest.mark.parametrize(("mean", "rope"), [(0.0, 0.05), (0.05, 0.05), (-0.1, 0.02), (0.02, 0.1)])
def test_probabilities_are_baycomps(mean, rope):
    x = np.random.default_rng(1).normal(mean, 0.1, 20)
    left, same, right = baycomp.SignedRankTest(np.zeros(20), x, rope, nsamples=4000, random_state=2).probs()
    above, within, below = signed_rank(x[None], rope, draws=4000)
    assert (below[0], within[0], above[0]) == pytest.approx((left, same, right), abs=0.04)


def test_windows_at_the_limit_count_half():
    x = np.array([0.05] * 15 + [0.2] * 5)
    left, same, right = baycomp.SignedRankTest(np.zeros(20), x, 0.05, nsamples=2000, random_state=2).probs()
    above, within, below = signed_rank(x[None], 0.05, draws=2000)
    assert (below[0], within[0], above[0]) == pytest.approx((left, same, right), abs=0.04)
    assert right > 0.9  # without the halves it is a toss-up


def test_every_pair_has_three_probabilities(drawn):
    found = bayes_of(drawn([0.30, 0.298, 0.1], 40, 0.01, 3))
    total = found.better + found.better.T + found.equivalent
    assert total == pytest.approx(np.ones((3, 3)))
    assert found.equivalent[0, 1] > 0.95
    assert found.better[0, 2] > 0.95
    assert found.better[2, 0] == 0.0
    assert np.isnan(bayes_of(drawn([0.3, 0.2], 1, 0.01, 3)).better).all()
