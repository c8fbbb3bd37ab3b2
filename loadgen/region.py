"""Regions: how hard a window pushes a fleet, as offered work over measured capacity (rho).

Arrivals are stretched so that every window meets the same pressure; deadlines and SLOs never scale. With C
the completions a second of a saturated run, the stretched span is ``requests / (rho * C)``: no search
(reference/traces.md section 9).
"""

from typing import NamedTuple

import numpy as np

from schedulers.cost import ATTENTION, BASE, DECODE, FLOOR, JOINT, KV, PREFILL
from schedulers.errors import InputError
from schedulers.view import Floats, Ints

RHOS = (0.5, 0.7, 0.85, 0.95, 1.1, 1.4)
"""The six regions of a full study."""

FACTORS = (0.25, 4.0)
"""Stretch outside of this range is flagged: bursts and think times are then far from what was recorded."""


class Region(NamedTuple):
    """One window under one pressure."""

    name: str  # "0.85"
    rho: float  # aimed pressure
    factor: float  # arrival times are multiplied by it
    far: bool  # the factor is outside FACTORS: flagged, not refused


def name(rho: float) -> str:
    """Return the name of the region of pressure ``rho``, as results carry it."""
    return f"{rho:g}"


def place(rho: float, *, requests: int, span_s: float, capacity_per_s: float) -> Region:
    """Return the region in which ``requests`` that came over ``span_s`` seconds offer ``rho`` of capacity.

    Raises InputError if the window has no span or no capacity: nothing can be stretched then.
    """
    if not (span_s > 0.0 and capacity_per_s > 0.0 and requests > 0):
        raise InputError(
            f"no pressure can be set: {requests} requests over {span_s:g} s, capacity {capacity_per_s:g}/s",
            fix="use windows whose requests arrive at different times and fit the fleet",
        )
    factor = requests / (rho * capacity_per_s) / span_s
    return Region(name(rho), rho, factor, not FACTORS[0] <= factor <= FACTORS[1])


def work_s(prompt_tokens: Ints, output_tokens: Ints, costs: Floats, sequences_max: int) -> Floats:
    """Return the engine-seconds of each request at half of the slots, shape (n,): prefill and decode apart.

    A step's fixed part is shared by the sequences in it; prefix hits are not counted.
    """
    p, o = np.asarray(prompt_tokens, np.float64), np.asarray(output_tokens, np.float64)
    batch = max(1.0, sequences_max / 2.0)
    shared = max(costs[FLOOR], costs[BASE] + costs[JOINT] * batch) / batch + costs[DECODE]
    prefill: Floats = costs[PREFILL] * p + costs[ATTENTION] * p * p / 2.0
    decode: Floats = shared * o + costs[KV] * (p * o + o * o / 2.0)
    return prefill + decode


def reached_rho(work: Floats, arrival_s: Floats, scored: tuple[int, int], total_s: float) -> float:
    """Return the pressure that the scored rows really offered; NaN where they span no time.

    ``work`` is priced by ``work_s``; ``total_s`` is the time in which the fleet serves all rows at capacity.
    Traffic is not stationary, so the scored part may press harder or softer than the whole window.
    """
    low, high = scored
    span_s = float(arrival_s[min(high, len(arrival_s) - 1)] - arrival_s[low])
    share = float(work[low:high].sum() / work.sum())
    return share * total_s / span_s if span_s > 0.0 else float("nan")
