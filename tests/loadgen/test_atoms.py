"""Atoms: shares of every mix, nested partitions, and what a scheduler is told of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.atoms import (
    ATOMS,
    CHAINS,
    SHARES,
    boundaries,
    grading,
    importance,
    in_burst,
    shares_of,
    shown_tiers,
    tier_of_atom,
)
from loadgen.draws import uniforms
from schedulers.errors import InputError

COUNT = 60_000
ARRIVAL_S = np.sort(uniforms(3, "x", "arrival", COUNT)) * 6_000.0
LUCK, TENANT = uniforms(1, "x", "tier", COUNT), uniforms(1, "x", "tenant", COUNT)


@pytest.mark.parametrize("mix", [name for name in SHARES if name != "drift"])
def test_long_run_shares_are_those_of_the_mix(mix):
    atoms = importance(mix, ARRIVAL_S, LUCK, TENANT, (1, "x")).scored
    share = np.bincount(atoms, minlength=ATOMS) / COUNT
    # a chain of bursts has some 120 cycles in this time, so its share wanders by a tenth of itself
    assert share == pytest.approx(shares_of(mix), abs=0.02 if mix == "bursty-top" else 0.006)


def test_shares_are_shares():
    for mix in SHARES:
        assert shares_of(mix).sum() == pytest.approx(1.0, abs=1e-9), mix


def test_drift_goes_from_enterprise_to_free():
    atoms = importance("drift", ARRIVAL_S, LUCK, TENANT, (1, "x")).scored
    ends = [np.bincount(part, minlength=ATOMS) / len(part) for part in (atoms[:6000], atoms[-6000:])]
    assert ends[0] == pytest.approx(shares_of("enterprise"), abs=0.02)
    assert ends[1] == pytest.approx(shares_of("free"), abs=0.02)


def test_top_comes_in_bursts_of_ten_seconds():
    burst = in_burst(ARRIVAL_S, (1, "x"))
    atoms = importance("bursty-top", ARRIVAL_S, LUCK, TENANT, (1, "x")).scored
    assert not np.any(atoms[~burst] < 2), "no top atom outside a burst"
    assert np.mean(atoms[burst] < 2) == pytest.approx(0.5, abs=0.02), "0.10 / 0.2 inside"
    begins = np.flatnonzero(np.diff(burst.astype(int)) == 1)
    ends = np.flatnonzero(np.diff(burst.astype(int)) == -1)
    first = ends[ends > begins[0]]
    stays = ARRIVAL_S[first[: len(begins)]] - ARRIVAL_S[begins[: len(first)]]
    assert np.mean(stays) == pytest.approx(10.0, rel=0.3)


def test_correlated_top_comes_when_everybody_comes():
    crowd = np.concatenate([np.arange(0, 100, 1.0), np.linspace(100, 110, 1000)])
    luck = uniforms(5, "c", "tier", len(crowd))
    atoms = importance("correlated", crowd, luck, luck, (1, "c")).scored
    assert np.mean(atoms[100:] < 2) > 5 * np.mean(atoms[:100] < 2)


def test_misdeclared_is_scored_as_itself_and_shown_as_the_first():
    true = importance("enterprise", ARRIVAL_S, LUCK, TENANT, (1, "x"))
    lied = importance("misdeclared", ARRIVAL_S, LUCK, TENANT, (1, "x"))
    assert np.array_equal(true.scored, lied.scored)
    changed = lied.shown != lied.scored
    assert np.all(lied.shown[changed] == 0)
    assert np.all(lied.scored[changed] >= 6)
    assert np.mean(changed[lied.scored >= 6]) == pytest.approx(0.2, abs=0.01)


def test_shuffled_says_nothing_about_the_score():
    atoms = importance("shuffled", ARRIVAL_S, LUCK, TENANT, (1, "x"))
    assert abs(np.corrcoef(atoms.scored, atoms.shown)[0, 1]) < 0.02
    assert np.bincount(atoms.shown) / COUNT == pytest.approx(shares_of("enterprise"), abs=0.006)


@given(st.sampled_from(sorted(CHAINS)), st.integers(1, ATOMS - 1))
def test_one_tier_more_refines(chain, tiers):
    coarse, fine = tier_of_atom(tiers, chain), tier_of_atom(tiers + 1, chain)
    assert set(boundaries(tiers, chain)) < set(boundaries(tiers + 1, chain))
    for tier in range(tiers + 1):
        assert len(set(coarse[fine == tier])) == 1, "a finer tier lies within one coarser tier"
    assert np.all(np.diff(coarse) >= 0)


def test_three_enterprise_tiers_are_ten_thirty_sixty():
    place = tier_of_atom(3)
    assert np.bincount(place, weights=shares_of("enterprise")) == pytest.approx([0.1, 0.3, 0.6])


def test_told_the_strictest_target_and_the_mean_weight():
    grades = grading("graded", 8.0)
    assert grades.weight[[0, 9]] == pytest.approx([8.0, 1.0])
    told = shown_tiers(2, "top-first", "enterprise", grades)
    assert told.ttft_s.tolist() == [0.5, 0.97]
    assert told.weight[0] == pytest.approx((grades.weight[0] + grades.weight[1]) / 2)
    assert len(shown_tiers(10, "top-first", "free", grades).weight) == 10


@pytest.mark.parametrize("own", [(0.5, 0.5), (0.2,) * 10, (-0.1, 1.1, *[0.0] * 8)])
def test_a_mix_of_ones_own_must_be_ten_shares(own):
    with pytest.raises(InputError, match="ten"):
        shares_of(own)


def test_unknown_names_are_refused():
    for call in (
        lambda: shares_of("x"),
        lambda: boundaries(2, "x"),
        lambda: grading("x"),
        lambda: boundaries(11),
    ):
        with pytest.raises(InputError):
            call()
