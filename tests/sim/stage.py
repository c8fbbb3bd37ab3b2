"""Small windows, engines and policies for the simulator's tests; those of the contract suite come from there."""

import numpy as np
from hypothesis import strategies as st

from sim.checks import COSTS, HINGE, TIERS, ask, close, same, setup, traffic

__all__ = ["COSTS", "HINGE", "TIERS", "ask", "cases", "close", "same", "setup", "traffic"]


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
