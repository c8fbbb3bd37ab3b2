"""LMetric: the engine where new prompt tokens times requests held is least (arXiv 2603.15202)."""

from schedulers.dispatcher import serving
from schedulers.fleet import held
from schedulers.policy import HOLD, ClusterPolicy, Param
from schedulers.view import View

PENDING = 0


def fresh(view: View, request: int, engine: int) -> float:
    """Prompt tokens that the engine was not sent before; with ``pending`` also what it owes already. [p - h_e]"""
    owed = view.params[PENDING] * view.engines.pending_tokens[engine]
    return float(view.requests.prompt_tokens[request] - view.sent[engine, request] + owed)


def worse(view: View, request: int, engine: int, other: int) -> int:
    """Compare by the product, then (two idle engines) by new tokens alone: 1, 0 or -1. [(p - h_e)*(n + m)]"""
    here, there = fresh(view, request, engine), fresh(view, request, other)
    product, products = here * held(view, engine), there * held(view, other)
    if product != products:
        return 1 if product > products else -1
    if product == 0.0 and here != there:
        return 1 if here > there else -1
    return 0


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine of the least product (0 only if it is idle); luck picks among equals."""
    best, equals = -1, 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            than = worse(view, request, engine, best) if best >= 0 else -1
            if than < 0:
                best, equals = engine, 1
            elif than == 0:
                equals += 1
    skip = int(view.requests.luck[request] * equals)
    for engine in range(len(view.engines.alive)):
        if serving(view, engine) and worse(view, request, engine, best) == 0:
            if skip == 0:
                return float(engine)
            skip -= 1
    return HOLD


POLICY = ClusterPolicy(
    name="lmetric",
    dispatch=dispatch,
    params=(Param("pending", 0.0, 0.0, 1.0, "share", "of the tokens that an engine owes that count as new"),),
    reads=("prefix",),
    source="arXiv 2603.15202",
)
