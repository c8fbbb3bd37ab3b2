"""Power of two choices: of two engines drawn by luck, the one with fewer requests."""

from schedulers.fleet import held, nth_serving, serving_count
from schedulers.policy import HOLD, ClusterPolicy
from schedulers.view import View


def dispatch(view: View, request: int, now_s: float) -> float:
    """Draw two serving engines from one luck and take the less loaded, among equals the one drawn first.

    With k engines the luck falls in one of k parts, which is the first engine, and its place in that part
    falls in one of k - 1, which is the second of the others: all ordered pairs are equally likely.
    """
    count = serving_count(view)
    if count == 0:
        return HOLD
    place = view.requests.luck[request] * count
    one = int(place)
    first = nth_serving(view, one)
    if count == 1:
        return float(first)
    other = min(int((place - one) * (count - 1)), count - 2)
    second = nth_serving(view, other if other < one else other + 1)
    return float(second if held(view, second) < held(view, first) else first)


POLICY = ClusterPolicy(name="p2c", dispatch=dispatch, source="Mitzenmacher, IEEE TPDS 2001")
