"""LMetric: the engine where new prompt tokens times requests held is least (arXiv 2603.15202)."""

from schedulers.dispatcher import serving
from schedulers.fleet import held
from schedulers.policy import HOLD, ClusterPolicy, Param
from schedulers.view import View

PENDING = 0


def product(view: View, request: int, engine: int) -> float:
    """New prompt tokens times requests held. [(p - h)*(n + m), h = 0]

    No engine has a part of the prompt cached here, so the first factor is the same everywhere and the choice
    is that of least-requests, luck included; with ``pending`` it also counts what the engine owes already.
    """
    owed = view.params[PENDING] * view.engines.pending_tokens[engine]
    return float((view.requests.prompt_tokens[request] + owed) * held(view, engine))


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine of the least product (0 only if it is idle); luck picks among equals."""
    least, equals = 0.0, 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            here = product(view, request, engine)
            if equals == 0 or here < least:
                least, equals = here, 0
            if here == least:
                equals += 1
    skip = int(view.requests.luck[request] * equals)
    for engine in range(len(view.engines.alive)):
        if serving(view, engine) and product(view, request, engine) == least:
            if skip == 0:
                return float(engine)
            skip -= 1
    return HOLD


POLICY = ClusterPolicy(
    name="lmetric",
    dispatch=dispatch,
    params=(Param("pending", 0.0, 0.0, 1.0, "share", "of the tokens that an engine owes that count as new"),),
    source="arXiv 2603.15202",
)
