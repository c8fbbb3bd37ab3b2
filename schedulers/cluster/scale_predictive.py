"""Scale ahead: level and trend of the work that arrives (Holt), as far ahead as an engine takes to boot."""

from schedulers.policy import ClusterPolicy, Memo, Param
from schedulers.scaling import OWN, elapsed_s, fitting, in_param, out_param, window_param, work_s
from schedulers.view import ARRIVAL, View

AIM, BAND, AHEAD, TREND_S, WINDOW, OUT, IN = range(7)
ARRIVED, LEVEL, TREND, AGE = OWN, OWN + 1, OWN + 2, OWN + 3
RISE_MAX = 2.0
"""A forecast is at most so many times the level: a trend is a guess."""


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Add a newcomer's work, by its forecast."""
    view.tenants.memo[0, ARRIVED] += work_s(view, request)


def follow(view: View, passed_s: float) -> None:
    """Take the work since the last question into level and trend; for a window's length the level is a mean."""
    memo = view.tenants.memo[0]
    rate, memo[ARRIVED] = memo[ARRIVED] / passed_s, 0.0
    if memo[AGE] < view.params[WINDOW]:
        memo[LEVEL] += (rate - memo[LEVEL]) * passed_s / (memo[AGE] + passed_s)
        memo[AGE] += passed_s
        return
    was, guess = memo[LEVEL], memo[LEVEL] + memo[TREND] * passed_s
    memo[LEVEL] = max(0.0, guess + min(1.0, passed_s / view.params[WINDOW]) * (rate - guess))
    slope = (memo[LEVEL] - was) / passed_s
    memo[TREND] += min(1.0, passed_s / view.params[TREND_S]) * (slope - memo[TREND])


def expected(view: View) -> float:
    """Work a second, the larger of now and ``ahead_s`` from now."""
    memo = view.tenants.memo[0]
    ahead = min(memo[LEVEL] + memo[TREND] * view.params[AHEAD], RISE_MAX * memo[LEVEL])
    return float(max(memo[LEVEL], ahead))


def scale(view: View, nobody: int, now_s: float) -> float:
    """Order what the forecast lacks at ``aim``; drain one if less would carry it with ``band`` to spare."""
    passed_s = elapsed_s(view, now_s)
    if passed_s <= 0.0:
        return 0.0
    follow(view, passed_s)
    if view.tenants.memo[0, AGE] < view.params[WINDOW]:
        return 0.0
    pace = (view.params[OUT], view.params[IN])
    return fitting(view, expected(view), view.params[AIM], view.params[BAND], now_s, pace)


POLICY = ClusterPolicy(
    name="scale-predictive",
    scale=scale,
    observe=observe,
    watches=(ARRIVAL,),
    params=(
        Param("aim", 0.8, 0.05, 2.0, "share", "of an engine's time that work should take"),
        Param("band", 0.15, 0.0, 0.9, "share", "of the aim left before an engine is drained"),
        Param("ahead_s", 60.0, 0.0, 86400.0, "s", "how far ahead: the boot delay"),
        Param("trend_s", 120.0, 0.001, 86400.0, "s", "over which the trend is averaged"),
        window_param(),
        out_param(),
        in_param(),
    ),
    memo=Memo(tenants=OWN + 4),
    period_s=1.0,
    reads=("forecast",),
    source="Holt's linear trend (1957)",
)
