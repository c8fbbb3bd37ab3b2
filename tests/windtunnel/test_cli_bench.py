"""``windtunnel bench schedulers``: what is timed, and how it is told; never how long it took."""

import json

import numpy as np
import pytest

from windtunnel.bench import OVERLOAD, RHO, fixed_job, mixed

FEW = ("--requests", "60", "--runs", "1")


@pytest.fixture(scope="module")
def told(windtunnel):
    ran = windtunnel("bench", "schedulers", *FEW, "--name", "edf", "--name", "fcfs-chunked", "--json")
    assert ran.code == 0
    return json.loads(ran.out)


def test_both_loads_are_timed_against_the_reference(told):
    assert [load["rho"] for load in told["loads"]] == [RHO, OVERLOAD]
    for load in told["loads"]:
        assert [row["policy"] for row in load["policies"]] == ["fcfs-chunked", "edf"]
        assert load["policies"][0]["ratio"] == 1.0
        for row in load["policies"]:
            reference = load["policies"][0]["us_per_request"]
            assert row["ratio"] == pytest.approx(row["us_per_request"] / reference)
    assert told["job"]["requests"] == 60
    assert told["job"]["runs"] == 1


def test_the_slow_door_gives_the_same_run(told):
    compiled, door = told["slow_door"]
    assert door["policy"] == f"{compiled['policy']} (slow door)"
    for same in ("steps", "queue_peak", "evictions"):
        assert door[same] == compiled[same]


def test_the_table_names_each_policy_and_the_slow_door(windtunnel):
    ran = windtunnel("bench", "schedulers", *FEW, "--name", "edf@published")
    assert ran.code == 0
    for words in ("fcfs-chunked", "edf@published", "slow door", "rho 0.85", "rho 1.4"):
        assert words in ran.out


def test_unknown_policies_exit_2(windtunnel):
    ran = windtunnel("bench", "schedulers", "--name", "edff")
    assert ran.code == 2
    assert "did you mean" in ran.said


def test_the_job_is_one_job_at_two_rates():
    """Only arrivals differ, by the ratio of the loads; the mix leaves lengths, arrivals and forecasts alone."""
    (calm, place), (busy, _) = (fixed_job(200, rho) for rho in (RHO, OVERLOAD))
    np.testing.assert_allclose(calm.arrival_s / busy.arrival_s, OVERLOAD / RHO)
    mix, mixed_place = mixed(calm, place)
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "forecast_tokens", "luck"):
        assert np.array_equal(getattr(mix, column), getattr(calm, column)), column
    assert set(mix.tier) == {0, 1}
    assert set(mix.tenant) == {0, 1, 2, 3}
    assert len(mixed_place.tiers.ttft_s) == 2
    shared = {session: set(mix.tenant[mix.session == session]) for session in set(mix.session.tolist())}
    assert all(len(tenants) == 1 for tenants in shared.values()), "a conversation has one tenant"


@pytest.mark.slow
def test_a_sweep_is_timed_on_a_fraction_and_the_rest_is_said_to_be_extrapolated(windtunnel):
    ran = windtunnel("bench", "sweep", "--plan", "quick", "--fraction", 0.025, "--jobs", 1, "--json")
    assert ran.code == 0, ran.said
    [told] = json.loads(ran.out)["plans"]
    assert (told["windows"], told["of_windows"], told["runs"], told["failures"]) == (3, 120, 45, 0)
    assert told["requests"] == 45 * 200
    whole = told["extrapolated"]
    assert (whole["runs"], whole["requests"]) == (1_800, 360_000)
    assert whole["cpu_s"] == pytest.approx(told["start_cpu_s"] + 40 * told["cpu_s"])
    assert whole["wall_s"] == pytest.approx(told["start_s"] + 40 * told["wall_s"])
    from windtunnel.pace import words

    assert "EXTRAPOLATED to 1,800 runs" in words([told])[1]
