"""Prometheus: its HTTP API asked with a limit on time, and every way in which it fails told as one error."""

import asyncio
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import httpx


class AwayError(Exception):
    """Prometheus is not configured, does not answer, or refuses the question; the text says which."""


class Sample(NamedTuple):
    """A series now: its labels and its value."""

    labels: Mapping[str, str]
    value: float


class Series(NamedTuple):
    """A series over time: (seconds since 1970, value) a point."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """One server; close it at the end."""

    def __init__(
        self, url: str, patience_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        self._client = httpx.AsyncClient(
            base_url=url, timeout=patience_s, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def now(self, queries: Mapping[str, str]) -> dict[str, tuple[Sample, ...]]:
        """Return the answer of each query by its name, samples that are no number left out; raises AwayError."""
        answers = await asyncio.gather(*(self._ask("query", {"query": one}) for one in queries.values()))
        return {
            name: tuple(
                Sample(one["metric"], float(one["value"][1]))
                for one in rows
                if isfinite(float(one["value"][1]))
            )
            for name, rows in zip(queries, answers, strict=True)
        }

    async def over_time(
        self, queries: Mapping[str, str], begin_s: float, end_s: float, step_s: float
    ) -> dict[str, tuple[Series, ...]]:
        """Return each query's series between two times, points that are no number left out; raises AwayError."""
        span = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        asked = [self._ask("query_range", {"query": one, **span}) for one in queries.values()]
        answers = await asyncio.gather(*asked)
        return {
            name: tuple(
                Series(
                    one["metric"],
                    tuple((float(at), float(v)) for at, v in one["values"] if isfinite(float(v))),
                )
                for one in rows
            )
            for name, rows in zip(queries, answers, strict=True)
        }

    async def _ask(self, what: str, form: dict[str, str]) -> list[Any]:
        if not self.url:
            raise AwayError("no Prometheus was named; start the service with --prometheus http://HOST:PORT")
        try:
            answer = await self._client.post(f"/api/v1/{what}", data=form)
            told = answer.json()
            if told["status"] != "success":
                raise AwayError(f"Prometheus refuses: {str(told.get('error', ''))[:200]}")
            return list(told["data"]["result"])
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise AwayError(f"Prometheus at {self.url} does not answer: {why}") from None
        except (ValueError, KeyError, TypeError):
            raise AwayError(f"what answers at {self.url} is no Prometheus") from None
