"""Fewest requests: the engine with the least running and waiting takes the next one."""

from schedulers.fleet import fewest
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the fewest requests; luck picks among equals, none serving holds."""
    return float(fewest(view, request))


POLICY = ClusterPolicy(name="least-requests", dispatch=dispatch, source="classic")
