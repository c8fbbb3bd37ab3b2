"""Conservative admission: take the oldest if all could reach the output limit (arXiv 2507.10150)."""

from schedulers.peak import at_once, held_tokens, jot, peak_tokens, room_tokens, whole_fits
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import View

LIMIT, RESERVE = 0, 1


def left_tokens(view: View, request: int) -> float:
    """Return the tokens up to the limit, one at least."""
    return float(max(1.0, view.params[LIMIT] - view.requests.generated_tokens[request]))


def admit(view: View, request: int, now_s: float) -> float:
    """Take if the peak of the batch with it, every output at the limit, fits; an empty engine takes anyone."""
    engine = int(view.requests.engine[request])
    count = int(view.engines.running[engine])
    if count == 0:
        return TAKE
    for place in range(count):
        other = int(view.running[engine, place])
        jot(view, place, left_tokens(view, other), held_tokens(view, other))
    jot(view, count, left_tokens(view, request), held_tokens(view, request))
    room = (1.0 - view.params[RESERVE]) * room_tokens(view, engine)
    return TAKE if peak_tokens(view, count + 1) <= room and whole_fits(view, request, engine) else WAIT


POLICY = EnginePolicy(
    name="kv-conservative",
    admit=admit,
    wake=at_once,
    params=(
        Param("limit_tokens", 2048, 1, 131072, "tokens", "output length assumed of every request"),
        Param("reserve", 0.05, -1.0, 0.9, "share", "KV memory left out; below 0 it is overcommitted"),
    ),
    memo=Memo(requests=2),
    source="LightLLM, arXiv 2507.10150",
)
