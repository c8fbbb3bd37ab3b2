"""What the load generator shows Prometheus of the run under way: worked out from its notes when somebody asks.

Sending costs nothing more for it. Every series carries the run's id; one run is shown at a time.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.replay.lag import lag_of
from loadgen.replay.trails import OPEN, OUTCOMES
from schedulers.errors import InputError
from schedulers.view import Floats
from services.grids import E2E_S, SHORT_S, TOKEN_S, TTFT_S, add, histogram
from services.live_run import live_key
from services.local import ask

if TYPE_CHECKING:
    from loadgen.replay.run import Replay, Replayed
    from services.live_run import Live, Target

OVERDUE_S = 1.0
"""A request that is so late and not sent yet is told as unsent while the run goes on."""

LEASE_S, RENEW_S = 15.0, 5.0
"""For how long a dispatcher lists a load generator, and how often that is renewed."""

LAST_LOOK_S = 10.0
"""How long the end of a run is kept for a Prometheus that has looked before."""

SENT_S = 0.2
"""Until what was asked for has left, too."""

QUANTILES = ("0.5", "0.99", "1")
"""Median, 99th percentile, most."""


class Shown(NamedTuple):
    """A run as it is shown; ``told`` is there once it is over."""

    run: str
    labels: tuple[str, ...]
    replay: "Replay"
    scored: tuple[int, int]
    told: "Replayed | None" = None


def shown_of(live: "Live", replay: "Replay") -> Shown:
    """A live run as it is shown: under the id that its results have."""
    labels = (live.target.label or live.spec, live.window.line.id, live.region.name, f"{live.target.speed:g}")
    return Shown(live_key(live).run_id, labels, replay, live.window.scored)


class RunPage(Collector):
    """The page; empty before the first run."""

    def __init__(self) -> None:
        self.shown: Shown | None = None
        self.seen: Shown | None = None  # by the last who looked
        self.looks = 0

    def show(self, shown: Shown) -> None:
        """Show this run from now on."""
        self.shown = shown

    def over(self, told: "Replayed", wait_s: float = LAST_LOOK_S) -> None:
        """Show how the run ended, until somebody who looked before has seen it."""
        if self.shown is None:
            return
        ended = self.shown = self.shown._replace(told=told)
        until_s = time.monotonic() + (wait_s if self.looks else 0.0)
        while self.seen is not ended and time.monotonic() < until_s:  # a look that began before is not enough
            time.sleep(0.05)
        time.sleep(SENT_S if self.looks else 0.0)

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the run."""
        shown, found = self.shown, list[Metric]()  # the next run may be shown meanwhile
        if shown is not None:
            found = [*self._of_the_run(shown), *self._of_tiers(shown), *self._of_itself(shown)]
        yield from found
        self.seen, self.looks = shown, self.looks + 1

    def _of_the_run(self, shown: Shown) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "windtunnel_replay_info", "1; what is replayed",
            labels=("run", "scheduler", "window", "region", "speed"),
        )  # fmt: skip
        info.add_metric((shown.run, *shown.labels), 1.0)
        yield info
        yield one("running", "1 while the run goes on", shown, float(shown.told is None))

    def _of_tiers(self, shown: Shown) -> Iterator[Metric]:
        replay, trails = shown.replay, shown.replay.trails
        tier, count = np.asarray(replay.schedule.demand.tier), len(replay.targets)
        sent, ended, met = ~np.isnan(trails.sent_s), trails.outcome != OPEN, replay.met()
        judged = np.zeros(len(tier), bool)
        judged[slice(*shown.scored)] = True
        judged &= ended & (np.array([min(row) for row in replay.targets])[tier] < np.inf)
        for name, says, rows, family in (
            ("planned", "Requests of the window", np.ones(len(tier), bool), GaugeMetricFamily),
            ("open", "Requests under way", sent & ~ended, GaugeMetricFamily),
            ("sent", "Requests sent", sent, CounterMetricFamily),
            ("scored", "Ended requests of the part that counts, in tiers with targets", judged, CounterMetricFamily),
            ("slo_met", "Those of them that met every target", judged & met, CounterMetricFamily),
            ("tokens", "Tokens that came", trails.tokens, CounterMetricFamily),
        ):  # fmt: skip
            found = family(f"windtunnel_replay_{name}", says, labels=("run", "tier"))
            for number, value in enumerate(np.bincount(tier, weights=rows, minlength=count).tolist()):
                if name not in ("scored", "slo_met") or min(replay.targets[number]) < np.inf:
                    found.add_metric((shown.run, str(number)), value)
            yield found
        yield self._ends(shown)
        seconds, several = replay.seconds(), trails.tokens > 1
        for name, says, values, edges in (
            ("lag", "How late requests were sent", trails.sent_s - trails.due_s, SHORT_S),
            ("time_to_first_token", "From the intended time to the first token", seconds["ttft"], TTFT_S),
            ("request_time_per_output_token", "Mean gap", kept(seconds["tpot"], ended & several), TOKEN_S),
            ("e2e_request_latency", "From the intended time to the last token", kept(seconds["e2e"], ended), E2E_S),
            ("token_gap_max", "Longest gap", kept(trails.longest_gap_s, ended & several), TOKEN_S),
        ):  # fmt: skip
            spread = histogram(f"windtunnel_replay_{name}_seconds", says, ("run", "tier"))
            for number in range(count):
                mine = values[(tier == number) & np.isfinite(values)]
                add(spread, (shown.run, str(number)), edges, counts_of(mine, edges), float(mine.sum()))
            yield spread

    def _ends(self, shown: Shown) -> Metric:
        trails, names = shown.replay.trails, {code: name for name, code in OUTCOMES.items()}
        over = np.flatnonzero(trails.outcome != OPEN)
        tiers = np.asarray(shown.replay.schedule.demand.tier)[over].tolist()
        reasons = [trails.reasons[row] for row in over.tolist()]
        counts = Counter(zip(tiers, trails.outcome[over].tolist(), reasons, strict=True))
        found = CounterMetricFamily(
            "windtunnel_replay_requests", "Requests that ended", labels=("run", "tier", "outcome", "reason")
        )
        for (tier, outcome, reason), count in sorted(counts.items()):
            found.add_metric((shown.run, str(tier), names[outcome], reason), float(count))
        return found

    def _of_itself(self, shown: Shown) -> Iterator[Metric]:
        replay, told, trails = shown.replay, shown.told, shown.replay.trails
        lag, limits = lag_of(trails.due_s, trails.sent_s), replay.rules.limits
        overdue = np.isnan(trails.sent_s) & (trails.due_s < trails.now_s - OVERDUE_S)
        unsent = told.lag.unsent if told else int(overdue.sum())
        faults = told.faults if told else lag._replace(unsent=0).faults(limits)
        yield one("valid", "1 while the run keeps its schedule, and counts", shown, float(not faults))
        yield one("unsent", "Requests that should have been sent", shown, float(unsent))
        yield quantiles(
            "lag_exact_seconds", "The sending lag, exact", shown, (lag.p50_s, lag.p99_s, lag.max_s)
        )
        yield quantiles("lag_limit_seconds", "Most lag of a valid run", shown, (limits.p50_s, limits.p99_s))
        health = told.health if told else replay.pulse.health() if replay.pulse else None
        if health:
            loop = (np.nan, health.loop_p99_s, health.loop_max_s)
            yield quantiles("loop_lag_seconds", "How late its own loop is", shown, loop)
            yield one("cpu_share", "Share of one core that it used", shown, health.cpu_share)
        for name, says, array in (
            ("lost_tokens", "Tokens that never came; must stay 0", trails.lost),
            ("repeated_tokens", "Tokens that came again; must stay 0", trails.repeated),
        ):
            total = CounterMetricFamily(f"windtunnel_replay_{name}", says, labels=("run",))
            total.add_metric((shown.run,), float(array.sum()))
            yield total


def one(name: str, says: str, shown: Shown, value: float) -> Metric:
    """A gauge of the run."""
    found = GaugeMetricFamily(f"windtunnel_replay_{name}", says, labels=("run",))
    found.add_metric((shown.run,), value)
    return found


def quantiles(name: str, says: str, shown: Shown, values: tuple[float, ...]) -> Metric:
    """Gauges of the run by quantile; NaN: nobody knows it."""
    found = GaugeMetricFamily(f"windtunnel_replay_{name}", says, labels=("run", "quantile"))
    for quantile, value in zip(QUANTILES, values, strict=False):
        if value == value:
            found.add_metric((shown.run, quantile), value)
    return found


def kept(values: Floats, rows: Any) -> Floats:
    """The values of some rows, NaN elsewhere."""
    return np.where(rows, values, np.nan)


def counts_of(values: Floats, edges: tuple[float, ...]) -> list[int]:
    """How many values lie in each bucket; one at an edge lies below it."""
    places = np.searchsorted(edges, values, side="left")
    return [int(count) for count in np.bincount(places, minlength=len(edges) + 1)]


@contextmanager
def shown_at(address: str, target: "Target", advertise: str = "") -> Iterator[RunPage]:
    """Serve the page at HOST:PORT, and let the target's dispatcher tell Prometheus of it, if it is ours.

    ``advertise`` is the host under which Prometheus reaches it. Raises InputError for an address that is taken.
    """
    host, _, port = address.rpartition(":")
    page, registry = RunPage(), CollectorRegistry()
    registry.register(page)
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        fix = "name a free HOST:PORT"
        raise InputError(f"can't listen at {address}: {error}", where="--metrics", fix=fix) from None
    where = f"{advertise or host or '127.0.0.1'}:{server.server_port}"
    stop = threading.Event()
    teller = threading.Thread(target=announce, args=(target, where, stop.wait), name="announce", daemon=True)
    teller.start()
    try:
        yield page
    finally:
        stop.set()
        teller.join()
        server.shutdown()
        server.server_close()
        thread.join()


def announce(target: "Target", address: str, wait: Callable[[float], bool]) -> None:
    """Tell the dispatcher again and again where the page is, until ``wait`` says stop; then that it is gone."""
    if not target.admin_key:
        return
    while True:
        put = {"metrics": address, "lease_s": LEASE_S}
        ask(target.admin, "/admin/replay", key=target.admin_key, put=put)
        if wait(RENEW_S):
            break
    ask(target.admin, "/admin/replay", key=target.admin_key, put={"metrics": address, "lease_s": 0.0})
