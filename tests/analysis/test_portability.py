"""Agreement beside its noise ceiling, on simulated orders of known truth."""

import numpy as np
import pytest
from scipy import stats

from analysis.portability import DIFFERS, HELD, _verdict, agree, split_half, tau_matrix
from analysis.scores import Scores

NAMES = tuple("abcdefgh")
UP = np.arange(8.0)


def drawn(means, windows, seed, source="s", region="0.95", strata=None) -> Scores:
    noise = np.random.default_rng(seed).normal(0, 0.5, (len(means), windows))
    labels = tuple(strata) if strata is not None else ("",) * windows
    names = tuple(f"{source}-{i}" for i in range(windows))
    return Scores(
        source, region, "attainment_S2", NAMES[: len(means)], names, labels, means[:, None] + noise, {}, 0
    )


@pytest.mark.parametrize("step", [0.02, 0.1])
def test_the_same_order_gives_a_gap_that_covers_zero(step):
    """However low the tau: at step 0.02 two samples of one order agree by 0.2 only, and that is the
    ceiling.
    """
    found = [
        agree(drawn(UP * step, 40, seed), drawn(UP * step, 40, seed + 1000, source="t")) for seed in range(40)
    ]
    covers = sum(one.gap_low <= 0 <= one.gap_high for one in found)
    assert covers >= 35
    assert abs(np.mean([one.gap for one in found])) < 0.06
    assert sum(one.verdict == DIFFERS for one in found) <= 3
    assert sum(one.p_same <= 0.05 for one in found) <= 6


def test_the_interval_is_as_wide_as_the_gap_varies():
    """The rescaling that is meant for small subsamples would make it a third too narrow."""
    found = [agree(drawn(UP * 0.05, 40, s), drawn(UP * 0.05, 40, s + 1000, source="t")) for s in range(60)]
    spread = np.std([one.gap for one in found])
    width = np.mean([(one.gap_high - one.gap_low) / 3.92 for one in found])
    assert 0.8 < width / spread < 1.7


def test_a_reversed_order_gives_a_clear_gap():
    for seed in range(5):
        one = agree(drawn(UP * 0.1, 40, seed), drawn(UP[::-1] * 0.1, 40, seed + 1000, source="t"))
        assert one.gap_low > 0.8
        assert one.tau < -0.5
        assert one.verdict == DIFFERS
        assert one.p_same <= 0.01
        assert one.best_a in "fgh"
        assert one.best_b in "abc"


def test_a_clear_common_order_is_held():
    one = agree(drawn(UP * 0.5, 40, 1), drawn(UP * 0.5, 40, 2, source="t"))
    assert (one.tau, one.verdict) == (1.0, HELD)
    assert one.gap_high < 0.2
    assert one.tau_top == pytest.approx(1.0)


def test_the_ceiling_is_that_of_the_reference():
    """Reference statistics, section 3: k = 11, n = 40, step 0.05: split-half tau about 0.52."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(60):
        y = np.arange(11)[:, None] * 0.05 + rng.normal(0, 0.5, (11, 40))
        names = tuple(str(i) for i in range(40))
        found.append(
            split_half(Scores("s", "1", "attainment_S2", tuple("abcdefghijk"), names, ("",) * 40, y, {}, 0))
        )
    assert np.mean(found) == pytest.approx(0.52, abs=0.05)


def test_a_source_agrees_with_itself_up_to_its_own_ceiling():
    """The same windows on both sides: halves must be disjoint, or luck would be counted as agreement."""
    one = drawn(UP * 0.02, 40, 4)
    itself = agree(one, one._replace(region="1.1"))
    assert itself.tau == 1.0
    assert itself.gap == pytest.approx(0.0, abs=1e-6)
    assert itself.cross == pytest.approx(split_half(one), abs=1e-6)


def test_tau_is_over_the_schedulers_that_both_rank():
    a, b = drawn(UP, 10, 5), drawn(UP, 10, 6, source="t")
    fewer = b._replace(schedulers=b.schedulers[2:5], values=b.values[2:5])
    assert agree(a, fewer).schedulers == 3
    lonely = b._replace(schedulers=b.schedulers[:1], values=b.values[:1])
    assert np.isnan(agree(a, lonely).tau)


def test_halves_are_balanced_within_strata():
    """Two strata of opposite orders: balanced halves always mix them, so halves agree better than by
    chance.
    """
    strata = ["x"] * 10 + ["y"] * 10
    flip = np.array([1.0] * 10 + [-1.0] * 10)
    y = UP[:, None] * (0.02 + flip) + np.random.default_rng(7).normal(0, 1e-6, (8, 20))
    known = drawn(UP, 20, 8, strata=strata)._replace(values=y)
    assert split_half(known) == pytest.approx(1.0)
    assert split_half(known._replace(strata=("",) * 20)) < 0.5


def test_too_few_windows_claim_nothing():
    one = agree(drawn(UP * 0.5, 6, 1), drawn(UP[::-1] * 0.5, 6, 2, source="t"))
    assert np.isnan(one.gap_low)
    assert one.verdict == "undecided"
    assert np.isnan(agree(drawn(UP, 3, 1), drawn(UP, 3, 2, source="t")).gap)


def test_matrix_holds_tau_and_ceilings():
    cells = [drawn(UP * 0.1, 40, 1), drawn(UP[::-1] * 0.1, 40, 2, source="t")]
    matrix = tau_matrix(cells, [split_half(cell) for cell in cells])
    assert matrix[0, 0] == split_half(cells[0])
    wanted = stats.kendalltau(cells[0].means, cells[1].means).statistic
    assert matrix[0, 1] == matrix[1, 0] == pytest.approx(wanted, abs=1e-6)


def test_a_full_reversal_is_not_usual_among_shuffles():
    """Two clean opposite orders: halves of their mixture are opposite too, and by tau alone p would be 1."""
    clean = UP * 50
    assert agree(drawn(clean, 10, 1), drawn(clean[::-1], 10, 2, source="t")).p_same <= 0.001


def test_a_gap_below_the_margin_is_no_difference():
    assert _verdict(0.19, 0.05, 0.33) == "undecided"
    assert _verdict(0.20, 0.05, 0.35) == DIFFERS
    assert _verdict(0.30, -0.01, 0.61) == "undecided"
    assert _verdict(0.10, 0.05, 0.15) == HELD
