"""Statistics: against closed forms on made counts, against scipy, and against the published numbers."""

import numpy as np
import pytest
from scipy import stats

from loadgen.describe import (
    autocorrelation,
    binned,
    counts,
    describe,
    gamma_shape,
    gap_cv,
    kappa,
    lengths,
    rate_series,
)
from loadgen.trace import read
from schedulers.errors import InputError
from tests.loadgen.trace_rows import AZURE, AZURE_2023, BURST_3, BURST_3_ROWS, write

S = 10**9


def test_the_partial_last_bin_is_left_out():
    arrival = np.array([0, 1, 2, 10, 11, 20]) * S
    assert counts(arrival, 10.0).tolist() == [3, 2]
    assert counts(arrival, 5.0).tolist() == [3, 0, 2, 0]
    assert counts(arrival, 30.0).tolist() == []
    assert binned(arrival, 30.0).iod is None


def test_an_arrival_on_an_edge_opens_its_bin():
    arrival = np.array([0, 1, 2, 3]) * S + 7
    assert counts(arrival, 1.0).tolist() == [1, 1, 1]


def test_dispersion_uses_the_sample_variance():
    arrival = np.array([0.1, 0.2, 0.3, 1.5, 3.5, 3.6, 4.2]) * S
    found = binned(np.r_[0, arrival.astype(np.int64)], 1.0)
    made = np.array([4, 1, 0, 2])
    assert found.bins == 4
    assert found.iod == pytest.approx(made.var(ddof=1) / made.mean())
    assert found.kappa == pytest.approx((found.iod - 1) / made.mean())
    assert found.peak_to_mean == pytest.approx(4 / 1.75)
    assert found.empty_share == 0.25
    assert found.lag_1 == pytest.approx(np.corrcoef(made[:-1], made[1:])[0, 1])


def test_stretched_time_keeps_dispersion_at_stretched_bins():
    drawn = np.random.Generator(np.random.PCG64(5))
    arrival = np.cumsum(drawn.gamma(0.3, 1e9, 5000)).astype(np.int64)
    for width in (1.0, 10.0):
        assert binned(arrival * 4, width * 4).iod == binned(arrival, width).iod
    assert gap_cv(np.diff(arrival * 4) / 1e9) == pytest.approx(gap_cv(np.diff(arrival) / 1e9), rel=1e-12)


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 4.0, 50.0])
def test_gamma_shape_is_the_likeliest(shape):
    gaps = np.random.Generator(np.random.PCG64(2)).gamma(shape, 3.0, 4000)
    expected = stats.gamma.fit(gaps[gaps > 0], floc=0)[0]
    assert gamma_shape(gaps) == pytest.approx(expected, rel=1e-4)
    assert gamma_shape(gaps * 1000) == pytest.approx(gamma_shape(gaps), rel=1e-9)


def test_what_can_not_be_told_is_none():
    assert gamma_shape(np.array([1.0, 1.0, 1.0])) is None
    assert gamma_shape(np.array([0.0, 2.0])) is None
    assert gap_cv(np.array([])) is None
    assert gap_cv(np.zeros(3)) is None
    assert kappa(np.zeros(5, np.int64)) is None
    assert autocorrelation(np.array([3, 3, 3]), 1) is None


def test_one_row_is_described(tmp_path):
    found = describe(read(write(tmp_path / "a.csv", AZURE, AZURE_2023[:1]), unpinned=True))
    assert (found.rows, found.span_s, found.rate_per_s, found.gap_cv) == (1, 0.0, None, None)
    assert found.pearson is None


def test_no_rows_are_an_error(tmp_path):
    trace = read(write(tmp_path / "a.csv", AZURE, AZURE_2023), unpinned=True)
    with pytest.raises(InputError, match="without rows"):
        describe(trace._replace(arrival_ns=trace.arrival_ns[:0]))


def test_quantiles_and_ratio():
    found = lengths(np.arange(1, 102))
    assert (found.mean, found.p10, found.p50, found.p90, found.p99) == (51, 11, 51, 91, 100)
    assert (found.min, found.max, found.sum) == (1, 101, 5151)


def test_sessions_and_follow_ups(tmp_path):
    found = describe(read(write(tmp_path / "b.csv", BURST_3, BURST_3_ROWS), unpinned=True))
    assert (found.sessions, found.follow_up_share) == (2, 0.25)
    assert found.reuse is None


def test_rate_series_holds_every_arrival():
    arrival = np.array([0, 1, 2, 50, 99]) * S
    rates, width = rate_series(arrival, 10)
    assert len(rates) == 10
    assert (rates * width).sum() == pytest.approx(5)
    assert (rates * width).round().tolist() == [3, 0, 0, 0, 0, 1, 0, 0, 0, 1]


ARRIVALS = {
    "azure/AzureLLMInferenceTrace_code.csv": (
        (8819, 3436, 2.567, 13.15, 0.231),
        ((13.19, 4.75, 0.76), (71.9, 2.77, 0.47), (166.9, 1.10, 0.16)),
        (26.1, 4.2),
    ),
    "azure/AzureLLMInferenceTrace_conv.csv": (
        (19366, 3502, 5.530, 1.094, 0.871),
        ((1.39, 0.070, 0.22), (3.87, 0.052, 0.71), (16.4, 0.046, 0.85)),
        (2.9, 1.5),
    ),
    "mooncake/synthetic_trace.jsonl.gz": (
        (3993, 1022, 3.907, 1.011, 1.018),
        ((1.09, None, None), (1.19, None, None), (1.27, None, None)),
        (None, None),
    ),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_published_arrival_statistics(traces_dir, name):
    (rows, span, rate, cv, shape), bins, peaks = ARRIVALS[name]
    found = describe(read(traces_dir / name))
    assert (found.rows, round(found.span_s)) == (rows, span)
    assert found.rate_per_s == pytest.approx(rate, abs=5e-4)
    assert found.gap_cv == pytest.approx(cv, rel=5e-4)
    assert found.gamma_shape == pytest.approx(shape, abs=5e-4)
    for one, (iod, kappa_told, lag_1) in zip(found.bins, bins, strict=True):
        assert one.iod == pytest.approx(iod, rel=4e-3)
        assert kappa_told is None or one.kappa == pytest.approx(kappa_told, rel=1e-2)
        assert lag_1 is None or one.lag_1 == pytest.approx(lag_1, abs=6e-3)
    for one, peak in zip((found.bins[0], found.bins[2]), peaks, strict=True):
        assert peak is None or one.peak_to_mean == pytest.approx(peak, abs=0.05)


SIDES = {
    "azure/AzureLLMInferenceTrace_code.csv": (
        (2048, 147, 1469, 5188, 7436, 7437),
        (27.9, 7, 13, 55, 251, 1899),
        (0.00, -0.02, 73),
    ),
    "azure/AzureLLMInferenceTrace_conv.csv": (
        (1155, 207, 1020, 2735, 4142, 14050),
        (211, 54, 129, 424, 601, 1000),
        (-0.11, 0.07, 5.5),
    ),
    "burstgpt/BurstGPT_1_head400.csv": (
        (544, 23, 353, 1437, 1958, 2126),
        (289, 19, 238, 584, 1425, 2019),
        (0.21, 0.28, 1.9),
    ),
    "burstgpt/BurstGPT_3_head400.csv": (
        (619, 25, 309, 1134, 5992, 25085),
        (171, 17, 101, 423, 862, 1101),
        (0.18, 0.11, 3.6),
    ),
    "mooncake/conversation_trace.jsonl.gz": (
        (12035, 964, 6909, 27367, 85400, 126195),
        (343, 24, 350, 597, 1119, 2000),
        (0.07, 0.07, 35),
    ),
    "mooncake/synthetic_trace.jsonl.gz": (
        (15326, 30, 11587, 38611, 66456, 191378),
        (149, 4, 69, 389, 768, 893),
        (-0.37, -0.52, 103),
    ),
}


@pytest.mark.parametrize("name", SIDES)
def test_published_length_statistics(traces_dir, name):
    prompt, output, (pearson, spearman, ratio) = SIDES[name]
    found = describe(read(traces_dir / name, unpinned=True))
    for side, told in ((found.prompt, prompt), (found.output, output)):
        numbers = (side.mean, side.p10, side.p50, side.p90, side.p99, side.max)
        assert numbers == pytest.approx(told, abs=0.6)
    assert found.pearson == pytest.approx(pearson, abs=6e-3)
    assert found.spearman == pytest.approx(spearman, abs=6e-3)
    assert found.prompt_to_output == pytest.approx(ratio, rel=2e-2)
