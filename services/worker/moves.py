"""Live migration between workers, in stages: reserve, copy while decoding goes on, stop, copy the rest, commit.

The dispatcher coordinates; blocks go from worker to worker at their true size and at the configured bandwidth.
Until the commit the source can go on as if nothing had happened; after it the request is the destination's.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from loadgen.replay.tokens import tokens_at
from schedulers.cost import blocks_for
from services.rpc.windtunnel.v1.worker_pb2 import (
    BlockChunk,
    Copied,
    Copy,
    Enqueue,
    Failed,
    MigrationOrder,
    MigrationStep,
    Reserved,
    Stopped,
    TransferReply,
    TransferState,
)
from services.rpc.windtunnel.v1.worker_pb2_grpc import WorkerPeerServicer, WorkerPeerStub
from services.worker.answers import Answer, asked, opened
from services.worker.config import block_bytes
from services.worker.engine import Parcel
from services.worker.faults import Faults
from services.worker.link import OPTIONS, Link
from services.worker.worker import Worker

log = structlog.get_logger()

CHUNK_BYTES = 1 << 20
"""Most payload bytes of one message."""

ROUNDS = 3
"""Copying rounds while decoding goes on; what is dirty after them is copied with the request stopped."""

FLUSH_S = 2.0
"""How long a stopped request may wait for its tokens to be sent; then the move is called off."""


@dataclass
class Outgoing:
    """A request on its way out: the task that copies it, and whether it stands still."""

    attempt: int
    task: "asyncio.Task[None]"
    frozen: bool = False


@dataclass
class Incoming:
    """A request on its way in: what it will be, and what has arrived of it."""

    migration: int
    ticket: int
    order: Enqueue
    payload_bytes: int = 0
    state: TransferState | None = None


class Moves(WorkerPeerServicer):
    """Both ends of migration on one worker."""

    def __init__(self, worker: Worker, link: Link, faults: Faults) -> None:
        self.worker, self.link, self.faults = worker, link, faults
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, Incoming] = {}
        self.block_bytes = block_bytes(worker.config)
        self.bytes_per_s = worker.config.link_gb_per_s * 1e9 * worker.config.speed

    def order(self, order: MigrationOrder) -> None:
        """Follow an order of the dispatcher."""
        kind = order.WhichOneof("kind")
        if kind == "reserve":
            self._reserve(order)
        elif kind == "copy":
            task = asyncio.create_task(self._copy(order.migration, order.number, order.copy))
            self.outgoing[order.number] = Outgoing(order.copy.attempt, task)
        elif kind == "commit":
            self._commit(order)
        elif kind == "abort":
            self.call_off(order.number)

    def call_off(self, number: int) -> None:
        """Give reserved blocks back, and let a request that stood still go on."""
        if self.incoming.pop(number, None) is not None:
            self._drop(number)
        leaving = self.outgoing.pop(number, None)
        if leaving is not None:
            leaving.task.cancel()
            self._go_on(number, leaving)

    def _drop(self, number: int) -> None:
        """Let go of what was kept for a request that does not come."""
        self.worker.engine.release(number)
        self.worker.stir()

    def call_all_off(self) -> None:
        """The link is gone and with it whoever would commit: nothing stays half-moved."""
        for number in [*self.incoming, *self.outgoing]:
            self.call_off(number)

    def _reserve(self, order: MigrationOrder) -> None:
        number, wanted = order.number, order.reserve
        self.faults.phase("reserve")
        here = number in self.worker.answers or number in self.incoming
        if here or self.worker.draining or not self.worker.engine.reserve(number, wanted.blocks):
            why = "it is here already" if here else "no room for its blocks"
            self._tell(order.migration, number, failed=Failed(why=why))
            return
        ticket = secrets.randbits(63) | 1
        self.incoming[number] = Incoming(order.migration, ticket, wanted.request)
        self._tell(order.migration, number, reserved=Reserved(ticket=ticket))

    async def _copy(self, migration: int, number: int, copy: Copy) -> None:
        """Stream a request's blocks to its destination; says Stopped when all has left, or Failed."""
        try:
            async with grpc.aio.insecure_channel(copy.peer_address, options=OPTIONS) as channel:
                call: Any = WorkerPeerStub(channel).Transfer()
                stopped = await self._stream(call, migration, number, copy)
                await call.done_writing()
                reply: TransferReply = await call
            if not reply.taken:
                raise MoveError(reply.why)
            self.worker.gauges.bytes_out.inc(reply.fetched_bytes)
            self._tell(migration, number, stopped=stopped)
        except (MoveError, grpc.aio.AioRpcError, OSError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            leaving = self.outgoing.pop(number, None)
            if leaving is not None:
                self._go_on(number, leaving)
            self._tell(migration, number, failed=Failed(why=why or "transfer failed"))

    async def _stream(self, call: Any, migration: int, number: int, copy: Copy) -> Stopped:
        engine, done = self.worker.engine, 0
        for _ in range(ROUNDS):
            self.faults.phase("copy")
            whole = self._whole_blocks(number, copy.attempt)
            if whole == done:
                break
            async for chunk in self._chunks(done, whole):
                chunk.ticket, chunk.migration, chunk.number = copy.ticket, migration, number
                await call.write(chunk)
            done = whole
        self.faults.phase("stop")
        answer = self._leaving(number, copy.attempt)
        parcel = engine.freeze(number)
        if parcel is None:
            raise MoveError("ended" if answer.final else "it is not decoding")
        self.outgoing[number].frozen = True
        self.worker.stir()
        await self._send_all(answer)
        total = blocks_for(engine.rig.known, 0, parcel.computed_tokens)
        async for chunk in self._chunks(done, total):
            chunk.ticket, chunk.migration, chunk.number = copy.ticket, migration, number
            await call.write(chunk)
        state = TransferState(
            generated=tokens_at(answer.seed, 0, answer.made), computed_tokens=parcel.computed_tokens
        )
        await call.write(BlockChunk(ticket=copy.ticket, migration=migration, number=number, state=state))
        return Stopped(generated=answer.made, blocks=total)

    async def _chunks(self, first: int, stop: int) -> AsyncIterator[BlockChunk]:
        """Yield blocks [first, stop) with their payload, no sooner than the bandwidth allows."""
        at_once = max(1, CHUNK_BYTES // self.block_bytes)
        due_s = self.worker.now_s()
        for block in range(first, stop, at_once):
            places = range(block, min(stop, block + at_once))
            left = len(places) * self.block_bytes
            while left > 0:
                size = min(left, CHUNK_BYTES)
                left -= size
                due_s += size / self.bytes_per_s
                wait_s = due_s - self.worker.now_s()
                if wait_s > 0.0:
                    await asyncio.sleep(wait_s)
                self.worker.gauges.bytes_out.inc(size)
                yield BlockChunk(blocks=[*places] if left == 0 else [], payload=bytes(size))

    def _leaving(self, number: int, attempt: int) -> Answer:
        answer = self.worker.answers.get(number)
        if answer is None or answer.attempt != attempt or answer.final is not None:
            raise MoveError("ended")
        return answer

    def _whole_blocks(self, number: int, attempt: int) -> int:
        """Blocks that are full: decoding writes to them no more."""
        self._leaving(number, attempt)
        parcel = self.worker.engine.parcel(number)
        return parcel.computed_tokens // self.worker.config.fleet.block_tokens

    async def _send_all(self, answer: Answer) -> None:
        """Wait until every token made here has been sent; the destination makes the next one."""
        until_s = self.worker.now_s() + FLUSH_S
        while answer.sent < answer.made:
            self.worker.flush()
            if answer.sent < answer.made:
                self._leaving(answer.number, answer.attempt)  # its client may go meanwhile
                if self.worker.now_s() > until_s:
                    raise MoveError("the client takes no tokens")
                await asyncio.sleep(0.005)
        self._leaving(answer.number, answer.attempt)

    def _go_on(self, number: int, leaving: Outgoing) -> None:
        if leaving.frozen and number in self.worker.engine.row_of:
            self.worker.engine.thaw(number)
            self.worker.stir()

    def _commit(self, order: MigrationOrder) -> None:
        self.faults.phase("commit")
        number, commit = order.number, order.commit
        leaving = self.outgoing.get(number)
        if leaving is not None and leaving.attempt == commit.attempt:
            del self.outgoing[number]
            self.worker.forget(number)
            return
        coming = self.incoming.pop(number, None)
        if (
            coming is None
            or coming.state is None
            or not self._adopt(coming, commit.next_index, commit.credit_to)
        ):
            self._drop(number)
            self._tell(order.migration, number, failed=Failed(why="it never arrived whole"))
        self.worker.sequence = max(self.worker.sequence, commit.sequence)

    def _adopt(self, coming: Incoming, next_index: int, credit_to: int) -> bool:
        """Go on with a request that has arrived; False if it can't."""
        worker, order, state = self.worker, coming.order, coming.state
        assert state is not None
        if next_index != len(state.generated):
            return False
        order.generated[:] = state.generated
        answer = opened(order, worker.now_s())
        answer.credit_to = max(answer.credit_to, credit_to)
        computed = int(state.computed_tokens)
        parcel = Parcel(
            asked(order, answer, worker.offset_s),
            computed_tokens=computed,
            prefill_tokens=min(computed, order.prompt_tokens),
            evictions=0,
            started_s=worker.now_s(),
        )
        if not worker.engine.receive(order.number, parcel, worker.now_s()):
            return False
        worker.answers[order.number] = answer
        worker.stir()
        return True

    async def Transfer(self, request_iterator: Any, context: Any) -> TransferReply:  # noqa: N802
        """Take in the blocks of a request for which room was reserved."""
        coming: Incoming | None = None
        async for chunk in request_iterator:
            coming = self.incoming.get(chunk.number)
            if coming is None or coming.ticket != chunk.ticket:
                return TransferReply(taken=False, why="nothing is reserved under this ticket")
            coming.payload_bytes += len(chunk.payload)
            self.worker.gauges.bytes_in.inc(len(chunk.payload))
            self.faults.phase("receive")
            if chunk.HasField("state"):
                why = self._misfit(coming, chunk.state)
                if why:
                    return TransferReply(taken=False, why=why)
                coming.state = chunk.state
        if coming is None or coming.state is None:
            return TransferReply(taken=False, why="the last chunk is missing")
        number, off = coming.order.number, TransferReply(taken=False, why="it was called off")
        if self.incoming.get(number) is not coming:
            return off
        copied = await self._take_in(coming, coming.state)
        if self.incoming.get(number) is not coming:
            return off
        self._tell(coming.migration, number, copied=copied)
        return TransferReply(taken=True, fetched_bytes=copied.bytes - coming.payload_bytes)

    async def _take_in(self, coming: Incoming, state: TransferState) -> Copied:
        """Make the request ready to go on here; returns how it will."""
        return Copied(generated=len(state.generated), way="blocks", bytes=coming.payload_bytes)

    def _misfit(self, coming: Incoming, state: TransferState) -> str:
        """Say why what arrived is not the whole request, "" if it is."""
        engine = self.worker.engine
        need = blocks_for(engine.rig.known, 0, int(state.computed_tokens))
        if coming.payload_bytes != need * self.block_bytes:
            return f"{coming.payload_bytes} bytes arrived, {need * self.block_bytes} are its blocks"
        if not engine.reserve(coming.order.number, need):
            return "no room for the blocks it gained meanwhile"
        return ""

    def _tell(self, migration: int, number: int, **kind: Any) -> None:
        self.link.tell_move(MigrationStep(migration=migration, number=number, **kind))


class MoveError(Exception):
    """A move can't go on; the request stays where it is."""
