"""Llumnix: the engine with the most freeness, blocks that virtual usage leaves free a running request."""

from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy, Param
from schedulers.usage import present_reserve, used_blocks
from schedulers.view import View

DEMAND, HEADROOM = 0, 1


def freeness(view: View, engine: int) -> float:
    """Blocks that are not used, virtually, a running request; negative if the queue asks for more. [F_full]

    Virtual usage V is what is held, what the head of the queue asks for, ``demand`` of what the rest asks for and,
    with ``headroom``, the reserve of each tier that is present. An engine that drains is never asked.
    """
    fleet = view.engines
    queued = float(fleet.queued_blocks[engine])
    if view.params[DEMAND] < 1.0:
        head = float(fleet.head_blocks[engine])
        queued = head + view.params[DEMAND] * (queued - head)
    if view.params[HEADROOM] == 1.0:
        queued += float(present_reserve(view, engine))
    left = fleet.blocks_total[engine] - float(used_blocks(view, engine)) - queued
    return float(left / max(1, fleet.running[engine]))


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine of most freeness; luck picks among equals, none serving holds."""
    chosen, most = -1, 0.0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0:
            free = freeness(view, engine)
            if chosen < 0 or free > most:
                chosen, most = engine, free
    return float(chosen)


POLICY = ClusterPolicy(
    name="llumnix",
    dispatch=dispatch,
    params=(
        Param(
            "demand", 1.0, 0.0, 1.0, "share", "of the queue behind its head that counts as used (paper: 0)"
        ),
        Param("headroom", 0, 0, 1, "switch", "1: the reserve of tiers that an engine holds counts as used"),
    ),
    reads=("usage",),
    version=2,
    source="arXiv 2406.03243",
)
