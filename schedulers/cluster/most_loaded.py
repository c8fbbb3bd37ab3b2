"""Control that must rank last: the engine with the most requests takes the next one too."""

from schedulers.fleet import held, in_turn
from schedulers.policy import ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the most requests; luck picks among equals, none serving holds."""
    chosen, most = -1, 0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and (chosen < 0 or held(view, engine) > most):
            chosen, most = engine, held(view, engine)
    return float(chosen)


POLICY = ClusterPolicy(name="most-loaded", dispatch=dispatch, control=True, source="control")
