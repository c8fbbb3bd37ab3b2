"""Reversals: each p against scipy and statsmodels, planted ones found as often as told, none found where none is."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from analysis.answers import EQUIVALENT, OUTCOMES, REVERSAL, SIGN, STABLE, UNDECIDED
from analysis.power import detectable_reversal, reversal_power
from analysis.ranks import holm, one_sided_beyond
from analysis.reversals import (
    Hypotheses,
    adjust,
    crossing,
    family,
    gail_simon,
    outcomes,
    pair_tests,
    reversal_p,
)

DELTA = 0.02
PAIR = (("a", "b"),)


def sided(drawn, difference, windows, sd, seed, **where):
    """Two schedulers whose paired difference has this mean and sd."""
    return drawn([difference, 0.0], windows, sd / np.sqrt(2), seed, **where)


def test_each_side_is_the_t_test_against_the_margin(drawn):
    cell = drawn([0.03, 0.0, 0.01], 40, 0.05, 1)
    tests = pair_tests(cell, [("a", "b"), ("b", "c")])
    for at, (i, j) in enumerate(((0, 1), (1, 2))):
        x, y = cell.values[i], cell.values[j]
        wanted = stats.ttest_rel(x - DELTA, y, alternative="greater").pvalue
        assert tests.above[1, at] == pytest.approx(wanted)
        assert tests.below[1, at] == pytest.approx(stats.ttest_rel(x + DELTA, y, alternative="less").pvalue)
        assert tests.positive[at] == pytest.approx(stats.ttest_rel(x, y, alternative="greater").pvalue)
        assert tests.negative[at] == pytest.approx(stats.ttest_rel(x, y, alternative="less").pvalue)
        for row, factor in enumerate((0.4, 1.0, 2.0)):
            wanted = ttost_paired(x, y, -factor * DELTA, factor * DELTA)[0]
            assert tests.equivalent[row, at] == pytest.approx(wanted)


def test_few_windows_flip_signs_at_every_threshold():
    x = np.random.default_rng(3).normal(0.3, 1, (2, 9))
    found = one_sided_beyond(x, (0.2, 0.0, -0.5))
    for row, threshold in zip(found, (0.2, 0.0, -0.5), strict=True):
        wanted = stats.permutation_test(
            (x - threshold,),
            np.mean,
            permutation_type="samples",
            alternative="greater",
            vectorized=True,
            axis=1,
        ).pvalue
        assert row == pytest.approx(wanted)
    many = np.random.default_rng(4).normal(0.3, 1, (1, 20))
    assert one_sided_beyond(many, (0.2,))[0, 0] == pytest.approx(one_sided_beyond(many - 0.2, (0.0,))[0, 0])


def test_p_of_a_reversal_by_hand(drawn):
    x, y = sided(drawn, 0.06, 40, 0.1, 1), sided(drawn, -0.05, 40, 0.1, 2)
    p = reversal_p(a := pair_tests(x, PAIR), b := pair_tests(y, PAIR))
    assert p["rev"][0] == pytest.approx(2 * max(a.above[1, 0], b.below[1, 0]))
    assert p["sign"][0] == pytest.approx(2 * max(a.positive[0], b.negative[0]))
    assert p["stable"][0] == 1.0
    assert reversal_p(b, a)["rev"][0] == p["rev"][0]
    assert reversal_p(a, a)["stable"][0] == pytest.approx(2 * a.above[1, 0])


def test_outcomes_are_tried_in_their_order():
    q = {name: np.full(5, 1.0) for name in ("rev", "stable", "sign", "eq")}
    for at in range(4):
        for held in list(q)[at:]:
            q[held][at] = 0.05
    assert outcomes(q).tolist() == [REVERSAL, STABLE, SIGN, EQUIVALENT, UNDECIDED]


@pytest.mark.parametrize(
    ("x", "y", "sd", "outcome"),
    [
        (0.1, -0.1, 0.03, REVERSAL), (0.1, 0.1, 0.03, STABLE), (-0.1, -0.1, 0.03, STABLE),
        (0.012, -0.012, 0.03, SIGN), (0.1, 0.0, 0.03, EQUIVALENT), (0.03, -0.03, 0.3, UNDECIDED),
    ],
)  # fmt: skip
def test_each_outcome_is_what_it_says(drawn, x, y, sd, outcome):
    cells = {
        (source, "0.95", "attainment_S2"): sided(drawn, mean, 80, sd, seed, source=source)
        for seed, (source, mean) in enumerate((("s", x), ("t", y)))
    }
    found = family(Hypotheses("sources", "source", False, True, (tuple(cells),), PAIR), cells)
    assert found.table["outcome"].tolist() == [outcome]
    assert found.counts == {name: int(name == outcome) for name in OUTCOMES}


def test_corrections_are_those_of_statsmodels():
    p = np.random.default_rng(5).uniform(0, 0.2, 30)
    holed = np.insert(p, 4, np.nan)
    for method in ("holm", "fdr_by", "fdr_bh"):
        assert np.delete(adjust(holed, method), 4) == pytest.approx(multipletests(p, method=method)[1])
        assert np.isnan(adjust(holed, method)[4])
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_a_planned_family_is_corrected_by_holm_unless_it_is_large(drawn):
    names = "abcdefgh"
    cells = {
        (source, region, "attainment_S2"): drawn(np.arange(8) * 0.1, 30, 0.1, 1, source=source, region=region)
        for source in "st"
        for region in ("1", "2", "3", "4")
    }
    sides = tuple((("s", r, "attainment_S2"), ("t", r, "attainment_S2")) for r in ("1", "2", "3", "4"))
    pairs = tuple(combinations(names, 2))
    small = family(Hypotheses("planned", "source", True, True, sides, pairs[:20]), cells)
    assert (small.adjustment, small.size) == ("holm", 80)
    large = family(Hypotheses("planned", "source", True, True, sides, pairs), cells)
    assert (large.adjustment, large.size) == ("fdr_by", 112)
    wider = small.by_margin
    assert wider[0.4][STABLE] >= wider[1.0][STABLE] >= wider[2.0][STABLE]
    assert wider[1.0] == small.counts
    assert small.table["q_rev"].to_numpy() == pytest.approx(holm(small.table["p_rev"].to_numpy()))


def test_a_pair_that_is_not_ranked_on_a_side_is_left_out(drawn):
    x, y = (drawn([0.1, 0.2, 0.3], 30, 0.1, 1, source=source) for source in "st")
    y = y._replace(schedulers=("a", "c"), values=y.values[[0, 2]])
    cells = {("s", "0.95", "attainment_S2"): x, ("t", "0.95", "attainment_S2"): y}
    found = family(
        Hypotheses("sources", "source", False, True, (tuple(cells),), tuple(combinations("abc", 2))), cells
    )
    assert (found.size, found.excluded) == (1, 2)
    assert found.table[["a", "b"]].to_numpy().tolist() == [["a", "c"]]


def false_reversals(studies, windows, means, adjusted):
    """Return the share of simulated studies that claim a material reversal that isn't one.

    Each study: schedulers x sources x 2 regions; ``means`` (sources, schedulers) reverse no pair materially.
    """
    from analysis.scores import Scores

    rng = np.random.default_rng(6)
    sources, count = means.shape
    names = tuple("abcdefgh"[:count])
    pairs = tuple(combinations(names, 2))
    wrong = 0
    for _ in range(studies):
        tests = []
        for region in "12":
            values = means[:, :, None] + rng.normal(0, 0.05, (sources, count, windows))
            tests.append(
                [
                    pair_tests(
                        Scores(
                            str(s),
                            region,
                            "attainment_S2",
                            names,
                            tuple(map(str, range(windows))),
                            (),
                            one,
                            {},
                            0,
                        ),
                        pairs,
                    )
                    for s, one in enumerate(values)
                ]
            )
        p = np.concatenate([reversal_p(a, b)["rev"] for cells in tests for a, b in combinations(cells, 2)])
        wrong += bool((adjust(p, adjusted) <= 0.05).any())
    return wrong / studies


def edge(sources, count):
    """At the edge of the null: the first far ahead in one source, by exactly the margin behind in the others."""
    ahead = np.linspace(0.4, 0.0, count)
    behind = np.array([0.0, *[DELTA] * (count - 1)])
    return np.stack([ahead, *(behind for _ in range(sources - 1))])


def test_a_reversal_of_the_margin_itself_is_claimed_in_one_study_of_forty():
    """One hypothesis at the edge of the null, alone: the two orientations share the 5 %."""
    rng = np.random.default_rng(7)
    d = rng.normal(-DELTA, 0.1, (4000, 40))
    far = np.full(4000, 1e-9)
    claimed = 2 * np.maximum(far, one_sided_beyond(-d, (DELTA,))[0]) <= 0.05
    assert 0.015 <= claimed.mean() <= 0.035


def test_no_reversal_is_claimed_more_often_than_told():
    """Six schedulers, 90 hypotheses a study, the same order in all sources or the edge of the null."""
    assert false_reversals(60, 40, np.tile(np.linspace(0, 0.1, 6), (3, 1)), "fdr_by") <= 0.05
    assert false_reversals(60, 40, edge(3, 4), "holm") <= 0.12


@pytest.mark.slow
def test_no_reversal_is_claimed_more_often_than_told_over_a_thousand_studies():
    assert false_reversals(1000, 40, np.tile(np.linspace(0, 0.1, 6), (3, 1)), "fdr_by") <= 0.05
    assert false_reversals(1000, 40, np.zeros((3, 6)), "fdr_by") <= 0.05
    edged = false_reversals(1000, 40, edge(3, 4), "holm")
    assert edged <= 0.065  # 5 % and two standard errors
    assert false_reversals(1000, 40, edge(3, 4), "fdr_by") <= edged


@pytest.mark.parametrize(("windows", "difference"), [(40, 0.06), (80, 0.05), (120, 0.04), (20, 0.08)])
def test_a_planted_reversal_is_found_with_the_stated_power(windows, difference):
    """Twenty windows go by sign flips, whose power is Student's to a few percent."""
    rng = np.random.default_rng(8)
    studies = 400 if windows < 30 else 2000
    x, y = rng.normal(difference, 0.1, (studies, windows)), rng.normal(-difference, 0.1, (studies, windows))
    p = 2 * np.maximum(one_sided_beyond(x, (DELTA,))[0], one_sided_beyond(-y, (DELTA,))[0])
    assert (p <= 0.05).mean() == pytest.approx(reversal_power(difference, DELTA, 0.1, windows), abs=0.05)


def test_the_detectable_reversal_is_detected_four_times_in_five():
    for penalty in (1.0, 300.0):
        least = detectable_reversal(DELTA, 0.1, 80, penalty)
        rng = np.random.default_rng(9)
        x, y = rng.normal(least, 0.1, (2000, 80)), rng.normal(-least, 0.1, (2000, 80))
        p = 2 * penalty * np.maximum(one_sided_beyond(x, (DELTA,))[0], one_sided_beyond(-y, (DELTA,))[0])
        assert (p <= 0.05).mean() == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("groups", "critical"), [(2, 2.71), (3, 4.23), (4, 5.43), (5, 6.50)])
def test_gail_and_simons_critical_values(groups, critical):
    """Gail and Simon 1985, table 1, level 0.05."""
    d = np.full((groups, 1), 100.0)
    d[0] = -np.sqrt(critical)
    q, p = gail_simon(d, np.ones((groups, 1)))
    assert q[0] == pytest.approx(critical)
    assert p[0] == pytest.approx(0.05, abs=2e-4)


def test_gail_and_simon_asks_both_signs(drawn):
    q, p = gail_simon(np.array([[1.0, 3.0], [2.0, -3.0], [0.5, 3.0]]), np.full((3, 2), 1.0))
    assert (q[0], p[0]) == (0.0, 1.0)
    assert q[1] == pytest.approx(9.0)
    assert p[1] < 0.05
    keys = [(source, "1", "attainment_S2") for source in "stu"]
    means = ((0.1, 0.0), (0.1, 0.0), (-0.1, 0.0))
    cells = {
        key: drawn(mean, 40, 0.05, at, source=key[0], region="1")
        for at, (key, mean) in enumerate(zip(keys, means, strict=True))
    }
    [row] = crossing(cells, [keys], PAIR).table.to_dict("records")
    assert (row["sources"], row["region"]) == (3, "1")
    assert row["q_by"] < 0.001
    assert row["p"] < row["p_margin"]


def test_gail_and_simon_keeps_its_level():
    """At the edge: one source at 0, the others far on the other side."""
    rng = np.random.default_rng(10)
    d = rng.normal(0, 1, (3, 4000)) + np.array([[0.0], [-9.0], [-9.0]])
    assert (gail_simon(d, np.ones_like(d))[1] <= 0.05).mean() <= 0.05
