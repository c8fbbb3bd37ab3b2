"""Weighted fair queueing over tenants: earliest virtual finish of prompt and output goes first."""

from math import inf

from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, FINISH, View

W_IN, W_OUT, MEAN = 0, 1, 2
START, END = 0, 1  # request memo: virtual start and finish
LAST, OUTPUT, COUNT = 0, 1, 2  # tenant memo: last virtual finish; tokens and number of finished answers
COLD_TOKENS = 256.0  # output of a tenant of whom nothing has finished, with mean=1


def virtual_time(view: View, engine: int) -> float:
    """Return the least virtual start in service, else in the queue; on an idle engine the last finish of all.

    So nobody saves up credit while there is nothing to share.
    """
    starts, least = view.requests.memo, inf
    for place in range(view.engines.running[engine]):
        least = min(least, starts[view.running[engine, place], START])
    if least == inf:
        for place in range(view.engines.waiting[engine]):
            least = min(least, starts[view.waiting[engine, place], START])
    if least < inf:
        return float(least)
    latest = 0.0
    for tenant in range(len(view.tenants.weight)):
        latest = max(latest, view.tenants.memo[tenant, LAST])
    return float(latest)


def output_tokens(view: View, request: int) -> float:
    """Return the forecast output or, with ``mean=1``, the mean of the tenant's finished ones."""
    if view.params[MEAN] == 0.0:
        return float(view.requests.forecast_tokens[request])
    memo = view.tenants.memo[view.requests.tenant[request]]
    return float(memo[OUTPUT] / memo[COUNT]) if memo[COUNT] > 0.0 else COLD_TOKENS


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Stamp a newcomer with its virtual start and finish; count the output of a finished one."""
    table, tenant = view.requests, int(view.requests.tenant[request])
    memo = view.tenants.memo
    if event == FINISH:
        memo[tenant, OUTPUT] += table.generated_tokens[request]
        memo[tenant, COUNT] += 1.0
        return
    start = max(virtual_time(view, int(table.engine[request])), memo[tenant, LAST])
    size = view.params[W_IN] * table.prompt_tokens[request] + view.params[W_OUT] * output_tokens(
        view, request
    )
    table.memo[request, START] = start
    table.memo[request, END] = memo[tenant, LAST] = start + size / view.tenants.weight[tenant]


def order(view: View, request: int, now_s: float) -> float:
    """Return the virtual finish, fixed at arrival."""
    return float(view.requests.memo[request, END])


POLICY = EnginePolicy(
    name="wfq",
    order=order,
    observe=observe,
    watches=(ARRIVAL, FINISH),
    params=(
        Param("w_in", 1.0, 0.0, 100.0, "1/token", "cost of a prompt token"),
        Param("w_out", 2.0, 0.0, 100.0, "1/token", "cost of an output token"),
        Param("mean", 0, 0, 1, "switch", "1: the tenant's mean output in place of the forecast"),
    ),
    memo=Memo(requests=2, tenants=3),
    reads=("forecast", "tenant"),
    source="classic (start-time fair queueing)",
)
