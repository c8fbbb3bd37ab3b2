"""Metrics of a worker under the names and on the grids that vLLM gives them, so that its dashboards work."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.grids import E2E_S, STEP_S, TOKEN_S, TTFT_S
from services.worker.engine import Progress
from sim.rig import DECODED, PREFILLED, RECOMPUTED

if TYPE_CHECKING:
    from services.worker.answers import Answer
    from services.worker.worker import Worker

PREEMPTIONS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Edges of the histogram of evictions a request."""

TOKENS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10_000.0,
    20_000.0,
    50_000.0,
)
"""Edges of the histograms of prompt and output lengths."""

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
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
}
SAYS = {
    "time_to_first_token_seconds": "From enqueueing here to the first token",
    "inter_token_latency_seconds": "Gap before tokens, one observation a step",
    "request_time_per_output_token_seconds": "Mean gap of a request",
    "e2e_request_latency_seconds": "From enqueueing here to the last token",
    "request_queue_time_seconds": "From enqueueing here to the first step",
    "request_prefill_time_seconds": "From the first step to the first token",
    "request_decode_time_seconds": "From the first token to the last",
    "request_inference_time_seconds": "From the first step to the last token",
    "request_num_preemptions": "Evictions of a request",
    "request_prompt_tokens": "Length of the prompt",
    "request_generation_tokens": "Length of the answer",
    "num_requests_running": "Requests in the batch",
    "num_requests_waiting": "Requests in the queue",
    "kv_cache_usage_perc": "Share of KV blocks in use, 0 to 1",
    "engine_sleep_state": "1 while the engine sleeps; ours never does",
    "num_preemptions": "Evictions",
    "prefix_cache_queries": "Prompt tokens looked up; a simulated worker keeps no prefix cache",
    "prefix_cache_hits": "Prompt tokens found",
    "prompt_tokens": "Prompt tokens computed, each once",
    "generation_tokens": "Tokens made in decoding",
}
"""What the metrics are that go by vLLM's names."""

LABELS = ("model_name", "engine")


class Gauges(Collector):
    """What a worker tells Prometheus: histograms as requests go on, the engine's state when it is asked."""

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.labels = (worker.model, worker.config.worker_id)
        self.registry = CollectorRegistry()
        self.spans = {
            name: Histogram(f"vllm:{name}", SAYS[name], LABELS, buckets=edges, registry=self.registry).labels(
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
        self.steps = Histogram(
            "windtunnel_step_seconds", "Steps of the engine", LABELS, buckets=STEP_S, registry=self.registry
        ).labels(*self.labels)
        moved = Counter(
            "windtunnel_migration_bytes", "KV bytes of moves", (*LABELS, "direction"), registry=self.registry
        )
        self.bytes_in, self.bytes_out = (moved.labels(*self.labels, way) for way in ("in", "out"))
        self.preempted = self.steps_seen = 0
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return bytes(generate_latest(self.registry))

    def stepped(self) -> None:
        """Observe the engine's latest step, once."""
        fleet = self.worker.engine.rig.known.engines
        if fleet.steps[0] != self.steps_seen:
            self.steps_seen = int(fleet.steps[0])
            self.steps.observe(float(fleet.step_s[0]))

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
        spans["request_generation_tokens"].observe(answer.made)
        spans["request_prompt_tokens"].observe(answer.prompt_tokens)
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
            family = GaugeMetricFamily(f"vllm:{name}", SAYS[name], labels=LABELS)
            family.add_metric(self.labels, value)
            yield family
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "1; the KV cache", labels=(*LABELS, "block_size", "num_gpu_blocks")
        )
        info.add_metric((*self.labels, str(int(fleet.block_tokens[0])), str(int(fleet.blocks_total[0]))), 1.0)
        yield info
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
            total = CounterMetricFamily(f"vllm:{name}", SAYS[name], labels=LABELS)
            total.add_metric(self.labels, float(value))
            yield total
