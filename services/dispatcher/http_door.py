"""The HTTP doors: the OpenAI API for clients, health and metrics for operators."""

import asyncio
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services.dispatcher.admin import admin_routes, worker_rows
from services.dispatcher.completions import Completions, Whole, fault, json, refused
from services.dispatcher.description import describe
from services.dispatcher.gauges import bring_up_to_date, scrape_targets
from services.dispatcher.intake import Client, Refusal
from services.dispatcher.logs import log
from services.dispatcher.reasons import ending
from services.dispatcher.scaling import scaling_routes
from services.dispatcher.sse import HttpAnswer

if TYPE_CHECKING:
    from services.dispatcher.process import Parts

CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def application(parts: "Parts") -> Completions:
    """Every route of one dispatcher; completions go past the routes' machinery."""
    app = FastAPI(title="Windtunnel dispatcher", docs_url=None, redoc_url=None, openapi_url=None)
    client_routes(app, parts)
    status_routes(app, parts)
    admin_routes(app, parts)
    scaling_routes(app, parts)

    @app.exception_handler(Exception)
    async def our_fault(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, error=type(error).__name__, what=str(error)[:200])
        return refused(ending("internal"))

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        code = CODES.get(error.status_code, "bad_request")
        headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
        return fault(code, str(error.detail), error.status_code, headers)

    return Completions(parts, app)


def client_routes(app: FastAPI, parts: "Parts") -> None:
    """The OpenAI API beside completions, and the rest of a stream."""
    heart = parts.heart

    def client_of(request: Request) -> Client:
        client = heart.doorkeeper.client(request.headers.get("authorization", ""))
        if client is None:
            raise HTTPException(401, "a valid key is needed", {"www-authenticate": "Bearer"})
        return client

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
