"""A client of the dispatcher's gRPC door for many requests at once, which resumes by itself after a cut."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc

from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import dispatcher_pb2_grpc
from services.rpc.windtunnel.v1 import request_pb2 as wire

MESSAGE_BYTES = 64 << 20
RETRY_FIRST_S, RETRY_MOST_S = 0.05, 1.0


class Stream:
    """Events of one request, each token index once: iterate over it. ``next_index`` is the first one not seen."""

    def __init__(self, asked: door.SubmitRequest) -> None:
        self.asked = asked
        self.next_index = int(asked.from_index)
        self.accepted = False
        self.ending: wire.Ending | None = None
        self.repeated = self.gaps = 0
        self._events: asyncio.Queue[door.AnswerEvent] = asyncio.Queue()

    def take(self, event: door.AnswerEvent) -> None:
        """Pass an event on, less the tokens that were seen; a gap is counted, and must not be."""
        kind = event.WhichOneof("kind")
        if kind == "accepted":
            if self.accepted:
                return
            self.accepted = True
        elif kind == "tokens":
            run = event.tokens
            seen = self.next_index - run.offset
            if seen < 0:
                self.gaps += 1
                return
            if seen > 0:
                self.repeated += min(seen, len(run.tokens))
                if seen >= len(run.tokens):
                    return
                fresh = wire.TokenRun(
                    offset=self.next_index, tokens=run.tokens[seen:], pieces=run.pieces[seen:]
                )
                event = door.AnswerEvent(request_id=event.request_id, tokens=fresh)
            self.next_index += len(event.tokens.tokens)
        elif self.ending is not None:
            return
        else:
            self.ending = event.ending
        self._events.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[door.AnswerEvent]:
        """Yield events up to and with the ending."""
        while True:
            event = await self._events.get()
            yield event
            if event.WhichOneof("kind") == "ending":
                return


class Conversation:
    """One stream to the dispatcher at ``address`` (host:port), opened again whenever it is cut.

    What was submitted and has no ending is resumed from the first token that is missing; what was not yet
    accepted is submitted again under its id, which attaches to it if it was taken after all. Gives up, with
    ``engine_lost`` for all that is open, after ``patience_s`` without a dispatcher.
    """

    def __init__(
        self, address: str, key: str = "", *, patience_s: float = 30.0, credentials: Any = None
    ) -> None:
        self.address, self.patience_s, self.credentials = address, patience_s, credentials
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self.open: dict[str, Stream] = {}
        self.reconnects = 0
        self._out: asyncio.Queue[door.ClientMessage] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Conversation":
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self.credentials is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(self.address, self.credentials, options=options)
        self._task = asyncio.create_task(self._talk(), name="conversation")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    def submit(self, asked: door.SubmitRequest) -> Stream:
        """Send a request now; its events come on the stream that is returned."""
        stream = self.open[asked.request_id] = Stream(asked)
        self._out.put_nowait(door.ClientMessage(submit=asked))
        return stream

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request."""
        cancel = door.CancelRequest(request_id=request_id)
        self._out.put_nowait(door.ClientMessage(cancel=cancel))

    async def _talk(self) -> None:
        pause_s, loop = RETRY_FIRST_S, asyncio.get_running_loop()
        heard_s = loop.time()
        while True:
            call = dispatcher_pb2_grpc.DispatcherStub(self._channel).Converse(
                self._outgoing(), metadata=self.metadata, wait_for_ready=True
            )
            try:
                async for batch in call:
                    heard_s, pause_s = loop.time(), RETRY_FIRST_S
                    for event in batch.events:
                        self._take(event)
            except grpc.aio.AioRpcError as error:
                final = error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
                if final or loop.time() - heard_s > self.patience_s:
                    self._give_up(f"{error.code().name}: {error.details()}")
                    if final:
                        return
            finally:
                call.cancel()
            self.reconnects += 1
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, RETRY_MOST_S)

    async def _outgoing(self) -> AsyncIterator[door.ClientMessage]:
        """First what is open from an earlier stream, then what comes."""
        if self.reconnects:
            self._out = asyncio.Queue()
            for request_id, stream in self.open.items():
                if stream.accepted:
                    resume = door.ResumeRequest(request_id=request_id, from_index=stream.next_index)
                    self._out.put_nowait(door.ClientMessage(resume=resume))
                else:
                    self._out.put_nowait(door.ClientMessage(submit=stream.asked))
        out = self._out
        while True:
            yield await out.get()

    def _take(self, event: door.AnswerEvent) -> None:
        stream = self.open.get(event.request_id)
        if stream is not None:
            stream.take(event)
            if stream.ending is not None:
                del self.open[event.request_id]

    def _give_up(self, why: str) -> None:
        for request_id, stream in list(self.open.items()):
            lost = wire.Ending(outcome=wire.OUTCOME_FAILED, reason="engine_lost", message=why, engine=-1)
            stream.take(door.AnswerEvent(request_id=request_id, ending=lost))
            del self.open[request_id]
