"""What the analysis service measures about itself; labels are routes and statuses alone."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)  # fmt: skip


class Gauges:
    """Series of one process."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "windtunnel_analysis_requests_total",
            "Requests answered",
            ("route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "windtunnel_analysis_request_seconds",
            "Time to answer",
            ("route",),
            registry=self.registry,
            buckets=SECONDS,
        )
        self._away = Counter(
            "windtunnel_analysis_prometheus_errors_total", "Questions that Prometheus did not answer",
            registry=self.registry,
        )  # fmt: skip
        self._kept = Gauge(
            "windtunnel_analysis_kept_answers",
            "Answers about whole studies in memory",
            registry=self.registry,
        )
        build = Gauge("windtunnel_build_info", "What runs", ("version", "service"), registry=self.registry)
        build.labels(version, "analysis").set(1)

    def answered(self, route: str, status: int, took_s: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(took_s)

    def away(self) -> None:
        """Count a question without an answer."""
        self._away.inc()

    def keeps(self, count: Callable[[], float]) -> None:
        """Tell how many answers are kept from now on."""
        self._kept.set_function(count)
