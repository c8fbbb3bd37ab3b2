"""The dispatcher sans input and output: messages in, decisions out, for whoever has a clock and sockets.

The functions that judge are those of ``schedulers.dispatcher``, which the simulator's kernel compiles; the tables
are a ``Board``. Requests are called by their number, engines by their row.
"""

from math import floor, inf

import numpy as np

from schedulers.board import Account, Arrival, Board, Place
from schedulers.counsel import Counsel
from schedulers.decisions import EXPIRED, LOST, MOVE, REFUSED, SCALE, SEND, STALLED, Bounds, Decision
from schedulers.dispatcher import UNANSWERED, fewest_requests, lawful
from schedulers.lives import BOOTING, DRAINING, LEAVING
from schedulers.migration import movable
from schedulers.policy import HOLD, REFUSE, TAKE, ClusterPolicy
from schedulers.rearrange import wanted_moves
from schedulers.recall import Recall
from schedulers.roster import Roster
from schedulers.view import (
    ARRIVAL,
    EVICT,
    FINISH,
    FIRST_TOKEN,
    REJECT,
    RUNNING,
    STEP,
    TOKEN,
    Tiers,
)
from schedulers.view import TAKE as TAKEN

GRAIN = 1e-9
"""Share of a period by which a clock may be short of a multiple: times are sums of floats."""


class Desk(Counsel):
    """Owns the central queue and the board; every decision is returned and nothing is done."""

    def __init__(
        self, policy: ClusterPolicy, params: tuple[float, ...], tiers: Tiers, bounds: Bounds, *,
        tenants: int = 64, strict: bool = False,
    ) -> None:  # fmt: skip
        board = Board(tiers, np.ones(tenants), policy.memo, np.array(params or (0.0,)), bounds.rows_max)
        super().__init__(policy, board, strict)
        self.bounds = bounds
        self.roster = Roster(board, bounds)
        self.held: list[int] = []
        self.recall = Recall()
        self.attempts: dict[int, int] = {}
        self.moves: dict[int, int] = {}  # attempts that were moves: no engine failed before them
        self.moving: dict[int, tuple[int, ...]] = {}  # engines of each move under way
        self.up: dict[int, bool] = {}
        self.failures: dict[int, int] = {}
        self.rested_at_s: dict[int, float] = {}
        self.asked = {"migrate": 0, "scale": 0}  # how often each was, or should have been

    def join(self, place: Place, now_s: float, engine: int = -1) -> int:
        """An engine is there, new or (with its row) back again; returns its row."""
        if engine < 0:
            engine = self.roster.seat(place)
        else:
            self.board.furnish(engine, place)
        self.roster.serves(engine)
        self.up[engine], self.failures[engine] = True, 0
        self.drain(engine, False)
        self.board.view.engines.reported_s[engine] = now_s
        self._see(engine, now_s)
        return engine

    def away(self, engine: int) -> None:
        """Its link is cut: it takes nothing new, what it holds stays its own for now."""
        self.up[engine] = False
        self.board.view.engines.alive[engine] = 0

    def drain(self, engine: int, draining: bool = True) -> None:
        """It takes nothing new; what it holds ends there."""
        dismissed = self.roster.life[engine] == DRAINING
        self.board.view.engines.draining[engine] = int(draining or dismissed)

    def die(self, engine: int, now_s: float) -> list[Decision]:
        """It is gone with all it held: each of its requests is offered anew, or lost."""
        self.away(engine)
        self.roster.gone(engine)
        decisions: list[Decision] = []
        for row in self.board.held_by(engine):
            decisions += self._again(row, "engine_lost", now_s)
        return decisions

    def report(self, engine: int, account: Account, now_s: float) -> None:
        """An engine's account of itself; held requests are not offered yet (see ``offer_held``)."""
        steps = int(self.board.view.engines.steps[engine])
        for number in account.evicted:
            row = self.board.row_of.get(number, -1)
            if row >= 0:
                self._note(row, EVICT, now_s)
        for row in self.board.take_in(engine, account, now_s):
            self._note(row, TAKEN, now_s)
        if account.steps != steps:
            self._note(engine, STEP, now_s)
        self._see(engine, now_s)

    def heard(self, engine: int, now_s: float) -> None:
        """It answered something well: it is not ill."""
        self.failures[engine] = 0
        self._see(engine, now_s)

    def blame(self, engine: int, now_s: float) -> None:
        """It failed a request; after ``failures_max`` in a row it rests for ``rest_s``."""
        self.failures[engine] = self.failures.get(engine, 0) + 1
        if self.failures[engine] >= self.bounds.failures_max:
            self.rested_at_s[engine] = now_s + self.bounds.rest_s
        self._see(engine, now_s)

    def _see(self, engine: int, now_s: float) -> None:
        """Write down whether it may be sent something now."""
        fleet, life = self.board.view.engines, self.roster.life[engine]
        if life == BOOTING:  # its place is somebody else's now
            return
        fresh = now_s - fleet.reported_s[engine] <= self.bounds.busy_s
        rested = now_s >= self.rested_at_s.get(engine, -inf)
        fleet.alive[engine] = int(self.up[engine] and fresh and rested and life != LEAVING)

    def arrive(self, arrival: Arrival, now_s: float) -> list[Decision]:
        """A request arrives: sent, refused, or (no decision) held in the central queue."""
        bound = self.bounds.queue_max[arrival.tier]
        full = len(self.board.row_of) >= bound and self.waiting(arrival.tier) >= bound
        if full and arrival.attempts == 0:  # who was let in before keeps that right
            return [Decision(REFUSED, arrival.number, reason="queue_full")]
        row = self.board.open(arrival)
        if row < 0:
            return [Decision(REFUSED, arrival.number, reason="queue_full")]
        self.attempts[arrival.number] = arrival.attempts
        if arrival.prefix.ids:
            self.recall.of[row] = arrival.prefix
        for memory in self.memories:
            memory.forget(row)
        self._note(row, ARRIVAL, now_s)
        decisions = self._offer(row, now_s)
        if not decisions:
            self.held.append(row)
        return decisions

    def adopt(self, arrival: Arrival, engine: int, attempt: int, now_s: float) -> bool:
        """Take over a request that an engine holds already (after a restart); False if there is no row left."""
        row = self.board.open(arrival)
        if row < 0:
            return False
        self.attempts[arrival.number] = attempt
        self.board.enqueue(row, engine, now_s)
        self.board.unseen[engine].pop(row, None)  # it is in the engine's next account
        return True

    def tokens(self, number: int, fresh: int, now_s: float) -> None:
        """So many tokens of a request have come, in order."""
        row, table = self.board.row_of.get(number, -1), self.board.view.requests
        if row < 0 or fresh <= 0:
            return
        first = bool(np.isnan(table.first_token_s[row]))
        table.generated_tokens[row] += fresh
        table.fresh_tokens[row] = fresh
        if first:
            table.first_token_s[row] = now_s
            self._note(row, FIRST_TOKEN, now_s)
        table.last_token_s[row] = now_s
        self._note(row, TOKEN, now_s)

    def finish(self, number: int, now_s: float, event: int = FINISH) -> None:
        """A request ended, at an engine or by its client's will; its row is free."""
        row = self.board.row_of.get(number, -1)
        if row < 0:
            return
        engine = int(self.board.view.requests.engine[row])
        if event == FINISH and engine >= 0:
            self.heard(engine, now_s)
        self._note(row, event, now_s)
        self._close(row)

    def fail(self, number: int, reason: str, now_s: float) -> list[Decision]:
        """An engine could not go on with a request: offered anew, or lost."""
        row = self.board.row_of.get(number, -1)
        if row < 0:
            return []
        engine = int(self.board.view.requests.engine[row])
        if engine >= 0:
            self.blame(engine, now_s)
        return self._again(row, reason, now_s)

    def moved(self, number: int, engine: int, now_s: float) -> int:
        """A migration was committed; returns the sequence that its sending has at the destination."""
        row, table = self.board.row_of[number], self.board.view.requests
        self._settled(number)
        state, computed = table.state[row], table.computed_tokens[row]
        self.board.leave(row)
        self.attempts[number] += 1
        self.moves[number] = self.moves.get(number, 0) + 1
        sequence = self.board.enqueue(row, engine, now_s)
        if state == RUNNING:
            table.computed_tokens[row] = computed
        return sequence

    def stayed(self, number: int) -> None:
        """A migration was given up; the request is where it was."""
        self._settled(number)

    def waiting(self, tier: int) -> int:
        """Open requests of a tier without a token."""
        table, board = self.board.view.requests, self.board
        pending = (board.number >= 0) & (table.tier == tier) & np.isnan(table.first_token_s)
        return int(np.count_nonzero(pending & (table.generated_tokens == 0)))

    def offer_held(self, now_s: float) -> list[Decision]:
        """Offer the central queue again, in the policy's order; ties by (arrival, luck, row)."""
        fleet = self.board.view.engines
        if not self.held or not ((fleet.alive == 1) & (fleet.draining == 0)).any():
            return []
        view, decisions = self.board.view, list[Decision]()
        table = view.requests
        keys = {row: self._ask("order", row, now_s, float(table.arrival_s[row])) for row in self.held}
        self.held.sort(key=lambda row: (keys[row], table.arrival_s[row], table.luck[row], row))
        still: list[int] = []
        for row in tuple(self.held):  # one that is refused leaves the list as it goes
            settled = self._offer(row, now_s)
            decisions += settled
            if not settled:
                still.append(row)
        self.held = still
        return decisions

    def tick(self, now_s: float) -> list[Decision]:
        """What time alone brings: stale engines, expired and stalled requests, migration and scaling.

        Held requests are not offered: call ``offer_held`` after it.
        """
        for engine in self.up:
            self._see(engine, now_s)
        decisions = self._overdue(now_s)
        if self.bounds.most and now_s >= self.bounds.settle_s:
            decisions += self.roster.upkeep(self._idle(), now_s)
        if (moment_s := self._due_s("migrate", now_s)) < inf:
            decisions += self._rearrange(moment_s)
        if (moment_s := self._due_s("scale", now_s)) < inf:
            decisions += self._rescale(moment_s)
        return decisions

    def _due_s(self, hook: str, now_s: float) -> float:
        """Now, once each time that a multiple of the period of who answers a hook has passed, else infinity.

        A clock that is short of the multiple by a rounding is set right: policies compare times that they noted.
        """
        period_s = next((one.policy.period_s for one in self.parts if getattr(one.policy, hook)), 0.0)
        count = floor(now_s / period_s + GRAIN) if period_s > 0.0 else 0
        due, self.asked[hook] = count > self.asked[hook], count
        return max(now_s, count * period_s) if due else inf

    def _idle(self) -> list[int]:
        """Engines that drain by the policy's wish and have nothing left to do."""
        moving, held = self.board.view.engines.moving, self.board.held_by
        return [one for one in self.roster.rows(DRAINING) if not moving[one] and not held(one)]

    def _overdue(self, now_s: float) -> list[Decision]:
        view, board, bounds = self.board.view, self.board, self.bounds
        table, decisions = view.requests, list[Decision]()
        open_rows = board.number >= 0
        unborn = open_rows & np.isnan(table.first_token_s) & (table.generated_tokens == 0)
        sent = open_rows & (table.engine >= 0)
        since_s = np.fmax(table.enqueued_s, table.last_token_s)
        silent = sent & ~np.isnan(table.last_token_s) & (now_s - since_s > bounds.between_tokens_s)
        dumb = sent & np.isnan(table.last_token_s) & (now_s - table.enqueued_s > bounds.first_token_s)
        expired = unborn & (now_s - table.arrival_s > bounds.queue_s)
        begun = open_rows & (table.engine < 0) & (table.generated_tokens > 0)  # at an engine that was lost
        stranded = begun & (now_s - table.enqueued_s > bounds.queue_s)
        for row in np.flatnonzero(expired | stranded):
            number, engine = int(board.number[row]), int(table.engine[row])
            kind, reason = (EXPIRED, "queue_timeout") if expired[row] else (LOST, "engine_lost")
            self._note(int(row), REJECT, now_s)
            self._close(int(row))
            decisions.append(Decision(kind, number, engine, reason))
        for row in np.flatnonzero((silent | dumb) & ~expired):
            number, engine = int(board.number[row]), int(table.engine[row])
            decisions.append(Decision(STALLED, number, engine, "stalled"))
            decisions += self.fail(number, "stalled", now_s)
        return decisions

    def _rearrange(self, now_s: float) -> list[Decision]:
        """Ask where each engine should give a request to."""
        view, decisions = self.board.view, list[Decision]()

        def ask(name: str, one: int, none: float) -> float:
            least = movable(view, one) if name == "pick" and self._hook(name)[0] is None else none
            return self._ask(name, one, now_s, least)

        for row, source, target in wanted_moves(view, ask) if self._hook("migrate")[0] else ():
            number = int(self.board.number[row])
            self.moving[number] = source, target
            decisions.append(Decision(MOVE, number, target, "policy", source=source))
        return decisions

    def _rescale(self, now_s: float) -> list[Decision]:
        """Ask whether the fleet should change, and change it as far as that is the dispatcher's to do."""
        change = int(self._ask("scale", -1, now_s, 0.0))
        if not change:
            return []
        carried_out = self.bounds.most and now_s >= self.bounds.settle_s
        return [
            Decision(SCALE, change, reason="policy"),
            *(self.roster.scale(change, now_s) if carried_out else ()),
        ]

    def _settled(self, number: int) -> None:
        """A move is over, or was given up: its engines may move others."""
        for engine in self.moving.pop(number, ()):
            self.board.view.engines.moving[engine] = 0

    def _offer(self, row: int, now_s: float) -> list[Decision]:
        """Ask the policy about one request; nothing if it stays in the centre."""
        view, number = self.board.view, int(self.board.number[row])
        first_time = self.attempts[number] == 0
        if self.knows_prefixes:
            self.recall.look(view, row)
        say = self._ask("admit", row, now_s, TAKE) if first_time else TAKE
        if say == REFUSE:
            self._note(row, REJECT, now_s)
            self._close(row)
            return [Decision(REFUSED, number, reason="shed")]
        if say != TAKE:
            return []
        answer = self._ask("dispatch", row, now_s, UNANSWERED)
        if not lawful(view, answer):
            if answer != UNANSWERED:
                self._fault(f"named an engine in dispatch that is not serving: {answer}")
            answer = float(fewest_requests(view, row))
        if answer == HOLD:
            return []
        engine = int(answer)
        if self.knows_prefixes:  # also of a prompt that turns out too long, as in the simulator
            self.recall.note(view, engine, row)
        if view.requests.prompt_tokens[row] + 1 > self.board.capacity_tokens(engine):
            self._note(row, REJECT, now_s)
            self._close(row)
            return [Decision(REFUSED, number, engine, "too_long")]
        self.attempts[number] += 1
        return [Decision(SEND, number, engine, sequence=self.board.enqueue(row, engine, now_s))]

    def _again(self, row: int, reason: str, now_s: float) -> list[Decision]:
        """Offer a request anew after its engine failed it, or give it up."""
        number, failed = int(self.board.number[row]), int(self.board.view.requests.engine[row])
        self._settled(number)
        self.board.leave(row)
        if self.attempts[number] - self.moves.get(number, 0) >= self.bounds.attempts_max:
            self._note(row, REJECT, now_s)
            self._close(row)
            return [Decision(LOST, number, reason=reason)]
        table = self.board.view.requests
        table.last_token_s[row], table.enqueued_s[row] = np.nan, now_s
        settled = self._elsewhere(row, failed, now_s)
        if not settled:
            self.held.append(row)
        return settled

    def _elsewhere(self, row: int, failed: int, now_s: float) -> list[Decision]:
        """Offer a request to all engines but the one that failed it; to that one if there is no other."""
        if failed < 0:
            return self._offer(row, now_s)
        alive = self.board.view.engines.alive
        alive[failed] = 0
        settled = self._offer(row, now_s)
        self._see(failed, now_s)
        return settled or (self._offer(row, now_s) if alive[failed] else [])

    def _close(self, row: int) -> None:
        number = int(self.board.number[row])
        if row in self.held:
            self.held.remove(row)
        self.attempts.pop(number, None)
        self.moves.pop(number, None)
        self._settled(number)
        self.recall.of.pop(row, None)
        self.board.close(row)
