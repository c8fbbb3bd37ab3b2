"""Waves of load on a small fleet that scales: what a scaler decided, second by second."""

from math import ceil, inf

import numpy as np

from loadgen.demand import Demand
from schedulers.load import load
from schedulers.policy import ClusterPolicy, Part
from schedulers.view import Tiers, View
from sim.fabric import Wiring
from sim.outcome import Outcome
from sim.run import Setup, simulate

COSTS = np.array([0, 0.02, 1e-3, 0, 0, 2e-3, 0])
"""512 prompt tokens take 0.53 s and 16 decodes 0.052 s: of the waves' requests an engine does 1.35 a second."""

TIERS = Tiers(np.array([1.0, 3.0]), np.array([0.2, 0.4]), np.full(2, inf), np.array([2.0, 1.0]))
PROMPT, OUTPUT, FLEET, BOOT_S = 400, 100, 8, 20.0
WORK_S = PROMPT * 0.532 / 512 + OUTPUT * 0.052 / 16


def wave(rates: list[tuple[float, float]], seed: int = 0) -> Demand:
    """Requests of one size; (seconds, requests a second) one after the other, Poisson inside."""
    draw, times, begin = np.random.default_rng(seed), [], 0.0
    for seconds, rate in rates:
        count = draw.poisson(seconds * rate)
        times.append(begin + np.sort(draw.uniform(0, seconds, count)))
        begin += seconds
    arrival_s = np.concatenate(times)
    n = len(arrival_s)
    zeros = np.zeros(n, np.int64)
    output = np.full(n, OUTPUT)
    return Demand(
        arrival_s, np.full(n, PROMPT), output, output.astype(float), draw.integers(0, 2, n), zeros, zeros - 1,
        draw.random(n),
    )  # fmt: skip


def decisions(
    name: str | ClusterPolicy, demand: Demand, start: int = 1
) -> tuple[list[tuple[float, float]], Outcome]:
    """(second, change in engines) of each change that the scaler asked for, and the run's outcome."""
    scheduler = load(
        f"tiered:order=1+least-requests+{name}" if isinstance(name, str) else "tiered:order=1+least-requests"
    )
    part = scheduler.more[0] if isinstance(name, str) else None
    policy = part.policy if part else name
    log: list[tuple[float, float]] = []

    def scale(view: View, nobody: int, now_s: float) -> float:
        change = policy.scale(view, nobody, now_s)
        if change:
            log.append((now_s, change))
        return change

    told = Part(policy._replace(scale=scale), part.params if part else ())
    place = Setup(
        FLEET, 16, 512, 16, 500, 4096, COSTS, TIERS, wiring=Wiring(0.25, 0.01, boot_s=BOOT_S, start=start)
    )
    outcome = simulate(demand, scheduler._replace(more=(told,)), place, "interpreted-jumped")
    return log, outcome


def needed(rate_per_s: float, aim: float = 0.8) -> int:
    """Engines that carry so many requests a second at ``aim`` of their time."""
    return max(1, ceil(rate_per_s * WORK_S / aim))
