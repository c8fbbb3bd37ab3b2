"""Shortest predicted remaining time, displacing only what is early in its answer (TRAIL, arXiv 2410.01035)."""

from schedulers.cost import ranked, remaining_s
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View

EARLY, MARGIN = 0, 1


def remaining(view: View, request: int, now_s: float) -> float:
    """Return the predicted remaining service in seconds; of the displaced it counts the recompute."""
    return remaining_s(view, request, int(view.requests.engine[request]))


def early(view: View, request: int) -> bool:
    """Tell whether less than the share ``c`` of the forecast is out.

    The forecast as it was first given, not raised to g + 1: an answer that overran it is late, not early again.
    """
    table = view.requests
    return bool(table.generated_tokens[request] < view.params[EARLY] * table.forecast_tokens[request])


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace what is early and remains longer by more than the margin."""
    shorter = remaining(view, waiting, now_s) + view.params[MARGIN] < remaining(view, running, now_s)
    return 1.0 if shorter and early(view, running) else 0.0


def evict(view: View, request: int, now_s: float) -> float:
    """Evict the longest remaining among the early; the others only when no early one is left."""
    return ranked(1.0 if early(view, request) else 0.0, remaining(view, request, now_s))


POLICY = EnginePolicy(
    name="srpt-limited",
    order=remaining,
    serve=remaining,
    evict=evict,
    preempt=preempt,
    params=(
        Param("c", 0.8, 0.0, 1.0, "share", "of the forecast; who is past it is not displaced"),
        Param("margin_s", 0.0, 0.0, 3600.0, "s", "how much sooner it must end to displace"),
    ),
    reads=("forecast",),
    source="arXiv 2410.01035",
)
