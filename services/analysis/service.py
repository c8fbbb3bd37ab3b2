"""The service itself: every question that pages and API ask, answered off the event loop where it takes long."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from analysis.charts import Figure
from services.analysis import portability
from services.analysis.comparing import compare_runs, compare_studies
from services.analysis.config import AnalysisConfig
from services.analysis.kept import Kept
from services.analysis.live import Live, LivePoint, live_now, live_timeline
from services.analysis.models import (
    CompareOut,
    CompareQuery,
    MapOut,
    MapQuery,
    PairOut,
    PairQuery,
    RunDetail,
    RunPage,
    RunQuery,
    StudyOut,
    TiersOut,
    TrafficOut,
)
from services.analysis.prometheus import AwayError, Prometheus
from services.analysis.runs import detail, search, study_out
from services.analysis.shelf import Shelf, Study, fingerprint
from services.analysis.tiers import TierAnswer, asks_for_tiers, tier_answer, tiers_out
from services.analysis.traffic import Traffic, Upload

Part = TypeVar("Part")


class NotFoundError(Exception):
    """There is no such study, run, file or asset; the text says which."""


class Analysis:
    """What one process answers from; close it at the end."""

    def __init__(self, config: AnalysisConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.config = config
        self.shelf = Shelf(config.results)
        self.prometheus = Prometheus(config.prometheus, config.query_s, transport)
        self.traffic = Traffic(config)
        self.kept = Kept(config.kept, config.patience_s)
        self.failed_questions: Callable[[], None] = lambda: None

    async def close(self) -> None:
        """Let go of connections, and wait for threads."""
        await self.prometheus.close()
        await self.kept.close()

    async def studies(self) -> list[StudyOut]:
        """Return every study in numbers."""
        return await asyncio.to_thread(
            lambda: [study_out(self.shelf, one) for one in self.shelf.studies().values()]
        )

    async def runs(self, asked: RunQuery) -> RunPage:
        """Return a page of runs."""
        return await asyncio.to_thread(search, self.shelf, asked)

    async def run(self, named: str, run_id: str) -> RunDetail:
        """Return one run; raises NotFoundError, InputError."""
        study = await self.study(named)
        return await self._looked_up(f"no run {run_id!r} in {named}", detail, self.shelf, study, run_id)

    async def compare(self, asked: CompareQuery) -> CompareOut:
        """Return two studies or two runs held against each other; raises NotFoundError, InputError."""
        a, b = (one.partition("/") for one in (asked.a, asked.b))
        studies = [await self.study(one[0]) for one in (a, b)]
        if a[2] and b[2]:
            runs = ((studies[0], a[2]), (studies[1], b[2]))
            return await self._looked_up("no such run", compare_runs, self.shelf, *runs)
        if a[2] or b[2]:
            raise NotFoundError("name two studies, or two runs as STUDY/RUN")
        key = ("compare", *[await self._state(study) for study in studies])
        found: CompareOut = await self.kept.get(key, lambda: compare_studies(self.shelf, *studies))
        return found

    async def known(self, named: str, metric: str) -> tuple[Study, portability.Known]:
        """Return what is found out about a study; raises NotFoundError, InputError, WorkingError."""
        study = await self.study(named)
        key = ("known", await self._state(study), metric)
        return study, await self.kept.get(key, lambda: portability.learn(study, metric))

    async def maps(self, named: str, asked: MapQuery) -> MapOut:
        """Return matrices and reversals; raises as ``known`` does."""
        study, known = await self.known(named, asked.metric)
        return await asyncio.to_thread(portability.map_out, study, known, asked)

    async def map_figures(self, named: str, asked: MapQuery) -> tuple[Figure, ...]:
        """Return the same as charts."""
        _, known = await self.known(named, asked.metric)
        return await asyncio.to_thread(portability.figures_of, known, asked)

    async def pair(self, named: str, asked: PairQuery) -> PairOut:
        """Return two schedulers window by window; raises as ``known`` does."""
        study, known = await self.known(named, asked.metric)
        return await asyncio.to_thread(portability.pair_out, study, known, asked)

    async def tiers(self, named: str) -> TiersOut:
        """Return attainment by tier; raises NotFoundError, InputError, WorkingError."""
        study = await self.study(named)
        found: TiersOut = await self.kept.get(
            ("tiers", await self._state(study)), lambda: tiers_out(self.shelf, study)
        )
        return found

    async def tier_answer(self, named: str) -> TierAnswer | None:
        """Return how many tiers pay, None for a study that does not ask; raises as ``tiers`` does."""
        study = await self.study(named)
        if not await asyncio.to_thread(asks_for_tiers, study):
            return None
        found: TierAnswer = await self.kept.get(
            ("answer", await self._state(study)), lambda: tier_answer(study)
        )
        return found

    async def live(self, window: str) -> Live:
        """Return the testbed as it runs; raises AwayError."""
        found: Live = await self._asked(live_now, window)
        return found

    async def live_line(self, window: str) -> tuple[LivePoint, ...]:
        """Return the last stretch over time; raises AwayError."""
        found: tuple[LivePoint, ...] = await self._asked(live_timeline, window)
        return found

    async def places(self, run_ids: set[str]) -> dict[str, str]:
        """Return which of these runs are stored, and in which study."""
        runs = (await asyncio.to_thread(lambda: self.shelf.every_run(self.shelf.studies()))).runs
        found = runs[runs["run_id"].isin(run_ids)]
        return dict(zip(found["run_id"], found["study"], strict=True))

    async def described(self, file: str, source: str, columns: str) -> TrafficOut:
        """Return a file of the given folders in numbers; raises NotFoundError, InputError."""
        files = await asyncio.to_thread(self.traffic.files)
        path: Path | None = files.get(file)
        if path is None:
            raise NotFoundError(f"no traffic file {file!r} in the folders given")
        return TrafficOut.model_validate(await self.traffic.describe(path, source, columns, file))

    async def described_upload(self, upload: Upload, source: str, columns: str) -> TrafficOut:
        """Return a file that was sent in numbers; nothing of it is kept. Raises InputError."""
        async with self.traffic.received(upload) as (path, name):
            return TrafficOut.model_validate(await self.traffic.describe(path, source, columns, name))

    async def study(self, named: str) -> Study:
        """Return a study by its id; raises NotFoundError."""
        return await self._looked_up(f"no study {named!r}", self.shelf.study, named)

    async def _state(self, study: Study) -> tuple[str, int]:
        return study.id, hash(await asyncio.to_thread(fingerprint, study.folder))

    async def _looked_up(self, what: str, make: Callable[..., Part], *arguments: Any) -> Part:
        try:
            return await asyncio.to_thread(make, *arguments)
        except KeyError:
            raise NotFoundError(what) from None

    async def _asked(self, question: Callable[..., Any], window: str) -> Any:
        try:
            return await question(self.prometheus, window)
        except AwayError:
            self.failed_questions()
            raise
