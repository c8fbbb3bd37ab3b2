"""Step times of every profile: what costs more takes longer, and decode stretches are affine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.cost import KV, step_s
from sim.fit import Rows, draw, step_times
from sim.profile import load, names

PROFILES = tuple(load(name) for name in (*names(), "qwen2.5-0.5b/a100-80g", "llama-3.1-70b/h100x4"))
SOME = st.sampled_from(PROFILES)
WORK = st.tuples(
    st.integers(0, 8192), st.integers(0, 10**9), st.integers(0, 1024), st.integers(0, 10**7)
)  # prefill, attention, decodes, kv


@settings(max_examples=200, deadline=None)
@given(SOME, WORK, st.integers(0, 3), st.integers(1, 10_000))
def test_more_work_never_takes_less(profile, work, which, more):
    heavier = tuple(value + (more if place == which else 0) for place, value in enumerate(work))
    assert profile.step_s(*heavier) >= profile.step_s(*work) > 0.0


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_everything_costs_in_the_end(profile):
    """Ten times a heavy step's prompt, sequences or KV tokens takes strictly longer: nothing is free."""
    work = (4096, 4096 * 2048, 512, 512 * 2000)
    for place in (0, 2, 3):
        heavier = tuple(value * (10 if place == at else 1) for at, value in enumerate(work))
        assert profile.step_s(*heavier) > 1.01 * profile.step_s(*work)


@settings(max_examples=200, deadline=None)
@given(SOME, st.integers(1, 512), st.integers(0, 10**6), st.integers(1, 3000))
def test_a_decode_stretch_has_a_closed_form(profile, decodes, kv, steps):
    """The i-th step reads kv + i*decodes tokens, so k steps take k*first + rise*k*(k-1)/2."""
    costs = profile.costs
    stepped = sum(step_s(costs, 0.0, 0.0, decodes, kv + i * decodes) for i in range(steps))
    first, rise = profile.step_s(0, 0, decodes, kv), costs[KV] * decodes
    assert first * steps + rise * steps * (steps - 1) / 2 == pytest.approx(stepped, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(SOME, st.integers(1, 512), st.integers(0, 10**6))
def test_a_decode_stretch_is_affine(profile, decodes, kv):
    times = [profile.step_s(0, 0, decodes, kv + i * decodes) for i in range(4)]
    rises = np.diff(times)
    np.testing.assert_allclose(rises, rises[0], rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_array_and_scalar_step_times_are_equal(profile):
    rows = draw(profile.costs, 50, 4)
    one_by_one = [
        step_s(profile.costs, *(float(column[i]) for column in rows[:4])) for i in range(len(rows.seconds))
    ]
    np.testing.assert_allclose(step_times(profile.costs, rows), one_by_one, rtol=1e-12)


def test_drawn_rows_look_like_the_published_ones():
    rows = draw(load("llama-3.1-8b/h100").costs, 4000, 1)
    assert isinstance(rows, Rows)
    assert 0.56 < np.mean(rows.prefill_tokens == 0.0) < 0.6
    assert rows.decodes.max() <= 256
    assert rows.prefill_tokens.max() <= 2048
    assert (
        900 < rows.kv_tokens.sum() / rows.decodes.sum() < 1600
    )  # the mean of a log-normal is above its median
    assert np.all(rows.attention >= rows.prefill_tokens**2 / 2)
