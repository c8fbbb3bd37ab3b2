"""Forecasts: each kind tells what its name says, its error has the stated size, and no order of calls matters."""

from math import asin, log1p, pi, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import kendalltau

from loadgen.guess import Guess, bucket_of, forecasts, parse
from loadgen.plan import Plan, TierSpec, read_plan
from schedulers.errors import InputError

N = 20_000
KINDS = ("oracle", "lognormal:0.2", "bucket:4", "rank:0.2", "class", "mean", "none")
PLAN = """
name = "mine"
schedulers = ["edf"]
forecast = "{}"
[[tiers]]
name = "all"
ttft_s = 1.0
tpot_s = 0.1
share = 1.0
"""


def drawn(n=N, seed=7):
    """Lengths of wide spread, luck and classes."""
    draw = np.random.default_rng(seed)
    truth = np.ceil(draw.lognormal(6.0, 0.8, n)).astype(np.int64)
    return truth, draw.standard_normal(n), draw.integers(0, 3, n)


def told(forecast, truth, luck=None, classes=None):
    truth = np.asarray(truth)
    nothing = np.zeros(len(truth))
    return forecasts(
        truth,
        nothing if luck is None else np.asarray(luck),
        nothing.astype(int) if classes is None else np.asarray(classes),
        forecast,
    ).tolist()


def test_what_each_kind_tells_of_a_small_window():
    truth = [1, 2, 3, 10]
    assert told("oracle", truth) == [1, 2, 3, 10]
    assert told("mean", truth) == told("none", truth) == [4, 4, 4, 4]
    assert told("class", truth, classes=[0, 0, 2, 2]) == [1.5, 1.5, 6.5, 6.5]
    assert forecasts(np.array(truth), np.zeros(4), None, "class").tolist() == [4, 4, 4, 4]
    assert told("lognormal:0", truth, luck=[5, 5, 5, 5]) == [1, 2, 3, 10]
    assert told("bucket:2", truth) == [1.5, 1.5, 6.5, 6.5]
    # places 0.5, 1.5, 2.5 and 3.5 of 4, times twice the mean of 4
    assert told("rank:0", truth) == [1, 3, 5, 7]
    assert told("rank:0", [3, 10, 1, 2]) == [5, 7, 1, 3]


def test_a_factor_by_hand():
    """sigma = sqrt(ln(1 + 0.75^2)) = 0.668; luck 1 and -1 multiply and divide by e^0.668 = 1.9504."""
    assert told("lognormal:0.75", [100, 100, 100], [1.0, 0.0, -1.0]) == pytest.approx(
        [195.04, 100.0, 51.27], rel=1e-4
    )


def test_nothing_is_told_below_one_token():
    assert told("lognormal:2", [1, 5], [-9.0, -9.0]) == [1, 1]
    assert min(told("rank:0", np.ones(9, int))) == 1
    assert all(told(kind, []) == [] for kind in KINDS)


@pytest.mark.parametrize(("size", "relative"), [(0.05, 0.0398), (0.2, 0.1601), (0.5, 0.4062), (1.0, 0.8413)])
def test_the_stated_size_is_the_factors_deviation_over_its_mean(size, relative):
    """And what follows from it: median 1, mean sqrt(1 + size^2), sd of the logarithm, mean absolute error."""
    luck = np.array(
        [NormalDist().inv_cdf((i + 0.5) / N) for i in range(N)]
    )  # evenly, so that no seed matters
    factor = forecasts(np.full(N, 1_000_000), luck, np.zeros(N, int), f"lognormal:{size}") / 1_000_000
    assert factor.std() / factor.mean() == pytest.approx(size, rel=0.02)
    assert np.median(factor) == pytest.approx(1.0, rel=1e-3)
    assert factor.mean() == pytest.approx(sqrt(1 + size * size), rel=1e-3)
    assert np.log(factor).std() == pytest.approx(sqrt(log1p(size * size)), rel=1e-3)
    assert np.abs(factor - 1).mean() == pytest.approx(relative, rel=1e-2)


def test_buckets_hold_equal_parts_and_tell_their_mean():
    truth, luck, classes = drawn()
    found = bucket_of(truth.astype(float), 4)
    assert np.bincount(found) == pytest.approx([N / 4] * 4, rel=0.02)
    shown = forecasts(truth, luck, classes, "bucket:4")
    for bucket in range(4):
        assert set(shown[found == bucket].tolist()) == {
            truth[found == bucket].sum() / (found == bucket).sum()
        }
    assert (np.diff(shown[np.argsort(truth)]) >= 0).all()


def test_buckets_keep_equals_together():
    assert told("bucket:2", [5, 5, 5, 9]) == [6, 6, 6, 6]  # the edge lies among the fives
    assert told("bucket:4", [5, 5, 9, 9]) == [5, 5, 9, 9]
    assert told("bucket:1", [1, 2, 9]) == [4, 4, 4]
    assert told("bucket:100", [1, 2, 9, 2]) == [1, 2, 9, 2]
    errors = [np.abs(forecasts(*drawn(2000), f"bucket:{n}") - drawn(2000)[0]).mean() for n in (2, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)


def test_a_rank_tells_the_order_and_the_mean_alone():
    truth, luck, classes = drawn()
    shown = forecasts(truth, luck, classes, "rank:0")
    assert np.corrcoef(np.argsort(np.argsort(truth, kind="stable")), shown)[0, 1] > 0.9999
    assert shown.mean() == pytest.approx(truth.mean(), rel=1e-3)
    assert shown.max() < 2 * truth.mean()
    stretched = forecasts(truth**2, luck, classes, "rank:0")  # other lengths in the same order
    assert stretched / (truth**2).mean() == pytest.approx(shown / truth.mean(), abs=1e-2)
    assert told("rank:0", [4, 4, 4, 8]) == [3 / 8 * 10, 3 / 8 * 10, 3 / 8 * 10, 7 / 8 * 10]


@pytest.mark.parametrize("size", [0.2, 1.0])
def test_the_size_of_a_rank_is_that_of_the_lengths_it_was_made_from(size):
    """Lengths spread by s in the logarithm, error by sigma: tau = 2/pi asin(s / sqrt(s^2 + sigma^2))."""
    truth, luck, classes = drawn()
    tau = kendalltau(truth, forecasts(truth, luck, classes, f"rank:{size}")).statistic
    expected = 2 / pi * asin(0.8 / sqrt(0.8**2 + log1p(size * size)))
    assert tau == pytest.approx(expected, abs=0.01)
    order = np.argsort(forecasts(truth, luck, classes, f"lognormal:{size}"))
    assert (np.diff(forecasts(truth, luck, classes, f"rank:{size}")[order]) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_forecast_belongs_to_its_request_and_not_to_its_row(kind):
    """Rows in another order bring the same forecasts in that order, and asking twice changes nothing."""
    truth, luck, classes = drawn(500)
    order = np.random.default_rng(1).permutation(500)
    shown = forecasts(truth, luck, classes, kind)
    assert forecasts(truth[order], luck[order], classes[order], kind) == pytest.approx(
        shown[order], rel=1e-12
    )
    assert np.array_equal(forecasts(truth, luck, classes, kind), shown)
    assert shown.dtype == np.float64
    assert truth.tolist() == drawn(500)[0].tolist(), "the truth is left as it was"


def test_only_kinds_with_an_error_use_luck():
    truth, luck, classes = drawn(300)
    moved = [
        k
        for k in KINDS
        if not np.array_equal(forecasts(truth, luck, classes, k), forecasts(truth, -luck, classes, k))
    ]
    assert moved == ["lognormal:0.2", "rank:0.2"]


def test_an_error_of_one_request_moves_no_other():
    truth, luck, classes = drawn(300)
    other = luck.copy()
    other[7] += 1.0
    moved = np.flatnonzero(
        forecasts(truth, luck, classes, "lognormal:0.2") != forecasts(truth, other, classes, "lognormal:0.2")
    )
    assert moved.tolist() == [7]


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("oracle", ("oracle", 0.0)),
        ("lognormal:0.2", ("lognormal", 0.2)),
        ("lognormal:0", ("lognormal", 0.0)),
        ("bucket:4", ("bucket", 4.0)),
        ("rank:0.2", ("rank", 0.2)),
        ("class", ("class", 0.0)),
        ("mean", ("mean", 0.0)),
        ("none", ("none", 0.0)),
    ],
)
def test_the_grammar(text, guess):
    assert parse(text) == Guess(*guess)


BAD = (
    "lognormal", "lognormal:", "lognormal:-1", "lognormal:nan", "lognormal:10", "normal:0.2", "", "bucket",
    "bucket:0", "bucket:2.5", "bucket:inf", "bucket:10001", "rank", "rank:-0.1", "class:2", "mean:", "none:1",
    "oracle:0", "Oracle",
)  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_unknown_forecasts_are_refused(text):
    with pytest.raises(InputError, match="unknown forecast") as caught:
        parse(text)
    assert caught.value.where == "forecast"
    assert "bucket:4" in caught.value.fix


def test_a_plan_reads_every_kind_and_says_where_an_unknown_one_stands(tmp_path):
    path = tmp_path / "plan.toml"
    for kind in KINDS:
        path.write_text(PLAN.format(kind))
        assert read_plan(str(path)).forecast == kind
    path.write_text(PLAN.format("bucket:0"))
    with pytest.raises(InputError, match="unknown forecast 'bucket:0'") as caught:
        read_plan(str(path))
    assert caught.value.where == f"{path}:4"
    tier = TierSpec("all", 1.0, 0.1, 1.0)
    digests = {Plan("p", ("edf",), (tier,), forecast=kind).digest for kind in KINDS}
    assert len(digests) == len(KINDS)
