"""The dispatcher's metrics; labels are tiers, engines, reasons and kinds, never a request, session or tenant."""

from math import inf, isfinite
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from schedulers.decisions import MOVE, REFUSED, SCALE, SEND, Decision
from services.config import TierConfig
from services.dispatcher.reasons import OUTCOMES, REASONS
from services.grids import E2E_S, QUEUE_S, SHORT_S, TOKEN_S, TTFT_S, TierHistogram
from services.rpc.windtunnel.v1 import request_pb2 as wire

if TYPE_CHECKING:
    from services.dispatcher.answer import Answer

FIRST_FORECAST = 256.0
"""Output tokens that a request is thought to have before any has ended."""


class Metrics:
    """Series of one process, children bound once: a lookup by labels costs more than the count itself."""

    def __init__(self, tiers: tuple[TierConfig, ...], scheduler: str, version: str) -> None:
        self.registry = CollectorRegistry()
        self.tiers, self.scheduler = tiers, ""
        self.names = [str(tier) for tier in range(len(tiers))]
        self.mean_output, self._outputs = FIRST_FORECAST, 0
        self._of_requests()
        self._of_engines()
        self._of_this_process()
        self.moved: dict[int, float] = {}  # by number of a request that moved: when its latest token came
        self.scheduled_by(version, scheduler)

    def counter(self, name: str, says: str, *labels: str) -> Counter:
        """A new counter."""
        return Counter(f"windtunnel_{name}", says, labels, registry=self.registry)

    def gauge(self, name: str, says: str, *labels: str) -> Gauge:
        """A new gauge."""
        return Gauge(f"windtunnel_{name}", says, labels, registry=self.registry)

    def histogram(self, name: str, says: str, edges: tuple[float, ...], *labels: str) -> Histogram:
        """A new histogram, seconds."""
        return Histogram(f"windtunnel_{name}", says, labels, registry=self.registry, buckets=edges)

    def by_tier(self, name: str, says: str, edges: tuple[float, ...]) -> list[Histogram]:
        """A histogram's children, one a tier."""
        whole = self.histogram(name, says, edges, "tier")
        return [whole.labels(tier) for tier in self.names]

    def _of_requests(self) -> None:
        arrivals = self.counter("arrivals_total", "Requests that came", "tier")
        self.arrivals = [arrivals.labels(tier) for tier in self.names]
        self.requests = self.counter(
            "requests_total", "Requests that ended, those turned away included", "tier", "outcome", "reason"
        )
        for name in self.names:  # a series that begins with its first event loses that event in every rate
            for reason, row in REASONS.items():
                self.requests.labels(name, OUTCOMES[row.outcome], reason)
        self.queue_wait = self.by_tier("queue_wait_seconds", "From arrival to an engine", QUEUE_S)
        self.ttft = self.by_tier("time_to_first_token_seconds", "From arrival to the first token", TTFT_S)
        self.gap = TierHistogram(
            "windtunnel_inter_token_latency_seconds",
            "Gap before tokens, one observation for those that come in one message",
            len(self.names),
            TOKEN_S,
        )
        self.registry.register(self.gap)
        self.longest = self.by_tier("token_gap_max_seconds", "Longest gap of a request", TOKEN_S)
        self.tpot = self.by_tier("request_time_per_output_token_seconds", "Mean gap of a request", TOKEN_S)
        self.e2e = self.by_tier(
            "e2e_request_latency_seconds", "From arrival to the end, finished ones", E2E_S
        )
        met = self.counter("slo_met_total", "Requests that met every target of their tier", "tier")
        missed = self.counter(
            "slo_missed_total", "Targets missed; dropped: it never finished", "tier", "target"
        )
        judged = [number for number, tier in enumerate(self.tiers) if targets_of(tier)]
        self.met = {number: met.labels(str(number)) for number in judged}
        self.missed = {
            (number, target): missed.labels(str(number), target)
            for number in judged
            for target in (*targets_of(self.tiers[number]), "dropped")
        }
        self.target = self.gauge("slo_target_seconds", "What a tier promises", "tier", "target")
        for number, tier in enumerate(self.tiers):
            for target, limit in targets_of(tier).items():
                self.target.labels(str(number), target).set(limit)
        self.in_flight = self.gauge("requests_in_flight", "Open requests", "tier", "state")
        self.queue_depth = self.gauge("queue_depth", "Requests without a token", "tier")
        self.queue_tokens = self.gauge("queue_tokens", "Prompt tokens of requests without a token", "tier")
        self.oldest = self.gauge(
            "queue_oldest_seconds", "How long the first in line has waited for a token", "tier"
        )
        self.resumes = self.counter(
            "stream_resumes_total", "Clients that came back for the rest of an answer"
        )
        self.gaps = self.counter(
            "stream_gaps_total", "Runs of tokens that came before others", "direction"
        ).labels("worker")
        self.duplicates = self.counter(
            "stream_duplicates_total", "Tokens dropped, seen before", "direction"
        ).labels("worker")

    def _of_engines(self) -> None:
        self.dispatch = self.counter("dispatch_total", "Requests sent", "engine", "tier")
        self.migrations = self.counter("migrations_total", "Moves of running requests", "cause", "outcome")
        for outcome in ("committed", "aborted", "refused"):
            self.migrations.labels("policy", outcome)
        self.migrations_open = self.gauge("migrations_open", "Moves under way")
        self.migrated_blocks = self.counter("migrated_blocks_total", "KV blocks of requests that moved")
        self.migration_stall = self.histogram(
            "migration_stall_seconds", "Gap between tokens around a move: its downtime", TOKEN_S
        )
        self.preemptions = self.counter("preemptions_total", "Evictions inside engines", "engine", "tier")
        self.engine_state = self.gauge(
            "engine_state", "1 for the state that it is in; away: its link is cut, lost: it did not come back",
            "engine", "state",
        )  # fmt: skip
        self.engine_info = self.gauge("engine_info", "1; who an engine is", "engine", "worker", "profile")
        self.engine_load = self.gauge("engine_requests", "Requests at an engine", "engine", "state")
        self.engine_kv = self.gauge(
            "engine_kv_usage_ratio", "Share of KV blocks in use, as reported", "engine"
        )
        self.engine_step = self.gauge("engine_step_seconds", "Duration of its latest step", "engine")
        self.report_age = self.gauge("engine_report_age_seconds", "Age of its latest report", "engine")
        self.engine_seconds = self.counter("engine_seconds_total", "Time engines were ours", "engine")
        self.engines_wanted = self.gauge("engines_wanted", "What the policy asked for last")
        self.fleet = self.gauge("fleet_engines", "Places of a fleet that scales, by what they are", "state")
        self.scalings = self.counter("scale_decisions_total", "Asked by the policy", "direction", "reason")
        for direction in ("out", "in"):
            self.scalings.labels(direction, "policy")
        self.tokens_in = self.counter("link_tokens_total", "Tokens from workers", "direction").labels("in")
        messages = self.counter("link_messages_total", "Messages on worker links", "direction")
        self.messages_in, self.messages_out = messages.labels("in"), messages.labels("out")

    def _of_this_process(self) -> None:
        ProcessCollector(registry=self.registry)
        self.decisions = self.counter("decisions_total", "What the policy decided", "decision", "reason")
        for decision, reason in ((SEND, ""), (REFUSED, "shed"), (MOVE, "policy"), (SCALE, "policy")):
            self.decisions.labels(decision, reason)
        spent = self.histogram(
            "decision_seconds", "Time that deciding took, by what was asked", SHORT_S, "hook"
        )
        self.deciding = {hook: spent.labels(hook).observe for hook in ("arrive", "tick", "offer")}
        self.switches = self.counter("policy_switches_total", "Changes of the scheduler at run time")
        self.policy_faults = self.gauge("policy_faults", "Answers of the policy that were refused")
        self.journal_errors = self.counter("journal_errors_total", "Records that could not be written")
        self.degraded = self.counter("journal_degraded_total", "Requests taken while the store was away")
        self.journal_append = self.histogram("journal_append_seconds", "A flush", SHORT_S)
        self.journal_away = self.gauge("journal_away", "1 while the store can't be written")
        self.loop_lag = self.histogram("loop_lag_seconds", "How late the loop wakes", SHORT_S)
        self.build = self.gauge("build_info", "1; what runs", "version", "scheduler")

    def scheduled_by(self, version: str, scheduler: str) -> None:
        """Name the scheduler in ``build_info``; the first name is no switch, nor is the same again."""
        if self.scheduler not in ("", scheduler):
            self.switches.inc()
        self.scheduler = scheduler
        self.build.clear()
        self.build.labels(version, scheduler).set(1)

    def decided(self, decision: Decision) -> None:
        """Count a decision."""
        self.decisions.labels(decision.kind, decision.reason).inc()

    def dispatched(self, engine: int, tier: int) -> None:
        """Count a request sent to an engine."""
        self.dispatch.labels(str(engine), str(tier)).inc()

    def scale_wanted(self, change: int, engines: int) -> None:
        """Note what the policy asks of the fleet."""
        self.engines_wanted.set(engines + change)
        self.scalings.labels("out" if change > 0 else "in", "policy").inc()

    def flushed(self, answer: "Answer", before_s: float, now_s: float) -> None:
        """Observe the gap before tokens that came; ``before_s`` is when the ones before them did, < 0 for none."""
        if before_s >= 0.0:
            self.gap.observe(answer.submission.tier, now_s - before_s)
        if self.moved and answer.number in self.moved:
            self.migration_stall.observe(now_s - self.moved.pop(answer.number))

    def migrated(self, answer: "Answer", cause: str, blocks: int) -> None:
        """Count a move that was committed; its downtime is known once the next token comes."""
        self.migrations.labels(cause, "committed").inc()
        self.migrated_blocks.inc(blocks)
        if answer.last_s >= 0.0:
            self.moved[answer.number] = answer.last_s

    def ended(self, tier: int, how: wire.Ending) -> None:
        """Count an ending, refusals included; what did not finish missed its targets."""
        self.requests.labels(self.names[tier], OUTCOMES.get(how.outcome, "failed"), how.reason).inc()
        if how.outcome != wire.OUTCOME_FINISHED:
            if (tier, "dropped") in self.missed:
                self.missed[tier, "dropped"].inc()
        elif how.output_tokens:
            self._outputs += 1
            self.mean_output += (how.output_tokens - self.mean_output) / min(self._outputs, 1000)

    def times(self, answer: "Answer") -> None:
        """Observe a request's times and judge them by its own targets, else its tier's."""
        asked, how, at = answer.submission, answer.ending, int(answer.submission.tier)
        assert how is not None
        self.moved.pop(answer.number, None)
        ttft_s = answer.first_s - answer.arrived_s if answer.first_s >= 0.0 else inf
        count = len(answer.tokens)
        tpot_s = (answer.last_s - answer.first_s) / (count - 1) if count > 1 else 0.0
        if isfinite(ttft_s):
            self.ttft[at].observe(ttft_s)
        if count > 1:
            self.tpot[at].observe(tpot_s)
            self.longest[at].observe(answer.longest_gap_s)
        if answer.preemptions:
            self.preemptions.labels(str(answer.engine), self.names[at]).inc(answer.preemptions)
        if how.outcome != wire.OUTCOME_FINISHED:
            return
        e2e_s = answer.ended_s - answer.arrived_s
        self.e2e[at].observe(e2e_s)
        limits = targets_of(self.tiers[at])
        if "ttft" in limits and asked.HasField("slo_ttft_s"):
            limits["ttft"] = asked.slo_ttft_s
        if "tpot" in limits and asked.HasField("slo_tpot_s"):
            limits["tpot"] = asked.slo_tpot_s
        took = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
        missed = [target for target, limit in limits.items() if took[target] > limit]
        for target in missed:
            self.missed[at, target].inc()
        if limits and not missed:
            self.met[at].inc()


def targets_of(tier: TierConfig) -> dict[str, float]:
    """The targets that a tier has, seconds; none for one without, and then nobody can say how many met them."""
    limits = {"ttft": tier.ttft_s, "tpot": tier.tpot_s, "e2e": tier.e2e_s}
    return {target: limit for target, limit in limits.items() if isfinite(limit)}
