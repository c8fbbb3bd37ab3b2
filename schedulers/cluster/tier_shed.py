"""Shedding by tier: past saturation turn lower tiers away at the door, the lowest first."""

from schedulers.policy import REFUSE, TAKE, ClusterPolicy, Memo, Param
from schedulers.pressure import COLUMNS, add_work, pressure
from schedulers.scaling import work_s
from schedulers.view import View

LOW, HIGH, HYSTERESIS, WINDOW = range(4)
TIERS_MAX = 10
SHUT = COLUMNS  # tenant memo, a tier: 1 while it is turned away
COUNTED = 0  # request memo: 1 once its work is counted


def mark(view: View, tier: int) -> float:
    """Load above which a tier is turned away: ``low`` for the last, ``high`` for the first, between them evenly.

    One tier alone is turned away half way between: 1.2 by default.
    """
    tiers, low, high = len(view.tiers.weight), view.params[LOW], view.params[HIGH]
    if tiers == 1:
        return float((low + high) / 2.0)
    return float(low + (high - low) * (tiers - 1 - tier) / (tiers - 1))


def shut(view: View, tier: int, load: float) -> bool:
    """True while a tier is turned away: from its mark on, until the load is ``hysteresis`` below it."""
    memo, column = view.tenants.memo[0], SHUT + min(tier, TIERS_MAX - 1)
    limit = mark(view, tier) - (view.params[HYSTERESIS] if memo[column] == 1.0 else 0.0)
    memo[column] = 1.0 if load > limit else 0.0
    return bool(memo[column] == 1.0)


def admit(view: View, request: int, now_s: float) -> float:
    """Refuse while the work that was let in over the last ``window_s`` is above the mark of the request's tier.

    Counted is work that was taken, not offered: what is turned away loads nobody, and would shut all tiers at once.
    """
    memo = view.requests.memo
    if memo[request, COUNTED] == 1.0:
        return TAKE
    if shut(view, int(view.requests.tier[request]), pressure(view, 0, now_s, view.params[WINDOW])):
        return REFUSE
    memo[request, COUNTED] = 1.0
    add_work(view, 0, work_s(view, request), now_s, view.params[WINDOW])
    return TAKE


POLICY = ClusterPolicy(
    name="tier-shed",
    admit=admit,
    params=(
        Param("low", 1.0, 0.0, 100.0, "x capacity", "load above which the last tier is turned away"),
        Param("high", 1.4, 0.0, 100.0, "x capacity", "load above which the first tier is turned away"),
        Param("hysteresis", 0.05, 0.0, 10.0, "x capacity", "below its mark at which a tier is let in again"),
        Param("window_s", 10.0, 0.001, 86400.0, "s", "over which load is measured"),
    ),
    memo=Memo(requests=1, tenants=COLUMNS + TIERS_MAX),
    reads=("forecast", "tier"),
    source="reference/policies.md 4.1",
)
