"""The canon as a set: no two policies are one, and none is blind to load."""

from itertools import combinations
from math import inf

import numpy as np
import pytest

from schedulers.load import load
from schedulers.view import Tiers
from sim.run import simulate
from tests.sim.stage import setup, traffic

CANON = (
    "fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "least-slack", "sjf-pred", "srpt-limited", "mlfq-skipjoin",
    "vtc", "kv-peak", "slai", "slo-guard", "hybrid-ageing",
)  # fmt: skip

TARGETS = Tiers(np.array([0.5, 2.0]), np.array([0.03, 0.1]), np.array([inf, 8.0]), np.array([2.0, 1.0]))


def test_every_pair_differs_on_some_window():
    """Two names with equal results everywhere are one policy: three windows, short of memory, slots or budget."""
    places = [
        setup(blocks=120, sequences=12, budget=256, tiers=TARGETS),
        setup(blocks=2000, sequences=8, budget=512, tiers=TARGETS),
        setup(blocks=400, sequences=64, budget=128, tiers=TARGETS),
    ]
    ends = {
        name: [
            simulate(traffic(150, 14.0, seed=seed), load(name), place).facts.finished_s
            for seed, place in enumerate(places)
        ]
        for name in CANON
    }
    same = [
        (one, other)
        for one, other in combinations(CANON, 2)
        if all(map(np.array_equal, ends[one], ends[other]))
    ]
    assert same == []


@pytest.mark.parametrize("name", CANON)
def test_attainment_falls_as_load_rises(name):
    """Share of arrivals that met both targets, well under capacity, above it and far above."""
    place = setup(blocks=900, sequences=40, tiers=TARGETS)
    met = []
    for rate_per_s in (2.0, 20.0, 40.0):
        demand = traffic(300, rate_per_s, seed=4, output=80)
        facts = simulate(demand, load(name), place).facts
        ttft_s = facts.first_token_s - facts.arrival_s
        tpot_s = (facts.finished_s - facts.first_token_s) / np.maximum(demand.output_tokens - 1, 1)
        good = (ttft_s <= TARGETS.ttft_s[demand.tier]) & (tpot_s <= TARGETS.tpot_s[demand.tier])
        met.append(float(np.mean(good & (facts.outcome == 0))))
    assert met[0] > met[1] > met[2], met
