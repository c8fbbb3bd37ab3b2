"""Control that must rank last: longest remaining first, and the least remaining is evicted."""

from schedulers.cost import remaining_s
from schedulers.policy import EnginePolicy
from schedulers.view import View


def longest(view: View, request: int, now_s: float) -> float:
    """Return minus the remaining service in seconds."""
    return -remaining_s(view, request, int(view.requests.engine[request]))


POLICY = EnginePolicy(
    name="pathological",
    order=longest,
    serve=longest,
    evict=longest,
    reads=("forecast",),
    control=True,
    source="control",
)
