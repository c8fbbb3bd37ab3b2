"""Deficit longest prefix match: among tenants with credit, who has most in the prefix cache (arXiv 2501.14312)."""

from math import inf

from schedulers.cost import ranked
from schedulers.peak import at_once
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, EVICT, TOKEN, View
from schedulers.view import TAKE as TAKEN

QUANTUM, W_IN, W_OUT = 0, 1, 2
SERVED = 0  # tenant memo: weighted tokens served, less the quanta given after the first


def credit(view: View, tenant: int) -> float:
    """What is left of a tenant's quanta; everybody starts with one."""
    return float(view.params[QUANTUM] - view.tenants.memo[tenant, SERVED])


def refill(view: View, comes: int) -> None:
    """If no tenant that waits has credit, give each a quantum till one has; of ``comes`` one joins just now."""
    best, tenants = -inf, len(view.tenants.weight)
    for tenant in range(tenants):
        if view.tenants.waiting[tenant] > 0 or tenant == comes:
            best = max(best, credit(view, tenant))
    if best > 0.0 or best == -inf:
        return
    rounds = -best // view.params[QUANTUM] + 1.0
    for tenant in range(tenants):
        if view.tenants.waiting[tenant] > 0 or tenant == comes:
            view.tenants.memo[tenant, SERVED] -= rounds * view.params[QUANTUM]


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Charge what of a prompt was not cached when it is first taken, and each token when it is out."""
    table, tenant = view.requests, int(view.requests.tenant[request])
    if event == TOKEN:
        view.tenants.memo[tenant, SERVED] += view.params[W_OUT] * table.fresh_tokens[request]
    elif event == TAKEN and table.evictions[request] == 0:
        fresh = table.prompt_tokens[request] - table.cached_tokens[request]
        view.tenants.memo[tenant, SERVED] += view.params[W_IN] * fresh
    refill(view, tenant if event in (ARRIVAL, EVICT) else -1)


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the cached tokens, tenants without credit behind all others."""
    table = view.requests
    broke = credit(view, int(table.tenant[request])) <= 0.0
    return ranked(1.0 if broke else 0.0, -float(table.cached_tokens[request]))


POLICY = EnginePolicy(
    name="dlpm",
    order=order,
    observe=observe,
    wake=at_once,
    watches=(ARRIVAL, TAKEN, TOKEN, EVICT),
    params=(
        Param("quantum", 2000.0, 1.0, 1e6, "tokens", "given to every tenant that waits when none has credit"),
        Param("w_in", 1.0, 0.0, 100.0, "1/token", "cost of a prompt token that was not cached"),
        Param("w_out", 2.0, 0.0, 100.0, "1/token", "cost of an output token"),
    ),
    memo=Memo(tenants=1),
    rekey=True,
    dynamic=True,
    reads=("prefix", "tenant"),
    source="arXiv 2501.14312",
)
