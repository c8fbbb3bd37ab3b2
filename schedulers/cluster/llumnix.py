"""Llumnix: the engine with the most freeness, blocks that virtual usage leaves free a running request."""

from schedulers.cost import blocks_for
from schedulers.fleet import in_turn
from schedulers.policy import ClusterPolicy, Param
from schedulers.view import View

DEMAND = 0


def came_first(view: View, one: int, other: int) -> bool:
    """True if a request arrived before another one; ties by luck."""
    table = view.requests
    if table.arrival_s[one] == table.arrival_s[other]:
        return bool(table.luck[one] < table.luck[other])
    return bool(table.arrival_s[one] < table.arrival_s[other])


def head_blocks(view: View, engine: int) -> int:
    """Blocks that the first request of the queue, by arrival, asks for; 0 without one."""
    head = -1
    for place in range(view.engines.waiting[engine]):
        one = int(view.waiting[engine, place])
        if head < 0 or came_first(view, one, head):
            head = one
    return blocks_for(view, engine, int(view.requests.prefill_tokens[head]) + 1) if head >= 0 else 0


def freeness(view: View, engine: int) -> float:
    """Blocks that are not used, virtually, a running request; negative if the queue asks for more. [F_full]

    Virtual usage V is what is held, and what the head of the queue asks for, and ``demand`` of what the rest
    asks for. No tier keeps headroom (H = 0), and an engine that drains is never asked.
    """
    fleet = view.engines
    used = float(fleet.blocks_total[engine] - fleet.blocks_free[engine])
    queued = float(fleet.queued_blocks[engine])
    if view.params[DEMAND] < 1.0:
        head = float(head_blocks(view, engine))
        queued = head + view.params[DEMAND] * (queued - head)
    return float((fleet.blocks_total[engine] - used - queued) / max(1, fleet.running[engine]))


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine of most freeness; luck picks among equals, none serving holds."""
    chosen, most = -1, 0.0
    for turn in range(len(view.engines.alive)):
        engine = in_turn(view, request, turn)
        if engine >= 0 and (chosen < 0 or freeness(view, engine) > most):
            chosen, most = engine, freeness(view, engine)
    return float(chosen)


POLICY = ClusterPolicy(
    name="llumnix",
    dispatch=dispatch,
    params=(
        Param(
            "demand", 1.0, 0.0, 1.0, "share", "of the queue behind its head that counts as used (paper: 0)"
        ),
    ),
    source="arXiv 2406.03243",
)
