"""Shortest estimated service first, whoever fits: the study's policy 4."""

from schedulers.cost import ranked
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import DEADLINE_PARAMS, GROWTH, due_s, est_steps, prompt_fits
from schedulers.view import View

TIE_MOST_S = 4e5
"""Later deadlines tie: half a step's rank is not to be crossed."""


def order(view: View, request: int, now_s: float) -> float:
    """Return (estimate, deadline): estimates go by half steps, so a deadline only breaks their ties."""
    return ranked(est_steps(view, request), min(due_s(view, request), TIE_MOST_S))


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits, pass the others."""
    return TAKE if prompt_fits(view, request, view.params[GROWTH]) else WAIT


POLICY = EnginePolicy(
    name="estimated_service_time_first@published",
    order=order,
    admit=admit,
    scan="skip",
    params=DEADLINE_PARAMS,
    memo=Memo(engines=3),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
