"""The simulator half of the contract suite: planted faults are found and named, honest policies are left alone."""

from math import inf

import pytest

from schedulers.load import find, load, shipped_names
from schedulers.policy import HOLD, REFUSE, TAKE, WAIT, ClusterPolicy, EnginePolicy, Memo, Param
from schedulers.view import View
from sim import checks
from sim.checks import Trial, check, doubled, foreseen, mistranslated, setup, traffic
from sim.run import prepare_compiled

BIAS = 1.0


def rules(policy):
    """Rules that the suite says are broken."""
    return {finding.rule for finding in check(policy)}


def by_bucket(view: View, request: int, now_s: float) -> float:
    """Seconds that are no parameter."""
    return float(view.requests.arrival_s[request] // 0.3) * 1000.0 - view.requests.prompt_tokens[request]


def by_parameter(view: View, request: int, now_s: float) -> float:
    return (
        float(view.requests.arrival_s[request] // view.params[0]) * 1000.0
        - view.requests.prompt_tokens[request]
    )


def by_target(view: View, request: int, now_s: float) -> float:
    return float(view.requests.arrival_s[request] + view.tiers.ttft_s[view.requests.tier[request]])


def never(view: View, request: int, now_s: float) -> float:
    return inf


def wait(view: View, request: int, now_s: float) -> float:
    return WAIT


def pulsed(view: View, request: int, now_s: float) -> float:
    """Join a batch in seven tenths of each tenth of a second only, and not say so."""
    fleet, engine = view.engines, view.requests.engine[request]
    if fleet.running[engine] == 0:
        return TAKE
    spare = fleet.blocks_free[engine] * fleet.block_tokens[engine] > view.requests.prefill_tokens[request]
    return TAKE if spare and (now_s * 10.0) % 1.0 >= 0.3 else WAIT


def refuse_all(view: View, request: int, now_s: float) -> float:
    return REFUSE


def refuse_the_lonely(view: View, request: int, now_s: float) -> float:
    fleet = view.engines
    return TAKE if fleet.waiting[view.requests.engine[request]] > 3 else REFUSE


def biased(view: View, request: int, now_s: float) -> float:
    return BIAS * view.requests.luck[request]


def with_a_dict(view: View, request: int, now_s: float) -> float:
    return {"a": view.requests.arrival_s[request], "b": 1}["a"]


def first_engine_by_target(view: View, request: int, now_s: float) -> float:
    urgent = view.tiers.ttft_s[view.requests.tier[request]] <= view.tiers.ttft_s[0]
    return 0.0 if urgent else float(len(view.engines.alive) - 1)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (EnginePolicy("planted", order=by_bucket, dynamic=True), {"units"}),
        (EnginePolicy("planted", order=by_target), {"reads targets"}),
        (EnginePolicy("planted", serve=never), {"runs"}),
        (EnginePolicy("planted", admit=wait), {"runs"}),
        (EnginePolicy("planted", admit=refuse_all), {"load"}),
        (EnginePolicy("planted", admit=refuse_the_lonely), {"load"}),
        (EnginePolicy("planted", order=with_a_dict), {"compiles"}),
        (ClusterPolicy("planted", dispatch=first_engine_by_target), {"reads targets"}),
        (ClusterPolicy("planted", dispatch=never), {"runs"}),
    ],
)
def test_a_planted_fault_is_named(policy, rule):
    assert rules(policy) == rule


def test_what_changes_between_events_needs_a_wake():
    assert "jumps" in rules(EnginePolicy("planted", admit=pulsed))


def test_seconds_that_are_a_parameter_are_doubled_with_the_rest():
    second = Param("bucket_s", 0.3, 0.1, 10.0, "s", "arrivals that count as one")
    assert rules(EnginePolicy("planted", order=by_parameter, params=(second,))) == set()
    params = tuple(
        Param("x", 1.0, 0.0, 9.0, unit, "") for unit in ("s", "1/s", "tokens/s", "s/s", "share", "1/token")
    )
    assert doubled(EnginePolicy("planted", params=params), (1.0,) * 6) == (2.0, 0.5, 0.5, 1.0, 1.0, 1.0)


def test_a_policy_that_sees_the_truth_is_found():
    scheduler = load("oracle-srpt")
    trial = Trial(scheduler, traffic(60, 8.0, seed=3), setup(blocks=60, sequences=12))
    assert "only its true length" in foreseen(trial, (5, 20, 40))
    assert rules(scheduler.engine) == set(), "one that says so is a control, and asked no more"


def test_state_outside_the_memo_is_frozen_when_compiled(monkeypatch):
    scheduler = load("fcfs-chunked")._replace(engine=EnginePolicy("planted", order=biased))
    prepare_compiled(scheduler)
    monkeypatch.setitem(biased.__globals__, "BIAS", -1.0)
    assert "compiled and interpreted runs differ" in mistranslated(
        Trial(scheduler, traffic(45, 9.0), setup(blocks=90, sequences=10))
    )


def test_plain_python_passes_through_the_slow_door():
    assert rules(EnginePolicy("planted", order=with_a_dict, python=True)) == set()


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_policy_keeps_the_contract(name):
    assert check(find(name).policy) == []


def from_low_to_first(view: View, engine: int, now_s: float) -> float:
    return 0.0 if engine > 0 and view.engines.moving[0] == 0 else HOLD


def by_target(view: View, engine: int, now_s: float) -> float:
    return 0.0 if engine > 0 and view.tiers.ttft_s[0] < 1.0 else HOLD


def test_a_policy_that_migrates_is_run_and_checked():
    sound, unsound = (
        ClusterPolicy("planted", migrate=hook, period_s=0.2, memo=Memo(engines=1))
        for hook in (from_low_to_first, by_target)
    )
    assert rules(sound) == set()
    assert rules(unsound) >= {"reads targets"}


def test_the_loads_reach_from_idle_to_overload():
    """Attainment of the plainest policy: all, then hardly any; else the load rule could not tell."""
    trial = Trial(load("fcfs-chunked"), traffic(300, 1.0, seed=7), setup(blocks=900, sequences=40))
    kept = [
        checks.attainment(
            trial._replace(demand=trial.demand._replace(arrival_s=trial.demand.arrival_s / rate))
        )
        for rate in checks.LOADS_PER_S
    ]
    assert kept[0] > 0.95
    assert kept[-1] < 0.5


def test_all_but_declared_oracles_are_asked_about_the_truth(monkeypatch):
    """No view shows the truth, so no honest plant can: the question itself is planted."""
    monkeypatch.setattr(checks, "foreseen", lambda trial, requests: "peeks")
    assert rules(EnginePolicy("planted")) == {"oracle"}
    assert rules(EnginePolicy("planted", oracle=True, control=True)) == set()


def test_constants_that_a_study_published_are_not_its_policys_fault():
    assert rules(EnginePolicy("planted@published", order=by_bucket, dynamic=True)) == set()
