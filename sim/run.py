"""One run: a window's demand on a fleet under a scheduler, in; facts and totals, out."""

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from loadgen.demand import Demand
from loadgen.prefixes import heads
from loadgen.result import FINISHED, GAP_BINS, Facts, Totals
from schedulers.cost import ATTENTION, KV, RANK_S, step_s
from schedulers.errors import PolicyError
from schedulers.policy import Memo, Scheduler
from schedulers.view import Floats, Ints, Tiers, View, allocate
from sim import rig as codes
from sim.books import tampered
from sim.hooks import interpreted
from sim.kernel import run as run_interpreted
from sim.rig import Plant, Rig, Rules
from sim.storage import empty_cache

MODES = ("jumped", "stepped", "interpreted", "interpreted-jumped")
WATERMARK = 0.01
"""Share of KV blocks that the default admission keeps free (vLLM's default)."""

HOOK_NAMES = (
    "order", "admit", "serve", "budget", "evict", "preempt", "wake", "dispatch", "cluster admit",
    "cluster order",
)  # fmt: skip


class Setup(NamedTuple):
    """The fleet and the tiers; ``costs`` as in ``schedulers.cost``, sizes in tokens and KV blocks."""

    engines: int
    sequences_max: int
    budget_max: int
    block_tokens: int
    blocks: int
    model_tokens: int
    costs: Floats
    tiers: Tiers
    prefix_cache: bool = True  # where the demand tells what prompts share

    @property
    def capacity_tokens(self) -> int:
        """Most tokens, prompt and output, that one request may ever hold."""
        return min(self.model_tokens, self.blocks * self.block_tokens)


class Outcome(NamedTuple):
    """What a run leaves behind."""

    facts: Facts
    totals: Totals


def simulate(
    demand: Demand, scheduler: Scheduler, setup: Setup, mode: str = "jumped", audit: bool = False
) -> Outcome:
    """Run one window; ``mode`` is one of MODES, ``audit`` checks E1 and E2 at every step.

    Raises PolicyError if a hook raises, returns NaN, names no engine, stalls or thrashes.
    """
    refuse_unknown(scheduler)
    rig = build(demand, scheduler, setup, jump=mode in ("jumped", "interpreted-jumped"), audit=audit)
    play: Callable[[Rig], None] = run_interpreted
    if not mode.startswith("interpreted"):
        from sim import compiled  # costs half a second to import

        rig = rig._replace(hooks=compiled.hooks_for(scheduler.engine, scheduler.cluster, rig))
        play = compiled.kernel()
    try:
        play(rig)
    except Exception as error:
        raise PolicyError(
            f"scheduler {scheduler.name} raised {type(error).__name__}: {error}",
            fix="run `windtunnel schedulers check` on it; in mode 'interpreted' a debugger can step through",
        ) from error
    report_fault(rig, scheduler)
    fresh = build(demand, scheduler, setup._replace(prefix_cache=False), jump=True, audit=audit)
    fault = tampered(demand, rig, fresh)
    if fault:
        raise PolicyError(
            f"scheduler {scheduler.name} wrote where it may only read: {fault}",
            fix="keep state in memo columns; `windtunnel schedulers check` names the hook that writes",
        )
    return Outcome(facts(demand, rig, setup), totals(demand, rig, setup))


def refuse_unknown(scheduler: Scheduler) -> None:
    """Refuse a scheduler that asks for what the simulator does not do, rather than run it without."""
    asked = [name for name in ("migrate", "scale") if getattr(scheduler.cluster, name) is not None]
    if asked:
        raise PolicyError(
            f"scheduler {scheduler.name} has the cluster hook {asked[0]}, which this simulator does not run yet",
            fix="use a cluster policy without migration and scaling",
        )


def prepare_compiled(scheduler: Scheduler) -> None:
    """Compile the kernel and this scheduler's hooks, or load them from the cache."""
    from sim import compiled

    compiled.warm(scheduler.engine, scheduler.cluster)


def build(demand: Demand, scheduler: Scheduler, setup: Setup, *, jump: bool, audit: bool) -> Rig:
    """Lay out view and private state for one run; hooks are plain Python until compiled ones replace them."""
    engine, cluster = scheduler.engine, scheduler.cluster
    count = len(demand.arrival_s)
    tenants = np.ones(int(np.max(demand.tenant, initial=0)) + 1)
    tiers = Tiers(*(column.copy() for column in setup.tiers))  # the setup outlives the run
    blank = allocate(count, setup.engines, tiers, tenants, engine.memo)
    view = furnish(blank, demand, setup, engine.oracle)
    if not engine.chunked:
        view.engines.budget_max[:] = max(setup.budget_max, setup.capacity_tokens)
    board = share(view, cluster.memo)._replace(params=as_params(scheduler.cluster_params))
    if cluster.oracle:
        board = board._replace(
            requests=board.requests._replace(forecast_tokens=demand.output_tokens.astype(float))
        )
    view = view._replace(params=as_params(scheduler.engine_params))
    rules = rules_of(scheduler, setup)._replace(jump=int(jump), audit=int(audit))
    plant, prefixes = furnish_plant(demand, setup), demand.prefixes if setup.prefix_cache else None
    if prefixes is not None:
        view.requests.head[:] = heads(prefixes, demand.prompt_tokens)
        rules = rules._replace(trace_tokens=prefixes.block_tokens)
    cache = empty_cache(prefixes, demand.prompt_tokens + plant.output_tokens, setup)
    return Rig(view, board, plant, cache, rules, interpreted(engine, cluster))


def as_params(values: tuple[float, ...]) -> Floats:
    """Parameter values as an array, never empty."""
    return np.array(values or (0.0,), np.float64)


def furnish(view: View, demand: Demand, setup: Setup, oracle: bool) -> View:
    """Fill in what the window and the fleet say."""
    table, fleet = view.requests, view.engines
    for name in ("arrival_s", "prompt_tokens", "forecast_tokens", "tier", "tenant", "session", "luck"):
        getattr(table, name)[:] = getattr(demand, name)
    if oracle:  # the one door to the truth, for controls
        table.forecast_tokens[:] = demand.output_tokens
    fleet.sequences_max[:], fleet.budget_max[:] = setup.sequences_max, setup.budget_max
    fleet.blocks_total[:], fleet.blocks_free[:] = setup.blocks, setup.blocks
    fleet.block_tokens[:] = setup.block_tokens
    view.costs[:] = setup.costs
    return view


def share(view: View, memo: Memo) -> View:
    """The same tables with memo columns of its own, for the cluster policy."""
    own = allocate(
        len(view.requests.arrival_s), len(view.engines.alive), view.tiers, view.tenants.weight, memo
    )
    return view._replace(
        requests=view.requests._replace(memo=own.requests.memo),
        engines=view.engines._replace(memo=own.engines.memo),
        tenants=view.tenants._replace(memo=own.tenants.memo),
    )


def rules_of(scheduler: Scheduler, setup: Setup) -> Rules:
    """The policies' declarations as numbers."""
    engine, cluster = scheduler.engine, scheduler.cluster
    late = inf if engine.waiting_rank is None else (engine.waiting_rank - 0.5) * RANK_S
    return Rules(
        order=int(engine.order is not None),
        admit=int(engine.admit is not None),
        serve=int(engine.serve is not None),
        budget=int(engine.budget is not None),
        evict=int(engine.evict is not None),
        preempt=int(engine.preempt is not None),
        wake=int(engine.wake is not None),
        watches=sum(1 << event for event in set(engine.watches)) if engine.observe else 0,
        skip=int(engine.scan == "skip"),
        chunked=int(engine.chunked),
        rekey=int(engine.rekey),
        dynamic=int(engine.dynamic),
        late_key=late,
        watermark=WATERMARK,
        jump=1,
        audit=0,
        dispatch=int(cluster.dispatch is not None),
        cluster_admit=int(cluster.admit is not None),
        cluster_order=int(cluster.order is not None),
        cluster_watches=sum(1 << event for event in set(cluster.watches)) if cluster.observe else 0,
        capacity_tokens=setup.capacity_tokens,
        trace_tokens=0,
        prefix=int("prefix" in engine.reads),
        cluster_prefix=int("prefix" in cluster.reads),
    )


def furnish_plant(demand: Demand, setup: Setup) -> Plant:
    """Private state at time zero; an output is cut where the model's length ends, as an engine would."""
    count, engines = len(demand.arrival_s), setup.engines
    room = np.maximum(setup.capacity_tokens - demand.prompt_tokens, 1)

    def ints(size: int) -> Ints:
        return np.zeros(size, np.int64)

    def missing() -> Floats:
        return np.full(count, np.nan)

    size = max(count, engines, 1)
    return Plant(
        output_tokens=np.minimum(demand.output_tokens, room).astype(np.int64),
        outcome=ints(count) - 1,
        reason=ints(count),
        dispatched_s=missing(),
        started_s=missing(),
        finished_s=missing(),
        longest_gap_s=np.zeros(count),
        order_key=np.zeros(count),
        serve_key=np.zeros(count),
        evict_key=np.zeros(count),
        chunk=ints(count),
        kv_tokens=ints(engines),
        ids=ints(size),
        spare=ints(size),
        keys=np.zeros(size),
        clock_s=np.zeros(engines),
        wake_s=np.zeros(engines),
        flight=np.zeros((engines, 11)),
        tally=np.zeros((engines, 12)),
        gaps=ints(GAP_BINS),
        held=ints(size),
        held_count=ints(1),
        error=ints(4),
    )


def report_fault(rig: Rig, scheduler: Scheduler) -> None:
    """Turn a fault left by the kernel into an error that names the scheduler and the request."""
    code, hook, request, engine = (int(value) for value in rig.plant.error)
    if code == codes.FINE:
        return
    if code == codes.BROKEN:
        raise AssertionError(
            f"invariant E{hook} broken at request {request}, engine {engine}, {scheduler.name}"
        )
    name = HOOK_NAMES[hook]
    arrival = f", arrived at {rig.known.requests.arrival_s[request]:.6f} s" if request >= 0 else ""
    where = f"request {request}{arrival}"
    what, fix = {
        codes.STALL: (
            "stalled: it serves nobody and names no later time",
            "let somebody run, or return a time in wake",
        ),
        codes.NOT_A_NUMBER: (f"returned NaN from {name}", f"return a number from {name} for every request"),
        codes.NO_ENGINE: (
            f"named an engine in {name} that is not serving",
            "return a serving engine or HOLD",
        ),
        codes.THRASH: (
            "thrashes: 10,000 evictions without a single token",
            "let evict spare requests that are far on",
        ),
    }[code]
    raise PolicyError(f"scheduler {scheduler.name} {what}", where=where, fix=fix)


def facts(demand: Demand, rig: Rig, setup: Setup) -> Facts:
    """What happened to each request."""
    table, plant = rig.known.requests, rig.plant
    rejected = plant.outcome == 1
    idle_ttft_s, idle_e2e_s = idle_service(demand.prompt_tokens, demand.output_tokens, setup)
    return Facts(
        arrival_s=demand.arrival_s,
        dispatched_s=plant.dispatched_s,
        started_s=plant.started_s,
        first_token_s=table.first_token_s,
        finished_s=np.where(plant.outcome == FINISHED, plant.finished_s, np.nan),
        prompt_tokens=demand.prompt_tokens,
        output_tokens=table.generated_tokens,
        tier=demand.tier,
        tenant=demand.tenant,
        session=demand.session,
        outcome=plant.outcome.astype(np.int8),
        reason=plant.reason.astype(np.int8),
        engine=np.where(rejected & np.isnan(plant.dispatched_s), -1, table.engine),
        migrations=np.zeros(len(plant.outcome), np.int64),
        preemptions=table.evictions,
        longest_gap_s=np.where(table.generated_tokens > 1, plant.longest_gap_s, np.nan),
        idle_ttft_s=idle_ttft_s,
        idle_e2e_s=idle_e2e_s,
        cached_tokens=rig.cache.found_tokens
        if rig.rules.trace_tokens
        else np.where(plant.started_s >= 0.0, 0, -1),
    )


def idle_service(prompt_tokens: Ints, output_tokens: Ints, setup: Setup) -> tuple[Floats, Floats]:
    """TTFT and E2E of each request alone on an idle engine, chunked by the engine's budget, in seconds."""
    costs, chunk = setup.costs, setup.budget_max
    full, rest = prompt_tokens // chunk, prompt_tokens % chunk
    row = costs.tobytes()
    whole_s = lone_step_s(row, chunk)
    rest_s = np.array([lone_step_s(row, size) if size else 0.0 for size in rest.tolist()])
    ttft_s = full * whole_s + rest_s + costs[ATTENTION] * prompt_tokens.astype(float) ** 2 / 2.0
    steps = np.maximum(np.minimum(output_tokens, setup.capacity_tokens - prompt_tokens) - 1, 0).astype(float)
    decode_s = step_s(costs, 0.0, 0.0, 1.0, 0.0) + costs[KV] * (prompt_tokens + 1.0)
    e2e_s = ttft_s + steps * decode_s + costs[KV] * steps * (steps - 1.0) / 2.0
    return ttft_s, e2e_s


@lru_cache(maxsize=1 << 16)
def lone_step_s(costs: bytes, tokens: int) -> float:
    """Seconds of a step of so many prefill tokens alone, attention left out."""
    return step_s(np.frombuffer(costs), float(tokens), 0.0, 0.0, 0.0)


def totals(demand: Demand, rig: Rig, setup: Setup) -> Totals:
    """Sums and means over the engines; means are over the time in which engines were busy."""
    plant, table = rig.plant, rig.known.requests
    tally = plant.tally.sum(axis=0)
    busy_s = float(tally[codes.BUSY_S])
    end_s = float(np.nanmax(plant.finished_s, initial=0.0))
    last_s = float(table.arrival_s[-1]) if len(table.arrival_s) else 0.0
    slots = busy_s or 1.0
    memory = setup.blocks * setup.block_tokens
    arrived = tally[codes.ARRIVED] or 1.0
    return Totals(
        steps=int(rig.known.engines.steps.sum()),
        busy_s=busy_s,
        engine_s=end_s * setup.engines,
        batch_mean=float(tally[codes.BATCH_AREA] / slots),
        kv_mean=float(tally[codes.KV_AREA] / slots / memory),
        kv_peak=float(plant.tally[:, codes.KV_PEAK].max() / setup.blocks),
        queue_mean=float(tally[codes.QUEUE_SUM] / arrived),
        queue_peak=int(plant.tally[:, codes.QUEUE_PEAK].max()),
        evictions=int(table.evictions.sum()),
        recomputed_tokens=int(tally[codes.RECOMPUTED]),
        prefill_tokens=int(tally[codes.PREFILLED]),
        cached_tokens=int(tally[codes.CACHED]),
        decode_tokens=int(tally[codes.DECODED]),
        truncated=int(np.sum((plant.outcome == 0) & (table.generated_tokens < demand.output_tokens))),
        unfinished_at_last_arrival=int(np.sum(plant.finished_s > last_s)),
        gaps=plant.gaps,
    )
