"""Control that sees true lengths: shortest remaining first, also by displacing (arXiv 2410.01035)."""

from schedulers.cost import blocks_for, owed_tokens, prefill_s, ranked, remaining_s
from schedulers.policy import TAKE, WAIT, EnginePolicy, Param
from schedulers.view import View

WATERMARK = 0.01


def remaining(view: View, request: int, now_s: float) -> float:
    """Return the remaining service in seconds; of the displaced it counts the recompute."""
    return remaining_s(view, request, int(view.requests.engine[request]))


def admit(view: View, request: int, now_s: float) -> float:
    """Take a request whose whole prompt fits: one that is evicted half way has cost everybody time."""
    engine = int(view.requests.engine[request])
    need = blocks_for(view, engine, view.requests.prefill_tokens[request] + 1)
    fits = view.engines.blocks_free[engine] - need >= WATERMARK * view.engines.blocks_total[engine]
    return TAKE if fits or view.engines.running[engine] == 0 else WAIT


def serve(view: View, request: int, now_s: float) -> float:
    """Serve decodes first, a token each is cheap; then started prompts, each by what remains."""
    return ranked(1.0 if owed_tokens(view, request) > 0 else 0.0, remaining(view, request, now_s))


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace only if the waiting one ends before any slot comes free, though all wait for the recompute.

    Otherwise the displaced one loses what the other gains, and the recompute is paid for nothing.
    """
    fleet, engine = view.engines, int(view.requests.engine[running])
    recompute_s = prefill_s(view, engine, float(view.requests.computed_tokens[running]))
    delay_s = view.params[0] + recompute_s * (fleet.running[engine] + fleet.waiting[engine])
    end_s = remaining(view, waiting, now_s) + delay_s
    for place in range(fleet.running[engine]):
        if remaining(view, int(view.running[engine, place]), now_s) <= end_s:
            return 0.0
    return 1.0


POLICY = EnginePolicy(
    name="oracle-srpt",
    order=remaining,
    admit=admit,
    serve=serve,
    evict=remaining,
    preempt=preempt,
    params=(Param("margin_s", 0.0, 0.0, 3600.0, "s", "how much sooner it must end to displace"),),
    reads=("forecast",),
    oracle=True,
    control=True,
    source="arXiv 2410.01035",
)
