"""Control that sees true lengths: shortest remaining first, also by displacing (arXiv 2410.01035)."""

from schedulers.cost import remaining_s
from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def remaining(view: View, request: int, now_s: float) -> float:
    """Return the remaining service in seconds; of the displaced it counts the recompute."""
    return remaining_s(view, request, int(view.requests.engine[request]))


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace a request that remains longer by more than ``margin_s``."""
    shorter = remaining(view, waiting, now_s) + view.params[0] < remaining(view, running, now_s)
    return 1.0 if shorter else 0.0


POLICY = EnginePolicy(
    name="oracle-srpt",
    order=remaining,
    serve=remaining,
    evict=remaining,
    preempt=preempt,
    params=(
        Param("margin_s", 0.0, 0.0, 3600.0, "s", "how much shorter a request must be to displace another"),
    ),
    reads=("forecast",),
    oracle=True,
    control=True,
    source="arXiv 2410.01035",
)
