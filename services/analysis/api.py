"""The JSON API: every answer typed, every refusal of one shape."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Path, Query, UploadFile

from services.analysis.live_models import LiveLine, LiveOut, LivePointOut, LiveQuery
from services.analysis.models import (
    CompareOut,
    CompareQuery,
    ErrorOut,
    MapOut,
    MapQuery,
    PairOut,
    PairQuery,
    RunDetail,
    RunPage,
    RunQuery,
    Studies,
    TableOut,
    TierAnswerOut,
    TiersOut,
    TrafficFiles,
    TrafficNamed,
    TrafficOut,
)
from services.analysis.service import Analysis, NotFoundError

StudyId = Annotated[str, Path(description="A study's id, from /api/studies", max_length=320)]
RunId = Annotated[str, Path(description="A run's id", max_length=64)]
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": says}
    for status, says in {
        400: "malformed",
        404: "no such thing",
        413: "too large",
        422: "a parameter is wrong, or the data is damaged",
        503: "Prometheus is away, or the answer is being made: ask again",
    }.items()
}


def api_routes(analysis: Analysis) -> APIRouter:
    """Return every route below /api."""
    router = APIRouter(prefix="/api", responses=REFUSALS)
    result_routes(router, analysis)
    live_routes(router, analysis)
    traffic_routes(router, analysis)
    return router


def result_routes(router: APIRouter, analysis: Analysis) -> None:
    """What lies in the results folders."""

    @router.get("/studies")
    async def studies() -> Studies:
        """Every folder of results."""
        return Studies(studies=await analysis.studies())

    @router.get("/runs")
    async def runs(asked: Annotated[RunQuery, Query()]) -> RunPage:
        """A page of runs, searched and filtered."""
        return await analysis.runs(asked)

    @router.get("/runs/{study}/{run_id}")
    async def run(study: StudyId, run_id: RunId) -> RunDetail:
        """One run: metrics, tiers, timeline, cautions."""
        return await analysis.run(study, run_id)

    @router.get("/compare")
    async def compare(asked: Annotated[CompareQuery, Query()]) -> CompareOut:
        """Two studies (ids) or two runs (STUDY/RUN) held against each other: b against a."""
        return await analysis.compare(asked)

    @router.get("/portability/{study}")
    async def maps(study: StudyId, asked: Annotated[MapQuery, Query()]) -> MapOut:
        """Agreement matrices and reversals along an axis."""
        return await analysis.maps(study, asked)

    @router.get("/portability/{study}/pair")
    async def pair(study: StudyId, asked: Annotated[PairQuery, Query()]) -> PairOut:
        """Two schedulers on every window of two conditions."""
        return await analysis.pair(study, asked)

    @router.get("/tiers/{study}")
    async def tiers(study: StudyId) -> TiersOut:
        """Attainment of each tier by scheduler and condition."""
        return await analysis.tiers(study)

    @router.get("/tiers/{study}/answer")
    async def answer(study: StudyId) -> TierAnswerOut:
        """How many tiers pay, of a study that asks; 404 for others."""
        found = await analysis.tier_answer(study)
        if found is None:
            raise NotFoundError(f"{study} does not ask how many tiers pay")
        tables = [
            TableOut(name=one.name, title=one.title, columns=list(one.columns), rows=one.shown())
            for one in found.tables
        ]
        return TierAnswerOut(sentences=list(found.sentences), facts=found.facts, tables=tables)


def live_routes(router: APIRouter, analysis: Analysis) -> None:
    """What Prometheus tells of a run that is on."""

    @router.get("/live")
    async def live(asked: Annotated[LiveQuery, Query()]) -> LiveOut:
        """Attainment, queues and latencies a tier over the last stretch."""
        return LiveOut.model_validate(await analysis.live(asked.window), from_attributes=True)

    @router.get("/live/line")
    async def line(asked: Annotated[LiveQuery, Query()]) -> LiveLine:
        """The same stretch over time."""
        points = await analysis.live_line(asked.window)
        rows = [LivePointOut.model_validate(one, from_attributes=True) for one in points]
        return LiveLine(window=asked.window, points=rows)


def traffic_routes(router: APIRouter, analysis: Analysis) -> None:
    """Traffic files in numbers."""

    @router.get("/traffic/files")
    async def files() -> TrafficFiles:
        """Files that may be pointed to."""
        files = sorted(await asyncio.to_thread(analysis.traffic.files))
        return TrafficFiles(files=files, upload_bytes=analysis.config.upload_bytes)

    @router.post("/traffic/named")
    async def named(asked: TrafficNamed) -> TrafficOut:
        """A file of the folders that were given."""
        return await analysis.described(asked.file, asked.source, asked.columns)

    @router.post("/traffic")
    async def upload(
        file: Annotated[UploadFile, File(description="The traffic file")],
        source: Annotated[str, Form(max_length=60)] = "auto",
        columns: Annotated[str, Form(max_length=1000)] = "",
    ) -> TrafficOut:
        """A file that is sent; nothing of it is kept."""
        return await analysis.described_upload(file, source, columns)
