"""Metrics of a worker under the names and on the grids that vLLM gives them, so that its dashboards work."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.engine import Progress
from sim.rig import DECODED, PREFILLED, RECOMPUTED

if TYPE_CHECKING:
    from services.worker.answers import Answer
    from services.worker.worker import Worker

TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
E2E_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
PREEMPTIONS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Edges of the histograms, as vLLM has them (reference live.md 3.1)."""

HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT_S,
    "inter_token_latency_seconds": TOKEN_S,
    "request_time_per_output_token_seconds": TOKEN_S,
    "e2e_request_latency_seconds": E2E_S,
    "request_queue_time_seconds": E2E_S,
    "request_prefill_time_seconds": E2E_S,
    "request_decode_time_seconds": E2E_S,
    "request_inference_time_seconds": E2E_S,
    "request_num_preemptions": PREEMPTIONS,
}
LABELS = ("model_name", "engine")


class Gauges(Collector):
    """What a worker tells Prometheus: histograms as requests go on, the engine's state when it is asked."""

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.labels = (worker.config.fleet.profile.split("/")[0], worker.config.worker_id)
        self.registry = CollectorRegistry()
        self.spans = {
            name: Histogram(f"vllm:{name}", name, LABELS, buckets=edges, registry=self.registry).labels(
                *self.labels
            )
            for name, edges in HISTOGRAMS.items()
        }
        self.ends = Counter(
            "vllm:request_success",
            "Requests by how they ended",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.refusals = Counter(
            "vllm:admission_rejections", "Requests turned away", (*LABELS, "reason"), registry=self.registry
        )
        self.preempted = 0
        self.registry.register(self)

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return bytes(generate_latest(self.registry))

    def arrived(self, answer: "Answer") -> None:
        """A request was enqueued here."""

    def token(self, answer: "Answer", gained: Progress) -> None:
        """A request gained tokens; what an earlier engine made has no gap here."""
        if answer.first_token_s < 0.0:
            answer.first_token_s = gained.time_s
            if answer.first == 0:
                self.spans["time_to_first_token_seconds"].observe(gained.time_s - answer.enqueued_s)
            self.spans["request_queue_time_seconds"].observe(answer.started_after_s)
        else:
            self.spans["inter_token_latency_seconds"].observe(
                (gained.time_s - answer.last_token_s) / gained.made
            )

    def finished(self, answer: "Answer", end_s: float) -> None:
        """A request got its last token."""
        spans, began_s = self.spans, answer.enqueued_s + answer.started_after_s
        decode_s = end_s - answer.first_token_s
        gaps = answer.made - answer.first - 1
        if gaps > 0:
            spans["request_time_per_output_token_seconds"].observe(decode_s / gaps)
        spans["e2e_request_latency_seconds"].observe(end_s - answer.enqueued_s)
        spans["request_prefill_time_seconds"].observe(answer.first_token_s - began_s)
        spans["request_decode_time_seconds"].observe(decode_s)
        spans["request_inference_time_seconds"].observe(end_s - began_s)
        spans["request_num_preemptions"].observe(answer.evictions)
        self.preempted += answer.evictions
        assert answer.final is not None
        self.ends.labels(*self.labels, answer.final.reason).inc()

    def refused(self, answer: "Answer") -> None:
        """A request was turned away by the engine."""
        assert answer.final is not None
        self.refusals.labels(*self.labels, answer.final.reason).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's state as it is now."""
        engine = self.worker.engine
        fleet, tally = engine.rig.known.engines, engine.rig.plant.tally[0]
        waiting, running = engine.load
        now = {
            "num_requests_running": running,
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": 1.0 - float(fleet.blocks_free[0] / fleet.blocks_total[0]),
            "engine_sleep_state": 0.0,
        }
        for name, value in now.items():
            family = GaugeMetricFamily(f"vllm:{name}", name, labels=LABELS)
            family.add_metric(self.labels, value)
            yield family
        held_back = waiting if engine.stuck else 0
        family = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Why requests wait", labels=(*LABELS, "reason")
        )
        family.add_metric((*self.labels, "capacity"), waiting - held_back)
        family.add_metric((*self.labels, "deferred"), held_back)
        yield family
        sums = {
            "num_preemptions": self.preempted,
            "prefix_cache_queries": 0.0,
            "prefix_cache_hits": 0.0,
            "prompt_tokens": tally[PREFILLED] - tally[RECOMPUTED],
            "generation_tokens": tally[DECODED],
        }
        for name, value in sums.items():
            total = CounterMetricFamily(f"vllm:{name}", name, labels=LABELS)
            total.add_metric(self.labels, float(value))
            yield total
