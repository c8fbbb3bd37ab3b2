"""Prefix affinity: the engine that was sent most of the prompt before, unless it holds far more than others."""

from schedulers.fleet import crowded, fewest, in_turn
from schedulers.policy import ClusterPolicy, Param
from schedulers.view import View

SPILL = 0


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the most of [h_e]; fewest requests where that is 0 or the engine holds over ``spill`` x the mean."""
    chosen, most = -1, 0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and view.sent[engine, request] > most:
            chosen, most = engine, int(view.sent[engine, request])
    if chosen < 0 or crowded(view, chosen, float(view.params[SPILL])):
        return float(fewest(view, request))
    return float(chosen)


POLICY = ClusterPolicy(
    name="prefix",
    dispatch=dispatch,
    params=(
        Param("spill", 1.5, 1.0, 1000.0, "x mean", "requests that the engine may hold before it spills"),
    ),
    reads=("prefix",),
    source="cache-aware routing as in SGLang, rule by reference/policies.md 4.1",
)
