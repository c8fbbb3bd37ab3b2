"""The load generator's own health: a client that is the bottleneck measures itself."""

import asyncio
import resource
from typing import NamedTuple

PERIOD_S = 0.05
"""How often the loop is asked how late it is."""

LATE_S = 0.050
"""A loop whose 99th percentile is later than this can't tell when tokens came."""

BUSY_SHARE = 0.9
"""From this share of one core on the client may be the bottleneck."""


class Health(NamedTuple):
    """Loop lag in seconds, share of one core, and the words that a reader must see."""

    loop_p99_s: float
    loop_max_s: float
    cpu_share: float
    warnings: tuple[str, ...]


class Pulse:
    """Watches the loop while a replay runs."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.cpu_s = cpu_s()

    async def run(self) -> None:
        """Ask the loop again and again how late it is."""
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(PERIOD_S)
            self.late_s.append(max(0.0, loop.time() - before_s - PERIOD_S))

    def health(self) -> Health:
        """Return what was seen so far; any thread may ask."""
        late_s = sorted(self.late_s) or [0.0]
        p99_s = late_s[min(len(late_s) - 1, int(0.99 * len(late_s)))]
        took_s = max(1e-9, self.loop.time() - self.began_s)
        share = (cpu_s() - self.cpu_s) / took_s
        warnings = []
        if p99_s > LATE_S:
            warnings.append(f"the client's loop was {p99_s * 1e3:.0f} ms late (99th percentile)")
        if share > BUSY_SHARE:
            warnings.append(f"the client used {share:.0%} of a core: it may be the bottleneck")
        return Health(p99_s, late_s[-1], share, tuple(warnings))


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def allow_connections(wanted: int) -> int:
    """Raise the limit on open files as far as this user may; return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
