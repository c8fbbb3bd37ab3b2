"""Edges of the histograms that services share, vLLM's own where it has one, and a histogram that is cheap to feed."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
"""Edges in seconds as vLLM has them: with others a router's median can lie below its engine's."""

QUEUE_S = (0.005, 0.01, 0.05, 0.1, *E2E_S)
"""Waiting for an engine: vLLM's edges, and finer ones in front for a queue that is nearly empty."""

SHORT_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Work of our own: decisions, flushes of the journal, how late a loop wakes."""

STEP_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
"""One step of an engine, a batch forward."""


def histogram(name: str, says: str, labels: Sequence[str]) -> HistogramMetricFamily:
    """A family whose rows ``add`` fills."""
    return HistogramMetricFamily(name, says, labels=labels)


def add(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    edges: Sequence[float],
    counts: Sequence[int],
    total: float,
) -> None:
    """Add a row of counts, one a bucket and one above the last edge, as the cumulative ones of the text format."""
    buckets, below = [], 0
    for edge, count in zip([*map(repr, map(float, edges)), "+Inf"], counts, strict=True):
        below += int(count)
        buckets.append((edge, float(below)))
    family.add_metric(labels, buckets, sum_value=total)


class TierHistogram(Collector):
    """A histogram by tier whose ``observe`` is two list writes: for what happens every few tokens."""

    def __init__(self, name: str, says: str, tiers: int, edges: Sequence[float]) -> None:
        self.name, self.says, self.edges = name, says, edges
        self.counts = [[0] * (len(edges) + 1) for _ in range(tiers)]
        self.sums = [0.0] * tiers

    def observe(self, tier: int, value: float) -> None:
        """Count a value; one at an edge lies below it."""
        self.counts[tier][bisect_left(self.edges, value)] += 1
        self.sums[tier] += value

    def collect(self) -> Iterator[Metric]:
        """Yield the one family."""
        family = histogram(self.name, self.says, ("tier",))
        for tier, (counts, total) in enumerate(zip(self.counts, self.sums, strict=True)):
            add(family, (str(tier),), self.edges, counts, total)
        yield family
