"""Demand: shares, tenants and forecasts come from the window's luck, and deadlines never stretch."""

from types import SimpleNamespace

import numpy as np
import pytest

from loadgen.demand import TENANTS, prepare, tenants, tiers
from loadgen.plan import Plan, TierSpec

RNG = np.random.default_rng(7)
N = 20_000


def window(n: int = N) -> SimpleNamespace:
    return SimpleNamespace(
        arrival_s=np.sort(RNG.random(n)), prompt_tokens=np.full(n, 100, np.int32),
        output_tokens=RNG.integers(1, 900, n), session=np.full(n, -1), luck=RNG.random(n),
        tier_luck=RNG.random(n), tenant_luck=RNG.random(n), forecast_luck=RNG.standard_normal(n),
        kind=RNG.integers(0, 3, n).astype(np.int8), hash_offsets=None, hash_ids=None,
    )  # fmt: skip


PLAN = Plan("p", ("edf",), (TierSpec("a", 0.5, 0.03, 0.2), TierSpec("b", 2.0, 0.1, 0.8)))


def test_tiers_follow_their_shares():
    drawn = tiers(RNG.random(N), np.array([0.2, 0.3, 0.5]))
    assert np.bincount(drawn) / N == pytest.approx([0.2, 0.3, 0.5], abs=0.02)
    assert tiers(np.array([0.0, 0.19, 0.2, 0.999]), np.array([0.2, 0.8])).tolist() == [0, 0, 1, 1]


def test_shares_that_sum_to_a_hair_below_one_lose_nobody():
    assert tiers(np.array([np.nextafter(1.0, 0.0)]), np.array([0.1] * 10)).tolist() == [9]


def test_a_conversation_has_one_tenant():
    session = np.array([-1, 5, 7, 5, -1, 7, 5])
    drawn = tenants(np.array([0.0, 0.3, 0.99, 0.9, 0.6, 0.0, 0.0]), session)
    assert drawn.tolist() == [0, 1, 3, 1, 2, 3, 1]
    assert np.bincount(tenants(RNG.random(N), np.full(N, -1))) / N == pytest.approx(
        [1 / TENANTS] * TENANTS, abs=0.02
    )


def test_only_arrivals_stretch():
    drawn = window(500)
    slow, plain = prepare(drawn, PLAN, 3.0), prepare(drawn, PLAN, 1.0)
    assert slow.arrival_s == pytest.approx(plain.arrival_s * 3.0)
    for name in plain._fields[1:]:
        assert np.array_equal(getattr(slow, name), getattr(plain, name))
    assert plain.prompt_tokens.dtype == np.int64
