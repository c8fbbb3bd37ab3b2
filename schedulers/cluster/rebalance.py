"""Llumnix's migration: from engines with few free blocks a request to those with many, freest paired with fullest."""

from math import inf

from schedulers.cost import forecast_tokens
from schedulers.migration import decoding, movable
from schedulers.policy import HOLD, ClusterPolicy, Memo, Param
from schedulers.view import View

LOW, HIGH, HYSTERESIS, CANDIDATE, REST, WORTH, MOVE_S, TOKEN_S = range(8)
PARTNER, RESTS_UNTIL = 0, 1  # engine memo: one more than the engine it would give to; when it may give again
NEWEST, LONGEST = 1.0, 2.0


def freeness(view: View, engine: int) -> float:
    """Blocks that neither batch nor queue asks for, a running request; negative if the queue asks for more. [F]"""
    fleet = view.engines
    left = fleet.blocks_free[engine] - fleet.queued_blocks[engine]
    return float(left / max(1, fleet.running[engine]))


def source(view: View, engine: int, now_s: float) -> bool:
    """True if an engine should give: it drains with work, or its freeness is low and it took nothing lately."""
    fleet = view.engines
    held = fleet.running[engine] + fleet.waiting[engine] > 0
    if fleet.alive[engine] != 1 or fleet.moving[engine] == 1 or not held:
        return False
    rested = now_s >= fleet.memo[engine, RESTS_UNTIL]
    return bool(fleet.draining[engine] == 1 or (rested and freeness(view, engine) <= view.params[LOW]))


def destination(view: View, engine: int) -> bool:
    """True if an engine can take: it serves, nothing moves there, and its freeness is high."""
    fleet = view.engines
    open_ = fleet.alive[engine] == 1 and fleet.draining[engine] == 0 and fleet.moving[engine] == 0
    return bool(open_ and freeness(view, engine) >= view.params[HIGH])


def need(view: View, engine: int) -> float:
    """How pressing it is that an engine gives: one that drains comes first."""
    return freeness(view, engine) - (1e9 if view.engines.draining[engine] == 1 else 0.0)


def partner(view: View, engine: int, now_s: float) -> int:
    """The engine paired with this one, -1 for none: the n-th fullest gives to the n-th freest."""
    rank = 0
    for other in range(len(view.engines.alive)):
        if other != engine and source(view, other, now_s):
            here, there = need(view, engine), need(view, other)
            if there < here or (there == here and other < engine):
                rank += 1
    for target in range(len(view.engines.alive)):
        if target != engine and destination(view, target):
            better = 0
            for other in range(len(view.engines.alive)):
                if other not in (target, engine) and destination(view, other):
                    here, there = freeness(view, target), freeness(view, other)
                    if there > here or (there == here and other < target):
                        better += 1
            if better == rank:
                return target
    return -1


def migrate(view: View, engine: int, now_s: float) -> float:
    """Give to the partner, which then gives nothing itself for ``rest_s``: nobody goes back and forth."""
    target = partner(view, engine, now_s) if source(view, engine, now_s) else -1
    view.engines.memo[engine, PARTNER] = target + 1.0
    if target < 0:
        return HOLD
    view.engines.memo[target, RESTS_UNTIL] = now_s + view.params[REST]
    return float(target)


def levels(view: View, request: int, giver: int, taker: int) -> bool:
    """True if the taker would stay freer than the giver after it, by ``hysteresis``; a drain needs no gain."""
    fleet, blocks = view.engines, float(view.requests.blocks[request])
    if fleet.draining[giver] == 1:
        return True
    there = (fleet.blocks_free[taker] - fleet.queued_blocks[taker] - blocks) / (fleet.running[taker] + 1.0)
    here = fleet.blocks_free[giver] - fleet.queued_blocks[giver] + blocks
    here /= max(1.0, fleet.running[giver] - 1.0)
    return bool(there - here >= view.params[HYSTERESIS])


def worth_it(view: View, request: int, engine: int) -> bool:
    """True if what is left of the answer, by its forecast, takes ``worth`` times as long as the move."""
    table = view.requests
    left_s = (forecast_tokens(view, request) - table.generated_tokens[request]) * view.engines.step_s[engine]
    move_s = view.params[MOVE_S] + table.computed_tokens[request] * view.params[TOKEN_S]
    return bool(view.engines.draining[engine] == 1 or left_s >= view.params[WORTH] * move_s)


def pick(view: View, request: int, now_s: float) -> float:
    """Key among those worth a move: the lowest tier, in it the fewest blocks, the newest or the most blocks."""
    engine, key = int(view.requests.engine[request]), movable(view, request)
    taker = int(view.engines.memo[engine, PARTNER]) - 1
    if key == inf or taker < 0 or not decoding(view, request):
        return inf
    if not levels(view, request, engine, taker) or not worth_it(view, request, engine):
        return inf
    if view.params[CANDIDATE] == NEWEST:
        return float(-1e9 * view.requests.tier[request] - view.requests.arrival_s[request])
    if view.params[CANDIDATE] == LONGEST:
        return float(-1e9 * view.requests.tier[request] - view.requests.blocks[request])
    return key


POLICY = ClusterPolicy(
    name="rebalance",
    migrate=migrate,
    pick=pick,
    period_s=0.5,
    params=(
        Param("low", 3.0, -1000.0, 1000.0, "blocks a request", "freeness at which an engine gives"),
        Param("high", 10.0, -1000.0, 10000.0, "blocks a request", "freeness from which an engine takes"),
        Param(
            "hysteresis",
            0.0,
            -10000.0,
            10000.0,
            "blocks a request",
            "by which the taker stays freer after it",
        ),
        Param(
            "candidate",
            0,
            0,
            2,
            "choice",
            "of the lowest tier: 0 fewest blocks, 1 newest (Llumnix), 2 most blocks",
        ),
        Param("rest_s", 1.0, 0.0, 86400.0, "s", "in which an engine that took gives nothing"),
        Param("worth", 2.0, 0.0, 1000.0, "x move time", "that the rest of an answer must take; 0: not asked"),
        Param("move_s", 0.028, 0.0, 60.0, "s", "fixed time of a move, for that"),
        Param("token_s", 1.05e-5, 0.0, 1.0, "s", "time of a move for each token of KV, for that"),
    ),
    memo=Memo(engines=2),
    reads=("forecast", "tier"),
    version=2,
    source="arXiv 2406.03243",
)
