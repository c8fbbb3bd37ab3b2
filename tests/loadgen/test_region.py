"""Regions: the stretched span offers the aimed pressure, and the scored part's own pressure is told."""

import numpy as np
import pytest

from loadgen.region import RHOS, place, reached_rho, work_s
from schedulers.errors import InputError


@pytest.mark.parametrize("rho", RHOS)
def test_stretched_span_offers_rho_of_capacity(rho):
    region = place(rho, requests=1000, span_s=500.0, capacity_per_s=4.0)
    assert 1000 / (500.0 * region.factor) == pytest.approx(rho * 4.0)
    assert region.name == f"{rho}"


def test_far_stretches_are_flagged_not_refused():
    assert not place(1.0, requests=100, span_s=100.0, capacity_per_s=4.0).far
    assert not place(1.0, requests=100, span_s=100.0, capacity_per_s=0.25).far
    assert place(1.0, requests=100, span_s=100.0, capacity_per_s=4.1).far
    assert place(1.0, requests=100, span_s=100.0, capacity_per_s=0.24).far


@pytest.mark.parametrize(("requests", "span_s", "capacity"), [(10, 0.0, 1.0), (10, 1.0, 0.0), (0, 1.0, 1.0)])
def test_what_cannot_be_stretched_is_refused(requests, span_s, capacity):
    with pytest.raises(InputError, match="no pressure can be set"):
        place(0.5, requests=requests, span_s=span_s, capacity_per_s=capacity)


def test_work_prices_prefill_and_decode_apart():
    costs = np.array([0.0, 8.0, 0.1, 0.0, 0.001, 0.5, 0.002])
    assert work_s(np.array([10]), np.array([0]), costs, 16) == pytest.approx([10 * 0.1 + 0.001 * 50])
    assert work_s(np.array([0]), np.array([4]), costs, 16) == pytest.approx([4 * (8.0 / 8 + 0.5) + 0.002 * 8])
    hinge = np.array([8.0, 0.0, 0.1, 0.1, 0.0, 0.0, 0.0])
    assert work_s(np.array([0]), np.array([4]), hinge, 16) == pytest.approx([4 * 8.0 / 8])


def test_steady_traffic_reaches_what_was_aimed():
    arrival_s = np.arange(1000) * 0.5
    work = np.ones(1000)
    assert reached_rho(work, arrival_s, (100, 900), total_s=1000 * 0.4) == pytest.approx(0.8)


def test_a_burst_in_the_scored_part_presses_harder():
    arrival_s = np.concatenate(
        [np.linspace(0, 100, 100), np.linspace(101, 110, 100), np.linspace(111, 211, 100)]
    )
    assert reached_rho(np.ones(300), arrival_s, (100, 200), total_s=150.0) > 4.0
    assert np.isnan(reached_rho(np.ones(3), np.zeros(3), (0, 3), total_s=1.0))
