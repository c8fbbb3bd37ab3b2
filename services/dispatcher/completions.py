"""Completions over HTTP, straight from the server to the heart: routes and middleware cost more than an answer."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.dispatcher.answer import Refused
from services.dispatcher.bodies import submission
from services.dispatcher.intake import Refusal
from services.dispatcher.logs import log
from services.dispatcher.reasons import REASONS, ending
from services.dispatcher.sse import HttpAnswer, error_body, error_headers
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.process import Parts

CHAT = {"/v1/completions": False, "/v1/chat/completions": True}
"""The paths that are served here, and whether each is a chat."""


class LeftError(Exception):
    """The client was gone before its request was whole."""


class Whole(Response):
    """A response made by ``HttpAnswer``, in the form that routes return."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__()
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the answer speak."""
        await self.answer(scope, receive, send)


def json(content: Any, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> Response:
    """A JSON response."""
    response = Response(orjson.dumps(content), status, media_type="application/json")
    response.raw_headers.extend(headers or [])
    return response


def fault(code: str, message: str, status: int, headers: list[tuple[bytes, bytes]] | None = None) -> Response:
    """An error that is no request's ending."""
    body = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return json({"error": body}, status, headers)


def refused(how: wire.Ending, status: int = 0) -> Response:
    """An ending as an error response."""
    return json(error_body(how), status or REASONS[how.reason].http, error_headers(how))


async def body_of(receive: Receive, most: int, patience_s: float) -> bytes:
    """The body; raises Refusal where it is longer than the limit or comes too slowly, LeftError if it ends early."""
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(patience_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise LeftError
                parts.append(message.get("body", b""))
                size, more = size + len(parts[-1]), message.get("more_body", False)
                if size > most:
                    raise Refusal("bad_request", f"the body is over limits.body_bytes = {most}")
    except TimeoutError:
        why = f"the body took over timeouts.idle_connection_s = {patience_s:g}"
        raise Refusal("bad_request", why) from None
    return b"".join(parts)


class Completions:
    """An ASGI application: completions are its own, everything else goes to ``routes``."""

    def __init__(self, parts: "Parts", routes: ASGIApp) -> None:
        self.heart, self.config, self.routes = parts.heart, parts.config, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        chat = CHAT.get(scope.get("path", "")) if scope["type"] == "http" else None
        if chat is None:
            await self.routes(scope, receive, send)
            return
        try:
            response = await self._answered(scope, receive, chat)
        except LeftError:
            return
        except Exception as error:
            what = str(error)[:200]
            log.error("request failed", path=scope["path"], error=type(error).__name__, what=what)
            response = refused(ending("internal"))
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, chat: bool) -> "Response | HttpAnswer":
        if scope["method"] != "POST":
            return fault("bad_request", "Method Not Allowed", 405, [(b"allow", b"POST")])
        headers = headers_of(scope)
        client = self.heart.doorkeeper.client(headers.get("authorization", ""))
        if client is None:
            shown = [(b"www-authenticate", b"Bearer")]
            return fault("unauthorized", "a valid key is needed", 401, shown)
        limits, timeouts = self.config.limits, self.config.timeouts
        try:
            raw = await body_of(receive, limits.body_bytes, timeouts.idle_connection_s)
            asked, body = submission(raw, chat, headers, self.config, client)
            answer = await self.heart.submit(asked, client)
        except Refused as refusal:
            too_big = "limits.body_bytes" in refusal.ending.message
            return refused(refusal.ending, 413 if too_big else 0)
        resumable = headers.get("x-windtunnel-resumable") == "1"
        answer.resumable = answer.resumable or resumable
        start = 0 if resumable or headers.get("x-windtunnel-offsets") == "1" else None
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return HttpAnswer(self.heart, answer, stream=bool(body.stream), usage=usage, from_index=start)


def headers_of(scope: Scope) -> Mapping[str, str]:
    """The headers, names in lower case; of one that is repeated, the first."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
