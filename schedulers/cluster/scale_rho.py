"""Scale by load: as many engines as carry the work of the last seconds at a given share of their time."""

from schedulers.policy import ClusterPolicy, Memo, Param
from schedulers.pressure import COLUMNS, add_work, work_rate
from schedulers.scaling import OWN, fitting, in_param, out_param, window_param, work_s
from schedulers.view import ARRIVAL, View

AIM, BAND, WINDOW, OUT, IN = range(5)


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Add a newcomer's work, by its forecast."""
    add_work(view, OWN, work_s(view, request), now_s, view.params[WINDOW])


def scale(view: View, nobody: int, now_s: float) -> float:
    """Order what is missing at ``aim``; drain one if the rest would carry the work with ``band`` to spare."""
    work = work_rate(view, OWN, now_s, view.params[WINDOW])
    pace = (view.params[OUT], view.params[IN])
    return fitting(view, work, view.params[AIM], view.params[BAND], now_s, pace)


POLICY = ClusterPolicy(
    name="scale-rho",
    scale=scale,
    observe=observe,
    watches=(ARRIVAL,),
    params=(
        Param("aim", 0.8, 0.05, 2.0, "share", "of an engine's time that work should take"),
        Param("band", 0.15, 0.0, 0.9, "share", "of the aim left before an engine is drained"),
        window_param(),
        out_param(),
        in_param(),
    ),
    memo=Memo(tenants=OWN + COLUMNS),
    period_s=1.0,
    reads=("forecast",),
    source="reference/policies.md 4.5",
)
