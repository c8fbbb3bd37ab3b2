"""A cluster policy that moves a running request to the other engine whenever it is asked."""

from schedulers.policy import HOLD, ClusterPolicy
from schedulers.view import View


def migrate(view: View, engine: int, now_s: float) -> float:
    """Name the other of two engines if anybody runs here."""
    return float(1 - engine) if view.engines.running[engine] > 0 else HOLD


POLICY = ClusterPolicy(name="restless", migrate=migrate, period_s=0.1, source="a test")
