"""Iteration-level batching: join and leave each step, prompts whole, memory reserved (Orca, OSDI 2022)."""

from schedulers.peak import limit_fits
from schedulers.policy import TAKE, WAIT, EnginePolicy, Param
from schedulers.view import View


def admit(view: View, request: int, now_s: float) -> float:
    """Take the oldest while the batch's prompts and output limits all fit; an empty engine takes anyone."""
    engine = int(view.requests.engine[request])
    alone = view.engines.running[engine] == 0
    return TAKE if alone or limit_fits(view, request, engine, view.params[0]) else WAIT


POLICY = EnginePolicy(
    name="orca",
    admit=admit,
    params=(
        Param("limit_tokens", 2048, 1, 131072, "tokens", "output that memory is reserved for, a request"),
    ),
    chunked=False,
    source="Orca, OSDI 2022",
)
