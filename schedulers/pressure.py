"""Work over the last seconds, kept in a ring of ten buckets: the load by which tiers are shed and fleets scaled.

Source: reference/policies.md section 4.1 (rho_hat).
"""

from schedulers.fleet import serving_count
from schedulers.view import View

BUCKETS = 10
COLUMNS = 2 * BUCKETS
"""Columns of ``Tenants.memo[0]`` that a ring needs: sums, and which bucket each is of (from 1)."""


def add_work(view: View, first: int, amount_s: float, now_s: float, window_s: float) -> None:
    """Add work to the ring that begins at a column; ``window_s`` is its whole length."""
    memo, bucket = view.tenants.memo[0], int(now_s / (window_s / BUCKETS))
    place = first + bucket % BUCKETS
    if memo[place + BUCKETS] != bucket + 1.0:
        memo[place], memo[place + BUCKETS] = 0.0, bucket + 1.0
    memo[place] += amount_s


def work_rate(view: View, first: int, now_s: float, window_s: float) -> float:
    """Engine-seconds of work a second, over the last ten buckets; the one under way counts as whole."""
    memo, bucket, total = view.tenants.memo[0], int(now_s / (window_s / BUCKETS)), 0.0
    for place in range(first, first + BUCKETS):
        if memo[place + BUCKETS] > bucket + 1.0 - BUCKETS:
            total += memo[place]
    return float(total / window_s)


def pressure(view: View, first: int, now_s: float, window_s: float) -> float:
    """Work offered over what the engines that take requests can do. [rho_hat]; 0 if none does."""
    count = serving_count(view)
    return work_rate(view, first, now_s, window_s) / count if count > 0 else 0.0
