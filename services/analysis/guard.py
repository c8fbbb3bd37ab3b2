"""The guard: limits on bodies, security headers and one log line and count a request."""

import time
from collections.abc import Callable
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.analysis.gauges import Gauges
from services.dispatcher.logs import log

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SMALL_BODY = 1 << 20
"""Bytes of a body where no file is sent."""

UPLOADS = ("/traffic", "/api/traffic")


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, upload_bytes: int, gauges: Gauges) -> None:
        self.app, self.upload_bytes, self.gauges = app, upload_bytes, gauges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, measured and limited."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = _Call(scope, send, self.upload_bytes + SMALL_BODY if scope["path"] in UPLOADS else SMALL_BODY)
        begun_s = time.perf_counter()
        try:
            if call.told_bytes() > call.most:
                await call.refuse()
            else:
                await self.app(scope, call.receiving(receive), call.sending)
                if call.exceeded and not call.begun:
                    await call.refuse()
        finally:
            took_s = time.perf_counter() - begun_s
            route = scope.get("route")
            path = getattr(route, "path", "") or "other"
            self.gauges.answered(path, call.status, took_s)
            log.info(
                "request", method=scope["method"], route=path, status=call.status, took_s=round(took_s, 4)
            )


class _Call:
    """One request on its way."""

    def __init__(self, scope: Scope, send: Send, most: int) -> None:
        self.scope, self.send, self.most = scope, send, most
        self.status, self.size = 0, 0
        self.exceeded = self.begun = False

    def told_bytes(self) -> int:
        """The body's length as the client tells it, 0 if it does not."""
        told = dict(self.scope["headers"]).get(b"content-length", b"0")
        return int(told) if told.isdigit() and len(told) < 20 else 0

    def receiving(self, receive: Receive) -> Callable[[], Any]:
        """Return a receiver that hangs up once the body is over the limit."""

        async def limited() -> Message:
            if self.exceeded:
                return {"type": "http.disconnect"}
            message = await receive()
            self.size += len(message.get("body", b""))
            self.exceeded = self.size > self.most
            return {"type": "http.disconnect"} if self.exceeded else message

        return limited

    async def sending(self, message: Message) -> None:
        """Send with our headers; what is said to a body over the limit is dropped for our own words."""
        if self.exceeded and not self.begun:
            return
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            there = {name for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message["headers"], *(one for one in more if one[0] not in there)]
        await self.send(message)

    async def refuse(self) -> None:
        """Say that the body is too large."""
        self.exceeded = False
        told = {
            "code": "too_large",
            "message": f"over the limit of {self.most:,} bytes",
            "where": "the body",
            "fix": "send a part of the file, or use `windtunnel traces inspect`",
        }
        body = orjson.dumps({"error": told})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self.sending({"type": "http.response.start", "status": 413, "headers": headers})
        await self.sending({"type": "http.response.body", "body": body})
