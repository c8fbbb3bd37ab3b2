"""Cheap memory first below a mark, urgent requests above it: the study's policy 6."""

from schedulers.cost import ranked
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import (
    DEADLINE_PARAMS,
    GROWTH,
    kv_tokens,
    latest_s,
    next_moment_s,
    prompt_fits,
    told_tokens,
    used_tokens,
)
from schedulers.view import View

MARK, URGENT = 3, 4


def urgent(view: View, request: int, now_s: float) -> bool:
    """Tell whether a request's laxity is down to the threshold."""
    return bool(now_s >= latest_s(view, request) - view.params[URGENT])


def order(view: View, request: int, now_s: float) -> float:
    """Return (not urgent, memory cost): prompt plus a quarter of the forecast."""
    cost = float(view.requests.prompt_tokens[request]) + 0.25 * told_tokens(view, request)
    return ranked(0.0 if urgent(view, request, now_s) else 1.0, cost)


def admit(view: View, request: int, now_s: float) -> float:
    """Take what fits and stays below the mark; what is urgent may go above it."""
    if not prompt_fits(view, request, view.params[GROWTH]):
        return WAIT
    engine = int(view.requests.engine[request])
    use = (used_tokens(view, engine) + view.requests.prefill_tokens[request]) / kv_tokens(view, engine)
    return TAKE if use <= view.params[MARK] or urgent(view, request, now_s) else WAIT


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when the next waiting request becomes urgent."""
    return next_moment_s(view, engine, now_s, view.params[URGENT])


POLICY = EnginePolicy(
    name="kv_constrained_online@published",
    order=order,
    admit=admit,
    wake=wake,
    scan="skip",
    params=(
        *DEADLINE_PARAMS,
        Param("kv_mark", 0.82, 0.0, 1.0, "share", "memory use up to which anybody is taken"),
        Param("urgent_s", 0.25, 0.0, 3600.0, "s", "laxity from which a request is urgent"),
    ),
    memo=Memo(engines=3),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
