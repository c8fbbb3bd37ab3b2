"""The long-lived stream between a worker and its dispatcher: it is cut, comes back, and nothing is lost."""

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

import grpc
import numpy as np
import structlog

from schedulers.view import Tiers
from services.rpc.windtunnel.v1.worker_pb2 import (
    DispatcherMessage,
    Heartbeat,
    Leaving,
    Limits,
    MigrationOrder,
    MigrationStep,
    Register,
    RequestTokens,
    TierTargets,
    TokenBatch,
    Welcome,
    WorkerMessage,
)
from services.rpc.windtunnel.v1.worker_pb2_grpc import WorkerLinkStub
from services.worker.worker import Worker

if TYPE_CHECKING:
    from grpc.aio import StreamStreamCall

    Call = StreamStreamCall[WorkerMessage, DispatcherMessage]

log = structlog.get_logger()

PROTOCOL = 1
BACKOFF_S = (0.05, 1.0)
"""Wait before the second try to connect, and the longest wait; each doubles the one before."""

CUT = (TimeoutError, OSError, asyncio.InvalidStateError, grpc.aio.UsageError)
"""What reads and writes raise, beside AioRpcError, on a connection that has just ended."""

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a reconnect opens a connection of its own
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Addresses(NamedTuple):
    """Where others reach this worker, HOST:PORT; "" for nowhere."""

    peer: str
    metrics: str


class Mover(Protocol):
    """Whoever carries out orders to migrate."""

    def order(self, order: MigrationOrder) -> None:
        """Begin, commit or abort a move."""

    def call_all_off(self) -> None:
        """Leave no request half-moved."""


class Link:
    """Keeps a worker connected; ``up`` is set while the dispatcher has welcomed it."""

    def __init__(self, worker: Worker, incarnation: int) -> None:
        self.worker, self.incarnation = worker, incarnation
        self.addresses = Addresses("", "")  # known once the servers listen
        self.mover: Mover | None = None
        self.up = asyncio.Event()
        self.left = asyncio.Event()  # the dispatcher said goodbye for good
        self.refused = ""  # why it never welcomed this worker
        self.deaf_until_s = -inf  # a partition: nothing is read or written until then
        self.mute_until_s = -inf  # reports are held back until then
        self._out: asyncio.Queue[WorkerMessage] = asyncio.Queue()
        self._welcome = Welcome()
        self._heard_s = 0.0
        self._cut: Callable[[], object] | None = None

    async def run(self) -> None:
        """Stay connected until the dispatcher says goodbye for good."""
        wait_s = BACKOFF_S[0]
        while not self.left.is_set():
            welcomed = False
            try:
                welcomed = await self._converse()
            except CUT as error:
                log.info("link lost", why=str(error))
            except grpc.aio.AioRpcError as error:
                log.info("link lost", why=error.details(), code=error.code().name)
            finally:
                self.up.clear()
                self.worker.send = self.worker.step_seen = None
                if self.mover is not None:
                    self.mover.call_all_off()  # whoever would commit is out of reach
            wait_s = BACKOFF_S[0] if welcomed else min(2.0 * wait_s, BACKOFF_S[1])
            if not self.left.is_set():
                await asyncio.sleep(wait_s)

    def leave(self, why: str) -> None:
        """Ask to be drained: no new work comes from here on."""
        self.worker.draining = True
        if self.up.is_set():
            self._out.put_nowait(WorkerMessage(leaving=Leaving(why=why)))

    def cut(self) -> None:
        """End the connection as a broken network would."""
        if self._cut is not None:
            self._cut()

    def tell_move(self, step: MigrationStep) -> None:
        """Answer an order to migrate; without a link the dispatcher has called it off already."""
        if self.up.is_set():
            self._out.put_nowait(WorkerMessage(migration=step))

    def report(self) -> None:
        """Send the engine's state."""
        if self.worker.now_s() >= self.mute_until_s:
            self._out.put_nowait(WorkerMessage(report=self.worker.report()))

    async def _converse(self) -> bool:
        """Hold one connection until it ends; True if there was a welcome."""
        async with self._channel() as channel:
            call: Call = WorkerLinkStub(channel).Link(metadata=self._metadata())
            self._cut = call.cancel
            try:
                return await self._talk(call)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                return True  # the call was cut from here
            finally:
                self._cut = None
                call.cancel()

    def _channel(self) -> grpc.aio.Channel:
        config = self.worker.config
        if not config.ca:
            return grpc.aio.insecure_channel(config.dispatcher, options=OPTIONS)
        with open(config.ca, "rb") as file:
            trusted = grpc.ssl_channel_credentials(root_certificates=file.read())
        return grpc.aio.secure_channel(config.dispatcher, trusted, options=OPTIONS)

    async def _talk(self, call: "Call") -> bool:
        await call.write(WorkerMessage(register=self._register()))
        first = await asyncio.wait_for(call.read(), timeout=10.0)
        if first is grpc.aio.EOF:
            raise OSError("the dispatcher closed the link")
        assert isinstance(first, DispatcherMessage)
        if first.HasField("goodbye"):
            self._goodbye(first)
            self.refused = first.goodbye.why if self.left.is_set() else ""
            return False
        self._enter(first.welcome)
        self.up.set()
        tasks = [
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._beat()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return True

    def _enter(self, welcome: Welcome) -> None:
        worker, self._welcome = self.worker, welcome
        self._out = asyncio.Queue()
        worker.offset_s = worker.now_s() - welcome.now_s
        worker.tick_s, worker.sequence = welcome.tick_s, 0
        worker.merge_s = max(welcome.merge_s, welcome.tick_s)
        worker.send = self._send
        worker.step_seen = self.report if welcome.report_each_step else None
        if welcome.tiers:
            worker.set_tiers(tiers_of(welcome.tiers))
        if welcome.engine_policy not in ("", worker.policy):
            worker.change_policy(welcome.engine_policy)
        worker.resume_from((one.number, one.attempt, one.send_from, one.credit_to) for one in welcome.keep)
        if worker.draining:
            self.leave_again()
        self.report()
        self._heard_s = worker.now_s()
        log.info("link up", dispatcher=worker.config.dispatcher, epoch=welcome.epoch, engine=welcome.engine)

    def leave_again(self) -> None:
        """Say anew that this worker is leaving: the word may have gone with the link before."""
        self._out.put_nowait(WorkerMessage(leaving=Leaving(why="draining")))

    def _send(self, batch: list[RequestTokens]) -> None:
        self._out.put_nowait(WorkerMessage(tokens=TokenBatch(requests=batch)))

    async def _write(self, call: "Call") -> None:
        while True:
            message = await self._out.get()
            await self._wait_out_the_partition()
            await call.write(message)

    async def _read(self, call: "Call") -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                raise OSError("the dispatcher closed the link")
            await self._wait_out_the_partition()
            assert isinstance(message, DispatcherMessage)
            self._heard_s = self.worker.now_s()
            self._follow(message)
            if self.left.is_set():
                return

    async def _wait_out_the_partition(self) -> None:
        while (left_s := self.deaf_until_s - self.worker.now_s()) > 0.0:
            await asyncio.sleep(left_s)

    def _follow(self, message: DispatcherMessage) -> None:
        worker, kind = self.worker, message.WhichOneof("kind")
        if kind == "enqueue":
            worker.enqueue(message.enqueue)
        elif kind == "progress":
            worker.acknowledge(message.progress)
        elif kind == "cancel":
            worker.cancel(message.cancel.number, message.cancel.attempt)
        elif kind == "migration" and self.mover is not None:
            self.mover.order(message.migration)
        elif kind == "set_policy":
            worker.change_policy(message.set_policy.engine_policy)
        elif kind == "drain":
            worker.draining = True
            self.report()
        elif kind == "goodbye":
            self._goodbye(message)

    def _goodbye(self, message: DispatcherMessage) -> None:
        log.info("goodbye", why=message.goodbye.why, reconnect=message.goodbye.reconnect)
        if not message.goodbye.reconnect:
            self.left.set()

    async def _beat(self) -> None:
        """Report and beat in their periods; give the link up when nothing was heard for too long."""
        worker, told = self.worker, self._welcome
        report_s, beat_s = told.report_period_s or inf, told.heartbeat_s or inf
        sequence, next_report_s, next_beat_s = 0, worker.now_s() + report_s, worker.now_s() + beat_s
        while True:
            now_s = worker.now_s()
            if now_s >= next_report_s:
                self.report()
                next_report_s = max(next_report_s + report_s, now_s)
            if now_s >= next_beat_s:
                sequence += 1
                self._out.put_nowait(WorkerMessage(heartbeat=Heartbeat(sequence=sequence)))
                next_beat_s = max(next_beat_s + beat_s, now_s)
            if told.silence_s and now_s - self._heard_s > told.silence_s:
                raise OSError(f"nothing heard for {told.silence_s:g} s")
            await asyncio.sleep(max(0.0, min(next_report_s, next_beat_s, now_s + 1.0) - now_s))

    def _register(self) -> Register:
        worker = self.worker
        config, setup = worker.config, worker.engine.setup
        return Register(
            protocol=PROTOCOL,
            worker_id=config.worker_id,
            incarnation=self.incarnation,
            profile=config.fleet.profile,
            limits=Limits(
                sequences_max=setup.sequences_max,
                budget_max=setup.budget_max,
                blocks_total=int(np.max(setup.blocks)),
                block_tokens=setup.block_tokens,
                model_tokens=setup.model_tokens,
            ),
            costs=setup.costs.tolist(),
            driver=worker.driver,
            deterministic=worker.driver == "sim",
            migrates=bool(self.addresses.peer),
            peer_address=self.addresses.peer,
            model=worker.model,
            engine_policy=worker.policy,
            metrics_address=self.addresses.metrics,
            held=[answer.held() for answer in worker.answers.values() if answer.sink is None],
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        key = self.worker.config.key
        return (("authorization", f"Bearer {key}"),) if key else ()


def tiers_of(targets: Iterable[TierTargets]) -> Tiers:
    """Return the dispatcher's tiers; a target that is absent is +inf."""
    rows = list(targets)

    return Tiers(
        np.array([row.ttft_s if row.HasField("ttft_s") else inf for row in rows]),
        np.array([row.tpot_s if row.HasField("tpot_s") else inf for row in rows]),
        np.array([row.e2e_s if row.HasField("e2e_s") else inf for row in rows]),
        np.array([row.weight or 1.0 for row in rows]),
    )
