"""What is made of measured steps: a profile and its rows, a warning where passes differ, a check of an old one."""

import csv
import json

import numpy as np
import pytest

from schedulers.errors import InputError
from services import vllm_place
from sim.fit import COLUMNS, draw
from sim.profile import load
from windtunnel.profile import checked, fitted, profile, words

COSTS = np.array([0.0, 0.004, 2e-5, 0.0, 4e-8, 7e-5, 3e-7])


@pytest.fixture
def model(tmp_path):
    """A folder that looks like one of our models."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "windtunnel.json").write_text(json.dumps({"kv_bytes_per_token": 1024}))
    return str(folder)


def write(path, factor=1.0):
    """Steps by known costs, as a measurement writes them."""
    rows = draw(COSTS, 200, 3)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(zip(*(rows._replace(seconds=rows.seconds * factor)), strict=True))
    return path


def test_quiet_passes_give_a_good_profile_with_its_rows_beside_it(tmp_path, model):
    rows = [write(tmp_path / "a.csv"), write(tmp_path / "b.csv")]
    told = fitted(tmp_path / "out" / "mine.toml", rows, model, "vllm-cpu", {"vllm": "0.32.0", "blocks": 100})
    assert told["held_out_percent"] < 1.0
    assert not told["poor"]
    assert told["passes_apart"]["p90"] == pytest.approx(1.0)
    kept = load(str(tmp_path / "out" / "mine.toml"))
    assert kept.memory.kv_blocks == 200
    assert "vLLM 0.32.0" in kept.origin
    assert (tmp_path / "out" / "mine-rows-2.csv").read_text() == rows[1].read_text()
    assert "warning" not in words(told)


def test_an_old_profile_is_read_before_minutes_are_spent_on_steps(tmp_path, model, monkeypatch):
    monkeypatch.setattr(vllm_place, "interpreter", lambda: pytest.fail("steps would be measured"))
    (tmp_path / "bad.toml").write_text("[[[")
    for name, said in (("nosuch.toml", "cannot read the profile"), ("bad.toml", "not TOML")):
        with pytest.raises(InputError, match=said):
            profile(model, check=tmp_path / name, passes=2, worker="vllm-cpu", gpu="")


def test_passes_that_differ_are_a_warning_and_an_old_profile_is_held_against_new_steps(tmp_path, model):
    rows = [write(tmp_path / "a.csv"), write(tmp_path / "b.csv", factor=1.6)]
    told = fitted(tmp_path / "mine.toml", rows, model, "vllm-cpu", {"vllm": "0.32.0", "blocks": 100})
    assert told["poor"]
    assert words(told).endswith("measure on a quiet machine")
    fitted(tmp_path / "good.toml", [rows[0], rows[0]], model, "vllm-cpu", {"vllm": "0.32.0", "blocks": 100})
    assert checked(tmp_path / "good.toml", [rows[0]])["holds"]
    slow = checked(tmp_path / "good.toml", [write(tmp_path / "c.csv", factor=3.0)])
    assert not slow["holds"]
    assert slow["times_as_long"] == [pytest.approx(3.0, rel=0.02)]
    assert "3.00 times as long" in words(slow)
    assert words(slow).endswith("it does not hold")
