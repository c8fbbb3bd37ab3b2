"""A cluster policy for tests: one engine more while many requests wait, one less while few are there."""

from schedulers.fleet import serving_count
from schedulers.policy import ClusterPolicy, Param
from schedulers.view import View


def scale(view: View, nobody: int, now_s: float) -> float:
    """By requests an engine that serves or boots."""
    held, coming = 0, serving_count(view)
    for engine in range(len(view.engines.alive)):
        held += view.engines.running[engine] + view.engines.waiting[engine]
        coming += view.engines.alive[engine] == 2
    each = held / max(1, coming)
    return 1.0 if each > view.params[0] else -1.0 if each < view.params[1] else 0.0


POLICY = ClusterPolicy(
    name="swing",
    scale=scale,
    params=(
        Param("high", 4.0, 0.0, 100.0, "requests", "an engine, above which one more is ordered"),
        Param("low", 2.0, 0.0, 100.0, "requests", "an engine, below which one is drained"),
    ),
    period_s=0.25,
)
