"""The workers' door: one stream each way a worker, registration, silence, and coming back after a cut."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np

from schedulers.board import Account, Place
from schedulers.errors import InputError
from services.dispatcher.answer import Answer
from services.dispatcher.logs import log
from services.dispatcher.migration import Migrations
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.rpc.windtunnel.v1 import worker_pb2_grpc
from services.worker.vllm.capability import refuse_weaker

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher

PROTOCOL = 1
OUTBOX_MAX = 100_000
ENGINES_MAX = 1024


class Worker:
    """One worker's place: it outlives its links. ``row`` is its row in the desk's tables."""

    def __init__(self, row: int, said: link.Register) -> None:
        self.row, self.worker_id = row, said.worker_id
        self.outbox: asyncio.Queue[link.DispatcherMessage | None] = asyncio.Queue()
        self.connected = False
        self.heard_s = self.counted_s = 0.0
        self.leaving = self.drained = False  # by its own word; by the operator's
        self.death: asyncio.TimerHandle | None = None
        self.learn(said)

    def learn(self, said: link.Register) -> None:
        """Take over what it says of itself."""
        self.said, self.incarnation = said, said.incarnation
        self.deterministic, self.migrates = said.deterministic, said.migrates
        self.peer_address = said.peer_address
        self.engine_policy = said.engine_policy

    def send(self, message: link.DispatcherMessage) -> None:
        """Put a message on its way; a worker that takes none is cut off when it falls silent."""
        if self.connected and self.outbox.qsize() < OUTBOX_MAX:
            self.outbox.put_nowait(message)

    def hang_up(self) -> None:
        """End the present link."""
        self.connected = False
        self.outbox.put_nowait(None)


class Links:
    """All workers, by id. Drives the heart with what they say."""

    def __init__(self, heart: "Dispatcher", epoch: int) -> None:
        self.heart, self.epoch = heart, epoch
        self.workers: dict[str, Worker] = {}
        self.migrations = Migrations(heart)
        heart.move = self.migrations.begin
        heart.timed = self.timed
        self.orphans: dict[int, Answer] = {}  # taken over from the journal, their worker may still come

    async def converse(
        self, incoming: AsyncIterator[link.WorkerMessage]
    ) -> AsyncIterator[link.DispatcherMessage]:
        """One link from registration to its end: takes a worker's messages, yields those for it."""
        first = await asyncio.wait_for(anext(incoming, None), self.heart.config.timeouts.silence_s)
        fault = self.fault_of(first)
        if first is None or fault:
            yield link.DispatcherMessage(goodbye=link.Goodbye(why=fault, reconnect=False))
            return
        worker = self.registered(first.register)
        outbox = worker.outbox
        yield link.DispatcherMessage(welcome=self.welcome(worker, first.register))
        self.heart.offer()
        reader = asyncio.create_task(self.hear(worker, incoming, outbox), name=f"link {worker.worker_id}")
        try:
            async for message in self.speak(worker, outbox):
                yield message
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if worker.outbox is outbox:
                self.cut(worker)

    async def speak(
        self, worker: Worker, outbox: "asyncio.Queue[link.DispatcherMessage | None]"
    ) -> AsyncIterator[link.DispatcherMessage]:
        """Messages for a worker as they come, and a heartbeat when there are none."""
        timing, metrics = self.heart.config, self.heart.metrics
        sent = 0
        while True:
            try:
                if outbox.empty():  # not wait_for: it loses a cancellation that meets a message
                    async with asyncio.timeout(timing.scheduling.heartbeat_s):
                        message = await outbox.get()
                else:
                    message = outbox.get_nowait()
            except TimeoutError:
                sent += 1
                message = link.DispatcherMessage(heartbeat=link.Heartbeat(sequence=sent))
            silent_s = self.heart.clock() - worker.heard_s
            if message is None or silent_s > timing.timeouts.silence_s:
                return
            metrics.messages_out.inc()
            yield message

    def fault_of(self, first: link.WorkerMessage | None) -> str:
        """What is wrong with a first message, '' if nothing."""
        if first is None or first.WhichOneof("kind") != "register":
            return "the first message must be a registration"
        said = first.register
        limits = said.limits
        sizes = (limits.sequences_max, limits.budget_max, limits.blocks_total, limits.block_tokens)
        if said.protocol != PROTOCOL:
            return f"protocol {said.protocol}: this dispatcher speaks {PROTOCOL}"
        if not 0 < len(said.worker_id) <= 128 or not said.worker_id.isprintable():
            return "worker_id: 1 to 128 printable characters"
        if min(sizes) < 1 or limits.model_tokens < 1:
            return "every limit must be at least 1"
        if len(said.costs) != 7 or not all(0.0 <= cost < float("inf") for cost in said.costs):
            return "costs: seven finite coefficients, none negative"
        try:
            refuse_weaker(said.driver, self.heart.scheduler, limits.budget_max, limits.model_tokens)
        except InputError as error:
            return str(error)
        full = len(self.workers) >= ENGINES_MAX and self.vacant() is None
        if said.worker_id not in self.workers and full:
            return f"there are {ENGINES_MAX} workers already"
        return ""

    def vacant(self) -> Worker | None:
        """A worker that was buried: its row may be another's."""
        buried = (one for one in self.workers.values() if not one.connected and one.death is None)
        return next(buried, None)

    def timed(self) -> None:
        """What time brings: moves that take too long, and the seconds that engines were ours."""
        self.migrations.overdue()
        now_s = self.heart.clock()
        for worker in self.workers.values():
            if worker.connected or worker.death is not None:
                seconds = self.heart.metrics.engine_seconds.labels(str(worker.row))
                seconds.inc(max(0.0, now_s - worker.counted_s))
                worker.counted_s = now_s

    def registered(self, said: link.Register) -> Worker:
        """The place of a worker that is here, new or back; an older link of the same worker is hung up."""
        heart, now_s = self.heart, self.heart.clock()
        worker = self.workers.get(said.worker_id)
        limits = said.limits
        place = Place(
            limits.sequences_max, limits.budget_max, limits.blocks_total, limits.block_tokens,
            limits.model_tokens, np.array(said.costs),
        )  # fmt: skip
        if worker is None:
            old = self.vacant() if len(self.workers) >= ENGINES_MAX else None
            row = heart.desk.join(
                place, now_s, self.workers.pop(old.worker_id).row if old is not None else -1
            )
            for former in [one for one in self.workers.values() if one.row == row]:
                del self.workers[former.worker_id]  # its place was ordered anew
            worker = self.workers[said.worker_id] = Worker(row, said)
        else:
            self.revive(worker, said)
            heart.desk.join(place, now_s, worker.row)
            worker.learn(said)
        heart.engines[worker.row] = worker
        worker.connected, worker.leaving = True, False
        heart.desk.drain(worker.row, worker.drained)
        worker.heard_s = worker.counted_s = now_s
        log.info("worker joined", worker=said.worker_id, engine=worker.row, held=len(said.held))
        return worker

    def revive(self, worker: Worker, said: link.Register) -> None:
        """Clear what an earlier link or life of a worker left."""
        if worker.death is not None:
            worker.death.cancel()
            worker.death = None
        worker.hang_up()
        worker.outbox = asyncio.Queue()
        self.migrations.engine_gone(worker.row)  # it has called off what was half-moved when its link went
        if said.incarnation != worker.incarnation:
            self.heart.lose_engine(worker.row)

    def welcome(self, worker: Worker, said: link.Register) -> link.Welcome:
        """Settle the fate of what a worker holds, and what it needs to know."""
        heart, config = self.heart, self.heart.config
        held = {one.number: one for one in said.held}
        keep = [row for one in said.held if (row := self.kept(worker, one)) is not None]
        for place in heart.desk.board.held_by(worker.row):
            answer = heart.answers[int(heart.desk.board.number[place])]
            if answer.number not in held and answer.journalled:
                heart.send_on(
                    answer
                )  # the order was lost with the link: this life of the worker never had it
        tiers = [
            link.TierTargets(
                ttft_s=tier.ttft_s if tier.ttft_s < float("inf") else None,
                tpot_s=tier.tpot_s if tier.tpot_s < float("inf") else None,
                e2e_s=tier.e2e_s if tier.e2e_s < float("inf") else None,
                weight=tier.weight,
            )
            for tier in config.tiers
        ]
        scheduling = config.scheduling
        return link.Welcome(
            epoch=self.epoch, engine=worker.row, now_s=heart.clock(),
            tick_s=scheduling.tick_s, merge_s=scheduling.merge_s,
            report_period_s=scheduling.report_period_s, report_each_step=scheduling.report_each_step,
            heartbeat_s=scheduling.heartbeat_s, silence_s=config.timeouts.silence_s, tiers=tiers,
            engine_policy=heart.engine_policy, keep=keep,
        )  # fmt: skip

    def kept(self, worker: Worker, one: link.Held) -> link.Keep | None:
        """Whether a worker goes on with a request that it holds, and from which token it sends again."""
        heart = self.heart
        answer = heart.answers.get(one.number)
        if answer is None or answer.ending is not None:
            return None
        have = len(answer.tokens)
        if one.number in self.orphans and one.attempt >= answer.attempt and one.kept_from <= have:
            answer.attempt = one.attempt
            arrival = heart.arrival_of(answer)
            if not heart.desk.adopt(arrival, worker.row, one.attempt, heart.clock()):
                return None
            answer.engine = worker.row
            answer.dispatched_s = heart.clock() if answer.dispatched_s < 0.0 else answer.dispatched_s
            del self.orphans[one.number]
        elif answer.engine != worker.row or answer.attempt != one.attempt or one.kept_from > have:
            return None
        answer.asked_from = -1
        heart.credit(answer)
        return link.Keep(
            number=answer.number, attempt=answer.attempt, send_from=have, credit_to=answer.credit_to
        )

    async def hear(
        self, worker: Worker, incoming: AsyncIterator[link.WorkerMessage],
        outbox: "asyncio.Queue[link.DispatcherMessage | None]",
    ) -> None:  # fmt: skip
        """Take a worker's messages until its link ends."""
        try:
            async for message in incoming:
                if worker.outbox is not outbox:
                    return  # replaced by a newer link
                worker.heard_s = self.heart.clock()
                self.heart.metrics.messages_in.inc()
                self.take(worker, message)
        except Exception as error:  # one worker's nonsense must not end the others' links
            log.warning(
                "link failed", worker=worker.worker_id, error=type(error).__name__, what=str(error)[:200]
            )
        finally:
            outbox.put_nowait(None)

    def take(self, worker: Worker, message: link.WorkerMessage) -> None:
        """Hand one message on."""
        heart, kind = self.heart, message.WhichOneof("kind")
        if kind == "tokens":
            heart.on_tokens(worker.row, message.tokens.requests)
            heart.offer()
        elif kind == "report":
            if message.report.draining != worker.leaving:
                worker.leaving = message.report.draining
                self.drain(worker, worker.drained)
            worker.engine_policy = message.report.engine_policy or worker.engine_policy
            heart.desk.report(worker.row, account_of(message.report), heart.clock())
            heart.offer()
        elif kind == "migration":
            self.migrations.step(worker.row, message.migration)
        elif kind == "leaving":
            worker.leaving = True
            self.drain(worker, worker.drained)

    def drain(self, worker: Worker, drained: bool) -> None:
        """Give a worker nothing new by the operator's word, or something again; its own word counts too."""
        worker.drained = drained
        self.heart.desk.drain(worker.row, worker.drained or worker.leaving)

    def cut(self, worker: Worker) -> None:
        """A link ended: the worker may come back for a while, then what it held goes elsewhere."""
        worker.connected = False
        self.heart.desk.away(worker.row)
        grace_s = 0.0 if worker.leaving else self.heart.config.timeouts.engine_grace_s
        log.info("worker away", worker=worker.worker_id, engine=worker.row)
        worker.death = asyncio.get_running_loop().call_later(grace_s, self.bury, worker)

    def bury(self, worker: Worker) -> None:
        """It did not come back."""
        worker.death = None
        self.migrations.engine_gone(worker.row)
        log.warning("worker lost", worker=worker.worker_id, engine=worker.row)
        self.heart.lose_engine(worker.row)

    def close(self) -> None:
        """Say goodbye to all."""
        for worker in self.workers.values():
            if worker.death is not None:
                worker.death.cancel()
            worker.send(link.DispatcherMessage(goodbye=link.Goodbye(why="shutting down", reconnect=True)))
            worker.hang_up()


def account_of(report: link.Report) -> Account:
    """A report as the desk takes it."""
    return Account(
        sequence=report.sequence, waiting=tuple(report.waiting), running=tuple(report.running),
        computed_tokens=tuple(report.computed_tokens), blocks_free=report.blocks_free,
        queued_blocks=report.queued_blocks, pending_tokens=report.pending_tokens, steps=report.steps,
        prefilled_tokens=report.prefilled_tokens, step_s=report.step_s, evicted=tuple(report.evicted),
        blocks=tuple(report.blocks),
    )  # fmt: skip


class WorkerDoor(worker_pb2_grpc.WorkerLinkServicer):
    """The gRPC face of ``Links``."""

    def __init__(self, links: Links) -> None:
        self.links = links

    async def Link(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[link.WorkerMessage], context: Any
    ) -> AsyncIterator[link.DispatcherMessage]:
        """Run one link."""
        async for message in self.links.converse(aiter(request_iterator)):
            yield message
