"""Capacity: completions a second over the middle 80 %, frozen in lines that tell when they were changed."""

import json

import numpy as np
import pytest

from loadgen.demand import Demand
from schedulers.errors import InputError
from sim.calibrate import FILE, Capacity, completions_per_s, read_calibration, saturate, write_calibration

LINE = Capacity("w-1", "a" * 64, '{"engines":1}', "fcfs-chunked", 200, 199, 60.0, 3.5)


def test_capacity_is_the_rate_of_the_middle():
    """A slow ramp and a slow tail of 10 % each do not count."""
    ramp, middle, tail = (
        np.linspace(0, 50, 101)[:-1],
        50 + np.arange(801) * 0.1,
        130 + np.arange(1, 100) * 5.0,
    )
    assert completions_per_s(np.concatenate([ramp, middle, tail])) == pytest.approx(10.0, rel=0.01)


def test_capacity_ignores_order_and_what_never_finished():
    ends = np.arange(100) / 4.0
    shuffled = np.random.default_rng(3).permutation(np.concatenate([ends, np.full(30, np.nan)]))
    assert completions_per_s(shuffled) == pytest.approx(4.0)


@pytest.mark.parametrize("ends", [[], [1.0], [np.nan, np.nan], [2.0, 2.0, 2.0]])
def test_too_few_completions_give_no_capacity(ends):
    assert completions_per_s(np.array(ends, float)) == 0.0


def test_saturation_moves_arrivals_only():
    ones = np.ones(3, np.int64)
    demand = Demand(np.array([0.0, 1.0, 5.0]), ones, ones, np.ones(3), ones, ones, ones, np.ones(3))
    full = saturate(demand)
    assert full.arrival_s.tolist() == [0.0, 0.0, 0.0]
    assert all(a is b for a, b in zip(full[1:], demand[1:], strict=True))


def test_lines_read_back_and_their_order_does_not_matter(tmp_path):
    other = Capacity("w-0", "b" * 64, LINE.fleet, "fcfs-chunked", 200, 200, 61.0, 4.5)
    sha256 = write_calibration(tmp_path, [LINE, other])
    known, told = read_calibration(tmp_path)
    assert told == sha256
    assert known == {(one.window_sha256, one.fleet): one for one in (LINE, other)}
    assert write_calibration(tmp_path, [other, LINE]) == sha256
    assert read_calibration(tmp_path / "nowhere") == ({}, "")


@pytest.mark.parametrize("key", ["capacity_per_s", "served", "fleet", "sha256"])
def test_a_changed_line_is_found_out(tmp_path, key):
    write_calibration(tmp_path, [LINE])
    line = json.loads((tmp_path / FILE).read_text())
    line[key] = {"capacity_per_s": 3.6, "served": 100, "fleet": "{}", "sha256": "0" * 64}[key]
    (tmp_path / FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=r"calibration\.jsonl:1"):
        read_calibration(tmp_path)


@pytest.mark.parametrize("text", ["half a li", "[]", '{"window_id": "w-1"}'])
def test_a_broken_line_is_found_out(tmp_path, text):
    (tmp_path / FILE).write_text(text + "\n")
    with pytest.raises(InputError, match=r"calibration\.jsonl:1"):
        read_calibration(tmp_path)
