"""Luck depends on what it belongs to, and on nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.draws import normals, uniforms

PINNED_UNIFORMS = [0.015151501454268135, 0.7910192197473553, 0.9044734561063537]
PINNED_NORMALS = [0.561980242, -0.456012409, -1.463346352]


@given(st.integers(0, 2**40), st.integers(1, 60), st.integers(1, 60))
def test_a_row_does_not_depend_on_how_many_are_drawn(seed, few, more):
    some = uniforms(seed, "digest", "luck", few)
    np.testing.assert_array_equal(some, uniforms(seed, "digest", "luck", few + more)[:few])
    assert ((some >= 0) & (some < 1)).all()


def test_a_column_does_not_depend_on_what_was_drawn_before():
    alone = normals(3, "digest", "forecast_luck", 40)
    uniforms(3, "digest", "luck", 1000)
    np.testing.assert_array_equal(alone, normals(3, "digest", "forecast_luck", 40))


def test_seed_owner_and_column_each_change_the_draw():
    drawn = [
        uniforms(0, "a", "luck", 4),
        uniforms(1, "a", "luck", 4),
        uniforms(0, "b", "luck", 4),
        uniforms(0, "a", "tier_luck", 4),
    ]
    assert len({tuple(values) for values in drawn}) == 4


def test_the_stream_is_pinned():
    """A frozen window's digest rests on these values: another numpy must give the same."""
    assert uniforms(7, "digest", "luck", 3).tolist() == PINNED_UNIFORMS
    assert normals(7, "digest", "forecast_luck", 3).tolist() == PINNED_NORMALS


def test_distributions():
    flat, bell = uniforms(1, "x", "luck", 20_000), normals(1, "x", "forecast_luck", 20_000)
    assert abs(flat.mean() - 0.5) < 0.01
    assert abs(flat.var() - 1 / 12) < 0.002
    assert abs(bell.mean()) < 0.03
    assert abs(bell.std() - 1) < 0.02
    assert abs((bell < -1.6448536).mean() - 0.05) < 0.006
