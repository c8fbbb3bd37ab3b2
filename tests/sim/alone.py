"""A policy of known weakness: it turns away whoever would join somebody, so it loses wherever requests overlap."""

from schedulers.policy import REFUSE, TAKE, EnginePolicy
from schedulers.view import View


def admit(view: View, request: int, now_s: float) -> float:
    """Take a request only onto an idle engine."""
    return REFUSE if view.engines.running[int(view.requests.engine[request])] > 0 else TAKE


POLICY = EnginePolicy(name="alone", admit=admit)
