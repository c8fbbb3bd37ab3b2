"""Static batching: a batch is filled only when the one before has ended (FasterTransformer)."""

from schedulers.peak import limit_fits
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import View

FILLED = 0  # engine memo: step in which the batch was filled, plus one


def admit(view: View, request: int, now_s: float) -> float:
    """Take whom an empty engine finds waiting, all in one step, while prompt and output limit of each fit."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    step = fleet.steps[engine] + 1.0
    if fleet.running[engine] == 0:
        fleet.memo[engine, FILLED] = step
        return TAKE
    joins = fleet.memo[engine, FILLED] == step and limit_fits(view, request, engine, view.params[0])
    return TAKE if joins else WAIT


POLICY = EnginePolicy(
    name="static-batch",
    admit=admit,
    params=(
        Param("limit_tokens", 2048, 1, 131072, "tokens", "output that memory is reserved for, a request"),
    ),
    memo=Memo(engines=1),
    chunked=False,
    source="FasterTransformer, as in arXiv 2403.02310 and Vidur",
)
