"""Acceptance of the surrogates (reference/traces.md 6.3): what was published is what comes out.

The fast half draws what a few hundred windows are cut from, with bounds that hold at that size; the slow half
draws the spans that 6.3 asks for.
"""

from functools import cache

import numpy as np
import pytest

from loadgen.surrogate import azure, bailian, burstgpt, generate
from loadgen.surrogate.prefix import ideal_hit, lru_hits
from loadgen.surrogate.sampling import Stream
from loadgen.surrogate.sessions import parents
from loadgen.trace import ORPHAN

HOUR_S = 3_600

# name: requests/s, IoD at 1, 10 and 60 s, IoD(1 s) of 300 s cells p10/50/90, mean, p50, p90, p99 of prompt
# and output
AZURE = {
    "azure_surrogate-code": (
        2.567,
        (13.19, 71.9, 166.9),
        (9.1, 10.6, 17.3),
        (2_048, 1_469, 5_188, 7_436),
        (27.9, 13, 55, 251),
    ),
    "azure_surrogate-conv": (
        5.530,
        (1.39, 3.87, 16.4),
        (1.07, 1.14, 1.31),
        (1_155, 1_020, 2_735, 4_142),
        (211, 129, 424, 601),
    ),
}
# name: requests/s, prompt mean, p50, p95, p99, output mean, p50, p99, follow-ups, one-request sessions, p50
# and p90 of the gap between turns
BAILIAN = {
    "bailian_surrogate-a": (
        5.98,
        (2_331, 1_046, 8_808, 14_359),
        (430, 375, 1_641),
        0.463,
        0.61,
        (110.6, 718.5),
    ),
    "bailian_surrogate-b": (24.0, (915, 574, 2_491, 6_294), (92, 39, 1_006), 0.0, 1.0, None),
    "bailian_surrogate-coder": (
        5.97,
        (5_748, 4_540, 13_406, 14_406),
        (808, 469, 5_835),
        0.386,
        0.747,
        (117.7, 941.8),
    ),
    "bailian_surrogate-thinking": (
        1.50,
        (4_763, 3_680, 16_221, 24_962),
        (3_651, 1_665, 34_529),
        0.111,
        0.947,
        (28.6, 254.9),
    ),
}
# name: rows of the real file, ideal hit, hits of an LRU cache of 1, 5, 10, 25, 50 % of the distinct blocks
REUSE = {
    "bailian_surrogate-a": (43_058, 0.579, (0.176, 0.410, 0.500, 0.562, 0.578)),
    "bailian_surrogate-b": (172_800, 0.542, (0.462, 0.516, 0.528, 0.537, 0.541)),
    "bailian_surrogate-coder": (43_011, 0.664, (0.404, 0.553, 0.604, 0.645, 0.660)),
    "bailian_surrogate-thinking": (10_812, 0.462, (0.367, 0.430, 0.445, 0.457, 0.460)),
}
# name, prompt p50 and p90, output p50 and p90
BURSTGPT = (
    ("chatgpt-api", 218, 2_161, 26, 187),
    ("gpt-4-api", 460, 1_105, 40, 1_038),
    ("chatgpt-conversation", 481, 1_664, 229, 543),
    ("gpt-4-conversation", 520, 1_843, 240, 549),
)
LRU_SIZES = (0.01, 0.05, 0.10, 0.25, 0.50)


@cache
def drawn(name, rows):
    return generate(name, rows=rows, seed=11)


def by_hour(seconds, width):
    """Counts of requests in bins of ``width`` s, one row a complete hour."""
    hours = int(seconds[-1] // HOUR_S)
    bins = np.bincount(
        (seconds[seconds < hours * HOUR_S] // width).astype(int), minlength=hours * HOUR_S // width
    )
    return bins.reshape(hours, -1)


def dispersion(counts):
    """Index of dispersion of each row of counts that has at least 20."""
    full = counts[counts.sum(axis=1) >= 20]
    return full.var(axis=1, ddof=1) / full.mean(axis=1)


def rate_and_bound(batches_per_s):
    """Mean rate and three standard errors of it from batch means."""
    return batches_per_s.mean(), 3.0 * batches_per_s.std(ddof=1) / len(batches_per_s) ** 0.5


def described(tokens, levels):
    return [tokens.mean(), *np.percentile(tokens, levels)]


def gaps_s(trace):
    follows = np.flatnonzero(trace.parent >= 0)
    return (trace.arrival_ns[follows] - trace.arrival_ns[trace.parent[follows]]) / 1e9


@pytest.mark.parametrize("name", AZURE)
def test_azure_lengths(name):
    trace, (*_, prompt, output) = drawn(name, 100_000), AZURE[name]
    assert described(trace.prompt_tokens, (50, 90, 99)) == pytest.approx(prompt, rel=0.15)
    assert described(trace.output_tokens, (50, 90, 99)) == pytest.approx(output, rel=0.15)


def test_azure_code_is_on_and_off():
    seconds = drawn("azure_surrogate-code", 200_000).arrival_ns / 1e9
    assert np.bincount(seconds.astype(int)).astype(bool).mean() == pytest.approx(0.27, abs=0.03)
    assert np.diff(seconds).std() / np.diff(seconds).mean() == pytest.approx(13.1, rel=0.15)


@pytest.mark.parametrize("name", AZURE)
def test_azure_burstiness_of_a_day(name):
    seconds, found = drawn(name, 200_000).arrival_ns / 1e9, AZURE[name][1]
    assert [dispersion(by_hour(seconds, width)).mean() for width in (1, 10, 60)] == pytest.approx(
        found, rel=0.25
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"), [("azure_surrogate-code", 2_300_000), ("azure_surrogate-conv", 4_900_000)]
)
def test_azure_over_nine_days(name, rows):
    rate, burstiness, cells, *_ = AZURE[name]
    stream = Stream(name, 12)
    seconds = azure.SERVICES[name][0](stream, rows)
    days = int(seconds[-1] // 86_400)  # whole days: conv has a daily wave
    assert days >= 9
    seconds = seconds[seconds < days * 86_400]
    batches = by_hour(np.append(seconds, days * 86_400.0), HOUR_S)[:, 0] / HOUR_S
    mean, bound = rate_and_bound(batches)
    assert mean == pytest.approx(rate, abs=max(0.02 * rate, bound))
    found = [dispersion(by_hour(seconds, width)).mean() for width in (1, 10, 60)]
    assert found == pytest.approx(burstiness, rel=0.15)
    every_second = by_hour(seconds, 1).reshape(-1, 300)
    assert np.percentile(dispersion(every_second), (10, 50, 90)) == pytest.approx(cells, rel=0.15)


@pytest.mark.parametrize("name", BAILIAN)
def test_bailian_lengths(name):
    trace, (_, prompt, output, *_) = drawn(name, 60_000), BAILIAN[name]
    # 6.3 asks for 2 %, which the slow half holds; sampling alone takes more at this size.
    assert described(trace.prompt_tokens, (50, 95, 99)) == pytest.approx(prompt, rel=0.05)
    assert described(trace.output_tokens, (50, 99)) == pytest.approx(output, rel=0.05)


@pytest.mark.parametrize(
    "name", ["bailian_surrogate-a", "bailian_surrogate-coder", "bailian_surrogate-thinking"]
)
def test_bailian_turns(name):
    trace, (_, _, _, follows, single, gaps) = drawn(name, 60_000), BAILIAN[name]
    orphans = (trace.flags & ORPHAN) != 0
    assert ((trace.parent >= 0) | orphans).mean() == pytest.approx(follows, abs=0.02)
    sizes = np.bincount(trace.session)
    whole = np.setdiff1d(np.arange(len(sizes)), trace.session[orphans])
    assert (sizes[whole] == 1).mean() == pytest.approx(single, abs=0.02)
    assert np.percentile(gaps_s(trace), (50, 90)) == pytest.approx(gaps, rel=0.15)


@pytest.mark.parametrize("name", ["bailian_surrogate-thinking"])
def test_bailian_reuse_of_the_smallest_file(name):
    holds_reuse(name, sample=64)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bailian_surrogate-a", "bailian_surrogate-b", "bailian_surrogate-coder"])
def test_bailian_reuse(name):
    holds_reuse(name, sample=16)


def holds_reuse(name, sample):
    rows, ideal, curve = REUSE[name]
    trace = drawn(name, rows)
    assert ideal_hit(trace) == pytest.approx(ideal, abs=0.02)
    assert lru_hits(trace, LRU_SIZES, sample=sample) == pytest.approx(curve, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("name", BAILIAN)
def test_bailian_lengths_and_gaps_of_a_long_trace(name):
    _, prompt, output, *_, gaps = BAILIAN[name]
    trace = generate(name, rows=300_000, seed=12)
    found = described(trace.prompt_tokens, (50, 95, 99)), described(trace.output_tokens, (50, 99))
    assert found[0] == pytest.approx(prompt, rel=0.02)
    assert found[1] == pytest.approx(output, rel=0.02)
    if gaps is not None:
        assert np.percentile(gaps_s(trace), (50, 90)) == pytest.approx(gaps, rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize("name", BAILIAN)
def test_bailian_rate_over_two_hundred_hours(name):
    part, hours = bailian.PARTS[name], 216
    # Drift, which is all that matters over days, is the same for a service of any size.
    part = part._replace(roots_per_s=part.roots_per_s / 20.0)
    stream = Stream(name, 12)
    _, times_ns, order = bailian.schedule(stream, part, int(1.2 * part.roots_per_s * hours * HOUR_S))
    seconds = times_ns[order] / 1e9
    counts = by_hour(seconds[seconds >= 0], HOUR_S)[:200, 0]
    rate = BAILIAN[name][0] / 20.0
    mean, bound = rate_and_bound(counts / HOUR_S)
    assert len(counts) == 200
    assert mean == pytest.approx(rate, abs=max(0.02 * rate, bound))


@pytest.mark.slow
def test_bailian_turn_classes():
    for name in BAILIAN:
        part = bailian.PARTS[name]
        if not part.clients:
            turns, _, _ = bailian.schedule(Stream(name, 1), part, 200_000)
            classes = np.histogram(turns.turn, [0, 1, 2, 5, 10, 10**6])[0] / len(turns.turn)
            assert classes == pytest.approx(np.array(part.turn_rows) / sum(part.turn_rows), abs=0.02)
            assert (parents(turns) >= 0).mean() == pytest.approx(BAILIAN[name][3], abs=0.02)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_burstgpt_days(seed):
    """Log counts of days over 420 days: sd 1.13 and lag-1 correlation .56 were published for 61 days."""
    counts = burstgpt.expected_by_day(Stream(burstgpt.NAME, seed), 420)
    logs = np.log(counts) - np.log(counts).mean()
    assert logs.std() == pytest.approx(1.13, abs=0.15)
    assert (logs[1:] * logs[:-1]).mean() / logs.var() == pytest.approx(0.56, abs=0.15)


def test_burstgpt_rate_over_ten_years():
    counts = burstgpt.expected_by_day(Stream(burstgpt.NAME, 1), 3_650)
    mean, bound = rate_and_bound(counts.reshape(-1, 10).mean(axis=1))  # batches longer than days remember
    assert mean == pytest.approx(23_438, abs=max(0.02 * 23_438, bound))


def test_burstgpt_sessions():
    rows = burstgpt.conversations(Stream(burstgpt.NAME, 5), 300)
    sizes = np.bincount(rows.session)
    assert sizes.mean() == pytest.approx(4.18, rel=0.1)
    assert (sizes == 1).mean() == pytest.approx(0.355, abs=0.02)
    assert np.percentile(sizes, (50, 90, 99)) == pytest.approx((2, 9, 31), rel=0.1)
    follows = np.flatnonzero(rows.parent >= 0)
    think_s = rows.times_s[follows] - rows.times_s[rows.parent[follows]]
    assert np.percentile(think_s, (10, 50, 90, 99)) == pytest.approx((17, 124, 2_331, 78_782), rel=0.1)
    grown = rows.prompt[follows] / rows.prompt[rows.parent[follows]]
    assert np.median(grown) == pytest.approx(1.27, rel=0.1)


def weighted(values, weights, levels):
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    return [values[order][np.searchsorted(mass, level * mass[-1])] for level in levels]


def test_burstgpt_campaigns_of_ten_years():
    """A campaign is thousands of rows of one template: only many of them show the law of the rows."""
    stream = Stream(burstgpt.NAME, 1)
    rows = burstgpt.scripts(stream, 3_650).rows
    kind, prompt, output = burstgpt.script_templates(stream, len(rows))
    share = rows.sum() / (3_650 * 23_438)
    assert share == pytest.approx(burstgpt.SCRIPT_SHARE * burstgpt.API_SHARE, rel=0.1)
    for index in (0, 1):
        mine, (name, *lengths) = kind == index, BURSTGPT[index]
        found = [
            *weighted(prompt[mine], rows[mine], (0.5, 0.9)),
            *weighted(output[mine], rows[mine], (0.5, 0.9)),
        ]
        assert found == pytest.approx(lengths, rel=0.15), name


@pytest.mark.slow
def test_burstgpt_rows_of_a_long_trace():
    """Counts by day are those of the day model; classes have about the published shares, p50 and p90."""
    trace = generate(burstgpt.NAME, rows=4_000_000, seed=3)
    shares = np.bincount(trace.kind) / len(trace.kind)
    assert shares == pytest.approx((0.774, 0.118, 0.072, 0.036), abs=0.03)
    for index, (name, *lengths) in enumerate(BURSTGPT):
        mine = trace.kind == index
        prompt, output = trace.prompt_tokens[mine], trace.output_tokens[mine]
        found = [*np.percentile(prompt, (50, 90)), *np.percentile(output, (50, 90))]
        # 6.3 asks for 15 %. API rows hang on some 800 campaigns here, of which the largest carry most; their
        # law is held to 15 % over ten years, above.
        assert found == pytest.approx(lengths, rel=0.35 if index < 2 else 0.15), name
    days = np.bincount(((trace.arrival_ns / 1e9 + float(trace.info.t0)) // 86_400).astype(int))[:-1]
    told = burstgpt.expected_by_day(Stream(burstgpt.NAME, 3), len(days) + burstgpt.PREROLL_DAYS)
    told = told[burstgpt.PREROLL_DAYS :]
    assert days.sum() == pytest.approx(told.sum(), rel=0.02)
    assert np.median(np.abs(np.log(days / told))) < 0.1
