"""The dispatcher sans input and output decides as the simulator does, request by request, for every policy."""

from math import inf

import numpy as np
import pytest

from loadgen.prefixes import shared
from loadgen.result import REJECTED
from schedulers.board import Account, Arrival, Place
from schedulers.decisions import REFUSED, SEND, Bounds
from schedulers.desk import Desk
from schedulers.load import cluster_names, find, load
from schedulers.recall import Prefix
from sim.checks import setup, traffic
from sim.engine import arrive
from sim.kernel import advance
from sim.rig import ACTIVE
from sim.run import build, simulate

RESERVE = [20, 4]
PLACE = setup(blocks=120, sequences=6, engines=3)._replace(reserve=np.array(RESERVE))


def window(seed, rate_per_s, n=120):
    demand = traffic(n, rate_per_s, seed=seed)
    prompts = demand.prompt_tokens.copy()
    prompts[n // 2] = PLACE.capacity_tokens + 5  # never fits
    return demand._replace(session=np.arange(n) % 9 - 1, prompt_tokens=prompts)


def account(rig, engine, sequence):
    """What the engine says of itself."""
    view, fleet = rig.known, rig.known.engines
    running = view.running[engine, : fleet.running[engine]].tolist()
    return Account(
        sequence=sequence,
        waiting=tuple(view.waiting[engine, : fleet.waiting[engine]].tolist()),
        running=tuple(running),
        computed_tokens=tuple(int(view.requests.computed_tokens[one]) for one in running),
        blocks=tuple(int(view.requests.blocks[one]) for one in running),
        **{
            name: getattr(fleet, name)[engine].item()
            for name in (
                "blocks_free", "queued_blocks", "pending_tokens", "steps", "prefilled_tokens", "step_s"
            )
        },
    )  # fmt: skip


def desk_for(scheduler, place):
    bounds = Bounds(queue_max=np.full(len(place.tiers.weight), inf))
    desk = Desk(scheduler.cluster, scheduler.cluster_params, place.tiers, bounds, strict=True)
    for _ in range(place.engines):
        desk.join(
            Place(
                place.sequences_max, place.budget_max, place.blocks, place.block_tokens,
                place.model_tokens, place.costs, tuple(RESERVE),
            ),
            0.0,
        )  # fmt: skip
    return desk


def prefix_at(demand, request):
    """What a client would say of the prompt's beginning: numbers of its blocks, from 1."""
    if demand.prefixes is None:
        return Prefix()
    start, stop = demand.prefixes.offsets[request : request + 2]
    return Prefix(tuple(demand.prefixes.ids[start:stop].tolist()), demand.prefixes.block_tokens)


def played(demand, scheduler, place, told=True):
    """(request, engine, reason) in the order decided: engines of the simulator, decisions of the desk."""
    rig, desk, log = build(demand, scheduler, place, jump=False, audit=True), desk_for(scheduler, place), []
    gone = set()

    def tell(now_s):
        for engine in range(place.engines):
            advance(rig, engine, now_s)
        for request, row in list(desk.board.row_of.items()):
            told = int(desk.board.view.requests.generated_tokens[row])
            desk.tokens(request, int(rig.known.requests.generated_tokens[request]) - told, now_s)
        for request in np.flatnonzero(rig.plant.outcome >= 0).tolist():
            if request not in gone:
                gone.add(request)
                desk.finish(request, now_s)
        for engine in range(place.engines):
            desk.report(engine, account(rig, engine, desk.board.sent[engine]), now_s)
        assert rig.plant.error[0] == 0

    for request, now_s in enumerate(demand.arrival_s.tolist()):
        tell(now_s)
        columns = (
            demand.prompt_tokens,
            demand.forecast_tokens,
            demand.tier,
            demand.tenant,
            demand.session,
            demand.luck,
        )
        prompt, forecast, tier, tenant, session, luck = (column[request].item() for column in columns)
        arrival = Arrival(request, now_s, prompt, forecast, tier, tenant, session, luck)
        (decision,) = desk.arrive(
            arrival._replace(prefix=prefix_at(demand, request) if told else Prefix()), now_s
        )
        log.append((decision.number, decision.engine, decision.reason))
        if decision.kind == SEND:
            if rig.plant.flight[decision.engine, ACTIVE] == 0.0:
                rig.plant.clock_s[decision.engine] = max(rig.plant.clock_s[decision.engine], now_s)
            arrive(rig, decision.engine, request, now_s)
        else:
            assert decision.kind == REFUSED
            gone.add(request)
    tell(1e9)
    return log, desk


def simulated(demand, scheduler, place):
    facts = simulate(demand, scheduler, place, "interpreted").facts
    reasons = {0: "", 1: "too_long", 2: "shed"}
    rejected = facts.outcome == REJECTED
    return [
        (
            request,
            int(facts.engine[request]),
            reasons[int(facts.reason[request])] if rejected[request] else "",
        )
        for request in range(len(facts.outcome))
    ]


SENDERS = [name for name in cluster_names() if find(name).policy.dispatch]


@pytest.mark.parametrize(
    "name",
    [*SENDERS, "llumnix:demand=0", "llumnix:headroom=1", "tier-shed:low=0.1,high=0.6", "lmetric:pending=1"],
)
@pytest.mark.parametrize(("seed", "rate_per_s"), [pytest.param(0, 30.0, marks=pytest.mark.slow), (1, 150.0)])
def test_decisions_are_the_simulators(name, seed, rate_per_s):
    """Same arrivals, same log: engine, refusals and their reasons, from the first request to the last."""
    scheduler, demand = load(f"fcfs-chunked+{name}"), window(seed, rate_per_s)
    log, desk = played(demand, scheduler, PLACE)
    assert log == simulated(demand, scheduler, PLACE)
    assert len({engine for _, engine, _ in log}) > 1 or name == "most-loaded"
    assert desk.board.row_of == {}, "no row is left open at rest"


def related(seed, rate_per_s, n=160):
    """Prompts of a few families that begin alike, each for a part of its length."""
    demand = window(seed, rate_per_s, n)
    luck = np.random.default_rng(seed)
    family = luck.integers(0, 8, n)
    lengths = np.minimum(luck.integers(0, 14, n), demand.prompt_tokens // 16)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([1 + 100 * family[row] + np.arange(lengths[row]) for row in range(n)])
    return demand._replace(prefixes=shared(offsets, ids, 16))


@pytest.mark.parametrize("name", ["prefix", "session", "prefix:spill=4", "lmetric"])
@pytest.mark.parametrize("blocks", [120, 25])
def test_prefixes_are_recalled_as_the_simulator_does(name, blocks):
    """What engines were sent before decides, and is forgotten once as much as they hold has gone there since."""
    scheduler, demand = load(f"fcfs-chunked+{name}"), related(3, 60.0)
    place = PLACE._replace(blocks=blocks, reserve=np.zeros_like(PLACE.reserve), prefix_cache=True)
    log, desk = played(demand, scheduler, place)
    assert log == simulated(demand, scheduler, place)
    untold, _ = played(demand, scheduler, place, told=False)
    assert (log != untold) == ("prefix" in scheduler.cluster.reads), "the knowledge matters"
    assert desk.recall.of == {}


def test_rows_are_used_again():
    """Memory follows what is open at once, not what ever came."""
    scheduler, demand = load("fcfs-chunked+least-requests"), window(0, 20.0, n=300)
    _, desk = played(demand, scheduler, PLACE)
    assert len(desk.board.number) < 300
