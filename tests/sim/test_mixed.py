"""Fleets of several profiles and faults from text."""

import numpy as np
import pytest

from loadgen.plan import read_plan
from schedulers.errors import InputError
from sim import profile
from sim.calibrate import fleet_json, setup_of
from sim.fabric import DIE, DRAIN, RETURN, Fault
from sim.mixed import manned, read_faults, read_fleet


def test_each_engine_has_its_own_speed_and_memory():
    plan = read_plan("quick")
    place = manned(setup_of(plan), read_fleet("2xllama-3.1-8b/a100, 1xllama-3.1-8b/h100"))
    a100, h100 = profile.load("llama-3.1-8b/a100-80g"), profile.load("llama-3.1-8b/h100")
    assert place.engines == 3
    assert np.array_equal(place.costs, [a100.costs, a100.costs, h100.costs])
    assert place.blocks.tolist() == [a100.blocks(16), a100.blocks(16), h100.blocks(16)]
    assert '"blocks":[' in fleet_json(plan, place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-3.1-8b/a100", "no part"),
        ("0xllama-3.1-8b/a100", "no part"),
        ("2000xllama-3.1-8b/a100", "no part"),
        ("1000xllama-3.1-8b/a100,1000xllama-3.1-8b/h100", "more than"),
        ("2xnothing/a100", "no profile"),
        ("1xllama-3.1-8b/a100,1xllama-2-7b/h100", "fleet of"),
        ("", "no part"),
    ],
)
def test_wrong_fleets_are_told(text, said):
    with pytest.raises(InputError, match=said):
        read_fleet(text)


def test_faults_in_order_of_time():
    assert read_faults("20:return:2, 12.5:die:2,3:drain:0", 3) == (
        Fault(3.0, 0, DRAIN), Fault(12.5, 2, DIE), Fault(20.0, 2, RETURN),
    )  # fmt: skip
    assert read_faults("", 1) == ()


@pytest.mark.parametrize(
    "text", ["12.5:die", "x:die:1", "1:explode:1", "1:die:9", "1.2.3:die:1", "-1:die:1", ".:die:1"]
)
def test_wrong_faults_are_told(text):
    with pytest.raises(InputError):
        read_faults(text, 3)
