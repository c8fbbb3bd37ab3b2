"""The dispatcher's metrics under the names of reference/live.md 3.2; labels are tiers, engines and reasons only."""

from math import isfinite
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.config import TierConfig
from services.dispatcher.reasons import OUTCOMES
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.answer import Answer

TTFT = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
GAP = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
E2E = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
SHORT = (.0001, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5)  # fmt: skip
"""Bucket edges, seconds: vLLM's own grids, so that ours and the engines' can be compared."""

FIRST_FORECAST = 256.0


class Metrics:
    """Series of one process, children bound once: a lookup by labels costs more than the count itself."""

    def __init__(self, tiers: int, scheduler: str, version: str) -> None:
        self.registry = CollectorRegistry()
        names = [str(tier) for tier in range(tiers)]
        self.mean_output, self._outputs = FIRST_FORECAST, 0

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"windtunnel_{name}", says, labels, registry=self.registry)

        def by_tier(name: str, says: str, edges: tuple[float, ...]) -> list[Histogram]:
            whole = Histogram(f"windtunnel_{name}", says, ("tier",), registry=self.registry, buckets=edges)
            return [whole.labels(tier) for tier in names]

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"windtunnel_{name}", says, labels, registry=self.registry)

        arrivals = counter("arrivals_total", "Requests that came", "tier")
        self.arrivals = [arrivals.labels(tier) for tier in names]
        self.requests = counter("requests_total", "Requests that ended", "tier", "outcome", "reason")
        self.queue_wait = by_tier("queue_wait_seconds", "From arrival to an engine", (*SHORT[4:9], *E2E))
        self.ttft = by_tier("time_to_first_token_seconds", "From arrival to the first token", TTFT)
        self.itl = by_tier("inter_token_latency_seconds", "Longest gap of a request", GAP)
        self.tpot = by_tier("request_time_per_output_token_seconds", "Mean gap of a request", GAP)
        self.e2e = by_tier("e2e_request_latency_seconds", "From arrival to the end", E2E)
        self.met = counter("slo_met_total", "Requests that met every target of their tier", "tier")
        self.missed = counter("slo_missed_total", "Targets missed", "tier", "target")
        self.dispatch = counter("dispatch_total", "Requests sent", "engine", "tier")
        self.migrations = counter("migrations_total", "Moves of running requests", "cause", "outcome")
        self.migration_stall = Histogram(
            "windtunnel_migration_stall_seconds", "Gap between tokens around a move", registry=self.registry,
            buckets=GAP,
        )  # fmt: skip
        self.preemptions = counter("preemptions_total", "Evictions inside engines", "engine", "tier")
        self.tokens_in = counter("link_tokens_total", "Tokens from workers", "direction").labels("in")
        self.messages = counter("link_messages_total", "Messages on worker links", "direction")
        self.messages_in, self.messages_out = self.messages.labels("in"), self.messages.labels("out")
        self.gaps = counter(
            "stream_gaps_total", "Runs of tokens that came before others", "direction"
        ).labels("worker")
        self.duplicates = counter(
            "stream_duplicates_total", "Tokens dropped, seen before", "direction"
        ).labels("worker")
        self.journal_errors = counter("journal_errors_total", "Records that could not be written")
        self.degraded = counter("journal_degraded_total", "Requests taken while the store was away")
        self.journal_append = Histogram(
            "windtunnel_journal_append_seconds", "A flush", registry=self.registry, buckets=SHORT
        )
        self.loop_lag = Histogram(
            "windtunnel_loop_lag_seconds", "How late the loop wakes", registry=self.registry, buckets=SHORT
        )
        self.in_flight = gauge("requests_in_flight", "Open requests", "tier", "state")
        self.queue_depth = gauge("queue_depth", "Requests without a token", "tier")
        self.queue_tokens = gauge("queue_tokens", "Prompt tokens of requests without a token", "tier")
        self.engine_state = gauge("engine_state", "1 for the state that it is in", "engine", "state")
        self.report_age = gauge("engine_report_age_seconds", "Age of its latest report", "engine")
        self.engines_wanted = gauge("engines_wanted", "What the policy asked for last")
        self.scalings = counter("scale_decisions_total", "Asked by the policy", "direction", "reason")
        self.engine_seconds = counter("engine_seconds_total", "Time engines were ours", "engine")
        self.build = gauge("build_info", "What runs", "version", "scheduler")
        self.build.labels(version, scheduler).set(1)

    def scheduled_by(self, version: str, scheduler: str) -> None:
        """Name another scheduler in ``build_info``."""
        self.build.clear()
        self.build.labels(version, scheduler).set(1)

    def dispatched(self, engine: int, tier: int) -> None:
        """Count a request sent to an engine."""
        self.dispatch.labels(str(engine), str(tier)).inc()

    def scale_wanted(self, change: int, engines: int) -> None:
        """Note what the policy asks of the fleet."""
        self.engines_wanted.set(engines + change)
        self.scalings.labels("out" if change > 0 else "in", "policy").inc()

    def ended(self, tier: int, how: wire.Ending) -> None:
        """Count an ending, refusals included."""
        self.requests.labels(str(tier), OUTCOMES.get(how.outcome, "failed"), how.reason).inc()
        if how.outcome == wire.OUTCOME_FINISHED and how.output_tokens:
            self._outputs += 1
            self.mean_output += (how.output_tokens - self.mean_output) / min(self._outputs, 1000)

    def times(self, answer: "Answer", tier: TierConfig) -> None:
        """Observe a request's times and judge them by its own targets, else its tier's."""
        asked, how = answer.submission, answer.ending
        assert how is not None
        at, name = int(asked.tier), str(int(asked.tier))
        finished = how.outcome == wire.OUTCOME_FINISHED
        ttft_s = answer.first_s - answer.arrived_s if answer.first_s >= 0.0 else float("inf")
        count = len(answer.tokens)
        tpot_s = (answer.last_s - answer.first_s) / (count - 1) if count > 1 else 0.0
        if isfinite(ttft_s):
            self.ttft[at].observe(ttft_s)
        if count > 1:
            self.tpot[at].observe(tpot_s)
            self.itl[at].observe(answer.longest_gap_s)
        if finished:
            self.e2e[at].observe(answer.ended_s - answer.arrived_s)
        limits = {
            "ttft": (ttft_s, asked.slo_ttft_s if asked.HasField("slo_ttft_s") else tier.ttft_s),
            "tpot": (tpot_s, asked.slo_tpot_s if asked.HasField("slo_tpot_s") else tier.tpot_s),
            "e2e": (answer.ended_s - answer.arrived_s, tier.e2e_s),
        }
        missed = (
            [target for target, (took, limit) in limits.items() if took > limit] if finished else ["dropped"]
        )
        for target in missed:
            self.missed.labels(name, target).inc()
        if not missed:
            self.met.labels(name).inc()
        if answer.preemptions:
            self.preemptions.labels(str(answer.engine), name).inc(answer.preemptions)
