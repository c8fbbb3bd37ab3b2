"""The HTTP doors: the OpenAI API for clients, health and metrics for operators."""

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.dispatcher.admin import admin_routes, worker_rows
from services.dispatcher.answer import Refused
from services.dispatcher.bodies import submission
from services.dispatcher.description import describe
from services.dispatcher.gauges import bring_up_to_date, scrape_targets
from services.dispatcher.intake import Client, Refusal
from services.dispatcher.logs import log
from services.dispatcher.reasons import REASONS, ending
from services.dispatcher.sse import HttpAnswer, error_body, error_headers
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.process import Parts

CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Whole(Response):
    """A response made by ``HttpAnswer``: FastAPI hands it through as it is."""

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


def refused(how: wire.Ending, status: int = 0) -> Response:
    """An ending as an error response."""
    return json(error_body(how), status or REASONS[how.reason].http, error_headers(how))


async def body_of(request: Request, most: int, patience_s: float) -> bytes:
    """The body, or Refusal where it is longer than the limit or comes too slowly."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(patience_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refusal("bad_request", f"the body is over limits.body_bytes = {most}")
                parts.append(part)
    except TimeoutError:
        raise Refusal(
            "bad_request", f"the body took over timeouts.idle_connection_s = {patience_s:g}"
        ) from None
    return b"".join(parts)


def application(parts: "Parts") -> FastAPI:
    """Every route of one dispatcher."""
    app = FastAPI(title="Windtunnel dispatcher", docs_url=None, redoc_url=None, openapi_url=None)
    client_routes(app, parts)
    status_routes(app, parts)
    admin_routes(app, parts)

    @app.exception_handler(Exception)
    async def our_fault(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, error=type(error).__name__, what=str(error)[:200])
        return refused(ending("internal"))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        code = CODES.get(error.status_code, "bad_request")
        body = {"message": str(error.detail), "type": "invalid_request_error", "code": code, "param": None}
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        return json({"error": body}, error.status_code, headers)

    return app


def client_routes(app: FastAPI, parts: "Parts") -> None:
    """The OpenAI API, and the rest of a stream."""
    heart, config = parts.heart, parts.config

    def client_of(request: Request) -> Client:
        client = heart.doorkeeper.client(request.headers.get("authorization", ""))
        if client is None:
            raise HTTPException(401, "a valid key is needed", {"www-authenticate": "Bearer"})
        return client

    async def answered(request: Request, chat: bool) -> Response:
        client = client_of(request)
        try:
            raw = await body_of(request, config.limits.body_bytes, config.timeouts.idle_connection_s)
            asked, body = submission(raw, chat, request.headers, config, client)
            answer = await heart.submit(asked, client)
        except Refused as refusal:
            too_big = "limits.body_bytes" in refusal.ending.message
            return refused(refusal.ending, 413 if too_big else 0)
        answer.resumable = answer.resumable or request.headers.get("x-windtunnel-resumable") == "1"
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return Whole(HttpAnswer(heart, answer, stream=bool(body.stream), usage=usage))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answered(request, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answered(request, chat=True)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        client_of(request)
        names = sorted({worker.said.model or "windtunnel" for worker in parts.links.workers.values()})
        rows = [
            {"id": name, "object": "model", "created": int(parts.born_s), "owned_by": "windtunnel"}
            for name in names or ["windtunnel"]
        ]
        return json({"object": "list", "data": rows})

    @app.get("/v1/streams/{request_id}")
    async def resume(request: Request, request_id: str) -> Response:
        """The rest of a stream from the token index in Last-Event-ID (0 without it)."""
        answer = heart.by_id.get((client_of(request).tenant, request_id))
        if answer is None:
            raise HTTPException(404, "no such stream, or it is too long ago")
        last = request.headers.get("last-event-id", "0")
        if not last.isascii() or not last.isdigit() or len(last) > 9:
            return refused(Refusal("bad_request", "Last-Event-ID: a token index").ending)
        answer.resumable = True
        heart.metrics.resumes.inc()
        return Whole(HttpAnswer(heart, answer, stream=True, usage=False, from_index=int(last)))


def status_routes(app: FastAPI, parts: "Parts") -> None:
    """Health, metrics, who is here."""
    heart = parts.heart

    @app.get("/live")
    async def live() -> Response:
        return json({"live": True})

    async def ready() -> Response:
        why = parts.not_ready()
        return json({"ready": not why, "why": why}, 503 if why else 200)

    app.get("/ready")(ready)
    app.get("/health")(ready)

    @app.get("/metrics")
    async def metrics() -> Response:
        bring_up_to_date(parts)
        text = await asyncio.to_thread(generate_latest, heart.metrics.registry)  # 28 ms a thousand series
        return Response(text, media_type=METRICS_TYPE)

    @app.get("/openapi.json")
    async def description() -> Response:
        return json(describe(parts.version, len(parts.config.tiers), parts.config.limits.output_tokens))

    @app.get("/version")
    async def version() -> Response:
        return json({"version": parts.version, "scheduler": heart.scheduler.name, "epoch": parts.epoch})

    @app.get("/workers")
    async def workers() -> Response:
        return json({"workers": worker_rows(parts)})

    @app.get("/targets")
    async def targets() -> Response:
        """Prometheus' http_sd."""
        return json(scrape_targets(parts))
