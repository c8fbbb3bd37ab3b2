"""What autoscalers share: engines that count, work that arrives, averages, holds and cool-downs.

Their state is in ``Tenants.memo[0]``, a row that is always there. Columns from ``OWN`` on are the policy's.
Source: reference/multitier.md section 8, reference/policies.md section 4.5.
"""

from math import ceil

from schedulers.cost import prefill_rate, step_s
from schedulers.dispatcher import serving
from schedulers.fleet import serving_count
from schedulers.policy import Param
from schedulers.view import View

OUT_AGAIN, IN_AGAIN, ASKED, SEEN, IN_HELD, OUT_HELD, HAD, OWN = range(8)
"""Moments from which engines may be ordered and drained again; the last question; 1 once asked; ends of holds; how
many engines served when one was to be drained, 0 after an order."""

STEP_MAX = 2
"""Engines ordered by one decision at most."""


def out_param(default: float = 30.0) -> Param:
    """Cool-down after which engines may be ordered again."""
    return Param("out_s", default, 0.0, 86400.0, "s", "after a change in which no engine is ordered")


def in_param(default: float = 60.0) -> Param:
    """Cool-down after which an engine may be drained again, and how long the reason must have lasted."""
    return Param("in_s", default, 0.0, 86400.0, "s", "that a reason to drain must last, and between drains")


def window_param() -> Param:
    """Time over which a signal is averaged."""
    return Param("window_s", 10.0, 0.001, 86400.0, "s", "over which the signal is averaged")


def on_order(view: View) -> int:
    """Engines that boot."""
    count = 0
    for engine in range(len(view.engines.alive)):
        if view.engines.alive[engine] == 2:
            count += 1
    return count


def startable(view: View) -> int:
    """Engines that could serve and do not: off (or dead, which a dispatcher cannot tell) or draining."""
    count = 0
    for engine in range(len(view.engines.alive)):
        if view.engines.alive[engine] == 0 or view.engines.draining[engine] == 1:
            count += 1
    return count


def elapsed_s(view: View, now_s: float) -> float:
    """Seconds since the scaler was last asked, 0 the first time; asking notes the moment."""
    memo = view.tenants.memo[0]
    passed_s = now_s - memo[ASKED] if memo[SEEN] == 1.0 else 0.0
    memo[ASKED], memo[SEEN] = now_s, 1.0
    return float(passed_s)


def averaged(view: View, column: int, value: float, passed_s: float, window_s: float) -> float:
    """Move an average towards a value, by the share of its window that has passed; the first value is taken whole."""
    memo = view.tenants.memo[0]
    share = min(1.0, passed_s / window_s) if passed_s > 0.0 else 1.0
    memo[column] += (value - memo[column]) * share
    return float(memo[column])


def lasting(view: View, column: int, holds: bool, now_s: float, hold_s: float) -> bool:
    """True once something has held at every question for so long."""
    memo = view.tenants.memo[0]
    if not holds:
        memo[column] = 0.0
        return False
    if memo[column] == 0.0:
        memo[column] = now_s + hold_s
    return bool(now_s >= memo[column])


def paced(view: View, change: float, now_s: float, out_s: float, in_s: float) -> float:
    """Cut a wish to what cool-downs allow: two engines more at most, or one less; every change starts both anew.

    A drain that was not carried out, since the fleet is as small as it may be, keeps nobody from ordering.
    """
    memo, count = view.tenants.memo[0], serving_count(view)
    more = min(change, float(STEP_MAX), float(startable(view)))
    undrained = memo[HAD] > 0.0 and count >= memo[HAD]
    if more > 0.0 and (now_s >= memo[OUT_AGAIN] or undrained):
        memo[OUT_AGAIN], memo[IN_AGAIN], memo[IN_HELD], memo[HAD] = now_s + out_s, now_s + in_s, 0.0, 0.0
        return more
    if change < 0.0 and now_s >= memo[IN_AGAIN] and count > 1:
        memo[OUT_AGAIN], memo[IN_AGAIN], memo[IN_HELD], memo[HAD] = (
            now_s + out_s,
            now_s + in_s,
            0.0,
            float(count),
        )
        return -1.0
    return 0.0


def fitting(
    view: View, work: float, aim: float, band: float, now_s: float, pace: tuple[float, float]
) -> float:
    """Change towards the engines that carry ``work`` engine-seconds a second at ``aim`` of their time each.

    Drains only if one less would carry it with a margin of ``band`` for the whole of ``pace[1]`` = in_s.
    """
    have = serving_count(view) + on_order(view)
    wanted = ceil(work / aim - 1e-9)
    spare = ceil(work / (aim * (1.0 - band)) - 1e-9) < have
    rests = lasting(view, IN_HELD, spare, now_s, pace[1])
    if wanted > have:
        return paced(view, float(wanted - have), now_s, pace[0], pace[1])
    return paced(view, -1.0, now_s, pace[0], pace[1]) if rests and on_order(view) == 0 else 0.0


def work_s(view: View, request: int) -> float:
    """Engine-seconds that a request asks for, mean over the fleet. [p/v + o * step(0, 0, S, M*b/2)/S]"""
    fleet, total, count = view.engines, 0.0, len(view.engines.alive)
    prompt, output = (
        float(view.requests.prompt_tokens[request]),
        float(view.requests.forecast_tokens[request]),
    )
    for engine in range(count):
        slots = float(fleet.sequences_max[engine])
        kv = fleet.blocks_total[engine] * fleet.block_tokens[engine] / 2.0
        decode_s = step_s(view.costs[engine], 0.0, 0.0, slots, float(kv)) / slots
        total += prompt / prefill_rate(view, engine) + output * decode_s
    return float(total / max(1, count))


def wait_s(view: View) -> float:
    """Seconds of prefill that the serving engines owe, each its part: what a newcomer would wait."""
    owed, rate = 0.0, 0.0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            owed += float(view.engines.pending_tokens[engine])
            rate += prefill_rate(view, engine)
    return owed / rate if rate > 0.0 else 0.0
