"""Fewest requests: the engine with the least running and waiting takes the next one."""

from schedulers.policy import HOLD, ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the fewest requests; luck picks among equals."""
    fleet, fewest, equals = view.engines, 0, 0
    for engine in range(len(fleet.alive)):
        if fleet.alive[engine] == 1 and fleet.draining[engine] == 0:
            held = fleet.running[engine] + fleet.waiting[engine]
            if equals == 0 or held < fewest:
                fewest, equals = held, 0
            if held == fewest:
                equals += 1
    skip = int(view.requests.luck[request] * equals)
    for engine in range(len(fleet.alive)):
        serving = fleet.alive[engine] == 1 and fleet.draining[engine] == 0
        if serving and fleet.running[engine] + fleet.waiting[engine] == fewest:
            if skip == 0:
                return float(engine)
            skip -= 1
    return HOLD


POLICY = ClusterPolicy(name="least-requests", dispatch=dispatch, source="classic")
