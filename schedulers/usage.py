"""How an engine's memory and queue are shared out among tiers, and how much of it a tier may call free.

The numbers by tier are columns of ``Engines``; the simulator and the live desk count them with the same function,
and only for policies that read "usage". Sources: reference/policies.md 4.2 to 4.5, reference/multitier.md section 3.
"""

from schedulers.cost import blocks_for
from schedulers.view import Engines, View


def tally_use(view: View, engine: int, table: Engines) -> None:
    """Count one engine's memory and requests by tier, and what its queue's head asks for, into a table."""
    for tier in range(table.tier_blocks.shape[1]):
        table.tier_running[engine, tier], table.tier_waiting[engine, tier] = 0, 0
        table.tier_blocks[engine, tier], table.tier_queued[engine, tier] = 0, 0
    for place in range(view.engines.running[engine]):
        request = view.running[engine, place]
        tier = view.requests.tier[request]
        table.tier_running[engine, tier] += 1
        table.tier_blocks[engine, tier] += view.requests.blocks[request]
    for place in range(view.engines.waiting[engine]):
        request = view.waiting[engine, place]
        tier = view.requests.tier[request]
        blocks = blocks_for(view, engine, view.requests.prefill_tokens[request] + 1)
        table.tier_waiting[engine, tier] += 1
        table.tier_queued[engine, tier] += blocks
        if place == 0:
            table.head_blocks[engine] = blocks
    if view.engines.waiting[engine] == 0:
        table.head_blocks[engine] = 0


def used_blocks(view: View, engine: int) -> int:
    """Blocks that are held or kept for a request on its way here. [U]"""
    return int(view.engines.blocks_total[engine] - view.engines.blocks_free[engine])


def unused_reserve(view: View, engine: int, tier: int) -> int:
    """Blocks set aside for tiers above this one that those do not use yet. [G_p = sum over q < p of (H_q - U_q)+]"""
    fleet, total = view.engines, 0
    for above in range(tier):
        total += max(0, int(fleet.reserve[engine, above] - fleet.tier_blocks[engine, above]))
    return total


def present_reserve(view: View, engine: int) -> int:
    """Blocks set aside for the tiers of which the engine holds a request, running or waiting. [sum of H_t]"""
    fleet, total = view.engines, 0
    for tier in range(fleet.reserve.shape[1]):
        if fleet.tier_running[engine, tier] + fleet.tier_waiting[engine, tier] > 0:
            total += int(fleet.reserve[engine, tier])
    return total


def below(view: View, engine: int, tier: int) -> tuple[int, int, int]:
    """Blocks held, blocks asked for by the queue and requests running, of the tiers less important than this one."""
    fleet, held, queued, running = view.engines, 0, 0, 0
    for other in range(tier + 1, fleet.tier_blocks.shape[1]):
        held += int(fleet.tier_blocks[engine, other])
        queued += int(fleet.tier_queued[engine, other])
        running += int(fleet.tier_running[engine, other])
    return held, queued, running


def tier_freeness(view: View, engine: int, tier: int) -> float:
    """Blocks that a tier may call free, a request at or above it: those of lower tiers are preemptable. [F_tier(p)]

    (M - U_{<=p} - D_{<=p} - G_p) / max(1, n_{<=p}); what is kept for a request that moves here counts as held by
    all, since a reservation binds. With one tier it is Llumnix's freeness without headroom.
    """
    fleet = view.engines
    held, queued, running = below(view, engine, tier)
    used = max(0, used_blocks(view, engine) - held) + max(0, int(fleet.queued_blocks[engine]) - queued)
    left = fleet.blocks_total[engine] - used - unused_reserve(view, engine, tier)
    return float(left / max(1, fleet.running[engine] - running))
