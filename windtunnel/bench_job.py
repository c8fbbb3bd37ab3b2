"""The fixed job that benches time: always the same requests, at a share of measured capacity."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadgen.demand import Demand
    from sim.run import Setup

PROFILE = "llama-3.1-8b/a100-80g"
PROMPT, OUTPUT, RHO = 1_000, 200, 0.85


def fixed_job(requests: int, rho: float = RHO) -> tuple["Demand", "Setup"]:
    """The demand, always the same but for its rate, and the engine it meets."""
    import numpy as np

    from loadgen.demand import Demand
    from schedulers.load import load
    from schedulers.view import Tiers
    from sim import profile
    from sim.calibrate import completions_per_s, saturate
    from sim.run import Setup, simulate

    draw = np.random.default_rng(20_26)

    def lengths(mean: float) -> Any:
        return np.maximum(1, draw.lognormal(np.log(mean) - 0.32, 0.8, requests)).astype(np.int64)

    prompts, outputs = lengths(PROMPT), lengths(OUTPUT)
    known = profile.load(PROFILE)
    tiers = Tiers(np.array([2.0]), np.array([0.1]), np.array([np.inf]), np.ones(1))
    setup = Setup(1, 256, 2048, 16, known.blocks(16), 131_072, known.costs, tiers)
    zeros = np.zeros(requests, np.int64)
    forecasts = np.maximum(1.0, outputs * draw.lognormal(0.0, 0.2, requests))
    demand = Demand(
        np.cumsum(draw.exponential(1.0, requests)), prompts, outputs, forecasts, zeros, zeros, zeros - 1,
        draw.random(requests),
    )  # fmt: skip
    facts = simulate(saturate(demand), load("fcfs-chunked"), setup).facts
    rate_per_s = rho * completions_per_s(facts.finished_s)
    return demand._replace(arrival_s=demand.arrival_s / rate_per_s), setup
