"""Aggressive admission: take the oldest if it fits beside what the batch holds now (arXiv 2507.10150)."""

from schedulers.peak import held_tokens, room_tokens, whole_fits
from schedulers.policy import TAKE, WAIT, EnginePolicy, Param
from schedulers.view import View


def admit(view: View, request: int, now_s: float) -> float:
    """Take if what all hold, and a token for each, fits below the reserve; an empty engine takes anyone.

    It is the peak of ``schedulers.peak`` with one token left of each: then nothing needs to be sorted.
    """
    engine = int(view.requests.engine[request])
    count = int(view.engines.running[engine])
    peak = held_tokens(view, request) + count + 1.0
    for place in range(count):
        peak += held_tokens(view, int(view.running[engine, place]))
    fits = peak <= (1.0 - view.params[0]) * room_tokens(view, engine) and whole_fits(view, request, engine)
    return TAKE if fits or count == 0 else WAIT


POLICY = EnginePolicy(
    name="kv-aggressive",
    admit=admit,
    params=(Param("reserve", 0.05, 0.0, 0.9, "share", "KV memory left free when a request joins"),),
    source="LightLLM, arXiv 2507.10150",
)
