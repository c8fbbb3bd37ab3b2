"""Round robin: engines take turns, those that cannot take a request are passed over."""

from schedulers.policy import HOLD, ClusterPolicy, Memo
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine whose turn (engine memo column 0) lies furthest back; ties: lowest number."""
    fleet, chosen, latest = view.engines, -1, 0.0
    for engine in range(len(fleet.alive)):
        turn = fleet.memo[engine, 0]
        latest = max(latest, turn)
        serving = fleet.alive[engine] == 1 and fleet.draining[engine] == 0
        if serving and (chosen < 0 or turn < fleet.memo[chosen, 0]):
            chosen = engine
    if chosen < 0:
        return HOLD
    fleet.memo[chosen, 0] = latest + 1.0
    return float(chosen)


POLICY = ClusterPolicy(name="round-robin", dispatch=dispatch, memo=Memo(engines=1), source="classic")
