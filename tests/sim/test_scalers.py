"""Autoscalers under a step, a ramp and square waves of load: they follow, and none of them flaps."""

from itertools import pairwise, product

import numpy as np
import pytest

from schedulers.cluster.scale_freeness import mean_freeness
from schedulers.load import find
from schedulers.policy import ClusterPolicy, Memo
from schedulers.scaling import on_order, serving_count
from schedulers.view import View, allocate
from tests.sim.waves import FLEET, TIERS, WORK_S, decisions, needed, wave

SCALERS = ("scale-rho", "scale-freeness", "scale-slo", "scale-predictive")
LOW, HIGH = 1.0, 5.0
WAVES = {
    "step": [(60.0, LOW), (240.0, HIGH)],
    "ramp": [(60.0, LOW), *((10.0, LOW + (HIGH - LOW) * k / 24) for k in range(25)), (30.0, HIGH)],
    "square": [(120.0, LOW), (120.0, HIGH), (120.0, LOW), (120.0, HIGH), (120.0, LOW)],
    "ripple": [(10.0, rate) for rate in (LOW, HIGH)] * 15,
}
EDGES = {"step": (1, 0), "ramp": (1, 0), "square": (2, 2), "ripple": (1, 0)}
"""Edges up and down that a scaler should follow; a ripple is faster than any engine boots: its mean is one edge."""


def blind_scale(view: View, nobody: int, now_s: float) -> float:
    """What is missing for the requests that are there at this very moment, without average, hold or cool-down."""
    held = sum(int(view.engines.running[e] + view.engines.waiting[e]) for e in range(len(view.engines.alive)))
    return float(max(1, round(held / 8)) - serving_count(view) - on_order(view))


NAIVE = ClusterPolicy("naive", scale=blind_scale, period_s=1.0, memo=Memo())


def reversals(log) -> int:
    """How often ordering turns into draining or back."""
    signs = [np.sign(change) for _, change in log]
    return sum(one != other for one, other in pairwise(signs))


def flaps(log, name: str) -> list[str]:
    """What in a log of decisions does not follow from the wave.

    An edge up takes the engines that it needs, and more to work off what has queued while they booted, at most
    the fleet; those go again: it may be answered by orders, then drains. An edge down is answered by drains.
    """
    up, down = EDGES[name]
    span, spare = needed(HIGH) - 1, FLEET - needed(HIGH)
    found = []
    if sum(abs(change) for _, change in log) > (up + down) * span + up * 2 * spare:
        found.append("changes")
    if reversals(log) > 2 * up - 1:
        found.append("reversals")
    return found


QUICK = {
    ("scale-rho", "step"),
    ("scale-slo", "step"),
    ("scale-freeness", "ripple"),
    ("scale-predictive", "ramp"),
}
"""The others are slow tests."""


@pytest.mark.parametrize(
    ("scaler", "name"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in product(SCALERS, WAVES)
    ],
)
def test_no_scaler_flaps_and_each_follows(scaler, name):
    log, told = decisions(scaler, wave(WAVES[name]))
    assert flaps(log, name) == [], log
    assert (told.facts.outcome == 0).all(), "draining loses nobody"
    orders = [(at_s, change) for at_s, change in log if change > 0]
    most = 1 + max(np.cumsum([change for _, change in log]))
    wanted = needed((LOW + HIGH) / 2 if name == "ripple" else HIGH)
    assert wanted - 1 <= most <= FLEET
    assert max(change for _, change in orders) <= 2
    times = [at_s for at_s, _ in log]
    for (at_s, change), before_s in zip(log[1:], times, strict=False):
        assert at_s - before_s >= (30.0 if change > 0 else 60.0), "cool-downs"


def test_a_scaler_without_average_hold_and_cool_down_flaps():
    """The same waves tell the difference, so the test above can fail."""
    log, _ = decisions(NAIVE, wave(WAVES["ripple"]))
    assert flaps(log, "ripple") == ["changes", "reversals"]


def test_scaling_out_pays_and_is_cheaper_than_the_whole_fleet():
    """On the step: far more first tokens in time than one engine gives, for fewer engine-seconds than eight."""
    demand = wave(WAVES["step"])

    def attained(told):
        return float(
            np.mean(told.facts.first_token_s - told.facts.arrival_s <= TIERS.ttft_s[told.facts.tier])
        )

    _, scaled = decisions("scale-rho", demand)
    _, alone = decisions(ClusterPolicy("still", scale=lambda view, nobody, now_s: 0.0, period_s=1.0), demand)
    assert attained(scaled) > attained(alone) + 0.3
    assert scaled.totals.engine_s < 0.8 * FLEET * np.max(scaled.facts.finished_s)


@pytest.mark.slow
def test_the_forecast_orders_before_the_load_is_there():
    """On a ramp the trend buys time: the same number of engines is ordered earlier than by load alone."""
    first = {}
    for scaler in ("scale-predictive", "scale-rho"):
        log, _ = decisions(scaler, wave(WAVES["ramp"]))
        total = np.cumsum([change for _, change in log])
        first[scaler] = log[int(np.argmax(total >= 3))][0]
    assert first["scale-predictive"] < first["scale-rho"] - 10.0


def test_draining_engines_are_no_part_of_the_mean():
    """Four idle engines and one that drains with a full memory: idle, so one is drained (and none ordered, B22)."""
    policy = find("scale-freeness")
    view = allocate(1, 5, TIERS, np.ones(1), policy.policy.memo)._replace(params=np.array(policy.values))
    view.engines.blocks_total[:] = view.engines.blocks_free[:] = 128
    view.engines.draining[4], view.engines.blocks_free[4], view.engines.running[4] = 1, 0, 1
    assert mean_freeness(view) == 120.0
    answers = [policy.policy.scale(view, -1, float(second)) for second in range(200)]
    assert answers[:60] == [0.0] * 60
    assert [second for second, answer in enumerate(answers) if answer] == [60, 121, 182]
    assert set(answers) == {0.0, -1.0}


def test_the_work_of_a_request_is_what_an_engine_spends_on_it():
    """Saturated, an engine does one request in the seconds that ``work_s`` says, within 15 %."""
    _, told = decisions(
        ClusterPolicy("still", scale=lambda view, nobody, now_s: 0.0, period_s=1.0), wave([(60, 3.0)])
    )
    rate_per_s = len(told.facts.finished_s) / float(np.max(told.facts.finished_s))
    assert rate_per_s * WORK_S == pytest.approx(1.0, rel=0.15)
