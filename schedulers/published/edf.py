"""Earliest deadline first, whoever fits: the study's policy 2, its deadline made of the forecast."""

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import DEADLINE_PARAMS, GROWTH, due_s, prompt_fits
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return the deadline."""
    return due_s(view, request)


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits, pass the others."""
    return TAKE if prompt_fits(view, request, view.params[GROWTH]) else WAIT


POLICY = EnginePolicy(
    name="edf@published",
    order=order,
    admit=admit,
    scan="skip",
    params=DEADLINE_PARAMS,
    memo=Memo(engines=3),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
