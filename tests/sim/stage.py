"""Small windows, engines and policies for the simulator's tests."""

from math import inf

import numpy as np
from hypothesis import strategies as st

from loadgen.demand import Demand
from schedulers.view import Tiers
from sim.run import Outcome, Setup

COSTS = np.array([0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6])
HINGE = np.array([11.41e-3, 8.355e-3, 66.85e-6, 66.85e-6, 5.77e-9, 0.0, 0.0758e-6])
TIERS = Tiers(np.array([0.5, 2.0]), np.array([0.03, 0.1]), np.array([inf, inf]), np.ones(2))


def setup(blocks=29205, engines=1, sequences=256, budget=2048, costs=COSTS, tiers=TIERS) -> Setup:
    """An engine like Llama-3.1-8B on an A100, or a smaller one."""
    return Setup(engines, sequences, budget, 16, blocks, 131072, costs, tiers)


def ask(arrival_s, prompt_tokens, output_tokens, seed=0) -> Demand:
    """A demand with everything else drawn."""
    draw, n = np.random.default_rng(seed), len(arrival_s)
    outputs = np.asarray(output_tokens, np.int64)
    return Demand(
        np.asarray(arrival_s, np.float64),
        np.asarray(prompt_tokens, np.int64),
        outputs,
        np.maximum(1.0, outputs * draw.lognormal(0.0, 0.3, n)),
        draw.integers(0, 2, n),
        draw.integers(0, 3, n),
        np.full(n, -1),
        draw.random(n),
    )


def traffic(n, rate_per_s, seed=0, prompt=300, output=40) -> Demand:
    """Poisson arrivals with log-normal lengths."""
    draw = np.random.default_rng(seed)
    prompts = np.maximum(1, draw.lognormal(np.log(prompt) - 0.3, 0.8, n)).astype(int)
    outputs = np.maximum(1, draw.lognormal(np.log(output) - 0.3, 0.8, n)).astype(int)
    return ask(np.cumsum(draw.exponential(1.0 / rate_per_s, n)), prompts, outputs, seed)


@st.composite
def cases(draw):
    """A demand of up to 24 requests and an engine that is often short of memory, slots or budget."""
    n = draw(st.integers(1, 24))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.3, 5.0]), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 500), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 90), min_size=n, max_size=n))
    place = setup(
        blocks=draw(st.sampled_from([20, 37, 64, 200])),
        sequences=draw(st.sampled_from([1, 3, 16])),
        budget=draw(st.sampled_from([16, 100, 512])),
        costs=draw(st.sampled_from([COSTS, HINGE])),
    )
    return ask(np.cumsum(gaps), prompts, outputs, draw(st.integers(0, 9))), place


def same(a: Outcome, b: Outcome) -> list[str]:
    """Columns of the facts that are not equal bit for bit."""
    pairs = zip(a.facts._fields, a.facts, b.facts, strict=True)
    return [name for name, one, two in pairs if not np.array_equal(one, two, equal_nan=True)]


def close(a: Outcome, b: Outcome) -> list[str]:
    """Columns of the facts that differ by more than 1e-9 relative."""
    pairs = zip(a.facts._fields, a.facts, b.facts, strict=True)
    return [
        name for name, one, two in pairs if not np.allclose(one, two, rtol=1e-9, atol=1e-9, equal_nan=True)
    ]
