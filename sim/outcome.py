"""What a run leaves behind: facts a request, totals a run, and what the cluster did beside serving."""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadgen.demand import Demand
from loadgen.result import FINISHED, Facts, Totals
from schedulers.cost import ATTENTION, KV, step_s
from schedulers.view import Floats, Ints
from sim import rig as codes
from sim.fabric import ABORTED, BOOTS, COMMITTED, DEATHS, DRAINS, STARTED
from sim.rig import Rig

if TYPE_CHECKING:
    from sim.run import Setup


class Moves(NamedTuple):
    """What the cluster did beside serving, over a run."""

    started: int
    committed: int
    aborted: int
    bytes: float
    seconds: float  # under move, summed over moves
    downtime_s: Floats  # (n,) a request
    boots: int
    drains: int
    deaths: int


class Outcome(NamedTuple):
    """What a run leaves behind."""

    facts: Facts
    totals: Totals
    moves: Moves


def facts(demand: Demand, rig: Rig, setup: "Setup") -> Facts:
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
        migrations=rig.fabric.migrations,
        preemptions=table.evictions,
        longest_gap_s=np.where(table.generated_tokens > 1, plant.longest_gap_s, np.nan),
        idle_ttft_s=idle_ttft_s,
        idle_e2e_s=idle_e2e_s,
        cached_tokens=rig.cache.found_tokens
        if rig.rules.trace_tokens
        else np.where(plant.started_s >= 0.0, 0, -1),
    )


def idle_service(prompt_tokens: Ints, output_tokens: Ints, setup: "Setup") -> tuple[Floats, Floats]:
    """TTFT and E2E of each request alone on an idle engine, chunked by the engine's budget, in seconds."""
    costs, chunk = np.atleast_2d(setup.costs)[0], setup.budget_max  # where engines differ, on the first
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


def totals(demand: Demand, rig: Rig, setup: "Setup") -> Totals:
    """Sums and means over the engines; means are over the time in which engines were busy."""
    plant, table = rig.plant, rig.known.requests
    tally = plant.tally.sum(axis=0)
    busy_s = float(tally[codes.BUSY_S])
    end_s = float(np.nanmax(plant.finished_s, initial=0.0))
    last_s = float(table.arrival_s[-1]) if len(table.arrival_s) else 0.0
    slots = busy_s or 1.0
    memory = float(np.mean(setup.blocks)) * setup.block_tokens
    arrived = tally[codes.ARRIVED] or 1.0
    return Totals(
        steps=int(rig.known.engines.steps.sum()),
        busy_s=busy_s,
        engine_s=float(rig.fabric.billed_s.sum()) or end_s * setup.engines,
        batch_mean=float(tally[codes.BATCH_AREA] / slots),
        kv_mean=float(tally[codes.KV_AREA] / slots / memory),
        kv_peak=float((plant.tally[:, codes.KV_PEAK] / setup.blocks).max()),
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


def moves(rig: Rig) -> Moves:
    """What the cluster did beside serving."""
    fabric = rig.fabric
    return Moves(
        started=int(fabric.events[STARTED]),
        committed=int(fabric.events[COMMITTED]),
        aborted=int(fabric.events[ABORTED]),
        bytes=float(fabric.moved_bytes[0]),
        seconds=float(fabric.moving_s[0]),
        downtime_s=fabric.downtime_s,
        boots=int(fabric.events[BOOTS]),
        drains=int(fabric.events[DRAINS]),
        deaths=int(fabric.events[DEATHS]),
    )
