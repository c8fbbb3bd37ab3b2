"""The testbed's gRPC door: single streams, and one stream for many requests, batched a tick at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc

from services.dispatcher.answer import Answer, Refused
from services.dispatcher.intake import Client, trace_of
from services.dispatcher.reasons import REASONS, ending
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import dispatcher_pb2_grpc
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher

BATCH_TOKENS = 65_536
"""Tokens in one message at most: below gRPC's limit of 4 MiB whatever they are."""


class Audience:
    """One client's stream: which answers it hears, how far, and what it has not been told yet."""

    def __init__(self, heart: "Dispatcher") -> None:
        self.heart = heart
        self.at: dict[int, int] = {}
        self.grown: dict[int, Answer] = {}
        self.ready: list[door.AnswerEvent] = []
        self.wake = asyncio.Event()

    def notify(self, answer: Answer) -> None:
        """An answer has grown or ended."""
        self.grown[answer.number] = answer
        self.wake.set()

    def follow(self, answer: Answer, from_index: int) -> None:
        """Hear an answer from an index on; it is said to be accepted first."""
        self.at[answer.number] = from_index
        accepted = door.Accepted(number=answer.number, tier=answer.submission.tier)
        self.say(door.AnswerEvent(request_id=answer.request_id, accepted=accepted))
        self.heart.listen(answer, self, from_index)
        self.notify(answer)

    def say(self, event: door.AnswerEvent) -> None:
        """Send an event that is not about tokens."""
        self.ready.append(event)
        self.wake.set()

    def refuse(self, request_id: str, how: wire.Ending) -> None:
        """A request was not taken."""
        self.say(door.AnswerEvent(request_id=request_id, ending=how))

    def collect(self) -> list[door.AnswerEvent]:
        """Everything new, in order, up to ``BATCH_TOKENS``; the rest stays for the next time."""
        self.wake.clear()
        events, self.ready = self.ready, []
        grown, self.grown = self.grown, {}
        room = BATCH_TOKENS
        for answer in grown.values():
            at = self.at.get(answer.number)
            if at is None:
                continue
            if room <= 0:
                self.notify(answer)
                continue
            have = len(answer.tokens)
            if have > at:
                upto = min(have, at + room)
                run = answer.run_from(at) if upto == have else cut(answer, at, upto)
                events.append(door.AnswerEvent(request_id=answer.request_id, tokens=run))
                room -= upto - at
                self.at[answer.number] = at = upto
                self.heart.taken(answer, upto)
                if upto < have:
                    self.notify(answer)
                    continue
            if answer.ending is not None and at >= have:
                events.append(door.AnswerEvent(request_id=answer.request_id, ending=answer.ending))
                del self.at[answer.number]
                self.heart.leave(answer, self)
        return events

    def close(self) -> None:
        """The client is gone."""
        for number in list(self.at):
            answer = self.heart.answers.get(number)
            if answer is not None:
                self.heart.leave(answer, self)
        self.at.clear()


def metadata_of(context: Any) -> dict[str, str | bytes]:
    """What a client sent beside its call."""
    return dict(context.invocation_metadata() or ())


def cut(answer: Answer, start: int, stop: int) -> wire.TokenRun:
    """A part of an answer's tokens."""
    return wire.TokenRun(offset=start, tokens=answer.tokens[start:stop], pieces=answer.pieces[start:stop])


class ClientDoor(dispatcher_pb2_grpc.DispatcherServicer):
    """Serves ``windtunnel.v1.Dispatcher``."""

    def __init__(self, heart: "Dispatcher") -> None:
        self.heart = heart

    async def Submit(  # noqa: N802 - the contract's name
        self, request: door.SubmitRequest, context: Any
    ) -> AsyncIterator[door.AnswerEvent]:
        """One request; an ending other than finished also ends the call with its status."""
        client = await self._client(context)
        if not request.traceparent:
            request.traceparent = trace_of(str(metadata_of(context).get("traceparent", "")))
        try:
            answer = await self.heart.submit(request, client)
        except Refused as refused:
            yield door.AnswerEvent(request_id=request.request_id, ending=refused.ending)
            await self._fail(context, refused.ending)
            return
        async for event in self._stream(answer, int(request.from_index), context):
            yield event

    async def Resume(  # noqa: N802
        self, request: door.ResumeRequest, context: Any
    ) -> AsyncIterator[door.AnswerEvent]:
        """The rest of an answer."""
        answer = self._mine(request.request_id, await self._client(context))
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such request, or it is too long ago")
            return
        self.heart.metrics.resumes.inc()
        async for event in self._stream(answer, int(request.from_index), context):
            yield event

    async def Cancel(self, request: door.CancelRequest, context: Any) -> door.CancelReply:  # noqa: N802
        """End a request now."""
        answer = self._mine(request.request_id, await self._client(context))
        open_still = answer is not None and answer.ending is None
        if answer is not None:
            self.heart.cancel(answer, message="cancelled by its client")
        return door.CancelReply(cancelled=open_still)

    async def Converse(  # noqa: N802
        self, request_iterator: AsyncIterator[door.ClientMessage], context: Any
    ) -> AsyncIterator[door.AnswerBatch]:
        """Many requests on one stream."""
        client = await self._client(context)
        audience = Audience(self.heart)
        reader = asyncio.create_task(self._hear(audience, request_iterator, client), name="conversation")
        try:
            while True:
                await audience.wake.wait()
                events = audience.collect()
                if events:
                    yield door.AnswerBatch(events=events)
                if reader.done() and not audience.at and not audience.ready:
                    if not reader.cancelled() and reader.exception() is not None:
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message could not be read")
                    return
                if not audience.ready:
                    await asyncio.sleep(self.heart.config.scheduling.tick_s)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            audience.close()

    async def _hear(
        self, audience: Audience, incoming: AsyncIterator[door.ClientMessage], client: Client
    ) -> None:
        """Take a client's messages; each submission is a task of its own, so that none waits for another."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for message in incoming:
                kind = message.WhichOneof("kind")
                if kind == "submit":
                    if len(audience.at) + len(tasks) >= self.heart.config.limits.streams_per_conversation:
                        audience.refuse(message.submit.request_id, ending("queue_full"))
                        continue
                    task = asyncio.create_task(self._submit(audience, message.submit, client))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                elif kind == "resume":
                    self._resume(audience, message.resume, client)
                elif kind == "cancel":
                    answer = self._mine(message.cancel.request_id, client)
                    if answer is not None:
                        self.heart.cancel(answer, message="cancelled by its client")
            while tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            audience.wake.set()

    async def _submit(self, audience: Audience, asked: door.SubmitRequest, client: Client) -> None:
        try:
            answer = await self.heart.submit(asked, client)
        except Refused as refused:
            audience.refuse(asked.request_id, refused.ending)
            return
        answer.resumable = True
        audience.follow(answer, int(asked.from_index))

    def _resume(self, audience: Audience, asked: door.ResumeRequest, client: Client) -> None:
        answer = self._mine(asked.request_id, client)
        if answer is None:
            audience.refuse(asked.request_id, ending("bad_request", "no such request, or it is too long ago"))
        else:
            self.heart.metrics.resumes.inc()
            audience.follow(answer, int(asked.from_index))

    async def _stream(self, answer: Answer, from_index: int, context: Any) -> AsyncIterator[door.AnswerEvent]:
        answer.resumable = True
        audience = Audience(self.heart)
        audience.follow(answer, from_index)
        try:
            while True:
                await audience.wake.wait()
                last = None
                for event in audience.collect():
                    yield event
                    last = event
                if last is not None and last.WhichOneof("kind") == "ending":
                    await self._fail(context, last.ending)
                    return
        finally:
            audience.close()

    def _mine(self, request_id: str, client: Client) -> Answer | None:
        return self.heart.by_id.get((client.tenant, request_id))

    async def _client(self, context: Any) -> Client:
        shown = metadata_of(context).get("authorization", "")
        client = self.heart.doorkeeper.client(shown if isinstance(shown, str) else "")
        if client is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid key is needed")
            raise AssertionError("abort raises")
        return client

    async def _fail(self, context: Any, how: wire.Ending) -> None:
        row = REASONS.get(how.reason)
        if row is not None and row.grpc is not grpc.StatusCode.OK:
            context.set_trailing_metadata((("x-windtunnel-reason", how.reason),))
            context.set_code(row.grpc)
            context.set_details(f"{how.reason}: {how.message}")
