"""Least laxity first among those that can still make it: the study's policy 7, whose threshold was infinite."""

from math import inf

from schedulers.policy import REFUSE, TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import (
    DEADLINE_PARAMS,
    GROWTH,
    SKIP_SWITCH,
    abandoned,
    latest_s,
    next_moment_s,
    prompt_fits,
    switch,
)
from schedulers.view import View

SKIPS, NEVER = 3, 4


def order(view: View, request: int, now_s: float) -> float:
    """Return the laxity, but for ``now``, which is common to all."""
    return latest_s(view, request)


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits; repaired, leave out whoever is too late, by skipping or by rejecting."""
    if view.params[NEVER] == 0.0 and now_s > latest_s(view, request):
        return REFUSE if view.params[SKIPS] == 0.0 or abandoned(view, request, now_s) else WAIT
    return TAKE if prompt_fits(view, request, view.params[GROWTH]) else WAIT


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when the next waiting request is too late, or given up."""
    if view.params[NEVER] == 1.0:
        return inf
    return next_moment_s(view, engine, now_s, 0.0)


POLICY = EnginePolicy(
    name="admission_control@published",
    order=order,
    admit=admit,
    wake=wake,
    scan="skip",
    params=(
        *DEADLINE_PARAMS,
        SKIP_SWITCH,
        switch("never_drops", "1: the laxity threshold is infinite; 0: it is 0 s"),
    ),
    memo=Memo(engines=3),
    reads=("forecast", "targets"),
    source="doi 10.5281/zenodo.22306798",
)
