"""Small views drawn at random, on which a policy can be asked all its questions without a simulator."""

from typing import Any, NamedTuple

import numpy as np

from schedulers.cost import blocks_for
from schedulers.policy import ClusterPolicy, EnginePolicy
from schedulers.usage import tally_use
from schedulers.view import DONE, RUNNING, UNSEEN, WAITING, Engines, Tiers, View, allocate

NOW_S = 100.0
"""The moment at which every sample is taken."""

KNOWLEDGE = ("forecast", "targets", "tier", "tenant", "prefix", "usage")
"""What a policy may say that it reads."""

COSTS = (0.0, 6e-3, 6e-5, 0.0, 1e-9, 2e-5, 1e-7)
"""Step-time coefficients of the samples, about an 8-billion-parameter model on one accelerator."""


class Shape(NamedTuple):
    """What a sample looks like."""

    label: str
    requests: int = 48
    engines: int = 3
    tiers: int = 3
    tied: bool = False  # equal arrivals, lengths, forecasts and luck
    dead: int = 0  # engines that do not serve: the last ones, every second of them draining
    states: tuple[int, ...] = (WAITING, RUNNING, RUNNING, WAITING, DONE, UNSEEN)


SHAPES = (
    Shape("random"),
    Shape("empty", requests=0, engines=2),
    Shape("one waiting request", requests=1, engines=1, states=(WAITING,)),
    Shape("one running request", requests=1, engines=1, states=(RUNNING,)),
    Shape("ties", requests=24, engines=2, tied=True),
    Shape("a thousand tiers", requests=24, tiers=1000),
    Shape("one engine", requests=24, engines=1),
    Shape("a dead and a draining engine", requests=24, engines=4, dead=2),
    Shape("no engine serves", requests=12, engines=2, dead=2, states=(WAITING, DONE)),
)
"""The samples of the contract suite."""


def draw(
    shape: Shape, policy: EnginePolicy | ClusterPolicy, values: tuple[float, ...], luck: np.random.Generator
) -> View:
    """Return a consistent view at NOW_S: lists, blocks and sums agree with the states of the requests.

    In the view of a cluster policy half of the waiting requests are still in the central queue (engine -1).
    ``values`` are the policy's parameters, one each. Raises nothing of its own.
    """
    tiers, tenants = _tiers(shape, luck), luck.uniform(0.5, 2.0, 3)
    view = allocate(shape.requests, shape.engines, tiers, tenants, policy.memo)
    view = view._replace(params=np.array(values if values else (0.0,), np.float64))
    view.costs[:] = np.array(COSTS) * luck.uniform(0.9, 1.1, (shape.engines, 1))
    _fleet(view, shape, luck)
    _requests(view, shape, luck)
    for request in range(shape.requests):
        _place(view, shape, request, central=isinstance(policy, ClusterPolicy))
    _sums(view, luck)
    return view


def copied(view: View, *, fresh: bool = False) -> View:
    """Return a deep copy; ``fresh`` sets the memo columns back to zero."""

    def table(value: Any) -> Any:
        return type(value)(*(column.copy() for column in value)) if isinstance(value, tuple) else value.copy()

    copy = View(*(table(value) for value in view))
    if fresh:
        for memo in (copy.requests.memo, copy.engines.memo, copy.tenants.memo):
            memo[:] = 0.0
    return copy


def renamed(view: View, order: tuple[int, ...]) -> View:
    """Return a copy in which engine e is called ``order[e]``."""
    copy, back = copied(view), np.argsort(order)
    columns: list[Any] = [column[back] for column in copy.engines]
    numbers = np.array([*order, -1])  # the last place serves -1, "nowhere"
    copy.requests.engine[:] = numbers[copy.requests.engine]
    return copy._replace(
        engines=Engines(*columns),
        waiting=copy.waiting[back],
        running=copy.running[back],
        sent=copy.sent[back],
        costs=copy.costs[back],
    )


def changed(view: View, what: str, luck: np.random.Generator) -> View:
    """Return a copy in which one kind of knowledge (see ``KNOWLEDGE``, or "luck") is drawn anew."""
    copy = copied(view)
    table, tiers, n = copy.requests, copy.tiers, len(copy.requests.tier)
    if what == "forecast":
        table.forecast_tokens[:] = np.ceil(luck.lognormal(5.0, 1.5, n))
    elif what == "targets":
        for targets in (tiers.ttft_s, tiers.tpot_s, tiers.e2e_s):
            targets *= luck.uniform(0.1, 10.0, len(targets))
    elif what == "tier":
        table.tier[:] = luck.integers(0, len(tiers.weight), n)
        tiers.weight[:] = luck.uniform(0.1, 10.0, len(tiers.weight))
    elif what == "tenant":
        copy.tenants.weight[:] = luck.uniform(0.1, 10.0, len(copy.tenants.weight))
        table.tenant[:] = luck.integers(0, len(copy.tenants.weight), n)
        _count_tenants(copy)
    elif what == "prefix":
        table.cached_tokens[:] = luck.integers(0, table.prompt_tokens)
        table.head[:] = luck.integers(-1, 8, n)
        copy.sent[:] = luck.integers(0, table.prompt_tokens, copy.sent.shape)
    elif what == "usage":
        fleet = copy.engines
        for column in (fleet.tier_running, fleet.tier_waiting, fleet.tier_blocks, fleet.tier_queued):
            column[:] = luck.integers(0, 20, column.shape)
        fleet.head_blocks[:] = luck.integers(1, 50, len(fleet.head_blocks))
    elif what == "luck":
        table.luck[:] = luck.uniform(0.0, 1.0, n)
        table.session[:] = luck.integers(0, 1 << 30, n)
    return copy


def level(view: View) -> View:
    """Return a copy in which every tier has the targets and the weight of tier 0."""
    copy = copied(view)
    for column in copy.tiers:
        column[:] = column[0]
    return copy


def _tiers(shape: Shape, luck: np.random.Generator) -> Tiers:
    """Draw tiers with all targets, without an end, with an end only, and (rarely) without any."""
    n = shape.tiers
    kind = np.arange(n) % 3
    ttft_s, tpot_s = np.sort(luck.uniform(0.2, 20.0, n)), np.sort(luck.uniform(0.02, 0.5, n))
    e2e_s = luck.uniform(5.0, 120.0, n)
    e2e_s[kind == 1] = np.inf
    ttft_s[kind == 2] = np.inf
    tpot_s[kind == 2] = np.inf
    if n > 10:
        e2e_s[8::9] = np.inf
        tpot_s[7::9] = np.inf
    return Tiers(ttft_s, tpot_s, e2e_s, luck.uniform(0.5, 4.0, n))


def _fleet(view: View, shape: Shape, luck: np.random.Generator) -> None:
    fleet, n = view.engines, shape.engines
    fleet.sequences_max[:] = 64 + luck.permutation(n)
    fleet.budget_max[:] = 2048
    fleet.block_tokens[:] = 16
    fleet.steps[:] = luck.integers(100, 1000, n)
    fleet.prefilled_tokens[:] = luck.integers(10_000, 100_000, n)
    fleet.step_s[:] = luck.uniform(0.01, 0.05, n)
    fleet.reported_s[:] = NOW_S - luck.uniform(0.0, 0.1, n)
    for engine in range(n - shape.dead, n):
        if (n - engine) % 2 == 0:
            fleet.draining[engine] = 1
        else:
            fleet.alive[engine] = 0


def _requests(view: View, shape: Shape, luck: np.random.Generator) -> None:
    table, n = view.requests, shape.requests
    table.arrival_s[:] = np.sort(luck.uniform(NOW_S - 60.0, NOW_S - 1.0, n))
    table.prompt_tokens[:] = np.ceil(luck.lognormal(6.0, 1.0, n))
    table.forecast_tokens[:] = np.ceil(luck.lognormal(5.0, 1.0, n))
    table.luck[:] = luck.uniform(0.0, 1.0, n)
    table.tier[:] = luck.integers(0, shape.tiers, n)
    table.tenant[:] = luck.integers(0, 3, n)
    table.session[:] = luck.integers(-1, 8, n)
    table.generated_tokens[:] = luck.integers(1, 400, n)
    if shape.tied:
        for column in table:
            if len(column):
                column[:] = column[0]
        table.engine[:] = -1
    table.cached_tokens[:] = table.prompt_tokens // 4
    table.cached_tokens[::3] = 0
    table.head[:] = np.arange(n) % 7 - 1
    view.sent[:] = table.prompt_tokens // (2 + np.arange(shape.engines)[:, np.newaxis])
    table.enqueued_s[:] = table.arrival_s


def _place(view: View, shape: Shape, request: int, *, central: bool) -> None:
    """Bring one request into a state, and onto an engine that serves; later engines get more of them."""
    table, state = view.requests, shape.states[request % len(shape.states)]
    cycle = [engine for engine in range(shape.engines - shape.dead) for _ in range(engine + 1)]
    nowhere = not cycle or state == UNSEEN or (central and state == WAITING and request % 2 == 0)
    engine = -1 if nowhere else cycle[request // len(shape.states) % len(cycle)]
    table.state[request], table.engine[request] = state, engine
    prompt = int(table.prompt_tokens[request])
    evicted = state == WAITING and request % 5 == 3
    started = state == RUNNING and request % 4 == 1  # its prefill is half done
    if (state in (WAITING, UNSEEN) and not evicted) or started:
        table.generated_tokens[request] = 0
    generated = int(table.generated_tokens[request])
    table.evictions[request] = 1 if evicted else 0
    table.prefill_tokens[request] = prompt + (generated if evicted else 0)
    if state == RUNNING:
        table.computed_tokens[request] = prompt // 2 if started else prompt + generated - 1
        table.blocks[request] = blocks_for(view, engine, int(table.computed_tokens[request]))
    if generated > 0:
        table.fresh_tokens[request] = 1
        table.first_token_s[request] = table.arrival_s[request] + 0.5
        table.last_token_s[request] = NOW_S - 0.02
    if engine >= 0 and state in (WAITING, RUNNING):
        rows, counts = (view.waiting, view.engines.waiting), (view.running, view.engines.running)
        row, count = rows if state == WAITING else counts
        row[engine, count[engine]] = request
        count[engine] += 1


def _sums(view: View, luck: np.random.Generator) -> None:
    """Give each engine memory for what it holds and for the largest request, and add up its lists."""
    table, fleet = view.requests, view.engines
    longest = max((int(tokens) for tokens in table.prefill_tokens), default=0) + 1
    for engine in range(len(fleet.alive)):
        held = [int(r) for r in view.running[engine, : fleet.running[engine]]]
        queue = [int(r) for r in view.waiting[engine, : fleet.waiting[engine]]]
        used = sum(int(table.blocks[r]) for r in held)
        # an engine with one waiting request is just large enough for it: no watermark may stop it
        spare = blocks_for(view, engine, longest)
        spare += 0 if len(held) + len(queue) <= 1 else int(luck.integers(10, 1000))
        fleet.blocks_total[engine], fleet.blocks_free[engine] = used + spare, spare
        owed = [max(0, int(table.prefill_tokens[r] - table.computed_tokens[r])) for r in held + queue]
        fleet.pending_tokens[engine] = sum(owed)
        fleet.queued_blocks[engine] = sum(
            blocks_for(view, engine, int(table.prefill_tokens[r]) + 1) for r in queue
        )
        fleet.reserve[engine] = (
            fleet.blocks_total[engine] // 4 // 2 ** np.arange(len(view.tiers.weight)).clip(max=40)
        )
        tally_use(view, engine, fleet)
    _count_tenants(view)


def _count_tenants(view: View) -> None:
    view.tenants.waiting[:] = 0
    for engine in range(len(view.engines.alive)):
        for request in view.waiting[engine, : view.engines.waiting[engine]]:
            view.tenants.waiting[view.requests.tenant[request]] += 1
