"""The pages: what the API tells, rendered here so that they work without a script."""

import asyncio
from collections.abc import Sequence
from math import log10
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from analysis.charts import TAU_STEPS, Figure
from analysis.one_run import Stretch, timeline_figures
from analysis.page import TEMPLATES, chart_script, environment, specs_json, stylesheet
from schedulers.errors import InputError
from services.analysis.live import LivePoint
from services.analysis.live_models import LiveQuery
from services.analysis.models import (
    CompareQuery,
    ErrorBody,
    MapQuery,
    PairQuery,
    RunDetail,
    RunQuery,
)
from services.analysis.prometheus import AwayError
from services.analysis.queries import POINTS, SECONDS, WINDOWS
from services.analysis.service import Analysis, NotFoundError

OWN = FilePath(__file__).parent / "templates"
DAY_S = 86_400


class Pages:
    """The templates, and what they all share."""

    def __init__(self, version: str) -> None:
        self.templates = environment(beside=(OWN,))
        self.templates.globals |= {"version": version, "address": address, "tau_class": tau_class}
        self.templates.filters |= {"cell": cell, "bytes": in_bytes, "percent": percent}

    def show(
        self, name: str, values: dict[str, Any], figures: Sequence[Figure] = (), status: int = 200
    ) -> HTMLResponse:
        """Return a page; ``figures`` are drawn by the script."""
        specs = specs_json(figures) if figures else ""
        text = self.templates.get_template(name).render(figures=figures, specs=specs, **values)
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    def failure(self, status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
        """Return a page about an error; one that is only a matter of waiting asks again by itself."""
        shown = 202 if body.code == "working" else status
        page = self.show("error.html.j2", {"error": body}, status=shown)
        page.headers.update(headers or {})
        return page


def address(path: str, /, **asked: Any) -> str:
    """Return a path with the query that is not empty."""
    told = {name: value for name, value in asked.items() if value not in ("", None)}
    return f"{path}?{urlencode(told)}" if told else path


def tau_class(value: float | None) -> str:
    """Return the class of a cell of an agreement: t1 disagrees to t8 agrees."""
    if value is None:
        return "flat"
    return f"t{1 + sum(value >= step for step in TAU_STEPS)}"


def cell(value: Any) -> str:
    """Return a number of a table: a dash where undefined, whole numbers whole, others with four digits."""
    if value is None:
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}".replace("-", "−")
    digits = max(0, 3 - int(log10(abs(value)) // 1)) if value else 0
    return f"{value:,.{min(digits, 9)}f}".replace("-", "−")


def percent(value: float | None) -> str:
    """Return a relative change with its sign, a dash where undefined."""
    return "–" if value is None else f"{value:+.1%}".replace("-", "−")


def in_bytes(count: float) -> str:
    """Return a size in MiB or KiB."""
    return f"{count / (1 << 20):,.0f} MiB" if count >= 1 << 20 else f"{count / 1024:,.0f} KiB"


def page_routes(analysis: Analysis, pages: Pages) -> APIRouter:
    """Return every page."""
    router = APIRouter(include_in_schema=False)
    asset_routes(router)
    run_pages(router, analysis, pages)
    live_page(router, analysis, pages)
    study_pages(router, analysis, pages)
    traffic_pages(router, analysis, pages)
    return router


def asset_routes(router: APIRouter) -> None:
    """Style and scripts: made of what ships, nothing is read by name from a disk."""
    scripts = {"live.js": TEMPLATES / "live.js", "app.js": OWN / "app.js"}

    @router.get("/assets/{name}")
    async def asset(name: str) -> Response:
        if name == "style.css":
            text = stylesheet() + (OWN / "app.css").read_text(encoding="utf-8")
            media = "text/css"
        elif name == "vega.js":
            text, media = await asyncio.to_thread(chart_script), "text/javascript"
        elif name in scripts:
            text, media = scripts[name].read_text(encoding="utf-8"), "text/javascript"
        else:
            raise NotFoundError("no such asset")
        return Response(text, media_type=media, headers={"cache-control": f"public, max-age={DAY_S}"})

    @router.get("/favicon.ico")
    async def icon() -> Response:
        return Response(status_code=204, headers={"cache-control": f"public, max-age={DAY_S}"})


def run_pages(router: APIRouter, analysis: Analysis, pages: Pages) -> None:
    """The list of runs, and one run."""

    @router.get("/")
    async def runs(asked: Annotated[RunQuery, Query()]) -> Response:
        studies = await analysis.studies()
        found = await analysis.runs(asked)
        return pages.show("runs.html.j2", {"studies": studies, "found": found, "asked": asked})

    @router.get("/runs/{study}/{run_id}")
    async def run(study: str, run_id: str) -> Response:
        found = await analysis.run(study, run_id)
        drawn = await asyncio.to_thread(run_figures, found)
        return pages.show("run.html.j2", {"found": found}, drawn)


def run_figures(found: RunDetail) -> tuple[Figure, ...]:
    """Return a run's timeline as charts."""
    stretches = [
        Stretch(one.begin_s, one.end_s, tuple(one.arrivals), tuple(one.attained), one.open)
        for one in found.timeline
    ]
    return timeline_figures(stretches, [one.name for one in found.tiers])


def live_page(router: APIRouter, analysis: Analysis, pages: Pages) -> None:
    """The testbed as it runs."""

    @router.get("/now")
    async def now(asked: Annotated[LiveQuery, Query()]) -> Response:
        told, away, lines, stored = None, "", {}, {}
        try:
            told = await analysis.live(asked.window)
            points = await analysis.live_line(asked.window)
            lines = sparks(points, SECONDS[asked.window])
            stored = await analysis.places({one.run for one in told.replays})
        except AwayError as error:
            away = str(error)
        shown: dict[str, Any] = {"told": told, "away": away, "lines": lines, "stored": stored}
        shown |= {"asked": asked, "windows": WINDOWS}
        return pages.show("now.html.j2", shown)


class Spark(NamedTuple):
    """Lines of 600 by 100, in pieces where nothing was told between: (tier, points), and the top edge's value."""

    lines: list[tuple[str, list[str]]]
    top: float


def sparks(points: Sequence[LivePoint], span_s: float) -> dict[str, Spark]:
    """Return attainment and arrivals over time as lines, drawn without a script."""
    found = {}
    for field in ("attained", "rate"):
        known = [
            (one.tier, one.ago_s, getattr(one, field)) for one in points if getattr(one, field) is not None
        ]
        top = 1.0 if field == "attained" else max((value for _, _, value in known), default=0.0) or 1.0
        lines = []
        for tier in sorted({tier for tier, _, _ in known}):
            own = [(1 - ago_s / span_s, 1 - value / top) for at, ago_s, value in known if at == tier]
            pieces: list[list[str]] = []
            for place, (x, y) in enumerate(own):
                if not place or x - own[place - 1][0] > 1.5 / POINTS:
                    pieces.append([])
                pieces[-1].append(f"{600 * x:.1f},{100 * y:.1f}")
            lines.append((tier, [" ".join(piece * 2 if len(piece) == 1 else piece) for piece in pieces]))
        found[field] = Spark(lines, top)
    return found


def study_pages(router: APIRouter, analysis: Analysis, pages: Pages) -> None:
    """Pages about whole studies: compare, portability, tiers."""

    @router.get("/compare")
    async def compare(asked: Annotated[CompareQuery, Query()]) -> Response:
        studies = await analysis.studies()
        found = await analysis.compare(asked) if asked.a and asked.b else None
        return pages.show("compare.html.j2", {"studies": studies, "found": found, "asked": asked})

    @router.get("/portability")
    async def portability() -> Response:
        return pages.show("studies.html.j2", {"studies": await analysis.studies(), "place": "portability"})

    @router.get("/portability/{study}")
    async def maps(study: str, asked: Annotated[MapQuery, Query()]) -> Response:
        found = await analysis.maps(study, asked)
        drawn = await analysis.map_figures(study, asked)
        return pages.show("portability.html.j2", {"found": found, "asked": asked}, drawn)

    @router.get("/portability/{study}/pair")
    async def pair(study: str, asked: Annotated[PairQuery, Query()]) -> Response:
        return pages.show("pair.html.j2", {"found": await analysis.pair(study, asked), "asked": asked})

    @router.get("/tiers")
    async def tiers() -> Response:
        return pages.show("studies.html.j2", {"studies": await analysis.studies(), "place": "tiers"})

    @router.get("/tiers/{study}")
    async def tiers_of(study: str) -> Response:
        answer = await analysis.tier_answer(study)
        if answer is not None:
            shown = {"study": study, "answer": answer}
            return pages.show("tier_answer.html.j2", shown, answer.figures)
        return pages.show("tiers.html.j2", {"found": await analysis.tiers(study)})


def traffic_pages(router: APIRouter, analysis: Analysis, pages: Pages) -> None:
    """A traffic file in numbers."""

    async def shown(values: dict[str, Any], status: int = 200) -> Response:
        files = sorted(await asyncio.to_thread(analysis.traffic.files))
        usual = {"found": None, "error": None, "source": "auto", "columns": "", "file": ""}
        here = {"files": files, "most": analysis.config.upload_bytes}
        return pages.show("traffic.html.j2", usual | here | values, status=status)

    @router.get("/traffic")
    async def traffic() -> Response:
        return await shown({})

    @router.post("/traffic")
    async def describe(
        request: Request,
        upload: UploadFile | None = None,
        file: Annotated[str, Form(max_length=1000)] = "",
        source: Annotated[str, Form(max_length=60)] = "auto",
        columns: Annotated[str, Form(max_length=1000)] = "",
    ) -> Response:
        asked: dict[str, Any] = {"source": source, "columns": columns, "file": file}
        try:
            if upload is not None and upload.filename:
                found = await analysis.described_upload(upload, source, columns)
            elif file:
                found = await analysis.described(file, source, columns)
            else:
                raise InputError("no file", where="the form", fix="choose a file to send, or one of the list")
        except InputError as error:
            wrong = ErrorBody(code="bad_data", message=error.what, where=error.where, fix=error.fix)
            return await shown(asked | {"error": wrong}, 422)
        return await shown(asked | {"found": found})
