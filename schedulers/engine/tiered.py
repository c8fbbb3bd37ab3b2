"""Tiers in one engine, lever by lever: who waits in front, what is kept free for whom, who leaves when memory ends.

With all levers at 0 it is ``fcfs-chunked`` to the last bit. What ``order=1,victim=1,preempt=1`` promises tier 0
against any load of lower tiers, as long as tier 0 alone fits its engine (tests/sim/test_promises.py):

* between two of its tokens lies one step: it is served first and nobody of a lower tier makes it leave;
* with nobody of tier 0 before it, it starts after the step under way, the prompt that a lower tier has begun, which
  is served before newcomers (its tokens / (budget - slots) steps), and steps that evict somebody (one a slot at
  most).

Not promised is that lower tiers cost tier 0 "one step and one block" in all: a step takes as long as all that decode
in it, so each of its tokens comes a little later. That is the price of a shared batch, and no order takes it away.
"""

from math import inf

from schedulers.cost import blocks_for, ranked
from schedulers.policy import GIVE_WAY, USUAL, EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, View

ORDER, HEADROOM, VICTIM, PREEMPT, AGE, GAMMA, WINDOW, BUDGET = range(8)
STRICT, AGEING, DEADLINE = 1.0, 2.0, 3.0
ELASTIC = 2.0
TIERS_MAX = 10
"""Tiers whose last arrival is kept apart; further ones share the last column."""


def order(view: View, request: int, now_s: float) -> float:
    """Key by ``order``: arrival, (tier, arrival), a + tier * age_s, or a + F / w^gamma (without a target: last)."""
    kind, arrival_s = view.params[ORDER], float(view.requests.arrival_s[request])
    tier = view.requests.tier[request]
    if kind == STRICT:
        return ranked(float(tier), arrival_s)
    if kind == AGEING:
        return float(arrival_s + tier * view.params[AGE])
    if kind == DEADLINE:
        target_s = view.tiers.ttft_s[tier]
        if target_s == inf:
            return ranked(1.0, arrival_s)
        return float(arrival_s + target_s / view.tiers.weight[tier] ** view.params[GAMMA])
    return arrival_s


def held_blocks(view: View, engine: int, tier: int) -> int:
    """Blocks that the batch of an engine holds for a tier. [U_q]"""
    total = 0
    for place in range(view.engines.running[engine]):
        request = view.running[engine, place]
        if view.requests.tier[request] == tier:
            total += int(view.requests.blocks[request])
    return total


def claimed(view: View, engine: int, tier: int, now_s: float) -> int:
    """Blocks set aside for a tier [H_q]; ``elastic``: 0 unless it came lately."""
    lately = now_s < view.engines.memo[engine, min(tier, TIERS_MAX - 1)]
    return int(view.engines.reserve[engine, tier]) if view.params[HEADROOM] != ELASTIC or lately else 0


def kept_free(view: View, engine: int, tier: int, now_s: float) -> int:
    """Blocks that a tier must leave free for those above it. [G_p]"""
    total = 0
    for above in range(tier):
        own = claimed(view, engine, above, now_s)
        if own > 0:
            total += max(0, own - held_blocks(view, engine, above))
    return total


def admit(view: View, request: int, now_s: float) -> float:
    """With headroom: give way unless free blocks - need >= G_p; an engine without a batch keeps nothing back."""
    engine = int(view.requests.engine[request])
    if view.params[HEADROOM] == 0.0 or view.engines.running[engine] == 0:
        return USUAL
    tier, claims = int(view.requests.tier[request]), 0
    for above in range(tier):
        claims += claimed(view, engine, above, now_s)
    left = view.engines.blocks_free[engine] - blocks_for(
        view, engine, int(view.requests.prefill_tokens[request]) + 1
    )
    if claims == 0 or left >= claims:  # as much as could be kept at all: no need to look who holds what
        return USUAL
    kept = kept_free(view, engine, tier, now_s)
    return GIVE_WAY if kept > 0 and left < kept else USUAL


def evict(view: View, request: int, now_s: float) -> float:
    """The newest leaves; with ``victim=1`` or elastic headroom the newest of the least important tier."""
    by_tier = view.params[VICTIM] == 1.0 or view.params[HEADROOM] == ELASTIC
    rank = float(view.requests.tier[request]) if by_tier else 0.0
    return ranked(rank, float(view.requests.arrival_s[request]))


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """With ``preempt=1`` any lower tier makes room; with elastic headroom one on blocks kept for this tier."""
    tier, engine = int(view.requests.tier[waiting]), int(view.requests.engine[waiting])
    if tier >= view.requests.tier[running]:
        return 0.0
    if view.params[PREEMPT] == 1.0:
        return 1.0
    if view.params[HEADROOM] != ELASTIC:
        return 0.0
    need = blocks_for(view, engine, int(view.requests.prefill_tokens[waiting]) + 1)
    short = need > view.engines.blocks_free[engine]
    return 1.0 if short and held_blocks(view, engine, tier) < view.engines.reserve[engine, tier] else 0.0


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Note until when the reserve of a newcomer's tier binds."""
    column = min(int(view.requests.tier[request]), TIERS_MAX - 1)
    view.engines.memo[view.requests.engine[request], column] = now_s + view.params[WINDOW]


def wake(view: View, engine: int, now_s: float) -> float:
    """The next moment at which a reserve is free to borrow."""
    soonest = inf
    if view.params[HEADROOM] == ELASTIC and view.engines.waiting[engine] > 0:
        for column in range(TIERS_MAX):
            if now_s < view.engines.memo[engine, column] < soonest:
                soonest = float(view.engines.memo[engine, column])
    return soonest


def budget(view: View, engine: int, now_s: float) -> float:
    """Cap the step at the smaller of the engine's limit and ``budget_tokens``."""
    return float(min(float(view.engines.budget_max[engine]), view.params[BUDGET]))


POLICY = EnginePolicy(
    name="tiered",
    order=order,
    serve=order,
    admit=admit,
    budget=budget,
    evict=evict,
    preempt=preempt,
    observe=observe,
    wake=wake,
    watches=(ARRIVAL,),
    params=(
        Param(
            "order", 0, 0, 3, "choice", "queue by: 0 arrival, 1 tier, 2 tier with ageing, 3 weighted deadline"
        ),
        Param(
            "headroom",
            0,
            0,
            2,
            "choice",
            "reserve of higher tiers: 0 ignored, 1 kept free, 2 lent and taken back",
        ),
        Param(
            "victim", 0, 0, 1, "switch", "1: the newest of the lowest tier is evicted, not the newest of all"
        ),
        Param("preempt", 0, 0, 1, "switch", "1: a waiting request may displace any of a lower tier"),
        Param("age_s", 10.0, 0.0, 86400.0, "s", "wait that outweighs one tier (order=2)"),
        Param("gamma", 0.5, 0.0, 4.0, "power", "of the weight that shortens a deadline (order=3)"),
        Param(
            "window_s", 10.0, 0.0, 86400.0, "s", "after an arrival in which its tier's reserve is not lent"
        ),
        Param("budget_tokens", 2048, 64, 65536, "tokens", "tokens that a step may carry"),
    ),
    memo=Memo(engines=TIERS_MAX),
    reads=("tier", "targets"),
    source="reference/multitier.md sections 3, 4 and 7",
)
