"""Hunts whose answer is known beforehand: where requests begin to overlap, a policy that serves one alone loses."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from analysis.metrics import summarise
from analysis.ranks import one_sided
from loadgen.plan import Fleet, Plan, TierSpec
from loadgen.reshape import Change, gamma_quantiles, take, with_luck_of
from loadgen.window import cut
from schedulers.errors import InputError
from schedulers.load import load
from sim.calibrate import measure, setup_of
from sim.hunt import (
    FRESH_DRAWS,
    Contest,
    Failures,
    change_at,
    difference,
    differences,
    hunt,
    scaled_tiers,
    seek,
    shrink,
    space_of,
    surely,
)
from sim.outcome import idle_service
from tests.loadgen.window_rows import hand_made
from tests.sim.alone import POLICY

FCFS, SJF = load("fcfs-chunked"), load("sjf-pred")
ALONE = FCFS._replace(name="alone", engine=POLICY, engine_params=())
MARGIN, PROMPT, OUTPUT = 0.02, 300, 80
LOOSE = Plan(
    "p", ("fcfs-chunked",), (TierSpec("a", 60.0, inf, 1.0),), controls=(),
    fleet=Fleet(budget_max=512, sequences_max=2),
)  # fmt: skip
"""Two requests at a time: capacity is about two services, and requests overlap from rho 1/2 on."""

TIGHT = replace(
    LOOSE, fleet=Fleet(budget_max=512), tiers=(TierSpec("a", 0.5, 0.05, 0.5), TierSpec("b", 3.0, 0.1, 0.5))
)


def score(facts, totals, scored, tiers):
    targets = [(tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in tiers]
    return summarise(facts, totals, scored, targets, ("tier",))["attainment_tier"]


def contest(winner, loser, window, rho, plan=LOOSE):
    return Contest(
        winner, loser, plan, window, rho, MARGIN, score, lambda found: float(one_sided(found[None, :])[0])
    )


def alike(gaps):
    """Requests of one length, these gaps apart."""
    rows = len(gaps) + 1
    times = np.round(np.concatenate([[0.0], np.cumsum(gaps)]) * 1e9).astype(np.int64)
    trace = hand_made(rows)._replace(
        arrival_ns=times,
        prompt_tokens=np.full(rows, PROMPT, np.int32),
        output_tokens=np.full(rows, OUTPUT, np.int32),
    )
    return cut(trace, 0, rows, "published", 1)


def mixed(rows=120):
    return cut(hand_made(rows, seed=4), 0, rows, "published", 1)


def turned_away(arrival_s) -> int:
    """How many alone turns away, told by hand: who comes during its last step is asked when that has ended."""
    (before, service), _ = idle_service(np.full(2, PROMPT), np.array([OUTPUT - 1, OUTPUT]), setup_of(LOOSE))[
        ::-1
    ]
    count, free_s = 0, -inf
    for arrival in arrival_s:
        if arrival < free_s - (service - before):
            count += 1
        else:
            free_s = max(arrival, free_s) + service
    return count


def quiet(done, of):
    return None


def capacity(window):
    return measure(with_luck_of(window, 0), LOOSE, setup_of(LOOSE)).capacity_per_s


def seen(one, knobs, budget):
    """The mildest change that a search sees."""
    space, failures = space_of(one, knobs), Failures()
    looked, _ = seek(one, space, (budget, 1), failures, quiet)
    assert not failures.seen
    return change_at(space, looked.best)


def first(happens, grid):
    """The first of a rising grid at which it happens; it does not at the start, or the question is not posed."""
    assert not happens(grid[0])
    return next(value for value in grid if happens(value))


def test_the_pressure_at_which_requests_overlap_is_found():
    """Even gaps: alone serves all until a gap is shorter than a service, and soon after only every second one."""
    window = alike(np.full(39, 1.0))
    gap_s = 40 / capacity(window) / 39  # at rho 1
    truth = first(lambda rho: turned_away(np.arange(40) * gap_s / rho) > 0, np.arange(0.4, 0.8, 0.0005))
    one = contest(FCFS, ALONE, window, 0.4)
    assert 0.4 * seen(one, ("rate",), 30).ratios["rate"] == pytest.approx(truth, rel=0.005)
    beyond = differences(one, Change(rate=float(np.log(0.6 / 0.4))), [1], Failures())
    assert beyond[0] == pytest.approx(0.5)


GAMMA = (np.random.default_rng(2).permutation(100) + 0.5) / 100


def test_the_burstiness_at_which_requests_overlap_is_found():
    """Gaps at the quantiles of a Gamma: alone loses by the margin once it turns three of 101 away."""
    rho, base = 0.31, 0.1
    window = alike(gamma_quantiles(GAMMA, base))
    mean_s = 101 / (rho * capacity(window)) / 100

    def lost(cv):
        gaps = gamma_quantiles(GAMMA, cv)
        return turned_away(np.concatenate([[0.0], np.cumsum(gaps * mean_s / gaps.mean())]))

    gaps = gamma_quantiles(GAMMA, first(lambda cv: lost(cv) > 2, np.arange(base, 1.0, 0.001)))
    truth = (
        gaps.std() / gaps.mean() / (gamma_quantiles(GAMMA, base).std() / gamma_quantiles(GAMMA, base).mean())
    )
    one = contest(FCFS, ALONE, window, rho)
    assert seen(one, ("burstiness",), 30).ratios["burstiness"] == pytest.approx(truth, rel=0.01)


def test_two_knobs_are_no_farther_than_one():
    """By hand, the nearest of all mixtures is 0.326 away, the nearest pure pressure 0.332 (turned_away on a grid)."""
    one = contest(FCFS, ALONE, alike(gamma_quantiles(GAMMA, 0.1)), 0.31)
    both = seen(one, ("rate", "burstiness"), 60)
    assert both.distance == pytest.approx(0.326, rel=0.03)


def test_equal_policies_are_not_told_apart_and_it_says_how_hard_it_looked():
    told = []
    twin = FCFS._replace(name="twin")
    found = hunt(
        contest(FCFS, twin, mixed(40), 0.85, TIGHT),
        ("rate", "burstiness", "lengths", "slo"),
        60, 1, lambda done, of: told.append(done),
    )  # fmt: skip
    assert (found.found, found.edge, found.smallest, found.fresh) == (None, None, None, None)
    assert 40 < len(found.looked.points) <= 60
    assert told[-1] == len(found.looked.points)
    assert set(found.means.tolist()) == {0.0}


def test_the_smallest_example_shows_it_in_its_own_run_and_under_fresh_luck():
    """Two requests that overlap are all that it takes."""
    plan = replace(TIGHT, fleet=LOOSE.fleet)
    one = contest(FCFS, ALONE, mixed(40), 0.9, plan)
    small, tried = shrink(one, Change(rate=0.1), 30, 1, Failures())
    assert 2 <= len(small.window.arrival_s) <= 4
    assert small.window.line.label == "hunted"
    assert small.rho == pytest.approx(0.9 * np.exp(0.1))
    assert difference(one, small.window, small.rho, small.tiers) == small.difference > MARGIN
    assert len(small.fresh.differences) == FRESH_DRAWS
    assert small.fresh.p <= 0.01
    assert small.fresh.mean > MARGIN
    assert tried <= 30


def test_a_lucky_draw_alone_is_not_believed():
    """The mean is above the margin, its luck is not: the mildest point must not be the luckiest one."""
    assert surely(np.array([0.5, -0.2, -0.1, 0.0])) < MARGIN < np.mean([0.5, -0.2, -0.1, 0.0])
    assert surely(np.full(4, 0.03)) == pytest.approx(0.03)
    assert np.isnan(surely(np.array([0.5, np.nan])))


def test_two_changes_are_compared_under_the_same_luck():
    one = contest(SJF, FCFS, mixed(), 0.9, TIGHT)
    base = differences(one, Change(), range(4), Failures())
    assert np.array_equal(base, differences(one, Change(), range(4), Failures()))
    assert len(set(base.tolist())) > 1
    loose = differences(one, Change(slo=3.0), range(4), Failures())
    assert np.all(loose == 0.0)  # with targets of twenty times as long nobody misses any


def test_what_can_not_be_run_is_counted_and_undefined():
    one, failures = contest(FCFS, ALONE, alike(np.full(59, 1.0)), 0.5), Failures()
    found = differences(one, Change(), range(2), failures, np.array([5]))
    assert np.isnan(found).all()
    assert sum(failures.seen.values()) == 2
    flat = one.window._replace(arrival_s=np.zeros(60))
    with pytest.raises(InputError, match="can't be calibrated"):
        hunt(replace(one, window=flat), ("rate",), 20, 1, quiet)


def test_knobs_that_a_window_has_not_are_left_out():
    even = contest(FCFS, ALONE, alike(np.full(59, 1.0)), 0.5)
    space = space_of(even, ("rate", "burstiness", "lengths", "slo"))
    assert space.knobs == ("rate", "slo")
    assert np.exp(space.low[0]) * 0.5 == pytest.approx(0.3)
    with pytest.raises(InputError, match="nothing to change"):
        space_of(even, ("lengths",))
    with pytest.raises(InputError, match="no knob"):
        space_of(even, ("weather",))


def test_targets_scale_and_infinite_ones_stay():
    (tier,) = scaled_tiers((TierSpec("a", 0.5, inf, 1.0),), float(np.log(2.0)))
    assert (tier.ttft_s, tier.tpot_s, tier.share) == (pytest.approx(1.0), inf, 1.0)
    assert scaled_tiers(TIGHT.tiers, 0.0) == TIGHT.tiers


def test_part_of_a_window_is_run_with_the_luck_of_the_whole():
    one = contest(SJF, FCFS, mixed(), 0.9, TIGHT)
    rows = np.arange(30, 90)
    told = differences(one, Change(), [7], Failures(), rows)
    by_hand = difference(one, take(with_luck_of(one.window, 7), rows), 0.9, TIGHT.tiers)
    assert told[0] == by_hand
