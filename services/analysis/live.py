"""Live: what the dispatcher and the load generator tell Prometheus, put together a tier."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from services.analysis.prometheus import Prometheus, Sample
from services.analysis.queries import (
    POINTS,
    SECONDS,
    replay_queries,
    run_queries,
    tier_queries,
    timeline_queries,
)


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


class ReplayTier(NamedTuple):
    """One tier of a run that is replayed, as its load generator counts it; ``attainment`` is over scored requests."""

    tier: str
    planned: float
    sent: float
    open: float
    scored: float
    met: float
    attainment: float | None


class LiveReplay(NamedTuple):
    """A run that a load generator replays, or has just replayed."""

    run: str
    scheduler: str
    window: str
    region: str
    speed: str
    running: bool
    valid: bool
    lag_p50_s: float | None
    lag_p99_s: float | None
    tiers: tuple[ReplayTier, ...]
    warnings: tuple[str, ...]  # sentences, empty if all is well


class Live(NamedTuple):
    """The testbed as it runs; ``warnings`` are about the dispatcher, those about a replay stand with it."""

    window: str
    scheduler: str
    tiers: tuple[LiveTier, ...]
    replays: tuple[LiveReplay, ...]
    ends: tuple[tuple[str, str, float], ...]  # outcome, reason, how many
    engines: dict[str, str]  # engine -> state
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
        replays=await replays_now(prometheus),
        warnings=tuple(
            f"{one.value:,.0f} records could not be written to the journal."
            for one in whole["journal_errors"]
            if one.value
        ),
    )


async def replays_now(prometheus: Prometheus) -> tuple[LiveReplay, ...]:
    """Return the runs that load generators tell of, those that go on first; raises AwayError."""
    told = await prometheus.now(replay_queries())
    replays = [_replay(one.labels, told) for one in told["info"]]
    return tuple(sorted(replays, key=lambda one: (not one.running, one.run)))


def _replay(labels: Mapping[str, str], told: Mapping[str, tuple[Sample, ...]]) -> LiveReplay:
    run = labels.get("run", "")
    own = {name: [one for one in samples if one.labels.get("run") == run] for name, samples in told.items()}
    whole = {name: own[name][0].value if own[name] else None for name in own}
    counts = {
        name: {one.labels.get("tier", ""): one.value for one in own[name]}
        for name in ("planned", "sent", "open", "scored", "met")
    }
    tiers = sorted(counts["planned"], key=lambda tier: (len(tier), tier))
    return LiveReplay(
        run=run,
        **{name: labels.get(name, "") for name in ("scheduler", "window", "region", "speed")},
        running=bool(whole["running"]),
        valid=whole["valid"] != 0,
        lag_p50_s=whole["lag_p50_s"],
        lag_p99_s=whole["lag_p99_s"],
        tiers=tuple(
            ReplayTier(
                tier,
                **{name: column.get(tier, 0.0) for name, column in counts.items()},
                attainment=counts["met"].get(tier, 0.0) / scored
                if (scored := counts["scored"].get(tier))
                else None,
            )
            for tier in tiers
        ),
        warnings=_replay_warnings(whole),
    )


def _replay_warnings(whole: Mapping[str, float | None]) -> tuple[str, ...]:
    told = []
    if whole["valid"] == 0:
        told.append("The replay is invalid: it does not keep its schedule, and its run will not be ranked.")
    words = {"unsent": "requests should have been sent and are not", "lost": "tokens never came",
             "repeated": "tokens came again"}  # fmt: skip
    told += [f"{count:,.0f} {says}." for name, says in words.items() if (count := whole[name])]
    return tuple(told)


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
