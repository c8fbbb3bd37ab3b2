"""The dispatcher's tables while requests come and go: rows are opened, kept in step with reports, and used again."""

from typing import Any, NamedTuple

import numpy as np

from schedulers.cost import blocks_for
from schedulers.policy import Memo
from schedulers.recall import Prefix
from schedulers.usage import tally_use
from schedulers.view import DONE, RUNNING, UNSEEN, WAITING, Floats, Ints, Tiers, View, allocate

COLUMNS = ("arrival_s", "prompt_tokens", "forecast_tokens", "tier", "tenant", "session", "luck")
"""What an arrival writes into its row as it is."""


class Arrival(NamedTuple):
    """What a request brings; times in seconds, ``generated`` > 0 for one taken over in mid-answer."""

    number: int
    arrival_s: float
    prompt_tokens: int
    forecast_tokens: float = 256.0
    tier: int = 0
    tenant: int = 0
    session: int = -1
    luck: float = 0.0
    generated: int = 0
    attempts: int = 0  # engines that had it before
    prefix: Prefix = Prefix()


class Place(NamedTuple):
    """Limits of an engine that joins; ``costs`` as in ``schedulers.cost``."""

    sequences_max: int
    budget_max: int
    blocks_total: int
    block_tokens: int
    model_tokens: int
    costs: Floats
    reserve: tuple[int, ...] = ()  # blocks set aside for each tier


class Account(NamedTuple):
    """An engine's own account of itself, requests by number; ``sequence``: the latest sending that is in it."""

    sequence: int
    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    computed_tokens: tuple[int, ...] = ()  # beside ``running``
    blocks_free: int = 0
    queued_blocks: int = 0
    pending_tokens: int = 0
    steps: int = 0
    prefilled_tokens: int = 0
    step_s: float = 0.0
    evicted: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()  # beside ``running``, held; left out: what the computed tokens need


class Board:
    """A ``View`` whose rows are requests that are open now, at most ``rows_max`` of them."""

    def __init__(
        self, tiers: Tiers, tenant_weights: Floats, memo: Memo, params: Floats, rows_max: int
    ) -> None:
        self.view = allocate(64, 0, tiers, tenant_weights, memo)._replace(params=params)
        self.memo, self.rows_max = memo, rows_max
        self.blank = self._blank()
        self.number: Ints = np.full(64, -1, np.int64)
        self.row_of: dict[int, int] = {}
        self.free = list(range(63, -1, -1))
        self.uncounted: set[int] = set()  # engines whose numbers by tier are not those of their lists
        self.unseen: list[dict[int, int]] = []  # an engine's sendings not yet in its reports: row to sequence
        self.sent: list[int] = []
        self.model_tokens: list[int] = []

    def open(self, arrival: Arrival) -> int:
        """Open a row for a request and return it; -1 if all ``rows_max`` are taken."""
        if not self.free and not self._grow_requests():
            return -1
        row, table = self.free.pop(), self.view.requests
        if self.blank[0] is not self.memo:
            self.blank = self._blank()
        for column, empty in zip(table, self.blank[1], strict=True):
            column[row] = empty
        for name in COLUMNS:
            getattr(table, name)[row] = getattr(arrival, name)
        table.generated_tokens[row] = arrival.generated
        self.view.sent[:, row] = 0
        self.number[row], self.row_of[arrival.number] = arrival.number, row
        return row

    def _blank(self) -> tuple[Memo, list[Any]]:
        """What an unused row holds, and for which memory of a policy."""
        table = allocate(1, 0, self.view.tiers, self.view.tenants.weight, self.memo).requests
        return self.memo, [column[0] for column in table]

    def close(self, row: int) -> None:
        """Take a request off every list and give its row back."""
        self.leave(row)
        self.view.requests.state[row] = DONE
        del self.row_of[int(self.number[row])]
        self.number[row] = -1
        self.free.append(row)

    def join(self, place: Place) -> int:
        """Add an engine; return its row."""
        old, engines = self.view, len(self.view.engines.alive)
        self.view = self._resized(len(old.requests.arrival_s), engines + 1)
        self.unseen.append({})
        self.sent.append(0)
        self.model_tokens.append(0)
        self.furnish(engines, place)
        return engines

    def furnish(self, engine: int, place: Place) -> None:
        """Write an engine's limits; it holds nothing until it says so."""
        fleet = self.view.engines
        for name in ("sequences_max", "budget_max", "blocks_total", "block_tokens"):
            getattr(fleet, name)[engine] = getattr(place, name)
        fleet.blocks_free[engine] = place.blocks_total
        if place.reserve:
            fleet.reserve[engine] = place.reserve
        self.view.costs[engine] = place.costs
        self.model_tokens[engine] = place.model_tokens

    def capacity_tokens(self, engine: int) -> int:
        """Most tokens, prompt and output, that one request may ever hold on an engine."""
        fleet = self.view.engines
        return min(
            self.model_tokens[engine], int(fleet.blocks_total[engine]) * int(fleet.block_tokens[engine])
        )

    def count_tiers(self) -> None:
        """Bring the numbers by tier up to what the lists say; for policies that read "usage"."""
        for engine in self.uncounted:
            tally_use(self.view, engine, self.view.engines)
        self.uncounted.clear()

    def enqueue(self, row: int, engine: int, now_s: float) -> int:
        """Send a request to an engine's queue: counted there until its reports count it; returns the sequence."""
        table = self.view.requests
        table.engine[row], table.enqueued_s[row] = engine, now_s
        table.prefill_tokens[row] = table.prompt_tokens[row] + table.generated_tokens[row]
        table.computed_tokens[row] = table.blocks[row] = 0
        self.sent[engine] += 1
        self.unseen[engine][row] = self.sent[engine]
        self._join_queue(row, engine)
        return self.sent[engine]

    def _join_queue(self, row: int, engine: int) -> None:
        view, table, fleet = self.view, self.view.requests, self.view.engines
        self.uncounted.add(engine)
        table.state[row] = WAITING
        view.waiting[engine, fleet.waiting[engine]] = row
        fleet.waiting[engine] += 1
        fleet.queued_blocks[engine] += blocks_for(view, engine, int(table.prefill_tokens[row]) + 1)
        fleet.pending_tokens[engine] += table.prefill_tokens[row]
        view.tenants.waiting[table.tenant[row]] += 1

    def leave(self, row: int) -> None:
        """Take a request off its engine's lists; what it held is free again, until a report says otherwise."""
        view, table, fleet = self.view, self.view.requests, self.view.engines
        engine = int(table.engine[row])
        if engine < 0:
            return
        self.uncounted.add(engine)
        lists, counts = (view.waiting, fleet.waiting), (view.running, fleet.running)
        for rows, count in (lists, counts):
            held = rows[engine, : count[engine]]
            places = np.flatnonzero(held == row)
            if len(places):
                rows[engine, places[0] : count[engine] - 1] = held[places[0] + 1 :].copy()
                count[engine] -= 1
        if table.state[row] == WAITING:
            fleet.queued_blocks[engine] -= blocks_for(view, engine, int(table.prefill_tokens[row]) + 1)
            view.tenants.waiting[table.tenant[row]] -= 1
        fleet.pending_tokens[engine] -= max(0, int(table.prefill_tokens[row] - table.computed_tokens[row]))
        fleet.blocks_free[engine] += table.blocks[row]
        self.unseen[engine].pop(row, None)
        table.engine[row], table.state[row], table.blocks[row] = -1, UNSEEN, 0

    def take_in(self, engine: int, account: Account, now_s: float) -> list[int]:
        """Replace what is believed of an engine by its own account, then add what it has not seen yet.

        Returns the rows that entered the batch since the last account.
        """
        view, table, fleet = self.view, self.view.requests, self.view.engines
        self.uncounted.add(engine)
        listed = {*account.waiting, *account.running}
        unseen = self.unseen[engine] = {
            row: sequence
            for row, sequence in self.unseen[engine].items()
            if sequence > account.sequence and int(self.number[row]) not in listed
        }
        for place in range(fleet.waiting[engine]):
            view.tenants.waiting[table.tenant[view.waiting[engine, place]]] -= 1
        for name in ("blocks_free", "queued_blocks", "pending_tokens", "steps", "prefilled_tokens", "step_s"):
            getattr(fleet, name)[engine] = getattr(account, name)
        fleet.reported_s[engine] = now_s
        taken = self._take_in_batch(engine, account)
        waiting = [self.row_of.get(number, -1) for number in account.waiting]
        waiting = [row for row in waiting if row >= 0 and table.engine[row] == engine and row not in unseen]
        for row in waiting:
            if table.state[row] == RUNNING:  # evicted: it computes prompt and answer again
                table.evictions[row] += 1
                table.enqueued_s[row] = now_s
            table.prefill_tokens[row] = table.prompt_tokens[row] + table.generated_tokens[row]
            table.state[row], table.computed_tokens[row], table.blocks[row] = WAITING, 0, 0
            view.tenants.waiting[table.tenant[row]] += 1
        view.waiting[engine, : len(waiting)] = waiting
        fleet.waiting[engine] = len(waiting)
        for row in unseen:
            self._join_queue(row, engine)
        return taken

    def _take_in_batch(self, engine: int, account: Account) -> list[int]:
        view, table, fleet = self.view, self.view.requests, self.view.engines
        taken, batch = [], []
        computed = account.computed_tokens or (0,) * len(account.running)
        blocks = account.blocks or (-1,) * len(account.running)
        for number, tokens, held in zip(account.running, computed, blocks, strict=False):
            row = self.row_of.get(number, -1)
            if row < 0 or table.engine[row] != engine:
                continue
            if table.state[row] != RUNNING:
                taken.append(row)
            table.state[row], table.computed_tokens[row] = RUNNING, tokens
            table.blocks[row] = held if held >= 0 else blocks_for(view, engine, tokens)
            batch.append(row)
        view.running[engine, : len(batch)] = batch
        fleet.running[engine] = len(batch)
        return taken

    def held_by(self, engine: int) -> list[int]:
        """Rows of the requests that were sent to an engine and have not left it."""
        open_rows = np.flatnonzero((self.view.requests.engine == engine) & (self.number >= 0))
        return [int(row) for row in open_rows]

    def _grow_requests(self) -> bool:
        size = len(self.number)
        bigger = min(2 * size, self.rows_max)
        if bigger <= size:
            return False
        self.view = self._resized(bigger, len(self.view.engines.alive))
        self.number = np.concatenate([self.number, np.full(bigger - size, -1, np.int64)])
        self.free.extend(range(bigger - 1, size - 1, -1))
        return True

    def _resized(self, rows: int, engines: int) -> View:
        """The same tables with room for more."""
        old = self.view
        new = allocate(rows, engines, old.tiers, old.tenants.weight, self.memo)
        for tables in ("requests", "engines"):
            for was, now in zip(getattr(old, tables), getattr(new, tables), strict=True):
                now[: len(was)] = was
        new.tenants.waiting[:], new.tenants.memo[:] = old.tenants.waiting, old.tenants.memo
        size, fleet = old.waiting.shape
        for name in ("waiting", "running", "sent"):
            getattr(new, name)[:size, :fleet] = getattr(old, name)
        new.costs[:size] = old.costs
        return new._replace(params=old.params)
