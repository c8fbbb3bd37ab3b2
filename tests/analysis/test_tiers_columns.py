"""What a run leaves of each atom: overtaking, waiting and idleness against the plainest way to count them."""

from types import SimpleNamespace

import numpy as np
import pytest

from analysis.tiers_columns import (
    ATOMS,
    EDGES_S,
    batch_most,
    by_class,
    histogram,
    idle_most_s,
    overtakings,
    quantile,
)
from loadgen.result import FINISHED, REJECTED, Facts

RNG = np.random.default_rng(5)
MOVES = SimpleNamespace(
    started=3, committed=2, aborted=1, bytes=9.0, seconds=0.5, downtime_s=np.zeros(4), boots=0, drains=0
)
GRADED = [(1.0, 0.1, np.inf, float(ATOMS - atom)) for atom in range(ATOMS)]


def facts(n: int = 60, seed: int = 0) -> Facts:
    draw = np.random.default_rng(seed)
    arrival = np.sort(draw.random(n)) * 10
    first = arrival + draw.exponential(1.0, n)
    finished = first + draw.exponential(1.0, n)
    outcome = np.where(draw.random(n) < 0.1, REJECTED, FINISHED)
    gone = outcome == REJECTED
    whole = draw.integers(1, 50, n)
    return Facts(
        arrival_s=arrival, dispatched_s=arrival, started_s=np.where(gone, np.nan, first - 0.01),
        first_token_s=np.where(gone, np.nan, first), finished_s=np.where(gone, np.nan, finished),
        prompt_tokens=draw.integers(1, 900, n), output_tokens=np.where(gone, 0, whole),
        tier=draw.integers(0, ATOMS, n), tenant=np.zeros(n, int), session=np.full(n, -1), outcome=outcome,
        reason=np.zeros(n, np.int8), engine=draw.integers(0, 3, n), migrations=draw.integers(0, 2, n),
        preemptions=draw.integers(0, 3, n), longest_gap_s=np.where(gone | (whole == 1), np.nan, 0.3),
        idle_ttft_s=np.ones(n), idle_e2e_s=np.ones(n), cached_tokens=np.zeros(n, int),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_who_was_overtaken_and_by_how_much(seed):
    of, (low, high) = facts(seed=seed), (6, 54)
    inverted, tokens = overtakings(of, low, high)
    for i in range(low, high):
        by = [
            int(of.prompt_tokens[j])
            for j in range(i + 1, len(of.tier))
            if of.tier[j] > of.tier[i] and of.first_token_s[j] < of.first_token_s[i]
        ]
        assert (inverted[i - low], tokens[i - low]) == (bool(by), sum(by))
    assert inverted.any()
    assert not inverted.all()


def test_serving_by_arrival_overtakes_nobody():
    of = facts()
    late = of._replace(first_token_s=of.arrival_s + 2.0, finished_s=of.arrival_s + 3.0)
    assert not overtakings(late, 0, 60)[0].any()


def test_an_atom_is_idle_while_some_of_it_waits_and_none_is_served():
    of = facts(3)
    made = of._replace(
        arrival_s=np.array([0.0, 1.0, 2.0]), first_token_s=np.array([0.5, 9.0, 9.5]),
        finished_s=np.array([4.0, 10.0, 11.0]), tier=np.array([0, 0, 1]),
    )  # fmt: skip
    found = idle_most_s(made)
    assert found[0] == pytest.approx(5.0)  # from the first one's end until the second one's first token
    assert found[1] == 0.0


def test_quantiles_of_a_histogram_lie_near_the_values():
    values = RNG.lognormal(0.0, 1.0, 4000)
    counts = histogram(np.full(4000, 7), values).reshape(ATOMS, -1)
    assert counts[:7].sum() == counts[8:].sum() == 0
    for share in (0.5, 0.95, 0.99):
        assert quantile(counts[7], share) == pytest.approx(np.quantile(values, share), rel=0.08)
    assert np.isnan(quantile(counts[0], 0.5))
    outside = histogram(np.zeros(2, int), np.array([1e-9, 1e9])).reshape(ATOMS, -1)
    assert (outside[0, 0], outside[0, len(EDGES_S) - 2]) == (1, 1)


def test_the_most_at_once_on_one_engine():
    of = facts(4)
    made = of._replace(
        started_s=np.array([0.0, 1.0, 2.0, 2.0]), finished_s=np.array([2.0, 5.0, 3.0, 9.0]),
        engine=np.array([0, 0, 0, 1]),
    )  # fmt: skip
    assert batch_most(made) == 2  # who starts as another ends takes its place


def test_counts_add_up_and_a_miss_is_a_miss():
    of = facts()
    row = by_class(of, np.zeros(60, int), MOVES, (6, 54), GRADED)
    assert row["atom_arrivals"].sum() == 48
    assert row["atom_arrivals"].tolist() == np.bincount(of.tier[6:54], minlength=ATOMS).tolist()
    done = of.outcome[6:54] == FINISHED
    assert row["atom_finished"].sum() + row["atom_rejected"].sum() == 48
    assert row["atom_ttft_histogram"].sum() == done.sum()
    ttft = (of.first_token_s - of.arrival_s)[6:54]
    tpot = (of.finished_s - of.first_token_s)[6:54] / np.maximum(of.output_tokens[6:54] - 1, 1)
    tpot = np.where(of.output_tokens[6:54] > 1, tpot, 0.0)
    assert row["atom_met"].sum() == np.sum(done & (ttft <= 1.0) & (tpot <= 0.1))
    assert row["atom_met_flat"].sum() == np.sum(done & (ttft <= 2.0) & (tpot <= 0.1))
    assert row["moves_committed"] == 2.0
