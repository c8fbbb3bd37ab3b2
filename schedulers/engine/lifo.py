"""Control that must rank low: newest first, and the oldest is evicted."""

from schedulers.policy import EnginePolicy
from schedulers.view import View


def newest(view: View, request: int, now_s: float) -> float:
    """Return minus the arrival: in a queue the newest comes first, in eviction the oldest scores highest."""
    return -float(view.requests.arrival_s[request])


POLICY = EnginePolicy(name="lifo", order=newest, serve=newest, evict=newest, control=True, source="control")
