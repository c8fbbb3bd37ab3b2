"""Live: what the dispatcher and the load generator tell Prometheus, put together a tier."""

import time
from typing import NamedTuple

from services.analysis.prometheus import Prometheus, Sample
from services.analysis.queries import POINTS, SECONDS, run_queries, tier_queries, timeline_queries


class LiveTier(NamedTuple):
    """One tier over the last stretch; None where nothing was measured."""

    tier: str
    attainment: float | None
    arrivals: float | None
    ended: float | None
    met: float | None
    queued: float | None
    in_flight: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    e2e_p95_s: float | None


class Live(NamedTuple):
    """The testbed as it runs; ``warnings`` are sentences, empty if all is well."""

    window: str
    scheduler: str
    tiers: tuple[LiveTier, ...]
    ends: tuple[tuple[str, str, float], ...]  # outcome, reason, how many
    engines: dict[str, str]  # engine -> state
    valid: bool | None  # the replay's verdict so far, None if none runs
    lag_p50_s: float | None
    lag_p99_s: float | None
    warnings: tuple[str, ...]


class LivePoint(NamedTuple):
    """One tier at one time."""

    tier: str
    ago_s: float
    attained: float | None
    rate: float | None


async def live_now(prometheus: Prometheus, window: str) -> Live:
    """Return the state of the testbed over the last ``window``; raises AwayError."""
    by_tier = await prometheus.now(tier_queries(window))
    whole = await prometheus.now(run_queries(window))
    columns = {
        name: {one.labels.get("tier", ""): one.value for one in samples} for name, samples in by_tier.items()
    }
    tiers = sorted(
        {tier for column in columns.values() for tier in column}, key=lambda tier: (len(tier), tier)
    )
    valid = [bool(one.value) for one in whole["valid"]]
    ends = [
        (one.labels.get("outcome", ""), one.labels.get("reason", ""), one.value)
        for one in whole["ends"]
        if one.value > 0
    ]
    return Live(
        window=window,
        scheduler=", ".join(sorted({one.labels.get("scheduler", "") for one in whole["build"]} - {""})),
        tiers=tuple(
            LiveTier(tier, **{name: column.get(tier) for name, column in columns.items()}) for tier in tiers
        ),
        ends=tuple(sorted(ends, key=lambda row: (-row[2], row[:2]))),
        engines={
            one.labels.get("engine", ""): one.labels.get("state", "")
            for one in sorted(whole["engines"], key=lambda one: one.labels.get("engine", ""))
        },
        valid=all(valid) if valid else None,
        lag_p50_s=_only(whole["lag_p50_s"]),
        lag_p99_s=_only(whole["lag_p99_s"]),
        warnings=_warnings({name: _only(whole[name]) for name in ("unsent", "journal_errors")}, valid),
    )


async def live_timeline(prometheus: Prometheus, window: str) -> tuple[LivePoint, ...]:
    """Return attainment and arrivals of each tier over the last ``window``; raises AwayError."""
    span_s = SECONDS[window]
    end_s = time.time()
    step_s = max(1.0, span_s / POINTS)
    told = await prometheus.over_time(timeline_queries(window), end_s - span_s, end_s, step_s)
    points: dict[tuple[str, float], dict[str, float]] = {}
    for name, listed in told.items():
        for one in listed:
            for at, value in one.points:
                points.setdefault((one.labels.get("tier", ""), round(end_s - at, 3)), {})[name] = value
    return tuple(
        LivePoint(tier, ago_s, values.get("attained"), values.get("rate"))
        for (tier, ago_s), values in sorted(points.items(), key=lambda item: (item[0][0], -item[0][1]))
    )


def _warnings(counts: dict[str, float | None], valid: list[bool]) -> tuple[str, ...]:
    told = []
    if valid and not all(valid):
        told.append("The replay is invalid: it does not keep its schedule, and its run will not be ranked.")
    if counts["unsent"] and valid:
        told.append(f"{counts['unsent']:,.0f} requests are not sent yet, or will not be.")
    if counts["journal_errors"]:
        told.append(f"{counts['journal_errors']:,.0f} records could not be written to the journal.")
    return tuple(told)


def _only(samples: tuple[Sample, ...]) -> float | None:
    return samples[0].value if samples else None
