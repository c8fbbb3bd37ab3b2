"""Deficit round robin over tenants: each may use a quantum of served tokens, then it is the next one's turn."""

from math import inf

from schedulers.cost import ranked
from schedulers.peak import at_once
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, EVICT, TOKEN, View
from schedulers.view import TAKE as TAKEN

QUANTUM, W_IN, W_OUT = 0, 1, 2
SERVED, PLACE = 0, 1  # tenant memo: weighted tokens served since it joined round 0; its place in the round


def turn(view: View, tenant: int) -> float:
    """Return the first round in which a tenant has credit: it has used up so many quanta."""
    return float(view.tenants.memo[tenant, SERVED] // view.params[QUANTUM])


def join(view: View, tenant: int) -> None:
    """Put a tenant of whom nobody waited at the end of the round under way, with neither credit nor debt."""
    tenants, now = view.tenants, inf
    for other in range(len(tenants.weight)):
        if tenants.waiting[other] > 0:
            now = min(now, turn(view, other))
        if tenants.memo[other, PLACE] > tenants.memo[tenant, PLACE]:
            tenants.memo[other, PLACE] -= 1.0
    tenants.memo[tenant, PLACE] = len(tenants.weight)
    tenants.memo[tenant, SERVED] = (now if now < inf else turn(view, tenant)) * view.params[QUANTUM]


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Charge prompts when first taken and tokens when delivered; let tenants join."""
    tenant = int(view.requests.tenant[request])
    served, weight = view.tenants.memo[:, SERVED], view.tenants.weight[tenant]
    if event == TOKEN:
        served[tenant] += view.params[W_OUT] * view.requests.fresh_tokens[request] / weight
    elif event == TAKEN:
        if view.requests.evictions[request] == 0:
            served[tenant] += view.params[W_IN] * view.requests.prompt_tokens[request] / weight
    elif view.tenants.waiting[tenant] == 0:
        join(view, tenant)


def order(view: View, request: int, now_s: float) -> float:
    """Return round, place in the round, then arrival."""
    tenant = int(view.requests.tenant[request])
    step = turn(view, tenant) * (len(view.tenants.weight) + 1.0) + view.tenants.memo[tenant, PLACE]
    return ranked(float(step), float(view.requests.arrival_s[request]))


POLICY = EnginePolicy(
    name="drr",
    order=order,
    observe=observe,
    wake=at_once,
    watches=(ARRIVAL, TAKEN, TOKEN, EVICT),
    params=(
        Param("quantum", 2000.0, 1.0, 1e6, "tokens", "served in a tenant's turn, times its weight"),
        Param("w_in", 1.0, 0.0, 100.0, "1/token", "cost of a prompt token"),
        Param("w_out", 2.0, 0.0, 100.0, "1/token", "cost of an output token"),
    ),
    memo=Memo(tenants=2),
    rekey=True,
    dynamic=True,
    reads=("tenant",),
    source="classic (Shreedhar and Varghese, SIGCOMM 1995)",
)
