"""Llumnix's migration: from engines with few free blocks a request to those with many, freest paired with fullest."""

from schedulers.policy import HOLD, ClusterPolicy, Param
from schedulers.view import View

LOW, HIGH = 0, 1


def freeness(view: View, engine: int) -> float:
    """Blocks that neither batch nor queue asks for, a running request; negative if the queue asks for more. [F]"""
    fleet = view.engines
    left = fleet.blocks_free[engine] - fleet.queued_blocks[engine]
    return float(left / max(1, fleet.running[engine]))


def source(view: View, engine: int) -> bool:
    """True if an engine should give: it drains with work, or its freeness is low."""
    fleet = view.engines
    held = fleet.running[engine] + fleet.waiting[engine] > 0
    if fleet.alive[engine] != 1 or fleet.moving[engine] == 1 or not held:
        return False
    return bool(fleet.draining[engine] == 1 or freeness(view, engine) <= view.params[LOW])


def destination(view: View, engine: int) -> bool:
    """True if an engine can take: it serves, nothing moves there, and its freeness is high."""
    fleet = view.engines
    open_ = fleet.alive[engine] == 1 and fleet.draining[engine] == 0 and fleet.moving[engine] == 0
    return bool(open_ and freeness(view, engine) >= view.params[HIGH])


def need(view: View, engine: int) -> float:
    """How pressing it is that an engine gives: one that drains comes first."""
    return freeness(view, engine) - (1e9 if view.engines.draining[engine] == 1 else 0.0)


def migrate(view: View, engine: int, now_s: float) -> float:
    """The engine paired with this one: the n-th fullest gives to the n-th freest."""
    if not source(view, engine):
        return HOLD
    rank = 0
    for other in range(len(view.engines.alive)):
        if other != engine and source(view, other):
            here, there = need(view, engine), need(view, other)
            if there < here or (there == here and other < engine):
                rank += 1
    for target in range(len(view.engines.alive)):
        if target != engine and destination(view, target):
            better = 0
            for other in range(len(view.engines.alive)):
                if other not in (target, engine) and destination(view, other):
                    here, there = freeness(view, target), freeness(view, other)
                    if there > here or (there == here and other < target):
                        better += 1
            if better == rank:
                return float(target)
    return HOLD


POLICY = ClusterPolicy(
    name="rebalance",
    migrate=migrate,
    period_s=0.5,
    params=(
        Param("low", 3.0, -1000.0, 1000.0, "blocks a request", "freeness at which an engine gives"),
        Param("high", 10.0, -1000.0, 10000.0, "blocks a request", "freeness from which an engine takes"),
    ),
    source="arXiv 2406.03243",
)
