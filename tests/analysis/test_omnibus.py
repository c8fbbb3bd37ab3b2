"""Omnibus tests, against scipy, scikit-posthocs and the reference's critical differences."""

import numpy as np
import pandas as pd
import pytest
import scikit_posthocs
from scipy import stats

from analysis.omnibus import cliques, concordance, critical_difference, omnibus_of, wilcoxon_holm


@pytest.mark.parametrize(
    ("schedulers", "windows", "ranks"), [(13, 40, 2.88), (13, 80, 2.04), (13, 120, 1.67), (11, 40, 2.39)]
)
def test_critical_differences_are_the_references(schedulers, windows, ranks):
    assert critical_difference(schedulers, windows) == pytest.approx(ranks, abs=0.006)


def test_friedman_and_w_are_scipys(drawn):
    cell = drawn([0.0, 0.1, 0.05, 0.2], 25, 0.2, 1)
    found = omnibus_of(cell)
    wanted = stats.friedmanchisquare(*cell.values)
    assert (found.chi2, found.p) == pytest.approx(tuple(wanted))
    assert found.kendall_w == pytest.approx(wanted.statistic / (25 * 3))
    assert list(found.mean_ranks) == sorted(found.mean_ranks)
    assert found.mean_ranks.sum() == pytest.approx(4 * 5 / 2)
    assert found.worth.sum() == pytest.approx(1.0)


def test_pairs_are_those_of_scikit_posthocs():
    y = np.random.default_rng(2).normal(0, 1, (4, 30)) + np.array([[0.0], [0.3], [0.6], [1.5]])
    frame = pd.DataFrame({"y": y.ravel(), "who": np.repeat(list("abcd"), 30)})
    wanted = scikit_posthocs.posthoc_wilcoxon(frame, "y", "who", p_adjust="holm", sort=True)
    assert wilcoxon_holm(y) == pytest.approx(wanted.to_numpy())


def test_nemenyis_limit_is_the_critical_difference():
    """Two schedulers one critical difference apart have p = 5 % in scikit-posthocs."""
    ranks = np.array([[1.0, 2.0, 3.0]] * 10 + [[1.0, 3.0, 2.0]] * 2 + [[2.0, 1.0, 3.0]] * 3)
    p = scikit_posthocs.posthoc_nemenyi_friedman(ranks).to_numpy()
    mean = ranks.mean(axis=0)
    apart = np.abs(mean[:, None] - mean[None, :])
    assert ((apart > critical_difference(3, 15)) == (p < 0.05)).all()
    assert p[apart > critical_difference(3, 15)].size


def test_saturated_windows_are_no_evidence(condition):
    """Schedulers that all reach 1, or differ in two windows of nine only."""
    values = np.ones((3, 9))
    values[2, :2] = 0.9
    found = omnibus_of(condition(values))
    assert found.p_pairs[found.schedulers.index("a"), found.schedulers.index("b")] == 1.0
    assert (found.p_pairs > 0.05).all()
    assert np.isnan(omnibus_of(condition(np.ones((3, 9)))).chi2)
    assert omnibus_of(condition(np.ones((1, 9)))).cliques == ()


def test_cliques_are_maximal_runs_that_nothing_tells_apart():
    p = np.ones((4, 4))
    p[0, 2] = p[2, 0] = p[0, 3] = p[3, 0] = 0.01
    assert cliques(tuple("abcd"), p) == (("a", "b"), ("b", "c", "d"))
    assert cliques(tuple("abcd"), np.eye(4)) == ()


def test_concordance_is_mean_spearman(condition):
    y = np.random.default_rng(3).normal(0, 1, (5, 7, 2))
    found = concordance([condition(one, region=str(at)) for at, one in enumerate(y)])
    rho = stats.spearmanr(y.mean(axis=2), axis=1).statistic
    mean = rho[np.triu_indices(5, 1)].mean()
    assert (5 * found - 1) / 4 == pytest.approx(mean)
    assert concordance([condition(y[0])] * 3) == pytest.approx(1.0)
    assert np.isnan(concordance([condition(y[0])]))


def test_worth_follows_the_orders(drawn):
    found = omnibus_of(drawn([0.0, 1.0, 2.0], 40, 0.5, 4))
    assert found.schedulers == ("c", "b", "a")
    assert found.worth[0] > 2 * found.worth[1] > 4 * found.worth[2]


def test_orders_that_never_change_have_worths_in_that_order(drawn):
    """Without a prior the best one's worth would be infinite; a stronger prior gives a finite one."""
    found = omnibus_of(drawn([float(step) for step in range(13)], 80, 1e-3, 3))
    assert np.isfinite(found.worth).all()
    assert (np.diff(found.worth) < 0).all(), "given from the best on"


def test_equals_have_equal_worths(drawn):
    """Two schedulers that tie in every window: worths within what lots can do, not a matter of rows."""
    cell = drawn([0.0, 0.0, 0.0], 400, 0.0, 1)
    worth = omnibus_of(cell).worth
    assert worth.max() < 1.3 * worth.min()
