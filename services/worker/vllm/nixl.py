"""Moves whose KV travels: the source stands still with its blocks on offer, the destination fetches them by NIXL.

In stages: the source's engine lets the request stand still, alive; the destination's fetches the blocks and holds
the request back; the commit makes it the destination's, and only then the source lets go. Called off at any moment
before, the source goes on with the next step from the KV that it still has. Where KV can't travel the request is
computed again, and the move says why.
"""

import asyncio
import os
import socket
from typing import Any

import msgspec
import structlog

from services.rpc.windtunnel.v1.worker_pb2 import BlockChunk, Copied, Stopped, TransferState
from services.settings import NIXL
from services.worker.answers import Answer, asked, opened
from services.worker.engine import Engine, Key
from services.worker.moves import Incoming, MoveError
from services.worker.rows import Ask
from services.worker.vllm.config import EngineConfig
from services.worker.vllm.front import Front, Said
from services.worker.vllm.wire import Came, Order, Parted, Told
from services.worker.vllm.worker import EngineWorker, Recomputes

log = structlog.get_logger()

PART_S = 3.0
"""How long a request may go on decoding until it stands still: a step or two, unless it is evicted or held back."""

FETCH_S = 3.0
"""How long blocks may take to come, the first handshake included; then they are computed again."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class NixlFront(Front):
    """The worker's side of an engine that can hand KV over and fetch it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parting: dict[Key, asyncio.Future[Parted | None]] = {}
        self.parted: set[Key] = set()
        self.coming: dict[Key, asyncio.Future[Came | None]] = {}

    def hear(self, told: Told) -> None:
        """The engine says something."""
        if isinstance(told, Parted):
            _settle(self.parting.get(told.key), told)
        elif isinstance(told, Came):
            _settle(self.coming.get(told.key), told)
        else:
            super().hear(told)

    async def part(self, key: int) -> Parted | None:
        """Let a decoding request stand still with its KV on offer; None if it ended or is not decoding.

        Whatever becomes of this, a request that is not in ``parted`` afterwards goes on.
        """
        future: asyncio.Future[Parted | None] = asyncio.get_running_loop().create_future()
        self.parting[key] = future
        self.order(Order(part=(key,)))
        try:
            async with asyncio.timeout(PART_S):
                told = await future
                while told is not None and key in self.said and self._made(key) < told.made:
                    await asyncio.sleep(0.001)  # tokens come by another way
            if told is None or key not in self.said or Engine.freeze(self, key) is None:
                return None
            self.parted.add(key)
            return told
        except TimeoutError:
            return None
        finally:
            self.parting.pop(key, None)
            if key not in self.parted:
                self.order(Order(stay=(key,)))

    def _made(self, key: Key) -> int:
        """Tokens of a request that its present try here has made and passed on."""
        return self.said[key].told - self.said[key].before

    def thaw(self, key: Key) -> None:
        """Go on here after all: at once if the KV is still there."""
        if key not in self.parted:
            super().thaw(key)
            return
        assert isinstance(key, int)
        self.parted.discard(key)
        Engine.thaw(self, key)
        self.order(Order(stay=(key,)))

    async def fetch(self, key: int, ask: Ask, said: Said, handover: dict[str, Any]) -> Came | None:
        """Fetch the KV of a request that will come; None if it is called off or takes too long."""
        room = self.setup.model_tokens - ask.prompt_tokens  # the answer is cut there, as the tables do
        if min(ask.output_tokens, room) <= ask.generated_tokens:
            return None
        self.prepare(key, said)
        ask = ask._replace(output_tokens=min(ask.output_tokens, room))
        future = self.coming[key] = asyncio.get_running_loop().create_future()
        self._send(key, ask, handover)
        try:
            async with asyncio.timeout(FETCH_S):
                return await asyncio.shield(future)
        except TimeoutError:
            return None

    def land(self, key: int, ask: Ask, now_s: float) -> bool:
        """One whose KV was fetched is ours and goes on; False if it can't."""
        if self.coming.pop(key, None) is None or Engine.add(self, key, ask, now_s) is not None:
            return False
        self.landed.add(key)
        self.order(Order(land=(key,)))
        return True

    def drop(self, key: Key) -> None:
        """One that was to come does not."""
        if key in self.coming:
            self._let_go(key)

    def _let_go(self, key: Key) -> None:
        super()._let_go(key)
        _settle(self.parting.get(key), None)
        _settle(self.coming.pop(key, None), None)
        self.parted.discard(key)
        self.landed.discard(key)


def _settle(future: "asyncio.Future[Any] | None", told: Any) -> None:
    if future is not None and not future.done():
        future.set_result(told)


class Nixl(Recomputes):
    """Migration of a request with its KV; of one that has too little of it, or none to fetch, by its tokens alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.worker, EngineWorker)
        assert isinstance(self.worker.engine, NixlFront)
        self.here: EngineWorker = self.worker
        self.front: NixlFront = self.worker.engine
        self.fetched: dict[int, Answer] = {}  # answers that go on from KV that lies here, once they are ours

    async def _stream(self, call: Any, migration: int, number: int, copy: Any) -> Stopped:
        answer = self._leaving(number, copy.attempt)
        why = self._unfit(number)
        if why:
            stopped = await super()._stream(call, migration, number, copy)
            stopped.why = why
            return stopped
        self.faults.phase("copy")
        parted = await self.front.part(number)
        if parted is None:
            raise MoveError("ended" if answer.final else "it is not decoding")
        self.outgoing[number].frozen = True
        self.faults.phase("stop")
        self.worker.step(self.worker.now_s())  # what it had said by then counts
        await self._send_all(answer)
        state = TransferState(
            generated=[*self._earlier(number), *answer.tokens(answer.first, answer.made)],
            computed_tokens=self.front.parcel(number).computed_tokens,
            handover=msgspec.msgpack.encode(parted.handover),
        )
        await call.write(BlockChunk(ticket=copy.ticket, migration=migration, number=number, state=state))
        return Stopped(generated=answer.made, blocks=parted.blocks)

    def _unfit(self, number: int) -> str:
        """Say why the KV of a request here is not worth the way, "" if it is."""
        if number not in self.front.row_of:
            raise MoveError("ended")
        held, block = self.front.parcel(number).computed_tokens, self.front.setup.block_tokens
        return f"{held} tokens are less than a block of {block}" if held < block else ""

    async def _take_in(self, coming: Incoming, state: TransferState) -> Copied:
        if not state.handover:
            return await super()._take_in(coming, state)
        order, worker = coming.order, self.here
        order.generated[:] = state.generated
        answer = opened(order, worker.now_s())
        said = worker.said_of(answer, order)
        ask, handover = asked(order, answer, worker.offset_s), msgspec.msgpack.decode(state.handover)
        came = await self.front.fetch(order.number, ask, said, handover)
        copied = Copied(generated=len(state.generated))
        if self.incoming.get(order.number) is not coming:
            return copied  # called off, and dropped then
        if came is not None and came.whole:
            self.fetched[order.number] = answer
            worker.gauges.bytes_in.inc(came.bytes)
            copied.way, copied.bytes = NIXL, came.bytes
            return copied
        self.front.drop(order.number)
        plain = await super()._take_in(coming, TransferState())
        copied.way = plain.way
        copied.why = "the source's blocks could not be read" if came else f"no blocks came in {FETCH_S:g} s"
        log.warning("KV not fetched", number=order.number, why=copied.why)
        return copied

    def _adopt(self, coming: Incoming, next_index: int, credit_to: int) -> bool:
        number, worker = coming.order.number, self.here
        answer = self.fetched.pop(number, None)
        if answer is None:
            return super()._adopt(coming, next_index, credit_to)
        if next_index != answer.made:
            return False
        now_s = answer.enqueued_s = worker.now_s()
        answer.credit_to = max(answer.credit_to, credit_to)
        worker.engine.release(number)
        if not self.front.land(number, asked(coming.order, answer, worker.offset_s), now_s):
            return False
        worker.answers[number] = answer
        worker.gauges.arrived(answer)
        worker.stir()
        return True

    def _drop(self, number: int) -> None:
        self.fetched.pop(number, None)
        self.front.drop(number)
        super()._drop(number)


def surround(config: EngineConfig) -> None:
    """Tell vLLM's connector by the environment where it is reached; what the caller's environment says stands.

    Each engine listens for handshakes on a port of its own. On one machine UCX is kept to what needs no network card.
    """
    host = (config.advertise or config.grpc.rpartition(":")[0]).strip("[]")
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    os.environ.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", host)
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
    if host in LOOPBACK:
        os.environ.setdefault("UCX_TLS", "tcp,self,sysv,posix")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
