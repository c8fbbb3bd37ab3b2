"""Answers over HTTP: streams as server-sent events, framed by hand, and whole ones as JSON.

Starlette's streaming response runs a task group a stream; ours is one loop and one plain task that watches for
the client's leaving (reference/live.md section 6: 3,000 streams a second against 1,000).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import orjson

from services.dispatcher.answer import Answer
from services.dispatcher.reasons import REASONS
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CONNECTION = "windtunnel.connection"
"""In an ASGI scope: who calls ``lost`` when the client goes."""

DONE = b"data: [DONE]\n\n"
TAIL = b',"logprobs":null,"finish_reason":null}]}\n\n'
UNBUFFERED = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class Ear:
    """Hears one answer for one HTTP response."""

    __slots__ = ("gone", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.gone = False

    def notify(self, answer: Answer) -> None:
        """It has grown or ended."""
        self.wake.set()

    def left(self) -> None:
        """The client has gone."""
        self.gone = True
        self.wake.set()


def error_body(how: wire.Ending) -> dict[str, Any]:
    """An error as OpenAI clients read it; ``code`` is our reason."""
    status = REASONS[how.reason].http
    kind = (
        "invalid_request_error" if status == 400 else "rate_limit_error" if status == 429 else "server_error"
    )
    return {"error": {"message": how.message, "type": kind, "code": how.reason, "param": None}}


def error_headers(how: wire.Ending) -> list[tuple[bytes, bytes]]:
    """Reason and, where trying again can help, when."""
    headers = [(b"x-windtunnel-reason", how.reason.encode())]
    if REASONS[how.reason].retry:
        wait_s = max(1, round(how.retry_after_s + 0.499)) if how.HasField("retry_after_s") else 1
        headers.append((b"retry-after", str(wait_s).encode()))
    return headers


def usage_of(answer: Answer) -> dict[str, int]:
    """Tokens in and out; the engine's own count of the prompt once it has said it."""
    prompt = answer.ending.prompt_tokens if answer.ending else answer.prompt_tokens
    made = len(answer.tokens)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


class HttpAnswer:
    """An ASGI response that carries one answer, streamed or whole."""

    def __init__(
        self, heart: "Dispatcher", answer: Answer, *, stream: bool, usage: bool, from_index: int | None = None
    ) -> None:
        self.heart, self.answer, self.stream, self.usage = heart, answer, stream, usage
        self.numbered = from_index is not None  # by `id:` lines, which break `vllm bench serve`: for who asks
        self.at = from_index or 0
        chat = answer.submission.chat
        self.object = "chat.completion" if chat else "text_completion"
        self.head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{answer.request_id}",
            "object": "chat.completion.chunk" if chat and stream else self.object,
            "created": int(time.time()),
            "model": answer.submission.model or "windtunnel",
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer, and leave the request to its fate (``Dispatcher.left``) if the client goes."""
        ear = Ear()
        self.heart.listen(self.answer, ear, self.at)
        ear.wake.set()
        connection = scope.get(CONNECTION)
        watcher: asyncio.Task[None] | None = None
        if connection is not None:
            connection.lost = ear.left
        else:  # a server that does not tell
            watcher = asyncio.create_task(self._watch(receive, ear), name="watch client")
        try:
            await (self._streamed(send, ear) if self.stream else self._whole(send, ear))
        finally:
            if connection is not None:
                connection.lost = None
            if watcher is not None:
                watcher.cancel()
            self.heart.leave(self.answer, ear)

    async def _watch(self, receive: Receive, ear: Ear) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        ear.left()

    def _headers(self, content: bytes) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", content),
            (b"x-request-id", self.answer.request_id.encode()),
            (b"x-windtunnel-tier", str(self.answer.submission.tier).encode()),
        ]

    async def _whole(self, send: Send, ear: Ear) -> None:
        """One JSON body, once the answer has ended."""
        answer = self.answer
        while answer.ending is None:
            await ear.wake.wait()
            ear.wake.clear()
            self.heart.taken(answer, len(answer.tokens))
            if ear.gone:
                return
        how = answer.ending
        if how.outcome != wire.OUTCOME_FINISHED:
            await self._refuse(send, how)
            return
        text = answer.text_from(0)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": how.reason}
        if answer.submission.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        body = orjson.dumps({**self.head, "choices": [choice], "usage": usage_of(answer)})
        headers = [*self._headers(b"application/json"), (b"x-windtunnel-reason", how.reason.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _refuse(self, send: Send, how: wire.Ending) -> None:
        headers = [*self._headers(b"application/json"), *error_headers(how)]
        await send({"type": "http.response.start", "status": REASONS[how.reason].http, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(error_body(how))})

    async def _streamed(self, send: Send, ear: Ear) -> None:
        """Events as tokens come; the status waits for the first token, so that what fails before it has its own."""
        answer, started = self.answer, False
        before, after = self._frame()
        while True:
            await ear.wake.wait()
            ear.wake.clear()
            if ear.gone:
                return
            have, how, body = len(answer.tokens), answer.ending, bytearray()
            if not started and (have > self.at or how is not None):
                if how is not None and have <= self.at and how.outcome != wire.OUTCOME_FINISHED:
                    await self._refuse(send, how)
                    return
                started = True
                headers = [*self._headers(b"text/event-stream; charset=utf-8"), *UNBUFFERED]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                if answer.submission.chat and self.at == 0:
                    body += framed(self._chunk({"role": "assistant", "content": ""}, None))
            if have > self.at:
                text = orjson.dumps("".join(answer.pieces[self.at : have]))
                body += b"id: %d\n" % have if self.numbered else b""
                body += b"data: %b%b%b" % (before, text, after)
                self.at = have
            last = how is not None and have >= len(answer.tokens)
            if how is not None and last:
                body += self._finish(how)
            if body:
                await send({"type": "http.response.body", "body": bytes(body), "more_body": not last})
                self.heart.taken(answer, have)  # only now: until then the client had not taken it
            if last:
                return

    def _frame(self) -> tuple[bytes, bytes]:
        """What stands before and after the text in every event of this stream."""
        head = orjson.dumps(self.head)[:-1]
        if self.answer.submission.chat:
            return head + b',"choices":[{"index":0,"delta":{"content":', b"}" + TAIL
        return head + b',"choices":[{"index":0,"text":', TAIL

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self.answer.submission.chat:
            choice["delta"] = delta
        else:
            choice["text"] = ""
        return {**self.head, "choices": [choice]}

    def _finish(self, how: wire.Ending) -> bytes:
        """The reason, the usage if it was asked for, and [DONE]; or an error, and no [DONE]."""
        if how.outcome != wire.OUTCOME_FINISHED:
            return framed(error_body(how))
        usage = framed({**self.head, "choices": [], "usage": usage_of(self.answer)}) if self.usage else b""
        return framed(self._chunk({}, how.reason)) + usage + DONE


def framed(body: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: %b\n\n" % orjson.dumps(body)
