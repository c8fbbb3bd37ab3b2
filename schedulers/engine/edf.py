"""Earliest deadline first, by token: each token served moves the deadline on by the tier's token pace."""

from math import inf

from schedulers.cost import ranked, token_due_s
from schedulers.policy import EnginePolicy
from schedulers.view import View


def due(view: View, request: int, now_s: float) -> float:
    """Return the next token's deadline; without one, come after all others by arrival (+inf would hold)."""
    due_s = token_due_s(view, request)
    return due_s if due_s < inf else ranked(1.0, float(view.requests.arrival_s[request]))


POLICY = EnginePolicy(
    name="edf", order=due, serve=due, evict=due, scan="skip", reads=("targets",), source="classic"
)
