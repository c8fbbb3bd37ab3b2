"""Memory-constrained shortest first: it must fit at every predicted finish (arXiv 2502.07115)."""

from schedulers.cost import forecast_tokens
from schedulers.peak import at_once, held_tokens, jot, peak_tokens, room_tokens
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return the forecast output, in tokens."""
    return float(view.requests.forecast_tokens[request])


def left_tokens(view: View, request: int) -> float:
    """Return the forecast tokens still to come, one at least."""
    return forecast_tokens(view, request) - float(view.requests.generated_tokens[request])


def admit(view: View, request: int, now_s: float) -> float:
    """Take if the forecast peak of the batch with it fits; an empty engine takes anyone."""
    engine = int(view.requests.engine[request])
    count = int(view.engines.running[engine])
    if count == 0:
        return TAKE
    for place in range(count):
        other = int(view.running[engine, place])
        jot(view, place, left_tokens(view, other), held_tokens(view, other))
    jot(view, count, left_tokens(view, request), held_tokens(view, request))
    room = (1.0 - view.params[0]) * room_tokens(view, engine)
    return TAKE if peak_tokens(view, count + 1) <= room else WAIT


POLICY = EnginePolicy(
    name="mc-sf",
    order=order,
    admit=admit,
    wake=at_once,
    params=(
        Param("reserve", 0.0, 0.0, 0.9, "share", "KV memory left out, against forecasts that are too low"),
    ),
    memo=Memo(requests=2),
    reads=("forecast",),
    source="arXiv 2502.07115",
)
