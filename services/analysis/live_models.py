"""Models of live runs: what the API answers about what goes on now."""

from typing import Literal

from pydantic import BaseModel

from services.analysis.models import Number, Strict

Window = Literal["1m", "5m", "15m", "1h", "6h"]


class LiveTierOut(BaseModel):
    """One tier over the last stretch."""

    tier: str
    attainment: Number
    arrivals: Number
    ended: Number
    met: Number
    queued: Number
    in_flight: Number
    ttft_p50_s: Number
    ttft_p95_s: Number
    tpot_p95_s: Number
    e2e_p95_s: Number


class ReplayTierOut(BaseModel):
    """One tier of a run that is replayed, as its load generator counts it."""

    tier: str
    planned: float
    sent: float
    open: float
    scored: float
    met: float
    attainment: Number  # over scored requests that ended


class LiveReplayOut(BaseModel):
    """A run that a load generator replays, or has just replayed."""

    run: str
    scheduler: str
    window: str
    region: str
    speed: str
    running: bool
    valid: bool
    lag_p50_s: Number
    lag_p99_s: Number
    tiers: list[ReplayTierOut]
    warnings: list[str]


class LiveOut(BaseModel):
    """The testbed as Prometheus sees it."""

    window: str
    scheduler: str
    tiers: list[LiveTierOut]
    replays: list[LiveReplayOut]
    ends: list[tuple[str, str, float]]
    engines: dict[str, str]
    warnings: list[str]


class LivePointOut(BaseModel):
    """One tier at one time."""

    tier: str
    ago_s: float
    attained: Number
    rate: Number


class LiveLine(BaseModel):
    """The last stretch over time."""

    window: str
    points: list[LivePointOut]


class LiveQuery(Strict):
    """How far back."""

    window: Window = "5m"
