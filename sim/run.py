"""One run: a window's demand on a fleet under a scheduler, in; facts and totals, out."""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from loadgen.demand import Demand
from loadgen.prefixes import heads
from loadgen.result import GAP_BINS
from schedulers.cost import RANK_S
from schedulers.errors import PolicyError
from schedulers.lives import SERVING
from schedulers.policy import CLUSTER_HOOKS, Part, Scheduler
from schedulers.view import Engines, Floats, Ints, Tiers, View, allocate
from sim import rig as codes
from sim.books import seal, tampered
from sim.cluster import run_cluster
from sim.fabric import Terms, Wiring, terms_of, weave
from sim.film import Film
from sim.hooks import interpreted
from sim.kernel import run as run_interpreted
from sim.outcome import Outcome, facts, moves, totals
from sim.rig import Plant, Rig, Rules
from sim.storage import empty_cache

MODES = ("jumped", "stepped", "interpreted", "interpreted-jumped")
WATERMARK = 0.01
"""Share of KV blocks that the default admission keeps free (vLLM's default)."""

HOOK_NAMES = (
    "order", "admit", "serve", "budget", "evict", "preempt", "wake", "dispatch", "cluster admit",
    "cluster order", "migrate", "pick", "scale",
)  # fmt: skip


class Setup(NamedTuple):
    """The fleet and the tiers; ``costs`` as in ``schedulers.cost``, sizes in tokens and KV blocks.

    ``blocks`` may be (engines,) and ``costs`` (engines, 7): engines may differ. ``engines`` counts those that scaling
    may start, too.
    """

    engines: int
    sequences_max: int
    budget_max: int
    block_tokens: int
    blocks: int | Ints
    model_tokens: int
    costs: Floats
    tiers: Tiers
    prefix_cache: bool = True  # where the demand tells what prompts share
    wiring: Wiring = Wiring()
    reserve: Ints | None = None  # blocks set aside on each engine for each tier, (tiers,) or (engines, tiers)

    @property
    def capacity_tokens(self) -> int:
        """Most tokens, prompt and output, that one request may ever hold: it must fit any engine."""
        return min(self.model_tokens, int(np.min(self.blocks)) * self.block_tokens)


def simulate(
    demand: Demand,
    scheduler: Scheduler,
    setup: Setup,
    mode: str = "jumped",
    audit: bool = False,
    film: Film | None = None,
) -> Outcome:
    """Run one window; ``mode`` is one of MODES, ``audit`` checks E1 and E2 at every step, ``film`` looks on.

    Raises PolicyError if a hook raises, returns NaN, names no engine, stalls or thrashes.
    """
    refuse_unknown(scheduler, setup)
    rig = build(demand, scheduler, setup, jump=mode in ("jumped", "interpreted-jumped"), audit=audit)
    clustered = film is not None or is_clustered(scheduler, setup)
    play: Callable[[Rig], None] = run_cluster if clustered else run_interpreted
    if not mode.startswith("interpreted"):
        from sim import compiled  # costs half a second to import

        rig = rig._replace(hooks=compiled.hooks_for(scheduler, rig))
        play = compiled.kernel(clustered)
    if film is not None:
        rig = rig._replace(fabric=film.load(rig.fabric))
    sealed = seal(rig)
    try:
        play(rig) if film is None else film.shoot(play, rig)
    except Exception as error:
        raise PolicyError(
            f"scheduler {scheduler.name} raised {type(error).__name__}: {error}",
            fix="run `windtunnel schedulers check` on it; in mode 'interpreted' a debugger can step through",
        ) from error
    report_fault(rig, scheduler)
    fault = tampered(rig, sealed)
    if fault:
        raise PolicyError(
            f"scheduler {scheduler.name} wrote where it may only read: {fault}",
            fix="keep state in memo columns; `windtunnel schedulers check` names the hook that writes",
        )
    return Outcome(facts(demand, rig, setup), totals(demand, rig, setup), moves(rig))


def is_clustered(scheduler: Scheduler, setup: Setup) -> bool:
    """True if something can happen beside arrivals and steps: reports, moves, scaling or faults."""
    asked = any(
        getattr(part.policy, hook) is not None for part in scheduler.parts for hook in ("migrate", "scale")
    )
    return asked or not setup.wiring.plain


def refuse_unknown(scheduler: Scheduler, setup: Setup) -> None:
    """Refuse a scheduler that asks for what the simulator does not do, rather than run it without."""
    for hook in ("migrate", "scale"):
        part = scheduler.part_for(hook)
        if getattr(part.policy, hook) is not None and part.policy.period_s <= 0.0:
            raise PolicyError(
                f"cluster policy {part.policy.name} has the hook {hook} and no period_s at which it is asked",
                fix="declare period_s, e.g. period_s=0.5",
            )


def prepare_compiled(scheduler: Scheduler) -> None:
    """Compile the kernel and this scheduler's hooks, or load them from the cache."""
    from sim import compiled

    compiled.warm(scheduler)


def build(demand: Demand, scheduler: Scheduler, setup: Setup, *, jump: bool, audit: bool) -> Rig:
    """Lay out views and private state for one run; hooks are plain Python until compiled ones replace them."""
    engine = scheduler.engine
    count = len(demand.arrival_s)
    tenants = np.ones(int(np.max(demand.tenant, initial=0)) + 1)
    tiers = Tiers(*(column.copy() for column in setup.tiers))  # the setup outlives the run
    blank = allocate(count, setup.engines, tiers, tenants, engine.memo)
    view = furnish(blank, demand, setup, engine.oracle)
    if not engine.chunked:
        view.engines.budget_max[:] = max(setup.budget_max, setup.capacity_tokens)
    fabric = weave(count, setup.engines, len(tiers.weight), setup.wiring)
    view.engines.alive[:] = fabric.life == SERVING
    believed = view.engines
    if setup.wiring.period_s > 0.0:  # what the dispatcher believes is a table of its own
        believed = Engines._make(column.copy() for column in view.engines)
    boards = [share(view, demand, believed, part) for part in scheduler.parts]
    seen = {hook: boards[scheduler.parts.index(scheduler.part_for(hook))] for hook in CLUSTER_HOOKS}
    view = view._replace(params=as_params(scheduler.engine_params))
    rules = rules_of(scheduler, setup)._replace(jump=int(jump), audit=int(audit))
    plant, prefixes = furnish_plant(demand, setup), demand.prefixes if setup.prefix_cache else None
    if prefixes is not None:
        view.requests.head[:] = heads(prefixes, demand.prompt_tokens)
        rules = rules._replace(trace_tokens=prefixes.block_tokens)
    return Rig(
        known=view,
        board=seen["dispatch"],
        gate=seen["admit"],
        line=seen["order"],
        mover=seen["migrate"],
        scaler=seen["scale"],
        watcher=seen["observe"],
        plant=plant,
        cache=empty_cache(prefixes, demand.prompt_tokens + plant.output_tokens, setup),
        fabric=fabric,
        rules=rules,
        terms=cluster_terms(scheduler, setup),
        hooks=interpreted(scheduler),
    )


def cluster_terms(scheduler: Scheduler, setup: Setup) -> Terms:
    """The wiring, and the declarations of the policies that move and scale, as numbers."""
    mover, scaler = scheduler.part_for("migrate").policy, scheduler.part_for("scale").policy
    usage = any("usage" in part.policy.reads for part in scheduler.parts)
    asked = (
        int(mover.migrate is not None), int(mover.pick is not None), int(scaler.scale is not None), int(usage),
    )  # fmt: skip
    return terms_of(setup.wiring, mover.period_s, scaler.period_s, asked)


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
    if setup.reserve is not None:
        fleet.reserve[:] = setup.reserve
    view.costs[:] = setup.costs
    return view


def share(view: View, demand: Demand, believed: Engines, part: Part) -> View:
    """The same tables, engines as the dispatcher believes them, with a part's own memo and parameters."""

    def memo(rows: int, width: int) -> Floats:
        return np.zeros((rows, max(1, width)))

    kept = part.policy.memo
    requests = view.requests._replace(memo=memo(len(demand.arrival_s), kept.requests))
    if part.policy.oracle:  # the one door to the truth, for controls
        requests = requests._replace(forecast_tokens=demand.output_tokens.astype(float))
    return view._replace(
        requests=requests,
        engines=believed._replace(memo=memo(len(believed.alive), kept.engines)),
        tenants=view.tenants._replace(memo=memo(len(view.tenants.weight), kept.tenants)),
        params=as_params(part.params),
    )


def rules_of(scheduler: Scheduler, setup: Setup) -> Rules:
    """The policies' declarations as numbers."""
    engine, watcher = scheduler.engine, scheduler.part_for("observe").policy
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
        dispatch=int(scheduler.part_for("dispatch").policy.dispatch is not None),
        cluster_admit=int(scheduler.part_for("admit").policy.admit is not None),
        cluster_order=int(scheduler.part_for("order").policy.order is not None),
        cluster_watches=sum(1 << event for event in set(watcher.watches)) if watcher.observe else 0,
        capacity_tokens=setup.capacity_tokens,
        trace_tokens=0,
        prefix=int("prefix" in engine.reads),
        cluster_prefix=int(any("prefix" in part.policy.reads for part in scheduler.parts)),
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
