"""Boost: an arrival is put back in time, the more the shorter its prefill (arXiv 2606.18431)."""

from math import exp, log

from schedulers.cost import prefill_s
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View

LEAST = 1e-12  # stands for a service so short that its boost would be endless


def order(view: View, request: int, now_s: float) -> float:
    """Return a - (1/theta) * ln(1 / (1 - exp(-theta * Pre(p)))), fixed at arrival."""
    table, theta = view.requests, view.params[0]
    service_s = prefill_s(view, int(table.engine[request]), float(table.prompt_tokens[request]))
    boost_s = -log(max(1.0 - exp(-theta * service_s), LEAST)) / theta
    return float(table.arrival_s[request] - boost_s)


POLICY = EnginePolicy(
    name="boost",
    order=order,
    params=(
        Param("theta", 0.5, 0.001, 1000.0, "1/s", "decay of the tail: large is first come, small shortest"),
    ),
    source="arXiv 2606.18431",
)
