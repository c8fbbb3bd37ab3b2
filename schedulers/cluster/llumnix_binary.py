"""Llumnix with two classes, as its artifact dispatches: an engine with a high request seems nearly full."""

from math import inf

from schedulers.fleet import held, in_turn
from schedulers.policy import ClusterPolicy, Param
from schedulers.view import View

TARGET, CLASSES, WATERMARK = range(3)


def is_high(view: View, tier: int) -> bool:
    """True for the tiers that count as high."""
    return bool(tier < view.params[CLASSES])


def holds_high(view: View, engine: int) -> bool:
    """True if an engine holds a high request, running or waiting. [k]"""
    fleet = view.engines
    for tier in range(fleet.tier_running.shape[1]):
        if is_high(view, tier) and fleet.tier_running[engine, tier] + fleet.tier_waiting[engine, tier] > 0:
            return True
    return False


def load(view: View, engine: int, high: bool) -> float:
    """Minus the blocks left a request, to a request of that class; without any -inf. [-(avail - D - X*k)/(n + m)]

    X is all but the target load's blocks. Normal requests see it where a high one is, high ones where none is: so
    high requests cluster.
    """
    fleet, requests = view.engines, held(view, engine)
    if requests == 0:
        return -inf
    kept = float(int(fleet.blocks_total[engine] * view.params[WATERMARK]))
    left = fleet.blocks_free[engine] - kept - fleet.queued_blocks[engine]
    if holds_high(view, engine) != high:
        left -= max(0.0, fleet.blocks_total[engine] - view.params[TARGET] / fleet.block_tokens[engine])
    return -float(left / requests)


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the least load; luck picks among equals, none serving holds."""
    chosen, least, high = -1, 0.0, is_high(view, int(view.requests.tier[request]))
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0:
            here = load(view, engine, high)
            if chosen < 0 or here < least:
                chosen, least = engine, here
    return float(chosen)


POLICY = ClusterPolicy(
    name="llumnix-binary",
    dispatch=dispatch,
    params=(
        Param(
            "target_tokens", 1600.0, 0.0, 1e9, "tokens", "that an engine with a high request may seem to hold"
        ),
        Param("classes", 1, 0, 1000, "tiers", "first tiers that count as high"),
        Param("watermark", 0.01, 0.0, 0.5, "share", "of blocks that are never counted as left"),
    ),
    reads=("tier", "usage"),
    source="arXiv 2406.03243 (artifact)",
)
