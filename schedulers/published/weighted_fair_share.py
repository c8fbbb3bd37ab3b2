"""Classes that wait much and run little first, by work: the study's policy 5; with one class its policy 4."""

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo
from schedulers.published._formulas import GROWTH_SWITCH, est_steps, prompt_fits, switch
from schedulers.view import View

ONE_CLASS = 1


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the share: waiting/(active + 1) of the class, times its weight over the estimate.

    Counts are those at the start of a scan, as published. Repaired, a class is a tenant.
    """
    table, engine = view.requests, int(view.requests.engine[request])
    if view.params[ONE_CLASS] == 1.0:
        waiting, active, weight = view.engines.waiting[engine], view.engines.running[engine], 1.0
    else:
        tenant, active = table.tenant[request], 0
        waiting, weight = view.tenants.waiting[tenant], float(view.tenants.weight[tenant])
        for place in range(view.engines.running[engine]):
            if table.tenant[view.running[engine, place]] == tenant:
                active += 1
    return float(-(waiting / (active + 1.0)) * weight / est_steps(view, request))


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first that fits, pass the others."""
    return TAKE if prompt_fits(view, request, view.params[0]) else WAIT


POLICY = EnginePolicy(
    name="weighted_fair_share@published",
    order=order,
    admit=admit,
    scan="skip",
    dynamic=True,
    params=(
        GROWTH_SWITCH,
        switch("one_class", "1: one class for all; 0: a class is a tenant, with its weight"),
    ),
    memo=Memo(engines=3),
    reads=("forecast", "tenant"),
    source="doi 10.5281/zenodo.22306798",
)
