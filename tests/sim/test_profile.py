"""Profile files: names, units, origin and error of what ships, and clear words for a file that is wrong."""

import errno
import os
from dataclasses import replace
from importlib.resources import files
from math import isfinite, isnan

import numpy as np
import pytest

from schedulers.errors import InputError
from sim.profile import FORMS, LEVELS, TABLES, dump, load, names, parse, read, save
from sim.roofline import capacity, find_accelerator, find_model

FOLDER = files("sim") / "profiles"
NEEDED = (
    "llama-3.1-8b/a100-80g",
    "llama-3.1-8b/a100-80g@five-term",
    "llama-3.1-8b/h100",
    "llama-3.1-8b/h100@five-term",
    "llama-3.1-8b/h100@e2e",
    "llama-3.1-8b/h200",
    "llama-3.1-8b/h200@five-term",
    "llama-3.1-8b/l40s",
    "llama-3.1-8b/l40s@five-term",
    "llama-2-7b/a100-80g",
    "llama-2-7b/h100",
    "qwen3-32b/h100x2",
    "qwen3-32b/h100x4",
    "qwen3-32b/h100x8",
    "llama-3.1-70b-fp8/h100x4",
    "llama-3.1-70b-fp8/h200x2",
    "llama-3.1-70b-fp8/h200x4",
)
GOOD = dump(load("llama-3.1-8b/h100"))


def test_what_is_promised_ships():
    assert set(NEEDED) <= set(names())


def test_every_file_is_named_by_its_profile():
    found = {one.name for one in FOLDER.iterdir() if one.name.endswith(".toml")} - set(TABLES)
    assert found == {name.replace("/", "_") + ".toml" for name in names()}


@pytest.mark.parametrize("name", names())
def test_every_profile_says_origin_error_and_memory(name):
    profile = load(name)
    assert profile.name == name
    assert profile.name.startswith(f"{profile.model}/{profile.accelerator}")
    assert ("Vidur" in profile.origin) or ("aiconfigurator-core" in profile.origin)
    assert ("MIT" in profile.origin) or ("Apache-2.0" in profile.origin)
    assert 0.0 < profile.error.mape_percent < 10.0
    assert profile.error.points >= 12
    assert profile.error.note
    assert profile.notes
    assert profile.level in LEVELS
    assert (
        isfinite(profile.error.held_out_percent) if profile.level == "end to end" else profile.error.r2 > 0.97
    )
    assert profile.costs.shape == (7,)
    assert profile.costs.dtype == np.float64


@pytest.mark.parametrize("name", names())
def test_memory_follows_its_formula(name):
    """Blocks are (0.9 x memory - weights - activations) x cards / bytes a token, from the model's shape."""
    profile = load(name)
    model, accelerator = find_model(profile.model), find_accelerator(profile.accelerator)
    assert profile.memory == capacity(model, accelerator, profile.cards)
    memory = profile.memory
    free_gib = memory.used_share * memory.card_gib - memory.weights_gib - memory.activations_gib
    tokens = free_gib * 2**30 * profile.cards / memory.kv_bytes_per_token
    assert profile.kv_tokens == pytest.approx(tokens, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680), ("llama-2-7b", 524_288), ("qwen3-32b", 262_144)],
)
def test_kv_bytes_are_the_published_ones(model, bytes_per_token):
    assert find_model(model).kv_bytes(1) == bytes_per_token


def test_kv_blocks_are_near_what_engines_log():
    """vLLM logged 7,351 and 27,284 blocks on an A100-80G; BLIS publishes 29,205 for the 8B model."""
    assert load("llama-2-7b/a100-80g").blocks(16) == pytest.approx(7351, rel=0.02)
    assert load("llama-3.1-8b/a100-80g").blocks(16) == pytest.approx(27_284, rel=0.05)
    assert load("llama-3.1-8b/a100-80g").blocks(16) == pytest.approx(29_205, rel=0.03)


def test_units_are_seconds():
    """Each form's columns, as published in milliseconds and microseconds."""
    hinge = [6.388e-3, 2.417e-3, 17.84e-6, 17.84e-6, 8.28e-10, 8.31e-6, 0.0395e-6]
    five = [0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6]
    np.testing.assert_allclose(load("llama-3.1-8b/h100").costs, hinge, rtol=1e-12)
    np.testing.assert_allclose(load("llama-3.1-8b/a100-80g@five-term").costs, five, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("llama-3.1-8b/h100", 6.4),
        ("llama-3.1-8b/h100@e2e", 6.4),
        ("llama-3.1-8b/h200", 4.8),
        ("llama-3.1-8b/l40s", 24.3),
        ("llama-3.1-8b/a100-80g", 11.4),
        ("llama-2-7b/h100", 6.1),
        ("qwen3-32b/h100x4", 9.3),
        ("llama-3.1-70b-fp8/h200x4", 9.2),
    ],
)
def test_a_lone_decode_takes_what_was_measured(name, milliseconds):
    assert load(name).step_s(0, 0, 1, 256) * 1e3 == pytest.approx(milliseconds, rel=0.02)


@pytest.mark.parametrize(
    ("name", "tokens", "milliseconds"),
    [
        ("llama-3.1-8b/a100-80g", 8, 10.1),
        ("llama-3.1-8b/a100-80g", 128, 13.3),
        ("llama-3.1-8b/a100-80g", 512, 34.9),
        ("llama-3.1-8b/a100-80g", 2048, 142.6),
        ("llama-2-7b/a100-80g", 8, 9.1),
        ("llama-2-7b/a100-80g", 512, 33.4),
        ("llama-2-7b/h100", 8, 5.5),
        ("llama-2-7b/h100", 512, 12.0),
        ("llama-2-7b/h100", 2048, 40.5),
    ],
)
def test_linear_layers_take_what_was_measured(name, tokens, milliseconds):
    """Vidur's whole-model linear time leaves out the output layer and attention, so fits may be above it."""
    assert load(name).step_s(tokens, 0, 0, 0) * 1e3 == pytest.approx(milliseconds, rel=0.32)


def test_the_plain_name_is_the_better_form():
    for stem in ("a100-80g", "h100", "h200", "l40s"):
        plain, other = load(f"llama-3.1-8b/{stem}"), load(f"llama-3.1-8b/{stem}@five-term")
        assert plain.form == "hinge"
        assert plain.error.mape_percent < other.error.mape_percent


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("llama-3.1-8b/h100@hinge", "llama-3.1-8b/h100"),
        ("llama-3.1-8b/h100x1", "llama-3.1-8b/h100"),
        ("llama-3.1-8b/h100x1@five-term", "llama-3.1-8b/h100@five-term"),
        ("qwen3-32b/h100x4@e2e", "qwen3-32b/h100x4"),
        ("llama-2-7b/h100@five-term", "llama-2-7b/h100"),
        ("llama-3.1-8b/h100@roofline", "llama-3.1-8b/h100@roofline"),
        ("llama-3.1-8b/h100x16", None),
    ],
)
def test_other_ways_to_say_a_name(asked, given):
    if given is None:
        assert load(asked).level == "roofline"  # 16 cards are not one card
    else:
        assert load(asked).name == given


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b/h10", "lama-3.1-8b/h100", "Llama-3.1-8B/H100", "llama-3.1-8b/h100@e3e"]
)
def test_unknown_names_list_near_ones(name):
    with pytest.raises(InputError) as caught:
        load(name)
    assert "llama-3.1-8b/h100" in caught.value.what
    assert "MODEL/ACCELERATOR" in caught.value.fix
    assert "roofline" in caught.value.fix


def test_names_unlike_any_still_say_what_to_do():
    with pytest.raises(InputError, match="MODEL/ACCELERATOR"):
        load("zzzzzzzz")


def test_blocks_of_any_size():
    profile = load("llama-3.1-8b/a100-80g")
    assert profile.blocks(16) == profile.memory.kv_blocks
    assert profile.blocks(1) == profile.kv_tokens
    assert profile.blocks(512) == profile.kv_tokens // 512
    for size in (0, -16, profile.kv_tokens + 1):
        with pytest.raises(InputError):
            profile.blocks(size)


def test_costs_are_nobody_elses():
    profile = load("llama-3.1-8b/a100-80g")
    profile.costs[:] = 0.0
    assert profile.costs[1] > 0.0


@pytest.mark.parametrize("name", [*names(), "qwen2.5-0.5b/a100-80g", "mixtral-8x7b/h100x2"])
def test_dump_and_parse_are_inverse(name):
    profile = load(name)
    again = parse(dump(profile), "again.toml")
    np.testing.assert_allclose(again.costs, profile.costs, rtol=1e-11)
    blank = {"coefficients": (), "error": None}
    assert replace(again, **blank) == replace(profile, **blank)
    assert repr(again.error) == repr(profile.error)  # nan is not equal to itself


def test_saved_text_survives_odd_characters(tmp_path):
    odd = replace(load("llama-3.1-8b/h100"), origin='a "quoted"\\ line\nand\tanother €', notes=("x\ny",))
    save(odd, tmp_path / "odd.toml")
    again = load(str(tmp_path / "odd.toml"))
    assert (again.origin, again.notes) == (odd.origin, odd.notes)


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ('form = "hinge"', 'form = "cubic"', "form", "use one of five-term, hinge"),
        ('form = "hinge"', 'form = "five-term"', "coefficients.prefill_us", "missing"),
        ("floor_ms = 6.388", "floor_ms = -1", "coefficients.floor_ms", "at least 0"),
        ("floor_ms = 6.388", "floor_ms = nan", "coefficients.floor_ms", "out of bounds"),
        ("floor_ms = 6.388", 'floor_ms = "6"', "coefficients.floor_ms", "not a number"),
        ("floor_ms = 6.388", "floor_ms = true", "coefficients.floor_ms", "not a number"),
        ("floor_ms = 6.388", "flor_ms = 6.388", "coefficients.floor_ms", "missing"),
        ("floor_ms = 6.388", "floor_ms = 6.388\nkv_ns = 3", "coefficients.kv_ns", "did you mean kv_us"),
        ("cards = 1", "cards = 1.5", "cards", "whole"),
        ("cards = 1", "cards = 0", "cards", "at least 1"),
        ("mape_percent = 2.2\n", "", "error.mape_percent", "missing"),
        ("used_share = 0.9", "used_share = 1.1", "memory.used_share", "at most 1"),
        ("kv_blocks = 28566", "kv_blocks = 0", "memory.kv_blocks", "at least 1"),
        ('level = "kernels"', 'level = "kernels"\ncolour = "red"', "colour", "unknown"),
        ("notes = [", 'notes = [ 3, "", ', "notes", "list of texts"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, old, new, key, said):
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in caught.value.where
    assert caught.value.where.endswith(f"key {key}")
    assert said in str(caught.value)
    assert caught.value.fix


def test_a_profile_must_say_its_origin(tmp_path):
    lines = [line for line in GOOD.splitlines() if not line.startswith("origin")]
    with pytest.raises(InputError, match="origin is missing"):
        parse("\n".join(lines), "mine.toml")


def test_a_step_of_nothing_takes_time():
    free = GOOD.replace("floor_ms = 6.388", "floor_ms = 0").replace("base_ms = 2.417", "base_ms = 0")
    with pytest.raises(InputError, match="base_ms"):
        parse(free, "mine.toml")


@pytest.mark.parametrize("content", [b"not = = toml", b"\xff\xfe"])
def test_not_toml(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.toml"):
        read(path)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load(str(tmp_path / "none.toml"))


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"No space.*mine\.toml.*free some space"):
        save(load("llama-3.1-8b/h100"), tmp_path / "mine.toml")
    assert list(tmp_path.iterdir()) == []


def test_the_roofline_alone_may_be_unmeasured():
    assert isnan(load("qwen2.5-0.5b/a100-80g").error.mape_percent)
    assert set(FORMS) == {"five-term", "hinge"}


def test_a_short_name_means_the_only_profile_that_it_begins():
    assert load("llama-3.1-8b/a100") is load("llama-3.1-8b/a100-80g")
    for vague in ("llama-3.1-8b/", "llama-3.1-8b/a10", "llama-3.1/a100", "llama-3.1-8b/a100@x"):
        with pytest.raises(InputError, match="no profile is named"):
            load(vague)
