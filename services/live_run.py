"""One scheduler on one window against live services: set the policy, replay, store as results are stored."""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from math import isnan
from typing import Any, NamedTuple

import numpy as np

from loadgen.demand import prepare
from loadgen.facts import FINISHED, RunKey, Totals
from loadgen.region import Region
from loadgen.replay.http_sender import HttpSender
from loadgen.replay.run import Replay, Replayed, ReplayRules, Tick
from loadgen.replay.schedule import ABSOLUTE, Schedule, schedule_of
from loadgen.result import run_row, write_failures, write_shard
from loadgen.window import Window
from schedulers.errors import InputError
from schedulers.load import pieces, portable
from schedulers.view import Ints
from services.local import ask
from services.sender import GrpcSender
from sim import rig as codes
from sim.calibrate import write_text
from sim.outcome import idle_service
from sim.runs import Task, key_of, region_columns

INVALID, PARTIAL = "invalid", "partial"
"""Folders beside the results for runs that are kept and never ranked."""

INTERRUPTED = "interrupted"
"""Why a replay stopped that somebody ended by hand."""

IDLE_S = 60.0
"""How long the engines may take to get empty, and to say that they run a run's policy, before it starts."""


class Target(NamedTuple):
    """The system that is asked; ``admin`` and ``workers`` are known for a testbed of ours alone."""

    address: str  # HOST:PORT of the gRPC door, or an http(s) URL
    speed: float = 1.0
    key: str = ""
    model: str = ""
    label: str = ""  # what stands for the scheduler of a system that is not ours
    admin: str = ""
    admin_key: str = ""
    workers: tuple[str, ...] = ()
    driver: str = "live"

    @property
    def http(self) -> bool:
        """True if it is asked by HTTP."""
        return self.address.startswith("http")


class Live(NamedTuple):
    """One run as it is to be made; ``paced`` is the scheduler's spec at the target's speed."""

    task: Task
    window: Window
    region: Region
    spec: str
    paced: str
    target: Target
    rules: ReplayRules
    turns: str = ABSOLUTE


class Played(NamedTuple):
    """What a run told, what the engines did meanwhile, and how much longer steps took than the model says."""

    told: Replayed
    totals: Totals | None  # None if nobody said
    slowness: float | None  # of real engines: busy seconds over those that the model has for these very steps
    gone: int  # engines that answer no more


class Account(NamedTuple):
    """What one run left: exit code, where it is kept, and the summary that was written."""

    run_id: str
    kept_in: str  # "runs", INVALID or PARTIAL
    summary: dict[str, Any]


def set_policy(target: Target, paced: str) -> None:
    """Let dispatcher and workers decide by this scheduler; raises InputError if they refuse."""
    status, told = ask(
        target.admin, "/admin/policy", key=target.admin_key, put={"scheduler": portable(paced)}
    )
    if status != 200:
        what = f"the dispatcher refuses the scheduler ({status}: {told})"
        raise InputError(what, where=paced, fix="see its log; `windtunnel schedulers check` tries a policy")


async def await_ready(target: Target, policy: str) -> None:
    """Wait until the engines are empty and run a policy: no run inherits requests, or another's decisions.

    Raises InputError if they do not.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + IDLE_S
    others: list[str] = []
    while loop.time() < until_s:
        _, told = await asyncio.to_thread(ask, target.admin, "/workers")
        rows = told["workers"] if told else []
        others = [row["worker"] for row in rows if row["connected"] and row["engine_policy"] != policy]
        if rows and not others and all(row["running"] + row["waiting"] == 0 for row in rows):
            return
        await asyncio.sleep(0.1)
    if others:
        fix = "read the worker's log: it says why it refuses the policy"
        raise InputError(f"{', '.join(others)}: does not run {policy}", where=target.admin, fix=fix)
    raise InputError("the engines do not get empty", where=target.admin, fix="windtunnel down, then up again")


async def play(live: Live, begin: Callable[[Replay], None], notice: Callable[[Tick], None]) -> Played:
    """Make one run; ``begin`` gets the replay before it starts, to be able to stop it."""
    target, plan = live.target, live.task.job.plan
    demand = prepare(live.window, plan, live.region.factor)
    schedule = schedule_of(live.window, demand, secrets.token_hex(4), speed=target.speed, turns=live.turns)
    targets = tuple((tier.ttft_s, tier.tpot_s, tier.e2e_s) for tier in plan.tiers)
    if target.admin:
        await asyncio.to_thread(set_policy, target, live.paced)
        await await_ready(target, pieces(portable(live.paced))[0])
    before = await totals_now(target)
    async with sender_of(target, schedule) as sender:
        replay = Replay(schedule, sender, live.rules, targets)
        begin(replay)
        told = await replay.run(notice)
    after = await totals_now(target)
    gone = max(0, len(before) - len(after))
    return Played(told, totals_between(before, after, live, told), slowness_of(before, after), gone)


def sender_of(target: Target, schedule: Schedule) -> Any:
    """Return what speaks to the target."""
    if target.http:
        return HttpSender(target.address, schedule, target.model, target.key)
    return GrpcSender(target.address, schedule, target.key)


async def totals_now(target: Target) -> list[dict[str, Any]]:
    """Return what each worker has done since it started; [] if the system does not say."""
    told = [await asyncio.to_thread(ask, http, "/totals") for http in target.workers]
    return [table for status, table in told if status == 200]


def slowness_of(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> float | None:
    """Return how much longer a real engine's steps took than the model says of these very steps; None if unknown."""
    if not after or len(after) != len(before) or any(one.get("modelled_s") is None for one in after):
        return None
    sums = [
        [sum(one["tally"][codes.BUSY_S] for one in told), sum(one["modelled_s"] for one in told)]
        for told in (before, after)
    ]
    busy_s, modelled_s = sums[1][0] - sums[0][0], sums[1][1] - sums[0][1]
    return busy_s / modelled_s if modelled_s > 0.0 else None


def totals_between(
    before: list[dict[str, Any]], after: list[dict[str, Any]], live: Live, told: Replayed
) -> Totals | None:
    """Return what the engines did in a run, in the window's time; None if nobody said."""
    if not after or len(after) != len(before):
        return None
    tally = np.sum([one["tally"] for one in after], axis=0) - np.sum([one["tally"] for one in before], axis=0)
    peak = max(one["tally"][codes.KV_PEAK] / one["blocks"] for one in after)
    speed, trails = live.target.speed, told.trails
    busy_s = float(tally[codes.BUSY_S])
    memory = after[0]["blocks"] * after[0]["block_tokens"]
    last_s = float(np.nanmax(trails.due_s, initial=0.0))
    cut = (trails.outcome == FINISHED) & (trails.tokens < trails.schedule.demand.output_tokens)
    return nothing(trails.gaps)._replace(
        steps=sum(one["steps"] for one in after) - sum(one["steps"] for one in before),
        busy_s=busy_s * speed,
        engine_s=told.took_s * speed * len(after),
        batch_mean=float(tally[codes.BATCH_AREA] / (busy_s or 1.0)),
        kv_mean=float(tally[codes.KV_AREA] / (busy_s or 1.0) / memory),
        kv_peak=float(peak),
        queue_mean=float(tally[codes.QUEUE_SUM] / (tally[codes.ARRIVED] or 1.0)),
        queue_peak=int(max(one["tally"][codes.QUEUE_PEAK] for one in after)),
        evictions=int(trails.preemptions.sum()),
        recomputed_tokens=int(tally[codes.RECOMPUTED]),
        prefill_tokens=int(tally[codes.PREFILLED]),
        decode_tokens=int(tally[codes.DECODED]),
        truncated=int(cut.sum()),
        unfinished_at_last_arrival=int((~(trails.ended_s <= last_s)).sum()),
    )


def nothing(gaps: Ints) -> Totals:
    """Return totals of engines that nobody asked, with the gaps that the client saw."""
    return Totals(
        steps=0,
        busy_s=0.0,
        engine_s=0.0,
        batch_mean=0.0,
        kv_mean=0.0,
        kv_peak=0.0,
        queue_mean=0.0,
        queue_peak=0,
        evictions=0,
        recomputed_tokens=0,
        prefill_tokens=0,
        cached_tokens=0,
        decode_tokens=0,
        truncated=0,
        unfinished_at_last_arrival=0,
        gaps=gaps,
    )


def live_key(live: Live) -> RunKey:
    """Return the key of a live run: the simulator's with another driver; a foreign system goes by its label."""
    key = replace(key_of(live.task, live.region, live.spec), driver=live.target.driver)
    if live.target.label:
        label = live.target.label
        key = replace(
            key, scheduler=label, engine_policy=label, cluster_policy=label, scheduler_version="", params="{}"
        )
    return key


def store(live: Live, played: Played) -> Account:
    """Write a run: among the results if it counts, beside them if it is invalid or was stopped.

    The summary goes to OUT/replays/ID.json. Raises InputError if a file can't be written.
    """
    job, setup, key = live.task.job, live.task.job.setup, live_key(live)
    told, totals = played.told, played.totals
    trails, demand = told.trails, told.trails.schedule.demand
    idle = idle_service(demand.prompt_tokens, demand.output_tokens, setup)
    facts = trails.facts(*idle[:2])
    stopped = told.stopped == INTERRUPTED or (told.stopped and told.lag.unsent)
    kept_in = PARTIAL if stopped else "runs" if told.valid else INVALID
    out = job.out if kept_in == "runs" else job.out / kept_in
    known = totals or nothing(trails.gaps)
    targets = [(tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in job.plan.tiers]
    metrics = job.summarise(facts, known, live.window.scored, targets, job.plan.slo_sets)
    summary = summary_of(live, told, key, kept_in)
    summary |= {"slowness": played.slowness, "engines_gone": played.gone}
    extra = region_columns(live.task, live.window, live.region) | {
        "lag_p50_s": told.lag.p50_s, "lag_p99_s": told.lag.p99_s, "lag_max_s": told.lag.max_s,
        "speed": live.target.speed, "cpu_share": told.health.cpu_share,
        "lost_tokens": float(trails.lost.sum()), "repeated_tokens": float(trails.repeated.sum()),
        **trails.moved(),
    }  # fmt: skip
    row = run_row(key, facts, known, metrics, extra)
    if totals is None:  # not zero but unknown
        row |= {name: None for name in Totals._fields if name != "gaps"}
    write_shard(out, f"{live.window.line.id}-{live.region.name}-{key.run_id}", [row], [(key.run_id, facts)])
    write_text(
        job.out / "replays" / f"{key.run_id}.json", json.dumps(summary, indent=1, sort_keys=True) + "\n"
    )
    if kept_in == INVALID:
        what = f"replay invalid: {'; '.join(told.faults)}"
        write_failures(job.out, [(key.scheduler, key.window_id, key.region, what)])
    return Account(key.run_id, kept_in, summary)


def summary_of(live: Live, told: Replayed, key: RunKey, kept_in: str) -> dict[str, Any]:
    """Return what a reader must know of a run beside its metrics."""
    trails, total = told.trails, len(told.trails.due_s)
    ends: dict[str, dict[str, int]] = {}
    for (outcome, reason), count in sorted(trails.ends().items()):
        ends.setdefault(outcome, {})[reason] = count
    ended = sum(count for reasons in ends.values() for count in reasons.values())
    return {
        "run_id": key.run_id, "window": key.window_id, "window_sha256": key.window_sha256,
        "scheduler": key.scheduler, "region": key.region, "target": "http" if live.target.http else "grpc",
        "speed": live.target.speed, "turns": live.turns, "factor": live.region.factor,
        "closed_within_session": live.turns != ABSOLUTE, "requests": total, "ends": ends,
        "lost_requests": total - ended, "lost_tokens": int(trails.lost.sum()),
        "repeated_tokens": int(trails.repeated.sum()), "miscounted": int(trails.miscounted.sum()),
        "lag": told.lag._asdict(), "limits": asdict(live.rules.limits), "health": told.health._asdict(),
        "moves": {name: value for name, value in trails.moved().items() if not isnan(value)}
        | {"why": dict(Counter(one.why for one in trails.moves if one.why))},
        "took_s": told.took_s, "stopped": told.stopped, "valid": told.valid, "faults": list(told.faults),
        "kept_in": kept_in,
    }  # fmt: skip
