"""Program-level least attained service: sessions sink by the service of all their calls (arXiv 2502.13965)."""

from math import inf

from schedulers.cost import ranked
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, EVICT, FINISH, TOKEN, UNSEEN, View
from schedulers.view import TAKE as TAKEN

QUANTUM, RATIO, LEVELS, STARVE = 0, 1, 2, 3
OWNER, SERVED, CALLS = (
    0,
    1,
    2,
)  # request memo: row of the session's account plus one; there: service, calls running
SINCE, SEEN, LAST = (
    3,
    4,
    5,
)  # request memo: start of the step under way, tokens computed, end of the last service


def account(view: View, request: int) -> int:
    """Return the row that keeps the session's service on this engine: that of its first call."""
    row = int(view.requests.memo[request, OWNER]) - 1
    return row if row >= 0 else request


def first_call(view: View, request: int) -> int:
    """Return the account of an earlier call of the session on this engine, else the request's own row."""
    table = view.requests
    if table.session[request] >= 0:
        for other in range(len(table.session)):
            known = table.state[other] != UNSEEN and table.memo[other, OWNER] > 0.0 and other != request
            same = table.session[other] == table.session[request]
            if known and same and table.engine[other] == table.engine[request]:
                return account(view, other)
    return request


def depth(view: View, served_s: float) -> tuple[int, float]:
    """Return the level after so much service, and the service that the level ends with."""
    level, quantum_s, end_s = 0, view.params[QUANTUM], view.params[QUANTUM]
    while served_s > end_s and level < view.params[LEVELS] - 1.0:
        level += 1
        quantum_s *= view.params[RATIO]
        end_s += quantum_s
    return level, end_s if level < view.params[LEVELS] - 1.0 else inf


def level(view: View, request: int, now_s: float) -> float:
    """Return the level of the request's session; 0 if the request was passed by for ``starve_s``."""
    memo = view.requests.memo
    if now_s >= memo[request, LAST] + view.params[STARVE]:
        return 0.0
    return float(depth(view, memo[account(view, request), SERVED])[0])


def charge(view: View, request: int, start_s: float, end_s: float) -> None:
    """Add a stretch of service to the session; one that had starved begins anew."""
    memo, row = view.requests.memo, account(view, request)
    if start_s >= memo[request, LAST] + view.params[STARVE]:
        memo[row, SERVED] = 0.0
    memo[row, SERVED] += end_s - start_s
    memo[request, LAST] = end_s
    memo[request, SEEN] = view.requests.computed_tokens[request]


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Open the account, charge service by tokens, count the calls that run at once."""
    memo = view.requests.memo
    if event == ARRIVAL:
        memo[request, OWNER] = first_call(view, request) + 1.0
        memo[request, LAST] = now_s
    elif event == TAKEN:
        memo[request, SINCE], memo[request, SEEN] = now_s, 0.0
        memo[account(view, request), CALLS] += 1.0
    elif event == TOKEN:
        charge(view, request, memo[request, SINCE], now_s)
    else:  # FINISH or EVICT
        memo[account(view, request), CALLS] -= 1.0


def key(view: View, request: int, now_s: float) -> float:
    """Return level, then arrival."""
    return ranked(level(view, request, now_s), float(view.requests.arrival_s[request]))


def serve(view: View, request: int, now_s: float) -> float:
    """Return the key, and note the step's start; a chunk of the step before that gave no token is charged here."""
    memo = view.requests.memo
    if view.requests.computed_tokens[request] > memo[request, SEEN]:
        charge(view, request, memo[request, SINCE], now_s)
    memo[request, SINCE] = now_s
    return key(view, request, now_s)


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace whoever is on a deeper level."""
    return 1.0 if level(view, waiting, now_s) < level(view, running, now_s) else 0.0


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when somebody in the queue has starved, or a running session sinks if all its calls are served."""
    memo, moment_s = view.requests.memo, inf
    if view.engines.waiting[engine] == 0:
        return inf
    for place in range(view.engines.waiting[engine]):
        starved_s = memo[view.waiting[engine, place], LAST] + view.params[STARVE]
        if starved_s > now_s:
            moment_s = min(moment_s, starved_s)
    for place in range(view.engines.running[engine]):
        row = account(view, int(view.running[engine, place]))
        left_s = depth(view, memo[row, SERVED])[1] - memo[row, SERVED]
        moment_s = min(moment_s, now_s + left_s / max(1.0, memo[row, CALLS]))
    return float(moment_s)


POLICY = EnginePolicy(
    name="plas",
    order=key,
    serve=serve,
    evict=key,
    preempt=preempt,
    observe=observe,
    wake=wake,
    watches=(ARRIVAL, TAKEN, TOKEN, FINISH, EVICT),
    params=(
        Param("q0_s", 0.05, 0.0001, 3600.0, "s", "service after which a session leaves the first level"),
        Param("ratio", 2.0, 1.0, 16.0, "", "how much longer each level is than the one before"),
        Param("levels", 8, 1, 32, "", "number of levels"),
        Param(
            "starve_s", 3.0, 0.001, inf, "s", "wait without service that brings a request back to the first"
        ),
    ),
    memo=Memo(requests=6),
    dynamic=True,
    source="arXiv 2502.13965",
)
