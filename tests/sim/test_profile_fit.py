"""Fits from own rows: known coefficients come back, errors are honest, and bad rows are named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.errors import InputError
from sim.fit import COLUMNS, Rows, draw, fit, read_rows
from sim.profile import load, names, read, save

MEMORY = load("llama-3.1-8b/h100").memory
HINGE, FIVE = load("llama-3.1-8b/h100"), load("llama-3.1-8b/h100@five-term")


def noisy(costs, count, seed, share):
    rows = draw(costs, count, seed)
    noise = np.random.Generator(np.random.Philox(seed + 1)).lognormal(0.0, share, count)
    return rows._replace(seconds=rows.seconds * noise)


def write(path, rows):
    lines = [",".join(COLUMNS)]
    lines += [",".join(repr(float(value)) for value in row) for row in zip(*rows, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", names())
def test_shipped_coefficients_come_back(name):
    profile = load(name)
    found = fit(draw(profile.costs, 300, 3), "llama-3.1-8b/h100@own", MEMORY, form=profile.form)
    np.testing.assert_allclose(found.costs, profile.costs, rtol=1e-6, atol=1e-15)
    assert found.error.held_out_percent < 1e-3


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.5, 20.0),
    st.floats(5.0, 200.0),
    st.integers(40, 500),
    st.floats(1.0, 100.0),
    st.floats(0.01, 0.5),
)
def test_drawn_coefficients_come_back(base_ms, token_us, meet, decode_us, kv_us):
    """Both sides of the hinge are seen: floor and slope meet between 40 and 500 tokens."""
    base_s, token_s = base_ms * 1e-3, token_us * 1e-6
    costs = np.array(
        [base_s + token_s * meet, base_s, token_s, token_s, 1e-9, decode_us * 1e-6, kv_us * 1e-6]
    )
    found = fit(draw(costs, 400, 5), "a/b", MEMORY, form="hinge")
    assert found.error.held_out_percent < 0.05
    np.testing.assert_allclose(found.costs, costs, rtol=0.03, atol=1e-10)


def test_the_form_that_made_the_rows_wins():
    for profile in (HINGE, load("llama-3.1-8b/a100-80g@five-term")):
        found = fit(noisy(profile.costs, 800, 7, 0.005), "llama-3.1-8b/h100@own", MEMORY)
        assert found.form == profile.form
        assert (found.model, found.accelerator, found.level) == ("llama-3.1-8b", "h100", "own rows")


def test_errors_say_how_noisy_the_rows_are():
    """The mean absolute error of log-normal noise of 5 % is about 4 %, on fitted and held-out rows alike."""
    error = fit(noisy(FIVE.costs, 1000, 9, 0.05), "a/b", MEMORY).error
    assert error.mape_percent == pytest.approx(4.0, abs=0.5)
    assert error.held_out_percent == pytest.approx(4.0, abs=0.5)
    assert error.points == 1000
    assert 0.9 < error.r2 < 1.0


def test_held_out_rows_are_not_fitted():
    """Few rows with much noise: the half that was fitted is met better than the other."""
    error = fit(noisy(FIVE.costs, 24, 11, 0.3), "a/b", MEMORY, form="five-term").error
    assert error.held_out_percent > 1.2 * error.mape_percent


def test_the_same_seed_gives_the_same_fit():
    rows = noisy(HINGE.costs, 200, 13, 0.05)
    assert fit(rows, "a/b", MEMORY, seed=4) == fit(rows, "a/b", MEMORY, seed=4)
    assert fit(rows, "a/b", MEMORY, seed=4).coefficients != fit(rows, "a/b", MEMORY, seed=5).coefficients


def test_coefficients_are_never_negative():
    rows = draw(FIVE.costs, 100, 15)
    falling = rows._replace(seconds=0.1 - rows.decodes * 1e-4)
    assert min(fit(falling, "a/b", MEMORY, form="five-term").coefficients) >= 0.0


def test_confounded_rows_are_noted():
    rows = draw(FIVE.costs, 200, 17)
    same = fit(rows._replace(kv_tokens=rows.decodes * 900.0), "a/b", MEMORY, form="five-term")
    assert any("move together" in note for note in same.notes)
    assert not any("move together" in note for note in fit(rows, "a/b", MEMORY, form="five-term").notes)


@pytest.mark.parametrize("column", COLUMNS[:-1])
def test_what_was_never_seen_is_refused(column):
    rows = draw(FIVE.costs, 100, 19)
    with pytest.raises(InputError, match=f"{column} is 0 in every row"):
        fit(rows._replace(**{column: np.zeros(100)}), "a/b", MEMORY)


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="23 rows are too few"):
        fit(draw(FIVE.costs, 23, 21), "a/b", MEMORY)


def test_no_fixed_time_is_refused():
    rows = draw(FIVE.costs, 100, 23)
    with pytest.raises(InputError, match="no fixed time"):
        fit(rows._replace(seconds=rows.decodes * 1e-4), "a/b", MEMORY, form="five-term")


def test_rows_from_a_file_make_a_profile_file(tmp_path):
    path = write(tmp_path / "steps.csv", draw(HINGE.costs, 100, 25))
    rows = read_rows(path)
    assert isinstance(rows, Rows)
    save(fit(rows, "llama-3.1-8b/h100x2@own", MEMORY, origin="own rows: steps.csv"), tmp_path / "mine.toml")
    again = read(tmp_path / "mine.toml")
    np.testing.assert_allclose(again.costs, HINGE.costs, rtol=1e-6)
    assert (again.cards, again.level, again.origin) == (2, "own rows", "own rows: steps.csv")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("512,131072,3,900,abc", "seconds is 'abc'"),
        ("512,131072,3,900", "seconds is None"),
        ("512,131072,3,,0.01", "kv_tokens is ''"),
        ("512,131072,3,nan,0.01", "kv_tokens is nan"),
        ("-1,131072,3,900,0.01", "prefill_tokens is -1"),
        ("512,131072,3,900,inf", "seconds is inf"),
        ("512,131072,3,900,0", "seconds is 0"),
        ("0,0,0,900,0.01", "without prefill tokens and decodes"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, said):
    path = tmp_path / "steps.csv"
    path.write_text(f"{','.join(COLUMNS)}\n512,131072,3,900,0.01\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert said in caught.value.what
    assert caught.value.where == f"{path}:3"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no column prefill_tokens"),
        (b"prefill_tokens,attention,decodes,kv,seconds\n", "no column kv_tokens among prefill_tokens"),
        (b"prefill_tokens,attention,decodes,kv_tokens,seconds\n", "0 rows are too few"),
        (b"\xff\xfe\x00", "not a CSV file"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, said):
    path = tmp_path / "steps.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_rows(path)
    assert str(path) in caught.value.where


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_rows(tmp_path / "none.csv")
