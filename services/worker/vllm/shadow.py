"""The engine model's tables kept beside a real engine: it is told what happened and decides nothing.

Policies read the same ``View`` as in the simulator, filled by the simulator's own bookkeeping (who waits, what is
owed, who was evicted), while batches, blocks and tokens are those of the real scheduler.
"""

from math import inf

from schedulers.cost import owed_tokens
from schedulers.policy import GIVE_WAY, REFUSE, TAKE, Scheduler
from schedulers.view import RUNNING, WAITING
from services.worker.engine import Engine, Key
from services.worker.rows import Ask
from sim.admission import answer, closed, displace, refuse, rekey_queue, room, take
from sim.engine import load, read_budget
from sim.memory import charge, evict, read_evict, wake_s
from sim.queue import before, find, sort
from sim.rig import END_S, LEAST, SLACK, START_S
from sim.run import Setup, report_fault


class Shadow(Engine):
    """Tables of one real engine; keys are its names of requests."""

    def __init__(self, scheduler: Scheduler, setup: Setup) -> None:
        super().__init__(scheduler, setup)
        self.budget = 0  # tokens that the step being formed may still give
        self.place = 0  # where the scan of the queue stands
        self.passing = 0  # tiers below this number may still be taken in this step
        self.shut = False  # nobody is taken in this step
        self.opened = False  # the order of the queue was looked at in this step
        self.refused: list[Key] = []
        self.scored = False  # the policy's evict scores are those of the batch as it is now

    def row(self, key: Key) -> int:
        """Row of a request."""
        return self.row_of[key]

    def begin(self, now_s: float) -> int:
        """Begin to form a step; returns the tokens that the policy lets it carry."""
        flight = self.rig.plant.flight
        flight[0, :] = 0.0
        flight[0, LEAST], flight[0, SLACK] = inf, inf
        self.budget = read_budget(self.rig, 0, now_s)
        report_fault(self.rig, self.scheduler)
        self.place, self.shut, self.opened, self.scored = 0, False, False, False
        self.passing = len(self.rig.known.tiers.weight)
        return self.budget

    def served(self, now_s: float) -> list[tuple[Key, bool]]:
        """Running requests in the order in which the policy serves them, with whether it holds one back."""
        rig, table = self.rig, self.rig.known.requests
        batch, count = rig.known.running[0], int(rig.known.engines.running[0])
        if rig.rules.serve == 0:
            for row in batch[:count].tolist():
                rig.plant.serve_key[row] = table.arrival_s[row]
        else:
            rig.hooks.serve(rig.known, batch, count, now_s, rig.plant.keys)
            rig.plant.serve_key[batch[:count]] = rig.plant.keys[:count]
        sort(table, rig.plant.serve_key, batch, count, rig.plant.spare)
        return [(self.key_of[row], bool(rig.plant.serve_key[row] == inf)) for row in batch[:count].tolist()]

    def give(self, key: Key, chunk: int) -> None:
        """A running request got so many tokens of the step."""
        row = self.row_of[key]
        self.rig.plant.chunk[row] = chunk
        self.budget -= chunk
        self.scored = False
        charge(self.rig, 0, row, 1)

    def owed(self, key: Key) -> int:
        """Tokens that a running request takes of a step if it may: its prompt's rest, or one."""
        return max(1, owed_tokens(self.rig.known, self.row_of[key]))

    def hold_blocks(self, key: Key, blocks: int, free: int) -> None:
        """Write down the blocks that a request holds, and those that are free, as the real memory has it."""
        self.scored = False
        self.rig.known.requests.blocks[self.row_of[key]] = blocks
        self.rig.known.engines.blocks_free[0] = free

    def open_queue(self, now_s: float) -> None:
        """Read the order of the queue again if it may have changed by itself, as the model's scan does."""
        rig = self.rig
        if self.budget <= 0 or closed(rig, 0):
            return
        if rig.rules.dynamic == 1 or (rig.rules.wake == 1 and now_s >= rig.plant.wake_s[0]):
            rekey_queue(rig, 0, now_s)
            rig.plant.wake_s[0] = wake_s(rig, 0, now_s)

    def candidate(self, now_s: float) -> Key | None:
        """Who of the queue joins the batch next, by the policy's order and admit; None if nobody does.

        Those whom the policy refuses leave the queue and are added to ``refused``.
        """
        rig, rules, fleet = self.rig, self.rig.rules, self.rig.known.engines
        if not self.opened and not self.shut:
            self.opened = True
            self.open_queue(now_s)
        while not self.shut and self.place < fleet.waiting[0] and self.budget > 0 and not closed(rig, 0):
            row = int(rig.known.waiting[0, self.place])
            if rig.plant.order_key[row] == inf:
                break
            if rig.known.requests.tier[row] >= self.passing:
                self.place += 1
                continue
            chunk = self.first_chunk(row)
            fits = rules.chunked == 1 or chunk == self.whole(row)
            say = answer(rig, 0, row, chunk, now_s)
            if say == REFUSE:
                refuse(rig, 0, self.place, now_s)
                self.refused.append(self._closed(row, 0, now_s).key)
                continue
            if say == TAKE and fits and room(rig, 0, row, chunk):
                return self.key_of[row]
            if say == GIVE_WAY:
                self.passing = int(rig.known.requests.tier[row])
            elif rules.skip == 0:
                break
            self.place += 1
        report_fault(rig, self.scheduler)
        return None

    def whole(self, row: int) -> int:
        """Tokens that a waiting request has to compute before its next one is made."""
        table = self.rig.known.requests
        return int(table.prefill_tokens[row] - table.cached_tokens[row])

    def first_chunk(self, row: int) -> int:
        """How much of a waiting request this step would compute."""
        return min(self.whole(row), self.budget)

    def take(self, key: Key, chunk: int, now_s: float) -> None:
        """A waiting request joined the batch with so many tokens; its blocks are told already."""
        rig, row = self.rig, self.row_of[key]
        table, blocks = rig.known.requests, int(rig.known.requests.blocks[row])
        free = int(rig.known.engines.blocks_free[0])
        place = find(rig.known.waiting[0], rig.known.engines.waiting[0], row)
        cached = int(table.cached_tokens[row])
        if cached:
            table.computed_tokens[row] = cached
            rig.known.engines.pending_tokens[0] -= cached
        take(rig, 0, place, chunk, now_s)
        self.hold_blocks(key, blocks, free)
        self.budget -= chunk
        if rig.rules.rekey == 1:
            rekey_queue(rig, 0, now_s)
            self.place = 0

    def enter(self, key: Key, computed: int, chunk: int, now_s: float) -> None:
        """A waiting request joined the batch with the KV of so many tokens from elsewhere, and ``chunk`` more."""
        table, row = self.rig.known.requests, self.row_of[key]
        table.cached_tokens[row] = computed
        self.take(key, chunk, now_s)
        table.cached_tokens[row] = 0  # found once: after an eviction here they are computed here

    def evict(self, key: Key, now_s: float) -> None:
        """A running request lost its place and waits again."""
        self.scored = False
        self.budget += evict(self.rig, 0, self.row_of[key], now_s)
        report_fault(self.rig, self.scheduler)

    def waits(self, key: Key) -> bool:
        """True if a request is in the queue."""
        return bool(self.rig.known.requests.state[self.row_of[key]] == WAITING)

    def runs(self, key: Key) -> bool:
        """True if a request is in the batch."""
        return key in self.row_of and bool(self.rig.known.requests.state[self.row_of[key]] == RUNNING)

    def worse(self, one: Key, other: Key, now_s: float) -> bool:
        """True if the first of two running requests leaves before the second when memory runs out."""
        if not self.scored:
            self._score(now_s)
        return before(self.rig.known.requests, self.rig.plant.evict_key, self.row_of[other], self.row_of[one])

    def _score(self, now_s: float) -> None:
        """Ask the policy once for the whole batch; who is compared with whom changes nothing."""
        rig = self.rig
        read_evict(rig, 0, now_s)
        count = rig.known.engines.running[0]
        rig.plant.evict_key[rig.known.running[0, :count]] = rig.plant.keys[:count]
        self.scored = True

    def displaced_by(self, row: int, now_s: float) -> Key | None:
        """Evict the running request that a waiting one may displace, in these tables; None if there is none."""
        rig, self.scored = self.rig, False  # it reads scores for itself
        ran = set(rig.known.running[0, : rig.known.engines.running[0]].tolist())
        if displace(rig, 0, row, now_s) < 0:
            return None
        report_fault(rig, self.scheduler)
        (gone,) = ran - set(rig.known.running[0, : rig.known.engines.running[0]].tolist())
        return self.key_of[gone]

    def close(self, now_s: float) -> float:
        """End forming; returns how long the step takes by the model, 0 if it carries nothing."""
        if not load(self.rig, 0, now_s):
            return 0.0
        flight = self.rig.plant.flight
        return float(flight[0, END_S] - flight[0, START_S])

    def finish_step(self, end_s: float, ended: list[Key]) -> None:
        """The step has run: count its tokens; who has all of them leaves, and who ended by itself with this one."""
        table = self.rig.known.requests
        for row in [self.row_of[key] for key in ended if key in self.row_of]:
            self.rig.plant.output_tokens[row] = table.generated_tokens[row] + 1
        self.rig.plant.flight[0, END_S] = end_s
        self._land()

    def sleep_s(self, now_s: float) -> float:
        """How long nobody will be served, at most, if nobody is now and nothing comes; +inf: till something comes."""
        moment_s = wake_s(self.rig, 0, now_s)
        return moment_s - now_s if moment_s > now_s else inf

    def arrive(self, key: Key, ask: Ask, now_s: float) -> bool:
        """A request reached the engine; False if it can never fit."""
        return self.add(key, ask, now_s) is None
