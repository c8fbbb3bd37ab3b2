"""Learning to rank: shortest predicted rank first, guarded against starvation (arXiv 2408.15792)."""

from math import exp, inf, sqrt

from schedulers.cost import RANK_S, ranked, step_s
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, EVICT, TOKEN, View

STARVE, PERIOD, NOISE = 0, 1, 2
SINCE, RUNS, SEEN = (
    0,
    1,
    2,
)  # request memo: step of the last service, steps of promotion left, tokens computed


def idle_steps(view: View, request: int) -> float:
    """Return how many steps of the engine have passed it by."""
    return float(view.engines.steps[view.requests.engine[request]] - view.requests.memo[request, SINCE])


def key(view: View, request: int, now_s: float) -> float:
    """Return the promoted first, then by score: the forecast stands for its rank, which sorts alike."""
    table = view.requests
    spread = view.params[NOISE] * sqrt(3.0) * (2.0 * table.luck[request] - 1.0)
    score = min(table.forecast_tokens[request] * exp(spread), RANK_S / 4.0)
    promoted = table.memo[request, RUNS] > 0.0 or idle_steps(view, request) >= view.params[STARVE]
    return ranked(-1.0 if promoted else 0.0, float(score))


def credit(view: View, request: int, steps: float) -> None:
    """Count steps of service; whoever had idled too long before them is promoted for ``period`` steps."""
    memo = view.requests.memo[request]
    if idle_steps(view, request) - steps >= view.params[STARVE]:
        memo[RUNS] = view.params[PERIOD]
    memo[RUNS] = max(0.0, memo[RUNS] - steps)
    memo[SINCE] += idle_steps(view, request)
    memo[SEEN] = view.requests.computed_tokens[request]


def serve(view: View, request: int, now_s: float) -> float:
    """Return the key; a chunk that gave no token is noticed here, one step after."""
    if view.requests.computed_tokens[request] > view.requests.memo[request, SEEN]:
        credit(view, request, 1.0)
    return key(view, request, now_s)


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Count service by tokens; idling starts at arrival and at eviction."""
    if event == TOKEN:
        credit(view, request, float(view.requests.fresh_tokens[request]))
    else:
        memo, engine = view.requests.memo, view.requests.engine[request]
        memo[request, SINCE], memo[request, SEEN] = view.engines.steps[engine], 0.0


def wake(view: View, engine: int, now_s: float) -> float:
    """Return a moment by which nobody in the queue can have been promoted: no step is shorter than the least."""
    steps = inf
    for place in range(view.engines.waiting[engine]):
        left = view.params[STARVE] - idle_steps(view, int(view.waiting[engine, place]))
        if left > 0.0:
            steps = min(steps, left)
    return now_s + (steps - 1.0) * step_s(view.costs[engine], 0.0, 0.0, 1.0, 0.0) if steps < inf else inf


POLICY = EnginePolicy(
    name="ltr",
    order=key,
    serve=serve,
    observe=observe,
    wake=wake,
    watches=(ARRIVAL, EVICT, TOKEN),
    params=(
        Param("starve", 200, 1, 1e6, "steps", "idle steps after which a request is promoted"),
        Param("period", 10, 1, 1e6, "steps", "steps of service that a promotion lasts"),
        Param("noise", 0.0, 0.0, 3.0, "share", "standard deviation added to the logarithm of the score"),
    ),
    memo=Memo(requests=3),
    reads=("forecast",),
    source="arXiv 2408.15792",
)
