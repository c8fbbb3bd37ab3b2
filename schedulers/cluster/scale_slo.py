"""Scale by targets: more engines while a tier misses its own, one less while all would be met easily without it."""

from math import inf

from schedulers.cost import step_s
from schedulers.dispatcher import serving
from schedulers.fleet import serving_count
from schedulers.policy import ClusterPolicy, Memo, Param
from schedulers.scaling import (
    IN_HELD,
    OUT_HELD,
    OWN,
    in_param,
    lasting,
    on_order,
    out_param,
    paced,
    wait_s,
    window_param,
)
from schedulers.view import FINISH, FIRST_TOKEN, REJECT, View

AIM, FLOOR, EASE, HOLD_S, WINDOW, OUT, IN = range(7)
EPOCH, MET = OWN, OWN + 1  # then, a tier: met and judged in this epoch, met and judged in the last one
TIERS_MAX, COUNTS_MIN = 10, 8
"""Further tiers count with the last one; fewer judged requests than this say nothing."""


def turn(view: View, now_s: float) -> None:
    """Begin a new epoch if its time has come; what is older than the last one is forgotten."""
    memo, epoch = view.tenants.memo[0], float(int(now_s / view.params[WINDOW]))
    if epoch == memo[EPOCH]:
        return
    for first in range(MET, MET + 4 * TIERS_MAX, 4):
        for place in (first, first + 1):
            memo[place + 2] = memo[place] if epoch == memo[EPOCH] + 1.0 else 0.0
            memo[place] = 0.0
    memo[EPOCH] = epoch


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Judge a first token, and the mean gap of an answer that ended; what was refused has met nothing."""
    turn(view, now_s)
    table, tier = view.requests, int(view.requests.tier[request])
    met = event == FIRST_TOKEN and now_s - table.arrival_s[request] <= view.tiers.ttft_s[tier]
    if event == FINISH:
        gaps = max(1, int(table.generated_tokens[request]) - 1)
        met = now_s - table.first_token_s[request] <= gaps * view.tiers.tpot_s[tier]
    first = MET + 4 * min(tier, TIERS_MAX - 1)
    view.tenants.memo[0, first] += 1.0 if met else 0.0
    view.tenants.memo[0, first + 1] += 1.0


def missing(view: View) -> float:
    """Largest shortfall of a tier's attainment from its aim, which falls evenly from ``aim`` to ``floor``."""
    memo, worst, tiers = view.tenants.memo[0], 0.0, len(view.tiers.weight)
    for tier in range(min(tiers, TIERS_MAX)):
        first, rank = MET + 4 * tier, tier / max(1, tiers - 1)
        judged = memo[first + 1] + memo[first + 3]
        aim = view.params[AIM] + (view.params[FLOOR] - view.params[AIM]) * rank
        if judged >= COUNTS_MIN:
            worst = max(worst, aim - (memo[first] + memo[first + 2]) / judged)
    return float(worst)


def strictest_s(view: View, targets: int) -> float:
    """The shortest first-token (0) or between-token (1) target of any tier."""
    least = inf
    for tier in range(len(view.tiers.weight)):
        least = min(least, float(view.tiers.ttft_s[tier] if targets == 0 else view.tiers.tpot_s[tier]))
    return least


def easy(view: View) -> bool:
    """True if one engine less would keep waits, decode steps, slots and memory below ``ease`` of their limits."""
    fleet, count, ease = view.engines, serving_count(view), view.params[EASE]
    if count < 2:
        return False
    more = count / (count - 1.0)
    if more * wait_s(view) > ease * strictest_s(view, 0):
        return False
    for engine in range(len(fleet.alive)):
        if serving(view, engine):
            batch = more * float(fleet.running[engine] + fleet.waiting[engine])
            blocks = more * float(
                fleet.blocks_total[engine] - fleet.blocks_free[engine] + fleet.queued_blocks[engine]
            )
            step = step_s(view.costs[engine], 0.0, 0.0, batch, blocks * fleet.block_tokens[engine])
            full = batch > ease * fleet.sequences_max[engine] or blocks > ease * fleet.blocks_total[engine]
            if full or step > ease * strictest_s(view, 1):
                return False
    return True


def scale(view: View, nobody: int, now_s: float) -> float:
    """One more (far below two) while a tier misses its aim or a newcomer would wait too long; one less while easy."""
    turn(view, now_s)
    short = missing(view)
    late = short > 0.0 or wait_s(view) > strictest_s(view, 0)
    few = lasting(view, OUT_HELD, late and on_order(view) == 0, now_s, view.params[HOLD_S])
    many = lasting(view, IN_HELD, not late and on_order(view) == 0 and easy(view), now_s, view.params[IN])
    if few:
        return paced(view, 2.0 if short > 0.2 else 1.0, now_s, view.params[OUT], view.params[IN])
    return paced(view, -1.0, now_s, view.params[OUT], view.params[IN]) if many else 0.0


POLICY = ClusterPolicy(
    name="scale-slo",
    scale=scale,
    observe=observe,
    watches=(FIRST_TOKEN, FINISH, REJECT),
    params=(
        Param("aim", 0.95, 0.0, 1.0, "share", "of the first tier's requests that should meet their targets"),
        Param("floor", 0.7, 0.0, 1.0, "share", "of the last tier's; those between lie between"),
        Param("ease", 0.7, 0.0, 1.0, "share", "of every limit that one engine less must keep to"),
        Param("hold_s", 3.0, 0.0, 86400.0, "s", "that a tier must miss its aim"),
        window_param(),
        out_param(),
        in_param(),
    ),
    memo=Memo(tenants=OWN + 1 + 4 * TIERS_MAX),
    period_s=1.0,
    reads=("targets", "tier"),
    source="targets by tier as in reference/multitier.md section 8",
)
