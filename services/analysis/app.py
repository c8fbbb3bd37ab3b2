"""The application: routes, errors in one shape, health and metrics."""

import asyncio
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response

from schedulers.errors import InputError
from services.analysis.api import api_routes
from services.analysis.gauges import Gauges
from services.analysis.guard import Guard
from services.analysis.kept import WorkingError
from services.analysis.models import ErrorBody
from services.analysis.pages import Pages, page_routes
from services.analysis.prometheus import AwayError
from services.analysis.runs import shown
from services.analysis.service import Analysis, NotFoundError
from services.dispatcher.logs import log

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AGAIN_S = 3


class Door:
    """Whether requests may come, which falls first when the service stops."""

    def __init__(self) -> None:
        self.open = True


def our_version() -> str:
    """Return the installed version, "unknown" from a bare tree."""
    try:
        return installed("windtunnel")
    except PackageNotFoundError:
        return "unknown"


def application(analysis: Analysis, door: Door | None = None) -> FastAPI:
    """Return the whole application."""
    version, door = our_version(), door or Door()
    gauges = Gauges(version)
    gauges.keeps(lambda: len(analysis.kept))
    analysis.failed_questions = gauges.away
    app = FastAPI(title="Windtunnel analysis", version=version, docs_url=None, redoc_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=1024)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(analysis.config.names), www_redirect=False)
    app.add_middleware(Guard, upload_bytes=analysis.config.upload_bytes, gauges=gauges)
    pages = Pages(version)
    app.include_router(api_routes(analysis))
    app.include_router(page_routes(analysis, pages))
    status_routes(app, analysis, door, gauges)
    error_handlers(app, analysis, pages)
    return app


def status_routes(app: FastAPI, analysis: Analysis, door: Door, gauges: Gauges) -> None:
    """Health under the names of the other services and under those that orchestrators look for; metrics."""

    async def live() -> dict[str, bool]:
        return {"live": True}

    async def ready() -> Response:
        gone = [folder.name for folder in analysis.config.results if not folder.is_dir()]
        why = "stopping" if not door.open else f"no folder {', '.join(gone)}" if gone else ""
        return JSONResponse({"ready": not why, "why": why}, 503 if why else 200)

    for path in ("/live", "/healthz"):
        app.get(path, include_in_schema=False)(live)
    for path in ("/ready", "/health", "/readyz"):
        app.get(path, include_in_schema=False)(ready)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(generate_latest, gauges.registry), media_type=METRICS_TYPE)


def error_handlers(app: FastAPI, analysis: Analysis, pages: Pages) -> None:
    """Turn every failure into one shape: JSON for the API, a page for people."""

    def answer(
        request: Request, status: int, body: ErrorBody, headers: dict[str, str] | None = None
    ) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": body.model_dump()}, status, headers)
        return pages.failure(status, body, headers)

    @app.exception_handler(InputError)
    async def bad_data(request: Request, error: InputError) -> Response:
        words = [shown(part, analysis.shelf) for part in (error.what, error.where, error.fix)]
        body = ErrorBody(code="bad_data", message=words[0], where=words[1], fix=words[2])
        return answer(request, 422, body)

    @app.exception_handler(NotFoundError)
    async def not_found(request: Request, error: NotFoundError) -> Response:
        return answer(request, 404, ErrorBody(code="not_found", message=str(error)))

    @app.exception_handler(AwayError)
    async def away(request: Request, error: AwayError) -> Response:
        body = ErrorBody(
            code="prometheus_away", message=str(error), fix="start it, or name it by --prometheus"
        )
        return answer(request, 503, body)

    @app.exception_handler(WorkingError)
    async def working(request: Request, error: WorkingError) -> Response:
        headers = {"retry-after": str(AGAIN_S)}
        body = ErrorBody(
            code="working", message="This is being worked out.", fix="ask again in a few seconds"
        )
        return answer(request, 503, body, headers)

    @app.exception_handler(RequestValidationError)
    async def misused(request: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = dict(error.errors()[0]) if error.errors() else {}
        where = ".".join(str(part) for part in first.get("loc", ()))
        body = ErrorBody(code="bad_request", message=str(first.get("msg", "malformed")), where=where)
        return answer(request, 422, body)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        body = ErrorBody(code=code, message=str(error.detail))
        return answer(request, error.status_code, body, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def our_fault(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, error=type(error).__name__, what=str(error)[:200])
        return answer(
            request, 500, ErrorBody(code="internal", message="This is our fault; the log says more.")
        )
