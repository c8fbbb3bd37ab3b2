"""One engine driven from outside: requests come and go at any time, and each call tells what steps brought.

The step functions are the simulator's own (``sim.engine``, ``sim.admission``, ``sim.memory``): nothing is
decided here. The caller says what time it is, so the same object runs on the wall clock and on a virtual one.
"""

from collections.abc import Hashable
from math import inf, isnan, nan
from typing import NamedTuple

import numpy as np

from loadgen.result import FAILED
from schedulers.cost import blocks_for, owed_tokens
from schedulers.policy import Scheduler
from schedulers.view import ARRIVAL, REJECT, RUNNING, TAKE, Ints
from services.worker.rows import Ask, clear, fill, grown, lay_out, take_over, widest
from sim.engine import arrive, land
from sim.kernel import sleep, start
from sim.memory import charge, end, evict, join_queue, leave_queue, note, note_all, wake_s
from sim.queue import find, insert, remove_at
from sim.rig import ACTIVE, END_S, RECOMPUTED, START_S, THROWN
from sim.run import Setup, report_fault

ROWS = 64
"""Rows at the start; doubled whenever they run out."""

POLL_S = 0.01
"""A policy that wants to be asked at every event while nobody runs is asked this often."""


Key = Hashable
"""Name of a request, unique among those that an engine holds."""


class Progress(NamedTuple):
    """What one request gained: tokens [offset, offset + made) at ``time_s``, and its end if it came.

    ``outcome`` is -1 while it goes on, else one of ``loadgen.result``'s codes, with ``reason``.
    """

    key: Key
    offset: int
    made: int
    time_s: float
    outcome: int = -1
    reason: int = 0
    started_s: float = 0.0
    evictions: int = 0


class Parcel(NamedTuple):
    """A running request as it moves to another engine, with the state that must not be lost."""

    ask: Ask
    computed_tokens: int
    prefill_tokens: int
    evictions: int
    started_s: float


class Engine:
    """One engine's queue, batch and memory, with the requests known by their keys."""

    def __init__(self, scheduler: Scheduler, setup: Setup) -> None:
        self.scheduler, self.setup = scheduler, setup._replace(engines=1)
        self.tenants = 1
        self.rig = lay_out(scheduler, self.setup, ROWS, self.tenants)
        self.blank = lay_out(scheduler, self.setup, 1, 1)
        self.row_of: dict[Key, int] = {}
        self.key_of: dict[int, Key] = {}
        self.forecasts: dict[int, float] = {}  # as told, before an oracle replaced them
        self.told = np.zeros(ROWS, np.int64)  # tokens of each row that a Progress has told
        self.free = list(range(ROWS - 1, -1, -1))
        self.frozen: set[int] = set()  # rows out of the batch that still hold their blocks
        self.reserved: dict[Key, int] = {}  # blocks kept for requests that are on their way here
        self.asked_s = nan  # when the policy last let nobody run; NaN if something has changed since
        self.modelled_s: float | None = (
            None  # what a real engine's steps should have taken by the model, in all
        )

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait and that run."""
        fleet = self.rig.known.engines
        return int(fleet.waiting[0]), int(fleet.running[0])

    @property
    def busy(self) -> bool:
        """True while a step is under way."""
        return bool(self.rig.plant.flight[0, ACTIVE] == 1.0)

    @property
    def stuck(self) -> bool:
        """True if requests are here and the policy lets nobody run."""
        return not self.busy and sum(self.load) > 0 and not isnan(self.asked_s)

    def postpone(self, lost_s: float) -> None:
        """Let the step under way end so much later: the engine stood still."""
        plant = self.rig.plant
        plant.clock_s[0] += lost_s
        if self.busy:
            plant.flight[0, START_S] += lost_s
            plant.flight[0, END_S] += lost_s

    def pace(self, factor: float) -> None:
        """Let every step from now on take ``factor`` times as long as its profile says."""
        self.rig.known.costs[:] = self.rig.board.costs[:] = self.setup.costs * factor

    def add(self, key: Key, ask: Ask, now_s: float) -> Progress | None:
        """Let a request arrive; returns its end if it is turned away at once (it can never fit).

        Raises KeyError if a request of this key is here already.
        """
        row = self._occupy(key, ask)
        plant = self.rig.plant
        if plant.flight[0, ACTIVE] == 0.0 and plant.clock_s[0] < now_s:
            plant.clock_s[0] = now_s
        arrive(self.rig, 0, row, now_s)
        if plant.outcome[row] >= 0:
            return self._closed(row, 0, now_s)
        return None

    def advance(self, now_s: float, *, before: bool = False) -> list[Progress]:
        """Run to a moment, step by step; returns what requests gained, in order of time."""
        told: list[Progress] = []
        while (gained := self.act(now_s, before=before)) is not None:
            told += gained
        return told

    def act(self, now_s: float, *, before: bool = False) -> list[Progress] | None:
        """Do the next thing that is due by a moment: end a step or form one; None if nothing is.

        With ``before`` no step is formed at the moment itself: a request that arrives then may still join it.
        Raises PolicyError if the engine policy broke its contract.
        """
        plant = self.rig.plant
        if plant.flight[0, ACTIVE] == 1.0:
            return self._land() if plant.flight[0, END_S] <= now_s else None
        clock_s = plant.clock_s[0]
        if sum(self.load) == 0 or clock_s > now_s or (before and clock_s == now_s):
            return None
        if self.asked_s == clock_s == now_s:
            return None  # it said at this very moment that nobody may run
        start(self.rig, 0, now_s)
        report_fault(self.rig, self.scheduler)
        gone = sum(self.load) + len(self.frozen) < len(self.row_of)
        told = self._refused(now_s) if gone else []
        if plant.flight[0, ACTIVE] == 0.0:
            self.asked_s = clock_s
            sleep(self.rig, 0, now_s)
        return told

    def next_s(self, now_s: float) -> float:
        """When ``advance`` is due again if nothing else happens; +inf for never, ``now_s`` for at once."""
        plant = self.rig.plant
        if plant.flight[0, ACTIVE] == 1.0:
            return float(plant.flight[0, END_S])
        if sum(self.load) == 0:
            return inf
        if isnan(self.asked_s):
            return now_s
        wake = wake_s(self.rig, 0, now_s)
        return wake if wake > now_s else now_s + POLL_S

    def cancel(self, key: Key, now_s: float, *, outcome: int = FAILED) -> Progress | None:
        """Take a request out at once, wherever it is, and free its blocks; None if it is not here."""
        row = self.row_of.get(key)
        if row is None:
            return None
        rig, table = self.rig, self.rig.known.requests
        self.asked_s = nan
        if row in self.frozen:
            self.frozen.discard(row)
            rig.plant.kv_tokens[0] += table.computed_tokens[row]  # ``end`` takes them off
        else:
            if table.state[row] == RUNNING:
                self._back_to_queue(row, now_s)
            leave_queue(rig, 0, find(rig.known.waiting[0], rig.known.engines.waiting[0], row))
            rig.known.engines.pending_tokens[0] -= table.prefill_tokens[row]
        end(rig, 0, row, outcome, now_s)
        note(rig, row, REJECT, now_s)
        return self._closed(row, 0, now_s)

    def freeze(self, key: Key) -> Parcel | None:
        """Take a decoding request out of the batch, its blocks kept; None if it isn't decoding now."""
        row = self.row_of.get(key)
        rig, table = self.rig, self.rig.known.requests
        if (
            row is None
            or row in self.frozen
            or table.state[row] != RUNNING
            or owed_tokens(rig.known, row) > 0
        ):
            return None
        batch, fleet = rig.known.running[0], rig.known.engines
        charge(rig, 0, row, -1)
        rig.plant.chunk[row] = 0
        remove_at(batch, fleet.running[0], find(batch, fleet.running[0], row))
        fleet.running[0] -= 1
        rig.plant.kv_tokens[0] -= table.computed_tokens[row]
        self.frozen.add(row)
        return self.parcel(key)

    def thaw(self, key: Key) -> None:
        """Put a frozen request back into the batch: its move was called off."""
        row = self.row_of[key]
        self.frozen.discard(row)
        self._into_batch(row)

    def parcel(self, key: Key) -> Parcel:
        """Return the state of a request; raises KeyError if it isn't here."""
        row, table, plant = self.row_of[key], self.rig.known.requests, self.rig.plant
        ask = Ask(
            arrival_s=float(table.arrival_s[row]),
            prompt_tokens=int(table.prompt_tokens[row]),
            output_tokens=int(plant.output_tokens[row]),
            forecast_tokens=self.forecasts[row],
            tier=int(table.tier[row]),
            tenant=int(table.tenant[row]),
            session=int(table.session[row]),
            luck=float(table.luck[row]),
            generated_tokens=int(table.generated_tokens[row]),
        )
        return Parcel(
            ask,
            computed_tokens=int(table.computed_tokens[row]),
            prefill_tokens=int(table.prefill_tokens[row]),
            evictions=int(table.evictions[row]),
            started_s=float(plant.started_s[row]),
        )

    def reserve(self, key: Key, blocks: int) -> bool:
        """Keep so many blocks for a request on its way here; False if there are not so many."""
        fleet = self.rig.known.engines
        here = self.reserved.get(key, 0)
        if fleet.running[0] + len(self.reserved) >= fleet.sequences_max[0] + (key in self.reserved):
            return False
        if blocks - here > fleet.blocks_free[0]:
            return False
        fleet.blocks_free[0] -= blocks - here
        self.reserved[key] = blocks
        return True

    def release(self, key: Key) -> None:
        """Give reserved blocks back; nothing happens if there are none."""
        self.asked_s = nan
        self.rig.known.engines.blocks_free[0] += self.reserved.pop(key, 0)

    def receive(self, key: Key, parcel: Parcel, now_s: float) -> bool:
        """Let a moved request go on here, in the blocks reserved for it; False if they don't suffice."""
        rig = self.rig
        need = blocks_for(rig.known, 0, parcel.computed_tokens)
        if not self.reserve(key, need):
            return False
        self.release(key)
        row = self._occupy(key, parcel.ask)
        rig, table, plant = self.rig, self.rig.known.requests, self.rig.plant
        table.engine[row], plant.dispatched_s[row] = 0, now_s
        table.computed_tokens[row], table.prefill_tokens[row] = parcel.computed_tokens, parcel.prefill_tokens
        table.evictions[row], plant.started_s[row] = parcel.evictions, parcel.started_s
        table.first_token_s[row] = table.last_token_s[row] = now_s
        table.blocks[row] = need
        rig.known.engines.blocks_free[0] -= need
        note(rig, row, ARRIVAL, now_s)
        if plant.flight[0, ACTIVE] == 0.0 and plant.clock_s[0] < now_s:
            plant.clock_s[0] = now_s
        self._into_batch(row)
        note(rig, row, TAKE, now_s)
        return True

    def switch(self, scheduler: Scheduler, now_s: float) -> None:
        """Change the policy: who waits and who runs stays, the new one's memo is fresh and hears of them."""
        old, self.scheduler = self.rig, scheduler
        self.rig = lay_out(scheduler, self.setup, len(self.told), self.tenants)
        self.blank = lay_out(scheduler, self.setup, 1, 1)
        take_over(old, self.rig)
        for row, forecast in self.forecasts.items():
            self._foresee(row, forecast)
        fleet, view = self.rig.known.engines, self.rig.known
        queue, batch = view.waiting[0, : fleet.waiting[0]], view.running[0, : fleet.running[0]]
        told = np.concatenate([queue, batch])
        note_all(self.rig, told, len(told), ARRIVAL, now_s)
        note_all(self.rig, batch, len(batch), TAKE, now_s)
        waiting, running = queue.tolist(), batch.tolist()
        fleet.waiting[0] = fleet.running[0] = fleet.queued_blocks[0] = 0
        view.tenants.waiting[:] = 0
        for row in waiting:
            joined_s = float(view.requests.enqueued_s[row])
            join_queue(self.rig, 0, row, now_s)
            view.requests.enqueued_s[row] = joined_s
        for row in running:
            self._into_batch(row)
        self.rig.plant.kv_tokens[:] = old.plant.kv_tokens

    def _occupy(self, key: Key, ask: Ask) -> int:
        if key in self.row_of:
            raise KeyError(key)
        if not self.free or ask.tenant >= self.tenants:
            self._grow(max(self.tenants, ask.tenant + 1))
        row = self.free.pop()
        clear(self.rig, self.blank, row)
        fill(self.rig, row, ask, self.setup.capacity_tokens)
        self.forecasts[row] = ask.forecast_tokens
        self._foresee(row, ask.forecast_tokens)
        self.told[row] = ask.generated_tokens
        if ask.generated_tokens:  # the gap since the token before is its former engine's to count
            self.rig.known.requests.first_token_s[row] = ask.arrival_s
            self.rig.known.requests.last_token_s[row] = ask.arrival_s
        self.row_of[key], self.key_of[row] = row, key
        self.asked_s = nan
        return row

    def _foresee(self, row: int, forecast: float) -> None:
        """Write the forecast that the policy may see: the truth for an oracle, which is a control."""
        truth = float(self.rig.plant.output_tokens[row])
        self.rig.known.requests.forecast_tokens[row] = truth if self.scheduler.engine.oracle else forecast

    def _grow(self, tenants: int) -> None:
        rows = widest(self.rig.plant)
        more = rows if self.free else 2 * rows
        self.rig = grown(self.rig, self.scheduler, self.setup, more, tenants)
        self.tenants = tenants
        self.told = np.concatenate([self.told, np.zeros(more - rows, np.int64)])
        self.free += range(more - 1, rows - 1, -1)

    def _land(self) -> list[Progress]:
        rig = self.rig
        table, plant = rig.known.requests, rig.plant
        rows: Ints = rig.known.running[0, : rig.known.engines.running[0]].copy()
        now_s = float(plant.flight[0, END_S])
        land(rig, 0)
        fresh = table.generated_tokens[rows] - self.told[rows]
        told, self.asked_s = [], nan
        for row, count in zip(rows[fresh > 0].tolist(), fresh[fresh > 0].tolist(), strict=True):
            if plant.outcome[row] >= 0:
                told.append(self._closed(row, count, now_s))
            else:
                told.append(Progress(self.key_of[row], int(self.told[row]), count, now_s))
                self.told[row] += count
        return told

    def _refused(self, now_s: float) -> list[Progress]:
        """Close the requests that the policy turned away while a step was formed."""
        ended = [row for row in self.key_of if self.rig.plant.outcome[row] >= 0]
        return [self._closed(row, 0, now_s) for row in ended]

    def _closed(self, row: int, count: int, now_s: float) -> Progress:
        """Forget a request and let its row be used again."""
        table, plant = self.rig.known.requests, self.rig.plant
        key = self.key_of.pop(row)
        del self.row_of[key], self.forecasts[row]
        self.free.append(row)
        return Progress(
            key,
            offset=int(self.told[row]),
            made=count,
            time_s=now_s,
            outcome=int(plant.outcome[row]),
            reason=int(plant.reason[row]),
            started_s=float(plant.started_s[row]),
            evictions=int(table.evictions[row]),
        )

    def _back_to_queue(self, row: int, now_s: float) -> None:
        """Take a running request out of the batch without counting it as an eviction for want of memory."""
        tally = self.rig.plant.tally[0]
        before = tally[RECOMPUTED], tally[THROWN]
        evict(self.rig, 0, row, now_s)
        tally[RECOMPUTED], tally[THROWN] = before
        self.rig.known.requests.evictions[row] -= 1

    def _into_batch(self, row: int) -> None:
        self.asked_s = nan
        rig, table, fleet = self.rig, self.rig.known.requests, self.rig.known.engines
        table.state[row] = RUNNING
        rig.plant.kv_tokens[0] += table.computed_tokens[row]
        count = fleet.running[0]
        if rig.rules.serve == 0:
            rig.plant.serve_key[row] = table.arrival_s[row]
            insert(table, rig.plant.serve_key, rig.known.running[0], count, row)
        else:
            rig.known.running[0, count] = row
        fleet.running[0] = count + 1
