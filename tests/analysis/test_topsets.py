"""Top sets, by arch and by hand; overlap of lists by the definitions of their authors."""

import numpy as np
import pytest
from arch.bootstrap import MCS

from analysis.ranks import rank
from analysis.topsets import confidence_p, jaccard, rbo, top_set_of


def test_confidence_set_is_archs(drawn):
    cell = drawn([0.3, 0.28, 0.2, 0.0], 40, 0.1, 1)
    found = top_set_of(cell, rank(cell))
    models = MCS(-cell.values.T, 0.05, reps=4000, block_size=1, seed=9)
    models.compute()
    wanted = models.pvalues["Pvalue"]
    assert {name: wanted[at] for at, name in enumerate("abcd")} == pytest.approx(found.confidence_p, abs=0.03)
    assert set(found.confidence_set) == {"abcd"[at] for at in models.included}
    assert found.confidence_set[0] == found.best == found.members[0]


def test_schedulers_that_differ_by_a_constant_have_no_spread_to_be_tested_by(condition):
    base = np.random.default_rng(1).normal(0, 1, 20)
    other = np.random.default_rng(2).normal(0, 1, 20) - 9
    p = confidence_p(condition([base, base, base - 0.5, other, np.full(20, -9.0)]))
    assert (p["a"], p["b"], p["c"], p["d"]) == (1.0, 1.0, 0.0, 0.0)
    same = confidence_p(condition(np.ones((3, 20))))
    assert same == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_the_confidence_set_holds_the_best_nineteen_times_in_twenty(drawn):
    """Three equal schedulers and one worse: any of the three is best, and each must mostly stay."""
    lost = sum(
        "a" not in top_set_of(c := drawn([0.1, 0.1, 0.1, 0.0], 40, 0.1, s), rank(c)).confidence_set
        for s in range(25)
    )
    assert lost <= 4


def test_a_wider_margin_keeps_more(drawn):
    cell = drawn([0.2, 0.186, 0.17, 0.14, 0.0], 60, 0.01, 3)
    found = top_set_of(cell, rank(cell))
    assert found.at_margin[0.4] == ("a",)
    assert found.at_margin[1.0] == found.members == ("a", "b")
    assert found.at_margin[2.0] == ("a", "b", "c")
    empty = cell._replace(schedulers=(), values=np.zeros((0, 60)))
    assert top_set_of(empty, rank(empty)).members == ()


def test_jaccard_by_hand():
    assert jaccard("abc", "bcd") == 0.5
    assert jaccard("ab", "ab") == 1.0
    assert np.isnan(jaccard("", ""))


def definition(first, second, q, depth=3000):
    """RBO as its definition sums it, agreement beyond the ends extrapolated as its authors do."""
    short, long = sorted((first, second), key=len)
    s, n = len(short), len(long)
    total = 0.0
    for d in range(1, depth):
        shared = len({*short[: min(d, s)]} & {*long[: min(d, n)]})
        within = len({*short} & {*long[:s]}) / s  # what the shorter list would go on with
        if d > s:
            shared += within * (min(d, n) - s)
        agreement = shared / d if d <= n else (len({*short} & {*long}) + within * (n - s)) / n
        total += q ** (d - 1) * agreement
    return (1 - q) * total


@pytest.mark.parametrize(
    ("first", "second"), [("abcde", "abcde"), ("abcde", "edcba"), ("abcd", "wxyz"), ("abc", "bacdefgh"),
                         ("ab", "xyzab")],
)  # fmt: skip
@pytest.mark.parametrize("q", [0.5, 0.9])
def test_rbo_sums_to_its_definition(first, second, q):
    """Webber, Moffat and Zobel 2010: the infinite sum, with the agreement at the end carried on."""
    found = rbo(first, second, q)
    assert found == pytest.approx(rbo(second, first, q))
    assert found == pytest.approx(definition(first, second, q), abs=1e-6)


def test_rbo_of_equals_is_one_and_of_strangers_nought():
    assert rbo("abcdefghijklm", "abcdefghijklm") == pytest.approx(1.0)
    assert rbo("abc", "xyz") == 0.0
    assert np.isnan(rbo("", "abc"))
    assert rbo("abcdef", "bacdef") < rbo("abcdef", "abcdfe")
