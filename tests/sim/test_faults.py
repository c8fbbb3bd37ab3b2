"""A policy at fault stops the run with an error that names it, compiled and interpreted alike."""

from math import inf, nan

import numpy as np
import pytest

from schedulers.errors import PolicyError
from schedulers.load import load
from schedulers.policy import HOLD
from sim.run import simulate
from tests.sim.stage import COSTS, TIERS, setup, traffic

MODES = ("interpreted", "jumped")
DEMAND = traffic(30, 10.0)


def not_a_number(view, request, now_s):
    return nan if request == 7 else 1.0


def never_a_number(view, engine, now_s):
    return nan


def divides(view, request, now_s):
    return 1.0 / (view.requests.tier[request] - 0.0 * now_s)


def never(view, request, now_s):
    return inf


def nowhere(view, request, now_s):
    return 99.0


def in_the_centre(view, request, now_s):
    return HOLD


def until_idle(view, request, now_s):
    for engine in range(view.engines.alive.shape[0]):
        if view.engines.running[engine] + view.engines.waiting[engine] == 0:
            return float(engine)
    return HOLD


def always(view, waiting, running, now_s):
    return 1.0


def latest(view, request, now_s):
    return -view.requests.enqueued_s[request]


def makes_a_list(view, request, now_s):
    return float(sorted([{"a": view.requests.arrival_s[request]}["a"]])[0])


def run(mode, place=None, cluster=None, **hooks):
    scheduler = load("fcfs-chunked")
    scheduler = scheduler._replace(name="mine", engine=scheduler.engine._replace(**hooks))
    if cluster is not None:
        scheduler = scheduler._replace(cluster=scheduler.cluster._replace(**cluster))
    return simulate(DEMAND, scheduler, place or setup(sequences=4), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", ["order", "serve", "admit", "evict", "budget", "wake"])
def test_nan_names_hook_and_request(mode, hook):
    place = setup(sequences=4, blocks=45)  # short enough for evictions
    hooks = {hook: never_a_number if hook in ("budget", "wake") else not_a_number}
    if hook == "wake":
        hooks["serve"] = never
    with pytest.raises(PolicyError, match=f"scheduler mine returned NaN from {hook}"):
        run(mode, place, **hooks)


def test_nan_says_which_request():
    with pytest.raises(PolicyError) as caught:
        run("jumped", order=not_a_number)
    assert caught.value.where.startswith("request 7, arrived at ")


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_that_raises_is_named(mode):
    with pytest.raises(PolicyError, match=r"mine raised (ZeroDivisionError|RuntimeWarning: divide)"):
        run(mode, order=divides)


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_serves_nobody_stalls(mode):
    with pytest.raises(PolicyError, match="mine stalled"):
        run(mode, serve=never)


@pytest.mark.parametrize("mode", MODES)
def test_displacing_without_end_is_thrashing(mode):
    with pytest.raises(PolicyError, match="thrashes"):
        run(mode, preempt=always, order=latest, place=setup(sequences=1, budget=16))


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_is_not_there(mode):
    with pytest.raises(PolicyError, match="named an engine in dispatch"):
        run(mode, cluster={"dispatch": nowhere})


@pytest.mark.parametrize("mode", MODES)
def test_holding_everything_in_the_centre_stalls(mode):
    with pytest.raises(PolicyError, match="stalled"):
        run(mode, cluster={"dispatch": in_the_centre})


@pytest.mark.parametrize("mode", [*MODES, "stepped"])
def test_held_requests_are_offered_again_when_a_step_ends(mode):
    """Late binding: a request waits in the centre until an engine is empty, so engines hold one each."""
    told = run(mode, place=setup(engines=2), cluster={"dispatch": until_idle})
    facts = told.facts
    assert (facts.outcome == 0).all()
    assert (facts.dispatched_s > facts.arrival_s).any()
    for engine in (0, 1):
        mine = np.flatnonzero(facts.engine == engine)
        mine = mine[np.argsort(facts.started_s[mine])]
        assert (facts.started_s[mine][1:] >= facts.finished_s[mine][:-1] - 1e-9).all()


@pytest.mark.parametrize(
    "lack", [{"cluster": {"migrate": in_the_centre}}, {"cluster": {"scale": in_the_centre}}]
)
def test_a_policy_asked_by_the_clock_must_say_how_often(lack):
    with pytest.raises(PolicyError, match="no period_s"):
        run("jumped", **lack)


def free_prompts(view, request, now_s):
    view.requests.prefill_tokens[request] = 1
    return view.requests.arrival_s[request]


def free_steps(view, request, now_s):
    view.costs[0, 1] = 0.0
    return view.requests.arrival_s[request]


def early_answers(view, request, now_s):
    view.requests.generated_tokens[request] += 1
    return view.requests.arrival_s[request]


def computed_already(view, request, now_s):
    view.requests.computed_tokens[request] = view.requests.prompt_tokens[request] - 1
    return view.requests.arrival_s[request]


def kinder_targets(view, request, now_s):
    view.tiers.ttft_s[0] = 99.0
    return view.requests.arrival_s[request]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("hook", "cheat"),
    [
        ("order", free_prompts),
        ("order", free_steps),
        ("serve", early_answers),
        ("order", computed_already),
        ("order", kinder_targets),
    ],
)
def test_a_policy_that_rewrites_the_books_is_found_out(mode, hook, cheat):
    """Attainment of 1 by a free prompt is no scheduling."""
    place = setup(sequences=4, tiers=TIERS._replace(ttft_s=TIERS.ttft_s.copy()), costs=COSTS.copy())
    with pytest.raises(PolicyError, match="mine wrote where it may only read"):
        run(mode, place, **{hook: cheat})


def hold_from_seven(view, request, now_s):
    return inf if request >= 7 and now_s < 50.0 else view.requests.arrival_s[request]


def at_fifty(view, engine, now_s):
    return 50.0 if now_s < 50.0 else inf


@pytest.mark.parametrize("mode", [*MODES, "stepped"])
def test_an_order_of_inf_holds(mode):
    """Requests from number 7 on wait until second 50, though there is room; without a wake it is a stall."""
    facts = run(mode, place=setup(), order=hold_from_seven, wake=at_fifty).facts
    assert (facts.started_s[:7] < 10.0).all()
    assert (facts.started_s[7:] >= 50.0).all()
    with pytest.raises(PolicyError, match="stalled"):
        run(mode, order=never)


def test_what_numba_cannot_compile_says_so_and_runs_through_the_door():
    with pytest.raises(PolicyError, match=r"can't compile the hook makes_a_list \(order\)") as caught:
        run("jumped", order=makes_a_list)
    assert "python=True" in caught.value.fix
    slow = run("jumped", order=makes_a_list, python=True)
    assert np.array_equal(slow.facts.finished_s, run("jumped").facts.finished_s)
