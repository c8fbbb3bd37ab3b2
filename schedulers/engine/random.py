"""Control without a thought: each request keeps a random place, drawn with the window."""

from schedulers.policy import EnginePolicy
from schedulers.view import View


def place(view: View, request: int, now_s: float) -> float:
    """Return the request's luck, uniform in [0, 1)."""
    return float(view.requests.luck[request])


POLICY = EnginePolicy(name="random", order=place, serve=place, control=True, source="control")
