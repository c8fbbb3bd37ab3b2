"""What a scheduler may know: tables of arrays, and nothing that a live system could not know.

A ``View`` holds arrays only, one row a request, engine, tier or tenant; every hook reads it and writes to ``memo``
columns alone. True output lengths are not in the type. Units: times in seconds from the window's start, sizes in
tokens, memory in KV blocks. Symbols in brackets are those of reference/policies.md section 0.1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNSEEN, WAITING, RUNNING, DONE, MOVING = 0, 1, 2, 3, 4
"""Values of ``Requests.state``; MOVING: on its way between two engines, in neither's queue or batch."""

ARRIVAL, TAKE, FIRST_TOKEN, TOKEN, FINISH, EVICT, STEP, REJECT = 0, 1, 2, 3, 4, 5, 6, 7
"""Events that ``observe`` may watch. STEP carries the engine's number in place of a request."""


class Requests(NamedTuple):
    """One row a request, shape (n,) each."""

    arrival_s: Floats  # [a]
    prompt_tokens: Ints  # [p]
    forecast_tokens: Floats  # [o] forecast of the output, with a declared error; not the truth
    tier: Ints  # row of Tiers, 0 is the most important
    tenant: Ints  # [z] row of Tenants
    session: Ints  # conversation, -1 if none
    luck: Floats  # [u] uniform in [0, 1), drawn with the window
    state: Ints  # UNSEEN, WAITING, RUNNING, DONE
    engine: Ints  # where it is, -1 before dispatch
    cached_tokens: Ints  # [h] tokens found in the prefix cache: would be now (waiting), were when taken
    head: Ints  # equal numbers: the first 32 prompt tokens are shared; -1: fewer tokens, or not known
    prefill_tokens: Ints  # to compute before the next token: p, or p + g after an eviction
    computed_tokens: Ints  # [c] tokens whose KV is held
    generated_tokens: Ints  # [g] tokens delivered so far
    fresh_tokens: Ints  # tokens delivered at once by the latest TOKEN event (> 1 after a jump)
    blocks: Ints  # KV blocks held
    evictions: Ints  # times evicted so far
    enqueued_s: Floats  # when it last joined an engine's queue
    first_token_s: Floats  # NaN before
    last_token_s: Floats  # NaN before the first token
    memo: Floats  # (n, k) the policy's own columns


class Engines(NamedTuple):
    """One row an engine, shape (n,) each. To a cluster policy a belief as old as ``reported_s``.

    The dispatcher adds to it what it sent since; rows of queues and batches are not reported.
    """

    waiting: Ints  # [m] requests in the engine's queue
    running: Ints  # [n_e] requests in the batch
    sequences_max: Ints  # [S]
    budget_max: Ints  # [Q] tokens a step
    blocks_total: Ints  # [M]
    blocks_free: Ints  # [f]
    block_tokens: Ints  # [b]
    queued_blocks: Ints  # [D] blocks the queue asks for: sum of blocks(prefill + 1)
    pending_tokens: Ints  # [Y] prefill tokens owed by waiting and running requests
    steps: Ints  # steps done
    prefilled_tokens: Ints  # prefill tokens done since the start
    step_s: Floats  # duration of the latest step
    alive: Ints  # 1 serving, 0 dead or off, 2 ordered and booting
    draining: Ints  # 1 takes no new request
    reported_s: Floats  # when this row was true
    moving: Ints  # 1 while a request moves to or from it
    reserve: Ints  # (n, tiers) blocks set aside for each tier [H]
    head_blocks: (
        Ints  # blocks that the first of the queue asks for; with the next four only if read as "usage"
    )
    tier_running: Ints  # (n, tiers) requests in the batch
    tier_waiting: Ints  # (n, tiers) requests in the queue
    tier_blocks: Ints  # (n, tiers) blocks held [U]
    tier_queued: Ints  # (n, tiers) blocks that the queue asks for [D]
    memo: Floats  # (n, k)


class Tiers(NamedTuple):
    """Service classes, shape (tiers,) each; a target that does not exist is +inf."""

    ttft_s: Floats  # [F]
    tpot_s: Floats  # [T]
    e2e_s: Floats  # [E]
    weight: Floats  # [w]


class Tenants(NamedTuple):
    """Who pays, shape (tenants,) each."""

    weight: Floats
    waiting: Ints  # requests of this tenant in engine queues
    memo: Floats  # (tenants, k)


class View(NamedTuple):
    """All that a hook sees."""

    requests: Requests
    engines: Engines
    tiers: Tiers
    tenants: Tenants
    waiting: Ints  # (engines, n) queue of engine e: waiting[e, :engines.waiting[e]], in no promised order
    running: Ints  # (engines, n) batch of engine e: running[e, :engines.running[e]]
    sent: Ints  # (engines, n) [h_e] prompt tokens that the dispatcher sent to engine e before, with other requests
    costs: Floats  # (engines, 7) step-time coefficients, see schedulers/cost.py
    params: Floats  # the policy's parameters, in the order in which it declares them


def allocate(
    requests: int, engines: int, tiers: Tiers, tenant_weights: Floats, memo: tuple[int, int, int]
) -> View:
    """Return a view of zeros for so many requests and engines; ``memo`` = columns a request, engine and tenant.

    Capacities, arrivals and parameters are the caller's to fill in. Memo columns are never narrower than one.
    """
    n, e, z = requests, engines, len(tenant_weights)

    def floats(rows: int) -> Floats:
        return np.zeros(rows, np.float64)

    def ints(rows: int) -> Ints:
        return np.zeros(rows, np.int64)

    def by_tier() -> Ints:
        return np.zeros((e, len(tiers.weight)), np.int64)

    def columns(rows: int, width: int) -> Floats:
        return np.zeros((rows, max(1, width)), np.float64)

    table = Requests(
        arrival_s=floats(n), prompt_tokens=ints(n), forecast_tokens=floats(n), tier=ints(n), tenant=ints(n),
        session=ints(n) - 1, luck=floats(n), state=ints(n), engine=ints(n) - 1, cached_tokens=ints(n),
        head=ints(n) - 1, prefill_tokens=ints(n), computed_tokens=ints(n), generated_tokens=ints(n),
        fresh_tokens=ints(n),
        blocks=ints(n), evictions=ints(n), enqueued_s=floats(n), first_token_s=floats(n) + np.nan,
        last_token_s=floats(n) + np.nan, memo=columns(n, memo[0]),
    )  # fmt: skip
    fleet = Engines(
        waiting=ints(e), running=ints(e), sequences_max=ints(e), budget_max=ints(e), blocks_total=ints(e),
        blocks_free=ints(e), block_tokens=ints(e) + 1, queued_blocks=ints(e), pending_tokens=ints(e), steps=ints(e),
        prefilled_tokens=ints(e), step_s=floats(e), alive=ints(e) + 1, draining=ints(e), reported_s=floats(e),
        moving=ints(e), reserve=by_tier(), head_blocks=ints(e), tier_running=by_tier(), tier_waiting=by_tier(),
        tier_blocks=by_tier(), tier_queued=by_tier(), memo=columns(e, memo[1]),
    )  # fmt: skip
    tenants = Tenants(np.asarray(tenant_weights, np.float64), ints(z), columns(z, memo[2]))
    waiting, running, sent = np.zeros((3, e, n), np.int64)
    return View(table, fleet, tiers, tenants, waiting, running, sent, np.zeros((e, 7)), np.zeros(1))
