"""The load generator's own lag: how late it sent, and whether a run with such a lag counts.

Lag is absolute: actual minus intended time, never relative to its own best. A run that is over the limits, or
that left a row unsent, measured the load generator and not the system; it is invalid and never ranked.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schedulers.view import Floats


@dataclass(frozen=True)
class LagLimits:
    """Most lag of a valid run, seconds."""

    p50_s: float = 0.010
    p99_s: float = 0.050


class Lag(NamedTuple):
    """How late requests were sent, seconds, and how many were not sent at all."""

    p50_s: float
    p99_s: float
    max_s: float
    sent: int
    unsent: int

    def faults(self, limits: LagLimits) -> list[str]:
        """Return why a run with this lag does not count, in words; empty if it counts."""
        found = []
        if self.unsent:
            found.append(f"{self.unsent} of {self.sent + self.unsent} requests were not sent")
        for name, value, limit in (
            ("median", self.p50_s, limits.p50_s),
            ("99th percentile", self.p99_s, limits.p99_s),
        ):
            if value > limit:
                found.append(
                    f"{name} of the sending lag is {value * 1e3:.1f} ms, the limit {limit * 1e3:.1f} ms"
                )
        return found


def lag_of(due_s: Floats, sent_s: Floats) -> Lag:
    """Return the lag of requests due and sent at these times (NaN: not sent); zeros if none was sent."""
    sent = ~np.isnan(sent_s)
    late = (sent_s - due_s)[sent]
    if not len(late):
        return Lag(0.0, 0.0, 0.0, 0, len(due_s))
    p50_s, p99_s = (float(value) for value in np.quantile(late, [0.5, 0.99]))
    return Lag(p50_s, p99_s, float(late.max()), len(late), int(len(due_s) - sent.sum()))
