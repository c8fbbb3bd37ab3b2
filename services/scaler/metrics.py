"""The scaler's metrics: what it was told to do, what it did, how long that took."""

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from services.grids import SHORT_S

BOOT_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0)
"""From seconds for a simulated worker to many minutes for one that loads a model."""

STATES = ("booting", "serving", "draining", "ending", "dead")
"""States of a worker: started and not joined; joined; takes nothing new; told to end; ended and not cleared away."""


class Metrics:
    """Series of one scaler."""

    def __init__(self, most: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.orders = self._counter(
            "orders_total", "Orders: started, failed to start, refused for want of room", "outcome"
        )
        self.stops = self._counter("drains_total", "Workers that were told to end", "reason")
        self.kills = self._counter("kills_total", "Workers that had to be killed")
        self.crashes = self._counter("crashes_total", "Workers that died before they joined")
        self.cleared = self._counter("cleared_total", "Remains of dead workers that were removed")
        self.errors = self._counter("errors_total", "What could not be done: dispatcher or driver", "side")
        self.boot = self._histogram("boot_seconds", "From a worker's start until it joined", BOOT_S)
        self.stop = self._histogram("drain_seconds", "From the word to end until a worker was gone", BOOT_S)
        self.turn = self._histogram("turn_seconds", "One look at what is wanted and what runs", SHORT_S)
        self.fleet = self._gauge("fleet", "Workers by state, whoever started them", "state")
        self.ceiling = self._gauge("ceiling", "Workers that may run at once")
        self.heard = self._gauge("heard", "1 while the dispatcher answers")
        self.ceiling.set(most)
        for state in STATES:
            self.fleet.labels(state).set(0)
        for outcome in ("started", "failed", "refused"):
            self.orders.labels(outcome)
        for reason in ("drained", "orphan"):
            self.stops.labels(reason)
        for side in ("dispatcher", "driver"):
            self.errors.labels(side)

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"windtunnel_scaler_{name}", says, labels, registry=self.registry)

    def _gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(f"windtunnel_scaler_{name}", says, labels, registry=self.registry)

    def _histogram(self, name: str, says: str, edges: tuple[float, ...]) -> Histogram:
        return Histogram(f"windtunnel_scaler_{name}", says, registry=self.registry, buckets=edges)

    def sized(self, states: Iterable[str]) -> None:
        """Note in which state each worker is."""
        found = Tally(states)
        for state in STATES:
            self.fleet.labels(state).set(found[state])
