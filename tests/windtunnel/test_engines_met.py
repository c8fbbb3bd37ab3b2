"""Whom a replay meets at a dispatcher elsewhere: which driver its results name, and which fleet they are about."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.plan import Fleet
from schedulers.errors import InputError
from services.local import Running, State, write_state
from services.running import began_of
from sim.profile import load
from windtunnel.aims import Aims
from windtunnel.engines import known_here, met, profile_of
from windtunnel.replay import about
from windtunnel.up import live_plan

PLAN = Fleet(engines=2, prefix_cache=False)
REAL = {
    "driver": "vllm", "profile": "/elsewhere/services/worker/vllm/profiles/tiny_cpu.toml", "sequences_max": 32,
    "budget_max": 512, "blocks_total": 511, "block_tokens": 32, "model_tokens": 4096,
}  # fmt: skip


def test_simulated_workers_are_the_plans_fleet():
    rows = [REAL | {"driver": "sim"}, REAL | {"driver": "sim", "budget_max": 1}]
    assert met(rows, PLAN, own=False) == ("live", PLAN)


def test_real_engines_are_the_fleet_that_they_registered_unless_the_plan_says():
    driver, fleet = met([REAL, dict(REAL)], PLAN, own=False)
    assert driver == "vllm"
    assert replace(fleet, profile="") == replace(
        PLAN, profile="", sequences_max=32, budget_max=512, blocks=511, block_tokens=32, model_tokens=4096
    )
    assert load(fleet.profile).costs[1] > 0.0, "the profile is known under its path here"
    assert met([REAL | {"driver": "paced"}], PLAN, own=True) == ("paced", PLAN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"driver": "sim"}, "sim, vllm workers serve together"),
        ({"driver": "paced"}, "paced, vllm workers serve together"),
        ({"blocks_total": 9}, "limits differ"),
    ],
)
def test_engines_of_two_kinds_are_no_fleet(change, said):
    with pytest.raises(InputError, match=said):
        met([REAL, REAL | change], PLAN, own=False)


def test_a_scheduler_that_the_engines_cannot_run_is_refused_before_a_replay(tmp_path):
    """Else its workers refuse it, go on with the one before, and results bear the wrong name."""
    plan, specs = live_plan("quick", 2), ("edf+least-requests", "slai+least-requests")
    for driver in ("vllm", "paced"):
        with pytest.raises(InputError, match="can't run slai: waiting_rank"):
            about(plan, tmp_path, specs, (0.5,), driver)
    assert about(plan, tmp_path, specs[:1], (0.5,), "vllm").schedulers == specs[:1]
    assert about(plan, tmp_path, specs, (0.5,), "live").schedulers == specs


def test_a_testbed_of_which_a_process_died_is_named_as_such(tmp_path):
    """Not as one that does not run: `up` would refuse to start another."""
    here, gone = Running("dispatcher", os.getpid(), began_of(os.getpid())), Running("worker-0", 1 << 30, 1)
    write_state(tmp_path, State(str(tmp_path), "", "edf", 1.0, "", "", processes=(here, gone)))
    with pytest.raises(InputError, match=r"worker-0 of the testbed died; .*worker-0\.log"):
        Aims(tmp_path, "", "", "", "", "", 1.0, False, "").resolve()
    write_state(tmp_path, State(str(tmp_path), "", "edf", 1.0, "", "", processes=(gone,)))
    with pytest.raises(InputError, match="no testbed runs"):
        Aims(tmp_path, "", "", "", "", "", 1.0, False, "").resolve()


def test_a_profile_that_nobody_has_here_asks_for_a_plan(tmp_path):
    assert known_here("llama-3.1-8b/a100-80g") == "llama-3.1-8b/a100-80g"
    own = tmp_path / "mine.toml"
    own.touch()
    assert known_here(str(own)) == str(own)
    with pytest.raises(InputError, match="costs are not known here"):
        known_here("/elsewhere/other.toml")


def test_the_small_models_costs_ship(tmp_path):
    (tmp_path / "windtunnel.json").write_text('{"kind": "tiny"}')
    assert known_here("tiny_cpu.toml") == str(profile_of(str(tmp_path), paced=False))
    assert Path(profile_of(str(tmp_path), paced=True)).name == "tiny_cpu-paced.toml"
