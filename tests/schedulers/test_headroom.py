"""Headroom: the budget is kept exactly, and a reserve above a boundary does not depend on the number of tiers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.atoms import CHAINS, boundaries, tier_of_atom
from schedulers.errors import InputError
from schedulers.headroom import SPLITS, headroom


@given(
    st.sampled_from([split for split in SPLITS if split != "published"]),
    st.integers(0, 20_000),
    st.floats(0, 1),
    st.integers(1, 10),
)
def test_the_budget_is_kept_whatever_the_tiers(split, blocks, eta, tiers):
    reserve = headroom(split, blocks, eta, tier_of_atom(tiers))
    assert reserve.sum() == int(np.floor(eta * blocks + 0.5))
    assert len(reserve) == tiers
    assert np.all(reserve >= 0)


@given(st.sampled_from(sorted(CHAINS)), st.integers(1, 9), st.integers(10, 20_000))
def test_nested_reserve_above_a_boundary_is_the_same_at_every_number_of_tiers(chain, tiers, blocks):
    above = {}
    for count in (tiers, tiers + 1):
        reserve = headroom("nested", blocks, 0.2, tier_of_atom(count, chain))
        for tier, cut in enumerate(boundaries(count, chain)):
            above.setdefault(cut, set()).add(int(reserve[: tier + 1].sum()))
    assert all(len(values) == 1 for values in above.values())


@pytest.mark.parametrize(
    ("tiers", "shares"),
    [(2, [0.185, 0.015]), (3, [0.146, 0.042, 0.012]), (4, [0.117, 0.051, 0.022, 0.010])],
)
def test_decay_matches_the_reference_table(tiers, shares):
    """Shares of memory at eta 0.2 (reference/multitier.md section 3, row decay)."""
    assert headroom("decay", 100_000, 0.2, np.arange(tiers)) / 100_000 == pytest.approx(shares, abs=5.1e-4)


@pytest.mark.parametrize(("tiers", "blocks"), [(2, [25, 2]), (3, [25, 7, 2]), (4, [25, 11, 4, 2]), (1, [0])])
def test_published_matches_the_published_table(tiers, blocks):
    """Blocks at M = 128 (reference/published-studies.md B.2): the total grows with the number of tiers."""
    assert headroom("published", 128, 0.2, np.arange(tiers)).tolist() == blocks


def test_top_gives_all_to_the_first():
    assert headroom("top", 1000, 0.2, np.arange(4)).tolist() == [200, 0, 0, 0]


def test_bad_names_and_budgets_are_refused():
    for split, eta in (("x", 0.2), ("decay", 1.2), ("decay", float("nan"))):
        with pytest.raises(InputError):
            headroom(split, 100, eta, np.arange(2))
