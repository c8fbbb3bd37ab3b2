"""What the dispatcher does by the clock: tokens to the journal, progress to workers, the desk's tick."""

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from services.dispatcher.answer import Answer
from services.store.journal import StoreAwayError
from services.store.records import Ended, Forgotten, Kept, Record, Recovered, Run, Saved, Sent

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher

TICK_S = 0.05
LAG_S = 0.1
FORGET_S = 1.0


class Upkeep:
    """The periodic tasks of one dispatcher; start them once, stop them before the journal closes."""

    def __init__(self, heart: "Dispatcher") -> None:
        self.heart = heart
        self.tasks: list[asyncio.Task[None]] = []
        heart.journal.append_s = heart.metrics.journal_append.observe

    def start(self) -> None:
        """Begin."""
        for name, work, period_s in (
            ("progress", self.progress, self.heart.config.store.flush_s),
            ("tick", self.tick, TICK_S),
            ("forget", self.forget, FORGET_S),
        ):
            self.tasks.append(asyncio.create_task(self._repeat(work, period_s), name=name))

    async def stop(self) -> None:
        """End them, and write down what is left."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.progress()

    async def _repeat(self, work, period_s: float) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        clock = self.heart.clock
        due_s = clock() + period_s
        while True:
            await asyncio.sleep(max(0.0, due_s - clock()))
            if work == self.tick:
                self.heart.metrics.loop_lag.observe(max(0.0, clock() - due_s))
            await work()
            due_s = max(due_s + period_s, clock())

    async def progress(self) -> None:
        """Write the tokens since the last time, in one record, and tell workers what is safe and how far to go."""
        heart = self.heart
        if not heart.progressed and not heart.creditless:
            return
        dirty = list(heart.progressed.values())
        heart.progressed.clear()
        told = {**dict.fromkeys(dirty), **dict.fromkeys(heart.creditless.values())}
        heart.creditless.clear()
        records, reach = self.records(dirty)
        try:
            for record in records:
                heart.journal.note(record)
        except StoreAwayError:
            heart.metrics.journal_errors.inc()
            heart.progressed.update((answer.number, answer) for answer in dirty)
            return
        if records:
            heart.journal.when_flushed().add_done_callback(lambda done: self._kept(done, reach))
        waiting = {answer for answer, _ in reach}
        self._tell([answer for answer in told if answer not in waiting])

    def records(self, dirty: list[Answer]) -> tuple[list[Record], list[tuple[Answer, int]]]:
        """Records for what is new of these answers, and how far each is kept once they are written."""
        runs: list[Run] = []
        endings: list[Record] = []
        reach: list[tuple[Answer, int]] = []
        for answer in dirty:
            have = len(answer.tokens)
            if have > answer.noted:
                tokens = np.frombuffer(answer.tokens[answer.noted :], np.uint32).astype("<u4").tobytes()
                runs.append(Run(answer.number, answer.noted, tokens, answer.pieces[answer.noted :]))
                answer.noted = have
            if answer.ending is not None:
                endings.append(Ended(answer.number, answer.ending.SerializeToString()))
            reach.append((answer, have))
        return ([Kept(runs), *endings] if runs else endings), reach

    def _kept(self, done: "asyncio.Future[None]", reach: list[tuple[Answer, int]]) -> None:
        if done.cancelled():
            return
        for answer, have in reach:
            answer.kept = max(answer.kept, have)
        self._tell([answer for answer, _ in reach])

    def _tell(self, answers: list[Answer]) -> None:
        by_engine: dict[int, list[Answer]] = {}
        for answer in answers:
            by_engine.setdefault(answer.engine, []).append(answer)
        for engine, group in by_engine.items():
            self.heart.tell_progress(engine, [self.heart.progress_of(answer) for answer in group])

    async def tick(self) -> None:
        """Let the desk see the time."""
        began_s = perf_counter()
        decisions = self.heart.desk.tick(self.heart.clock())
        self.heart.metrics.deciding["tick"](perf_counter() - began_s)
        self.heart.act(decisions)
        self.heart.offer()
        self.heart.timed()

    async def forget(self) -> None:
        """Drop old endings; compact the journal when it has grown."""
        heart = self.heart
        gone = heart.forget_old()
        if gone:
            try:
                heart.journal.note(Forgotten(gone))
            except StoreAwayError:
                heart.metrics.journal_errors.inc()
        if heart.journal.written_bytes > heart.config.store.compact_bytes and not heart.journal.away:
            try:
                await heart.journal.compact(self.state)
            except OSError:
                heart.metrics.journal_errors.inc()

    def state(self) -> Recovered:
        """All that the journal must say now. Tokens not noted yet come with the next flush."""
        found: dict[int, Saved] = {}
        for answer in self.heart.answers.values():
            if answer.journalled:
                found[answer.number] = saved_of(answer, self.heart)
        return Recovered(found, self.heart.next_number)


def saved_of(answer: Answer, heart: "Dispatcher") -> Saved:
    """An open answer as the journal knows it."""
    from services.store.records import Accepted

    wall_s = heart.wall() - (heart.clock() - answer.arrived_s)
    asked = answer.submission.SerializeToString()
    accepted = Accepted(answer.number, answer.request_id, answer.owner, asked, answer.digest, wall_s)
    worker = heart.engines.get(answer.engine)
    sent = Sent(answer.number, answer.attempt, worker.worker_id if worker else "") if answer.attempt else None
    ended = None
    if answer.ending is not None and answer.number not in heart.progressed:
        ended = Ended(answer.number, answer.ending.SerializeToString())
    return Saved(
        accepted, list(answer.tokens[: answer.noted]), answer.pieces[: answer.noted], sent,
        answer.migrations, ended,
    )  # fmt: skip
