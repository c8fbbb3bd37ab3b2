"""Metrics by hand on a few requests."""

import numpy as np
import pytest

from analysis.metrics import METRICS, expand, jain, natural, orient, split_column, summarise
from loadgen.result import (
    EXPIRED,
    FAILED,
    FINISHED,
    GAP_BINS,
    GAP_EDGES_S,
    REJECTED,
    Facts,
    InputError,
    Totals,
)

NAN = float("nan")
TIERS = [(1.0, 0.2, 3.0, 3.0), (5.0, 1.0, float("inf"), 1.0)]


def totals(gaps=None) -> Totals:
    counts = np.zeros(GAP_BINS, np.int64) if gaps is None else gaps
    return Totals(5, 3.0, 4.0, 2.0, 0.5, 0.9, 1.0, 3, 1, 30, 120, 0, 60, 0, 0, counts)


def facts(ttft, e2e, tokens, tier, outcome=None, **more) -> Facts:
    """Requests that arrive a second apart; those without a TTFT were turned away."""
    n = len(ttft)
    arrival = np.arange(n, dtype=np.float64)
    ttft, e2e = np.array(ttft, np.float64), np.array(e2e, np.float64)
    ends = [REJECTED if np.isnan(value) else FINISHED for value in ttft] if outcome is None else outcome
    columns = {
        "arrival_s": arrival, "dispatched_s": arrival, "started_s": arrival, "first_token_s": arrival + ttft,
        "finished_s": arrival + e2e, "prompt_tokens": np.full(n, 10), "output_tokens": np.array(tokens),
        "tier": np.array(tier), "tenant": np.zeros(n, np.int64), "session": np.full(n, -1),
        "outcome": np.array(ends, np.int8), "reason": np.zeros(n, np.int8), "engine": np.zeros(n, np.int64),
        "migrations": np.zeros(n, np.int64), "preemptions": np.zeros(n, np.int64), "longest_gap_s": e2e / 2,
        "idle_ttft_s": np.full(n, 0.5), "idle_e2e_s": np.full(n, 1.0),
        "cached_tokens": np.zeros(n, np.int64),
    }  # fmt: skip
    return Facts(**{**columns, **more})


def test_attainment_by_hand():
    """Four arrivals: tier 0 met, tier 0 late, tier 1 met with the same times, tier 0 rejected."""
    some = facts([0.8, 2.0, 2.0, NAN], [1.6, 2.8, 2.8, NAN], [5, 5, 5, 0], [0, 0, 1, 0])
    row = summarise(some, totals(), (0, 4), TIERS, ["tier", "S1", "S2", "S3", "S4"])
    assert row["attainment_tier"] == 2 / 4
    assert row["weighted_attainment_tier"] == pytest.approx((3 + 1) / (3 + 3 + 1 + 3))
    assert row["attainment_S1"] == 0.0  # 0.8 s is above 0.5 s
    assert row["attainment_S2"] == 0.0  # 0.2 s a token is above 0.1 s
    assert row["attainment_S3"] == 0.0  # 0.2 s a token is above 1.5 times the idle 0.125 s
    assert row["attainment_S4-5"] == 3 / 4
    assert row["attainment_S4-20"] == 3 / 4
    assert row["goodput_tier"] == pytest.approx(2 / 4)  # 4 arrivals a second apart span 4 s
    assert row["worst_group_tier"] == pytest.approx(1 / 3)
    assert row["jain_tier"] == pytest.approx((1 / 3 + 1) ** 2 / (2 * (1 / 9 + 1)))
    assert row["group_by"] == "tier"
    assert row["rejected_share"] == 1 / 4
    assert row["recomputed_share"] == 30 / 120
    assert row["utilisation"] == 3 / 4


@pytest.mark.parametrize(("tpot", "met"), [(0.030, 1.0), (0.0301, 0.0)])
def test_s1_holds_at_its_limit(tpot, met):
    some = facts([0.5], [0.5 + 10 * tpot], [11], [0])
    some = some._replace(first_token_s=np.array([0.5]), finished_s=np.array([0.5 + 10 * tpot]))
    row = summarise(some, totals(), (0, 1), TIERS, ["S1"])
    assert row["attainment_S1"] == met


@pytest.mark.parametrize(("ttft", "e2e", "met"), [(1.5, 2.25, 1.0), (1.6, 2.3, 0.0), (1.5, 2.3, 0.0)])
def test_s3_is_relative_to_the_idle_engine(ttft, e2e, met):
    """Idle: 0.5 s to the first token, then 0.125 s a token; allowed are 1.5 s and 0.1875 s."""
    row = summarise(facts([ttft], [e2e], [5], [0]), totals(), (0, 1), TIERS, ["S3"])
    assert row["attainment_S3"] == met


@pytest.mark.parametrize("outcome", [REJECTED, EXPIRED, FAILED])
def test_whatever_did_not_finish_is_missed(outcome):
    """Even if it had a first token in time, and even if it carries a finish."""
    some = facts([0.1, 0.1], [0.2, 0.2], [2, 2], [0, 0], outcome=[FINISHED, outcome])
    row = summarise(some, totals(), (0, 2), TIERS, ["tier", "S4-5"])
    assert row["attainment_tier"] == row["attainment_S4-5"] == 0.5
    assert row["e2e_mean_s"] == pytest.approx(0.2)
    assert row["finished_share"] == 0.5


def test_only_scored_arrivals_count():
    some = facts([0.1, 9.0, 0.1, 9.0], [0.2, 9.9, 0.2, 9.9], [2, 2, 2, 2], [0, 0, 0, 0])
    row = summarise(some, totals(), (1, 3), TIERS, ["tier"])
    assert row["attainment_tier"] == 0.5
    assert row["ttft_mean_s"] == pytest.approx((9.0 + 0.1) / 2)
    assert row["scored"] == 2
    assert row["scored_s"] == pytest.approx(2.0)


def test_latencies_and_slowdowns_by_hand():
    some = facts([0.5, 1.5], [1.0, 4.0], [6, 1], [0, 0])
    row = summarise(some, totals(), (0, 2), TIERS, ["tier"])
    assert row["ttft_p50_s"] == pytest.approx(1.0)
    assert row["ttft_p90_s"] == pytest.approx(1.4)
    assert row["tpot_mean_s"] == pytest.approx(0.1)  # the single-token request has none
    assert row["slowdown_e2e_mean"] == pytest.approx(2.5)
    assert row["slowdown_ttft_p50"] == pytest.approx(2.0)
    assert row["longest_gap_p50_s"] == pytest.approx(1.25)
    assert len(row["ttft_sketch"]) == 101
    assert row["ttft_sketch"][0] == np.float32(0.5)
    assert row["e2e_sketch"][100] == np.float32(4.0)


def test_nobody_finished_gives_none_not_zero():
    some = facts([NAN, NAN], [NAN, NAN], [0, 0], [0, 1])
    row = summarise(some, totals(), (0, 2), TIERS, ["tier"])
    assert row["attainment_tier"] == 0.0
    assert row["rejected_share"] == 1.0
    for name in ("ttft_mean_s", "e2e_p99_s", "slowdown_e2e_p50", "ttft_sketch", "itl_p99_s", "jain_tier"):
        assert row[name] is None, name


def test_throughput_is_over_the_scored_interval_not_the_drain():
    """Two requests of 11 tokens: the first wholly inside [0, 2), the second half outside."""
    some = facts([0.0, 0.0], [1.0, 2.0], [11, 11], [0, 0])
    row = summarise(some, totals(), (0, 2), TIERS, ["tier"])
    assert row["throughput_tokens_per_s"] == pytest.approx((11 + 1 + 5) / 2)
    stuck = some._replace(finished_s=np.array([1.0, 1e6]))
    later = summarise(stuck, totals(), (0, 2), TIERS, ["tier"])
    assert later["throughput_tokens_per_s"] == pytest.approx((11 + 1) / 2, rel=1e-3)


def test_gap_quantiles_come_from_the_histogram():
    gaps = np.zeros(GAP_BINS, np.int64)
    gaps[100], gaps[200] = 98, 2
    row = summarise(facts([0.1], [0.2], [2], [0]), totals(gaps), (0, 1), TIERS, ["tier"])
    assert GAP_EDGES_S[100] <= row["itl_p50_s"] <= GAP_EDGES_S[101]
    assert GAP_EDGES_S[100] <= row["itl_p95_s"] <= GAP_EDGES_S[101]
    assert GAP_EDGES_S[200] <= row["itl_p99_s"] <= GAP_EDGES_S[201]


def test_groups_fall_back_to_tenants_then_sessions_then_none():
    same = ([0.8, 2.0], [1.6, 2.8], [5, 5], [0, 0])
    tenants = facts(*same, tenant=np.array([0, 1]))
    sessions = facts(*same, session=np.array([3, 9]))
    assert summarise(tenants, totals(), (0, 2), TIERS, ["tier"])["group_by"] == "tenant"
    row = summarise(sessions, totals(), (0, 2), TIERS, ["tier"])
    assert (row["group_by"], row["worst_group_tier"]) == ("session", None)
    assert row["jain_tier"] == pytest.approx(0.5)
    alone = summarise(facts(*same), totals(), (0, 2), TIERS, ["tier"])
    assert (alone["group_by"], alone["jain_tier"], alone["worst_group_tier"]) == (None, None, None)


def test_jain_by_hand():
    assert jain(np.array([1.0, 1.0, 1.0])) == 1.0
    assert jain(np.array([1.0, 0.0])) == 0.5
    assert jain(np.zeros(3)) is None


def test_orientation_puts_better_higher():
    low, high = np.array([0.1]), np.array([0.9])
    for name, entry in METRICS.items():
        column = f"{name}_S2" if entry.by_slo else name
        better, worse = (high, low) if entry.higher_is_better else (low, high)
        assert orient(better, column) > orient(worse, column), name
        assert natural(orient(better, column), column) == pytest.approx(better), name
    assert np.isnan(orient(np.array([0.0]), "ttft_mean_s"))
    assert {entry.margin for entry in METRICS.values() if entry.kind == "rate"} == {0.02}
    assert {entry.margin for entry in METRICS.values() if entry.kind != "rate"} == {0.05}


def test_every_metric_is_made_by_summarise():
    row = summarise(facts([0.1, 0.2], [0.2, 0.3], [2, 2], [0, 1]), totals(), (0, 2), TIERS, ["S2"])
    for name, entry in METRICS.items():
        assert (f"{name}_S2" if entry.by_slo else name) in row


def test_names_are_read_alike_and_unknown_ones_refused():
    for written in ("attainment_S2", "attainment:S2", "attainment/S2"):
        assert split_column(written) == ("attainment", "S2")
    assert split_column("weighted_attainment_S4-10") == ("weighted_attainment", "S4-10")
    assert split_column("ttft_p99_s") == ("ttft_p99_s", "")
    for wrong in ("attainment", "speed", "ttft_p99_s_S2", "attainment_S9"):
        with pytest.raises(InputError, match="no metric is called"):
            split_column(wrong)
    assert expand(["S4", "tier"]) == ("S4-5", "S4-10", "S4-20", "tier")
    with pytest.raises(InputError, match="time of every token"):
        expand(["S5"])


def test_an_empty_score_is_refused():
    with pytest.raises(InputError, match="no arrivals to score"):
        summarise(facts([0.1], [0.2], [2], [0]), totals(), (1, 1), TIERS, ["tier"])


def test_cost_is_engine_seconds_of_the_scored_interval():
    """Two engines for 8 s, of which 4 arrivals a second apart span 4 s; two met their targets."""
    some = facts([0.8, 0.8, 2.0, NAN], [1.0, 1.0, 5.0, NAN], [3, 3, 3, 0], [0, 0, 0, 0])
    some = some._replace(finished_s=np.array([1.0, 2.0, 8.0, NAN]))
    row = summarise(some, totals()._replace(engine_s=16.0), (0, 4), TIERS, ["tier"])
    assert row["attainment_tier"] == 2 / 4
    assert row["engine_s_per_attained_tier"] == pytest.approx(2 * 4 / 2)
    assert row["wasted_tokens_share_tier"] == pytest.approx(3 / 9)
    none = summarise(some, totals(), (2, 4), TIERS, ["tier"])
    assert none["engine_s_per_attained_tier"] is None
    assert none["wasted_tokens_share_tier"] == 1.0


def test_slowdowns_by_hand():
    """Idle end to end is 1 s. Tier 0 is slowed by 2 and 4, tier 1 by 1; a group without a finish is undefined."""
    some = facts([0.5, 0.5, 0.5, NAN], [2.0, 4.0, 1.0, NAN], [4, 2, 1, 0], [0, 0, 1, 0])
    row = summarise(some, totals(), (0, 4), TIERS, ["tier"])
    assert row["jain_slowdown"] == pytest.approx((3 + 1) ** 2 / (2 * (9 + 1)))
    assert row["slowdown_spread"] == pytest.approx(4 / 2)
    assert row["normalised_mean_s"] == pytest.approx((2 / 4 + 4 / 2 + 1 / 1) / 3)
    gone = facts([0.5, NAN], [2.0, NAN], [4, 0], [0, 1])
    assert summarise(gone, totals(), (0, 2), TIERS, ["tier"])["jain_slowdown"] is None
    alone = facts([0.5, 0.5], [2.0, 6.0], [4, 4], [0, 0])
    row = summarise(alone, totals(), (0, 2), TIERS, ["tier"])
    assert (row["jain_slowdown"], row["slowdown_spread"]) == (None, pytest.approx(6 / 4))
