"""Least laxity first, seconds minus steps: the study's policy 3, in effect the longest job first."""

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import (
    DEADLINE_PARAMS,
    GROWTH,
    STEP_S,
    due_s,
    est_steps,
    prompt_fits,
    switch,
)
from schedulers.view import View

IN_STEPS = 3


def order(view: View, request: int, now_s: float) -> float:
    """Return the laxity, but for ``now``, which is common to all; published: a step counts as a second."""
    unit_s = 1.0 if view.params[IN_STEPS] == 1.0 else STEP_S
    return due_s(view, request) - est_steps(view, request) * unit_s


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits, pass the others."""
    return TAKE if prompt_fits(view, request, view.params[GROWTH]) else WAIT


POLICY = EnginePolicy(
    name="least_laxity_first@published",
    order=order,
    admit=admit,
    scan="skip",
    params=(*DEADLINE_PARAMS, switch("laxity_in_steps", "1: work in steps, deadline in seconds; 0: seconds")),
    memo=Memo(engines=3),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
