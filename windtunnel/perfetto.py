"""A run as a Chrome trace: engines as processes, memory and queues as counters, moves as slices joined by arrows.

The format is Chrome's trace event format (JSON object form), which ui.perfetto.dev and chrome://tracing open. Times
are microseconds of the run's own clock.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.fabric import BOOTING, DEAD, DRAINING, OFF, SERVING
from sim.log import (
    BEGUN,
    DIED,
    DISPATCHED,
    DRAINS_OFF,
    HALTED,
    MOVED,
    ORDERED,
    SERVES,
    SERVES_ON,
    SWITCHED_OFF,
    TAKEN_BACK,
)

if TYPE_CHECKING:
    from loadgen.facts import Facts
    from sim.film import Timeline

CENTRE = 1
"""Process of the dispatcher; engine e is process e + 2."""

LIFE, MOVES = 1, 2
"""Threads of an engine."""

LIVES = {OFF: "off", BOOTING: "booting", SERVING: "serving", DRAINING: "draining", DEAD: "dead"}
AFTER = {
    ORDERED: BOOTING, SERVES: SERVING, SERVES_ON: SERVING, DRAINS_OFF: DRAINING, DIED: DEAD, SWITCHED_OFF: OFF,
}  # fmt: skip
"""The life that begins with an event."""

REQUESTS_MAX = 20_000
"""Of a longer run requests are left out: a trace of more opens slowly, and nobody reads it."""

Event = dict[str, Any]


def events(shown: "Timeline", facts: "Facts", engines: Sequence[str], tiers: Sequence[str]) -> list[Event]:
    """Return the events of a run; ``engines`` and ``tiers`` are their names. Sorted by time, names first."""
    end_s = float(shown.at_s[-1])
    made = [*names(engines), *lives(shown, end_s), *moves(shown), *counters(shown, tiers)]
    if len(facts.arrival_s) <= REQUESTS_MAX:
        made += requests(shown, facts, tiers)
    return sorted(made, key=lambda one: (one["ph"] != "M", one.get("ts", 0.0)))


def us(seconds: float) -> float:
    """Seconds as the trace's microseconds."""
    return round(float(seconds) * 1e6, 3)


def names(engines: Sequence[str]) -> Iterator[Event]:
    """Name processes and threads."""
    for pid, name in enumerate(("dispatcher", *engines), CENTRE):
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
        for tid, thread in ((LIFE, "life"), (MOVES, "moves")) if pid > CENTRE else ():
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}


def spans(shown: "Timeline", end_s: float) -> Iterator[tuple[int, int, float, float]]:
    """Yield (engine, life, from, to) of each stretch of an engine's life."""
    for engine in range(len(shown.began)):
        life, since_s = int(shown.began[engine]), 0.0
        for place in np.flatnonzero(shown.engine == engine):
            after = AFTER.get(int(shown.kind[place]))
            if after is not None and after != life:
                yield engine, life, since_s, float(shown.event_s[place])
                life, since_s = after, float(shown.event_s[place])
        yield engine, life, since_s, max(since_s, end_s)


def lives(shown: "Timeline", end_s: float) -> Iterator[Event]:
    """Slices: an engine serves, boots, drains, is off or dead."""
    for engine, life, from_s, to_s in spans(shown, end_s):
        if to_s > from_s:
            yield slice_(engine, LIFE, LIVES[life], (from_s, to_s), {})


def slice_(engine: int, tid: int, name: str, span: tuple[float, float], args: dict[str, Any]) -> Event:
    """One complete slice on an engine's thread; a span of nothing gets the shortest that can be seen."""
    from_us = us(span[0])
    whole = {"ph": "X", "pid": engine + 2, "tid": tid, "name": name, "cat": "engine", "ts": from_us}
    return {**whole, "dur": max(0.001, round(us(span[1]) - from_us, 3)), "args": args}


def moved(shown: "Timeline") -> Iterator[tuple[int, int, int, float, float, float, bool]]:
    """Yield (request, source, target, begin, stop, end, committed) of each move that ended; no stop is its end."""
    open_: dict[int, tuple[int, float, float]] = {}
    for place in np.flatnonzero(np.isin(shown.kind, (BEGUN, HALTED, MOVED, TAKEN_BACK))):
        kind, source, at_s = int(shown.kind[place]), int(shown.engine[place]), float(shown.event_s[place])
        if kind == BEGUN:
            open_[source] = (int(shown.request[place]), at_s, at_s)
        elif kind == HALTED and source in open_:
            open_[source] = (*open_[source][:2], at_s)
        elif source in open_:
            request, began_s, stopped_s = open_.pop(source)
            stop_s = stopped_s if stopped_s > began_s else at_s
            yield request, source, int(shown.other[place]), began_s, stop_s, at_s, kind == MOVED


def moves(shown: "Timeline") -> Iterator[Event]:
    """Slices on both ends of each move, the standstill inside, and an arrow from begin to commit."""
    for number, (request, source, target, began_s, stop_s, end_s, done) in enumerate(moved(shown), 1):
        told = {"request": request, "committed": done, "standstill_ms": round((end_s - stop_s) * 1e3, 3)}
        verb = "moves" if done else "does not move"
        given = slice_(source, MOVES, f"r{request} {verb} to {target}", (began_s, end_s), told)
        taken = slice_(target, MOVES, f"r{request} {verb} from {source}", (began_s, end_s), told)
        yield given
        yield taken
        if end_s > stop_s:
            yield slice_(source, MOVES, "stands still", (stop_s, end_s), {"request": request})
        if done:
            arrow = {"cat": "move", "name": "move", "id": number}
            yield {"ph": "s", **arrow, "pid": source + 2, "tid": MOVES, "ts": given["ts"]}
            late = round(
                taken["ts"] + taken["dur"] / 2, 4
            )  # inside the slice: at its end there is none to bind to
            yield {"ph": "f", "bp": "e", **arrow, "pid": target + 2, "tid": MOVES, "ts": late}


def counters(shown: "Timeline", tiers: Sequence[str]) -> Iterator[Event]:
    """Counters: KV blocks, batch and waiting by tier of each engine, and what the dispatcher holds; changes only."""
    for engine in range(len(shown.blocks)):
        kept = np.stack([shown.used[:, engine], shown.kept[:, engine]], axis=1)
        yield from changes(shown, engine + 2, "KV blocks", ("held", "reserved"), kept)
        yield from changes(shown, engine + 2, "batch", ("requests",), shown.batch[:, engine : engine + 1])
        yield from changes(shown, engine + 2, "waiting", tiers, shown.waiting[:, engine])
    yield from changes(shown, CENTRE, "held in the centre", tiers, shown.centre)
    yield from changes(shown, CENTRE, "waiting on engines", tiers, shown.waiting.sum(axis=1))


def changes(shown: "Timeline", pid: int, name: str, series: Sequence[str], values: Any) -> Iterator[Event]:
    """One counter, whenever it changes; ``values`` (k, series)."""
    before = None
    for at_s, row in zip(shown.at_s, values.tolist(), strict=True):
        if row != before:
            told = dict(zip(series, row, strict=True))
            yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": us(at_s), "args": told}
            before = row


def requests(shown: "Timeline", facts: "Facts", tiers: Sequence[str]) -> Iterator[Event]:
    """Requests as overlapping (async) spans of the dispatcher, with dispatch and first token as steps."""
    for request in range(len(facts.arrival_s)):
        tier = int(facts.tier[request])
        begin_s, end_s = float(facts.arrival_s[request]), float(facts.finished_s[request])
        if not np.isfinite(end_s):
            continue  # rejected or failed: it has no span
        one = {"cat": "request", "id": request, "pid": CENTRE, "tid": 0, "name": tiers[tier]}
        told = {"prompt": int(facts.prompt_tokens[request]), "output": int(facts.output_tokens[request])}
        yield {"ph": "b", **one, "ts": us(begin_s), "args": {"request": request, **told}}
        yield {"ph": "n", **one, "ts": us(facts.first_token_s[request]), "args": {"step": "first token"}}
        yield {"ph": "e", **one, "ts": us(end_s), "args": {}}
    done = np.isfinite(facts.finished_s)
    for place in np.flatnonzero(shown.kind == DISPATCHED):
        request = int(shown.request[place])
        if done[request]:
            one = {
                "cat": "request",
                "id": request,
                "pid": CENTRE,
                "tid": 0,
                "name": tiers[int(facts.tier[request])],
            }
            step = {"step": "dispatched", "engine": int(shown.engine[place])}
            yield {"ph": "n", **one, "ts": us(shown.event_s[place]), "args": step}


def write_trace(path: Path, made: list[Event], told: dict[str, Any]) -> None:
    """Write a trace file atomically; ``told`` says what the run was."""
    from sim.calibrate import write_text

    whole = {"traceEvents": made, "displayTimeUnit": "ms", "otherData": told}
    write_text(path, json.dumps(whole, separators=(",", ":")))
