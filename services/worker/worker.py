"""A simulated worker's heart: orders in, steps on an absolute clock, tokens and reports out."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from time import monotonic

import structlog

from loadgen.result import FINISHED, REJECTED
from schedulers.errors import InputError, PolicyError
from schedulers.load import file_of, load
from schedulers.view import Tiers
from services.rpc.windtunnel.v1.worker_pb2 import (
    Enqueue,
    Report,
    RequestTokens,
)
from services.rpc.windtunnel.v1.worker_pb2 import (
    Progress as Acknowledged,
)
from services.worker.answers import Answer, asked, opened, runs
from services.worker.config import WorkerConfig, setup_of
from services.worker.engine import Engine, Progress
from services.worker.gauges import Gauges
from services.worker.steps import StepLog, log_file

log = structlog.get_logger()

STALL_S = 60.0
"""A request that nobody serves for so long, and no policy will, ends with an error (divided by the speed)."""

Send = Callable[[list[RequestTokens]], None]


class Worker:
    """One engine with the answers it makes; ``now_s`` is the only clock, in seconds.

    ``send`` takes tokens for the dispatcher while a link is up, else it is None and tokens stay here.
    ``step_seen`` is called after each step that ended and after each that was formed.
    """

    driver = "sim"
    """What makes the tokens, as the dispatcher is told."""

    def __init__(
        self,
        config: WorkerConfig,
        tiers: Tiers,
        now_s: Callable[[], float] = monotonic,
        engine: Engine | None = None,
    ) -> None:
        self.config, self.now_s = config, now_s
        self.policy = config.engine_policy
        self.model = config.fleet.profile.split("/")[0]
        self.engine = engine or Engine(load(self.policy), setup_of(config, tiers))
        self.gauges = Gauges(self)
        self.log = self.step_log()
        self.answers: dict[int, Answer] = {}
        self.dirty: set[int] = set()
        self.evicted: dict[int, int] = {}  # evictions of each request as last reported
        self.sequence = 0
        self.offset_s = 0.0  # own clock minus the dispatcher's
        self.tick_s, self.merge_s = 0.002, 0.005
        self.draining = False
        self.send: Send | None = None
        self.step_seen: Callable[[], None] | None = None
        self.before_step: Callable[[int], None] | None = None
        self.paused_until_s = 0.0
        self.refuses = False  # fails whatever comes
        self._changed = asyncio.Event()
        self._flushed_s = -inf
        self._flush_timer: asyncio.TimerHandle | None = None
        self._flush_due_s = inf
        self._urgent = False  # something new is an answer's first token or its end
        self._served_s = now_s()

    def step_log(self) -> StepLog | None:
        """Open the log of steps that the settings ask for; raises InputError."""
        return StepLog(log_file(self.config.steps, self.config.worker_id)) if self.config.steps else None

    async def run(self) -> None:
        """Step for ever; each step starts when the one before it ended, however late this task woke up."""
        while True:
            now_s = self.now_s()
            if self.paused_until_s > now_s:
                await asyncio.sleep(self.paused_until_s - now_s)
                self.engine.postpone(self.now_s() - now_s)
                continue
            self.step(now_s)
            due_s = self.engine.next_s(self.now_s())
            await self._wait(due_s)

    def step(self, now_s: float, *, before: bool = False) -> None:
        """Do all that is due; a policy that breaks its contract fails what the engine holds."""
        try:
            while (gained := self.engine.act(now_s, before=before)) is not None:
                self.gauges.stepped()
                if self.log is not None and self.engine.busy:  # it has just been formed
                    self.log.read(self.engine)
                if gained:
                    self.note(gained)
                if self.step_seen is not None:
                    self.flush()
                    self.step_seen()
                if self.before_step is not None:
                    self.before_step(int(self.engine.rig.known.engines.steps[0]))
        except PolicyError as error:
            self.break_down(str(error))
        self._give_up_on_the_stalled(now_s)
        self.flush_soon(now_s)

    def enqueue(self, order: Enqueue) -> None:
        """Take an order; one for a request that an older attempt of still lies here replaces it."""
        now_s = self.now_s()
        self.step(now_s, before=True)
        self.sequence = max(self.sequence, order.sequence)
        held = self.answers.get(order.number)
        if held is not None:
            if held.attempt >= order.attempt:
                return
            self.forget(order.number)
        answer = opened(order, now_s)
        self.start(answer, order)

    def start(self, answer: Answer, order: Enqueue) -> None:
        """Hand a new answer to the engine."""
        self.answers[answer.number] = answer
        self.gauges.arrived(answer)
        if answer.made >= answer.length:  # only the word that it ended was lost
            answer.end(answer.ends_by)
            self._mark(answer)
            return
        if self.refuses:
            answer.end("engine_error", "this worker refuses")
            self._mark(answer)
            return
        now_s = self.now_s()
        end = self.engine.add(answer.number, asked(order, answer, self.offset_s), now_s)
        if end is not None:
            self.note([end])
            self.flush_soon(now_s)
        self._changed.set()

    def cancel(self, number: int, attempt: int) -> None:
        """Free a request's blocks before the next step and say that it was cancelled."""
        answer = self.answers.get(number)
        if answer is None or answer.attempt != attempt:
            return
        self.engine.cancel(number, self.now_s())
        answer.end("cancelled")
        self._mark(answer)
        self._changed.set()

    def forget(self, number: int) -> None:
        """Drop a request with its tokens, without a word."""
        self.engine.cancel(number, self.now_s())
        self.answers.pop(number, None)
        self.evicted.pop(number, None)
        self.dirty.discard(number)
        self._changed.set()

    def acknowledge(self, progress: Acknowledged) -> None:
        """Let go of what the dispatcher holds safely, and send on as far as it grants."""
        for told in progress.requests:
            answer = self.answers.get(told.number)
            if answer is None or answer.attempt != told.attempt:
                continue
            if told.done:
                self.forget(told.number)
                continue
            answer.kept_to = max(answer.kept_to, min(told.kept_to, answer.made))
            answer.credit_to = max(answer.credit_to, told.credit_to)
            if told.HasField("send_from"):
                answer.rewind(told.send_from)
            if answer.sendable:
                self._mark(answer)

    def change_policy(self, named: str) -> None:
        """Change the engine's policy under load, "" for this worker's own; a bad spec changes nothing."""
        spec = named or self.config.engine_policy
        if spec == self.policy and file_of(spec) is None:  # whose file may have been changed
            return
        try:
            self.engine.switch(load(spec), self.now_s())
        except InputError as error:
            log.error("policy refused", policy=spec, why=str(error))
            return
        self.policy = spec
        self._changed.set()
        log.info("policy changed", policy=spec)

    def set_tiers(self, tiers: Tiers) -> None:
        """Work towards other targets; the policy starts afresh if they differ."""
        now = self.engine.rig.known.tiers
        if all((a.shape == b.shape and (a == b).all()) for a, b in zip(now, tiers, strict=True)):
            return
        self.engine.setup = self.engine.setup._replace(tiers=tiers)
        self.engine.switch(self.engine.scheduler, self.now_s())

    def note(self, gained: Iterable[Progress]) -> None:
        """Write down what requests gained."""
        now_s = self.now_s()
        for one in gained:
            assert isinstance(one.key, int)
            answer = self.answers.get(one.key)
            if answer is None:
                continue
            self._served_s = now_s
            answer.evictions = max(answer.evictions, one.evictions)
            if one.made:
                self._count(answer, one)
            if one.outcome == FINISHED:
                answer.end(answer.ends_by if answer.made >= answer.length else "length")
                self.gauges.finished(answer, one.time_s)
            elif one.outcome == REJECTED:
                answer.end("too_long" if one.reason == 1 else "shed")
                self.gauges.refused(answer)
            self._mark(answer)

    def _count(self, answer: Answer, gained: Progress) -> None:
        if answer.started_after_s < 0.0:
            row = self.engine.row_of.get(answer.number)
            began_s = gained.started_s if row is None else self.engine.rig.plant.started_s[row]
            answer.started_after_s = max(0.0, float(began_s) - answer.enqueued_s)
        self.gauges.token(answer, gained)
        answer.made += gained.made
        answer.last_token_s = gained.time_s

    def flush_soon(self, now_s: float) -> None:
        """Send what is new: at once, or merged with what comes within a tick of the last message.

        What is neither an answer's first token nor its end may wait a little longer.
        """
        if not self.dirty:
            return
        due_s = self._flushed_s + (self.tick_s if self._urgent else self.merge_s)
        if due_s <= now_s:
            self.flush()
        elif due_s < self._flush_due_s:
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            self._flush_due_s = due_s
            self._flush_timer = asyncio.get_running_loop().call_later(due_s - now_s, self.flush)

    def flush(self) -> None:
        """Send what is new, one message for all requests; without a link it stays."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._flushed_s, self._flush_due_s, self._urgent = self.now_s(), inf, False
        marked = [self.answers[number] for number in self.dirty if number in self.answers]
        self.dirty.clear()
        for answer in marked:
            if answer.sink is not None and answer.sendable:
                answer.sink.put_nowait(answer.take())
        linked = [answer for answer in marked if answer.sink is None]
        while self.send is not None and (batch := runs(linked)):
            self.send(batch)

    def report(self) -> Report:
        """Return the engine's state; requests that came past the dispatcher are in the numbers alone."""
        engine, view = self.engine, self.engine.rig.known
        fleet = view.engines
        waiting = [engine.key_of[row] for row in view.waiting[0, : fleet.waiting[0]].tolist()]
        rows = [*view.running[0, : fleet.running[0]].tolist(), *engine.frozen]
        held = ((engine.key_of[row], row) for row in rows)
        running = [(number, row) for number, row in held if isinstance(number, int) and number > 0]
        return Report(
            sequence=self.sequence,
            waiting=[number for number in waiting if isinstance(number, int) and number > 0],
            running=[number for number, _ in running],
            computed_tokens=[int(view.requests.computed_tokens[row]) for _, row in running],
            blocks=[int(view.requests.blocks[row]) for _, row in running],
            blocks_free=int(fleet.blocks_free[0]),
            queued_blocks=int(fleet.queued_blocks[0]),
            pending_tokens=int(fleet.pending_tokens[0]),
            steps=int(fleet.steps[0]),
            prefilled_tokens=int(fleet.prefilled_tokens[0]),
            step_s=float(fleet.step_s[0]),
            evicted=self._newly_evicted(),
            draining=self.draining,
            engine_policy=self.policy,
        )

    def break_down(self, why: str) -> None:
        """Fail everything that the engine holds and start it anew."""
        log.error("engine broke down", why=why)
        setup, now_s = self.engine.setup, self.now_s()
        numbers = list(self.engine.row_of)
        self.engine = Engine(load(self.policy), setup)
        self.engine.rig.plant.clock_s[0] = now_s
        for number in numbers:
            answer = self.answers.get(number) if isinstance(number, int) else None
            if answer is not None:
                answer.end("engine_error", why)
                self._mark(answer)

    def resume_from(self, kept: Iterable[tuple[int, int, int, int]]) -> None:
        """Go on after a reconnect with (number, attempt, send from, credit to); all else is dropped."""
        going_on = {(number, attempt): rest for number, attempt, *rest in kept}
        linked = [answer for answer in self.answers.values() if answer.sink is None]
        for answer in linked:  # all of them before anything is sent
            told = going_on.get((answer.number, answer.attempt))
            if told is None:
                self.forget(answer.number)
                continue
            send_from, credit_to = told
            answer.credit_to = max(answer.credit_to, credit_to)
            answer.rewind(send_from)
            self.dirty.add(answer.number)
        self.flush()

    @property
    def idle(self) -> bool:
        """True if nothing is held, not even a token that nobody has acknowledged."""
        return not self.answers and not self.engine.reserved

    def stir(self) -> None:
        """Look again at what is due."""
        self._changed.set()

    def _mark(self, answer: Answer) -> None:
        self.dirty.add(answer.number)
        self._urgent = self._urgent or answer.sent == answer.first or answer.final is not None
        with suppress(RuntimeError):  # outside of a loop somebody else flushes
            self.flush_soon(self.now_s())

    def _newly_evicted(self) -> list[int]:
        table, told = self.engine.rig.known.requests, []
        for number, row in self.engine.row_of.items():
            count = int(table.evictions[row])
            if isinstance(number, int) and number > 0 and count > self.evicted.get(number, 0):
                self.evicted[number] = count
                told.append(number)
        return told

    def _give_up_on_the_stalled(self, now_s: float) -> None:
        if not self.engine.stuck:
            self._served_s = now_s
        elif now_s - self._served_s > STALL_S / self.config.speed:
            self.break_down("stalled: the policy serves nobody and names no later time")

    async def _wait(self, due_s: float) -> None:
        loop, timer = asyncio.get_running_loop(), None
        if due_s < inf:
            timer = loop.call_later(max(0.0, due_s - self.now_s()), self._changed.set)
        await self._changed.wait()
        if timer is not None:
            timer.cancel()
        self._changed.clear()
