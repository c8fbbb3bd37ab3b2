"""Control without a thought: any engine that serves, by the luck drawn with the window."""

from schedulers.fleet import nth_serving, serving_count
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose a serving engine by luck alone, each equally likely; none serving holds."""
    return float(nth_serving(view, int(view.requests.luck[request] * serving_count(view))))


POLICY = ClusterPolicy(name="random-engine", dispatch=dispatch, control=True, source="control")
