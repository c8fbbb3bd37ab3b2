"""Fair shares: whose tenant has had the least service, counted in weighted tokens, is next (arXiv 2401.00588)."""

from math import inf

from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, TAKE, TOKEN, View

W_IN, W_OUT = 0, 1
COUNTER, LEFT = 0, 1
"""Memo of a tenant: its counter V, and the turn at which it last left a queue (0: never)."""


def counter(view: View, request: int, now_s: float) -> float:
    """Return V of the request's tenant; ties go by arrival."""
    return float(view.tenants.memo[view.requests.tenant[request], COUNTER])


def last_leaver(view: View) -> int:
    """Return the tenant whose request left a queue last; -1 if none has."""
    last = -1
    for tenant in range(len(view.tenants.weight)):
        turn = view.tenants.memo[tenant, LEFT]
        if turn > 0.0 and (last < 0 or turn > view.tenants.memo[last, LEFT]):
            last = tenant
    return last


def lift(view: View, tenant: int) -> None:
    """Raise a tenant that comes back to the poorest that waits, else to the last that left: idling saves nothing."""
    memo, least = view.tenants.memo, inf
    for other in range(len(view.tenants.weight)):
        if view.tenants.waiting[other] > 0:
            least = min(least, memo[other, COUNTER])
    if least == inf:
        last = last_leaver(view)
        least = memo[last, COUNTER] if last >= 0 else 0.0
    memo[tenant, COUNTER] = max(memo[tenant, COUNTER], least)


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Charge the prompt when it is taken, once, and each token when it is out; a recompute is not charged again."""
    tenant, memo = int(view.requests.tenant[request]), view.tenants.memo
    weight = view.tenants.weight[tenant]
    if event == ARRIVAL and view.tenants.waiting[tenant] == 0:
        lift(view, tenant)
    elif event == TAKE:
        last = last_leaver(view)
        memo[tenant, LEFT] = 1.0 + (memo[last, LEFT] if last >= 0 else 0.0)
        if view.requests.evictions[request] == 0:
            memo[tenant, COUNTER] += view.params[W_IN] * view.requests.prompt_tokens[request] / weight
    elif event == TOKEN:
        memo[tenant, COUNTER] += view.params[W_OUT] * view.requests.fresh_tokens[request] / weight


def wake(view: View, engine: int, now_s: float) -> float:
    """Look again at each step while several tenants wait and a slot is free.

    Each token may bring another tenant's head to the front, and it may fit where the last one didn't.
    """
    tenants = 0
    for tenant in range(len(view.tenants.weight)):
        if view.tenants.waiting[tenant] > 0:
            tenants += 1
    free = view.engines.running[engine] < view.engines.sequences_max[engine]
    return now_s if tenants > 1 and free and view.engines.waiting[engine] > 1 else inf


POLICY = EnginePolicy(
    name="vtc",
    order=counter,
    evict=counter,
    observe=observe,
    wake=wake,
    watches=(ARRIVAL, TAKE, TOKEN),
    params=(
        Param("w_in", 1.0, 0.0, 1000.0, "1/token", "weight of a prompt token"),
        Param("w_out", 2.0, 0.0, 1000.0, "1/token", "weight of an output token"),
    ),
    memo=Memo(tenants=2),
    rekey=True,
    dynamic=True,
    reads=("tenant",),
    source="arXiv 2401.00588",
)
