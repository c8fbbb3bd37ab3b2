"""Scale by freeness: an engine more while blocks a request are few, one less while they are many (Llumnix)."""

from schedulers.dispatcher import serving
from schedulers.policy import ClusterPolicy, Memo, Param
from schedulers.scaling import (
    IN_HELD,
    OUT_HELD,
    OWN,
    averaged,
    elapsed_s,
    in_param,
    lasting,
    on_order,
    out_param,
    paced,
    window_param,
)
from schedulers.view import View

LOW, HIGH, HOLD_S, WINDOW, OUT, IN = range(6)


def mean_freeness(view: View) -> float:
    """Mean over serving engines of blocks neither held nor asked for a running request; an idle one counts 2 x high.

    [F_normal]: without headroom, and draining engines are left out, which cures B22.
    """
    fleet, total, count, most = view.engines, 0.0, 0, 2.0 * view.params[HIGH]
    for engine in range(len(fleet.alive)):
        if serving(view, engine):
            left = float(fleet.blocks_free[engine] - fleet.queued_blocks[engine])
            total += min(most, left / max(1, fleet.running[engine]))
            count += 1
    return total / count if count > 0 else most


def freeness_with_one_less(view: View) -> float:
    """Blocks a running request if what serving engines hold and are asked for were on one engine less."""
    fleet, left, running, total, count = view.engines, 0.0, 0, 0.0, 0
    for engine in range(len(fleet.alive)):
        if serving(view, engine):
            left += float(fleet.blocks_free[engine] - fleet.queued_blocks[engine])
            running += int(fleet.running[engine])
            total += float(fleet.blocks_total[engine])
            count += 1
    return (left - total / max(1, count)) / max(1, running)


def scale(view: View, nobody: int, now_s: float) -> float:
    """One more (two, if queues ask for more than there is) while the mean stays low; one less while it stays high.

    Nothing is ordered while an engine boots, and none is drained if the rest would be below half way to ``high``.
    """
    passed_s, low, high = elapsed_s(view, now_s), view.params[LOW], view.params[HIGH]
    mean = averaged(view, OWN, mean_freeness(view), passed_s, view.params[WINDOW])
    few = lasting(view, OUT_HELD, mean < low and on_order(view) == 0, now_s, view.params[HOLD_S])
    spare = mean > high and on_order(view) == 0 and freeness_with_one_less(view) > (low + high) / 2.0
    many = lasting(view, IN_HELD, spare, now_s, view.params[IN])
    if few:
        return paced(view, 2.0 if mean < 0.0 else 1.0, now_s, view.params[OUT], view.params[IN])
    return paced(view, -1.0, now_s, view.params[OUT], view.params[IN]) if many else 0.0


POLICY = ClusterPolicy(
    name="scale-freeness",
    scale=scale,
    params=(
        Param(
            "low",
            10.0,
            -1000.0,
            100000.0,
            "blocks a request",
            "mean freeness below which engines are ordered",
        ),
        Param(
            "high", 60.0, -1000.0, 100000.0, "blocks a request", "mean freeness above which one is drained"
        ),
        Param("hold_s", 10.0, 0.0, 86400.0, "s", "that freeness must stay low"),
        window_param(),
        out_param(),
        in_param(),
    ),
    memo=Memo(tenants=OWN + 1),
    period_s=1.0,
    source="arXiv 2406.03243, marks of its artifact",
)
