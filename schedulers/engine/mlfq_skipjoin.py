"""Multi-level feedback queue, by service so far; long prompts join lower down (FastServe, arXiv 2305.05920)."""

from math import inf

from schedulers.cost import prefill_s, ranked
from schedulers.policy import EnginePolicy, Memo, Param
from schedulers.view import ARRIVAL, EVICT, View

Q0, RATIO, LEVELS, STARVE = 0, 1, 2, 3
LEVEL, ATTAINED, JOINED, SERVED, COMPUTED = 0, 1, 2, 3, 4
"""Memo of a request: level, service at this level, when it joined the level, when it was last served (or lifted),
and the tokens computed at the last look, from which the next look sees who was served."""
STEPS, START = 0, 1
"""Memo of an engine: steps done at the last look, and its moment."""


def quantum_s(view: View, level: float) -> float:
    """Return the service that a request may have at a level. Multiplied out: ``**`` differs once compiled."""
    span_s = view.params[Q0]
    for _ in range(int(level)):
        span_s *= view.params[RATIO]
    return float(span_s)


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Let a request join the first level whose quantum its prefill fits; its place outlives an eviction."""
    memo = view.requests.memo[request]
    memo[COMPUTED] = 0.0
    if event == ARRIVAL:
        whole_s = prefill_s(
            view, int(view.requests.engine[request]), float(view.requests.prompt_tokens[request])
        )
        memo[LEVEL], memo[ATTAINED], memo[JOINED], memo[SERVED] = 0.0, 0.0, now_s, now_s
        while memo[LEVEL] < view.params[LEVELS] - 1.0 and quantum_s(view, memo[LEVEL]) < whole_s:
            memo[LEVEL] += 1.0


def account(view: View, request: int, span_s: float, now_s: float) -> None:
    """Charge a running request for the span if it was served, and move it down once its quantum is used up.

    The lowest level has no quantum: it is served in order of joining.
    """
    memo, computed = view.requests.memo[request], view.requests.computed_tokens[request]
    if memo[COMPUTED] != computed:
        memo[COMPUTED], memo[SERVED] = computed, now_s
        memo[ATTAINED] += span_s
        if memo[LEVEL] < view.params[LEVELS] - 1.0 and memo[ATTAINED] > quantum_s(view, memo[LEVEL]):
            memo[LEVEL], memo[ATTAINED], memo[JOINED] = memo[LEVEL] + 1.0, 0.0, now_s


def lift(view: View, request: int, now_s: float) -> None:
    """Raise a request that starves to the top; its wait counts anew, so that it is lifted once, not each step.

    Longer than ``starve_s``, as a quantum must be exceeded: both change after the moment that ``wake`` names.
    """
    memo = view.requests.memo[request]
    if now_s > memo[SERVED] + view.params[STARVE]:
        memo[LEVEL], memo[ATTAINED], memo[JOINED], memo[SERVED] = 0.0, 0.0, now_s, now_s


def budget(view: View, engine: int, now_s: float) -> float:
    """Bring all levels up to date: this is asked once before each step, even if the last steps were a jump.

    Watching STEP would say the same, but forbid jumps.
    """
    fleet, memo = view.engines, view.engines.memo[engine]
    if fleet.steps[engine] != memo[STEPS]:
        span_s = fleet.reported_s[engine] - memo[START]
        for place in range(fleet.running[engine]):
            account(view, int(view.running[engine, place]), span_s, now_s)
    for place in range(fleet.running[engine]):
        lift(view, int(view.running[engine, place]), now_s)
    for place in range(fleet.waiting[engine]):
        lift(view, int(view.waiting[engine, place]), now_s)
    memo[STEPS], memo[START] = fleet.steps[engine], now_s
    return float(fleet.budget_max[engine])


def place_in_levels(view: View, request: int, now_s: float) -> float:
    """Return (level, time of joining it)."""
    return ranked(view.requests.memo[request, LEVEL], float(view.requests.memo[request, JOINED]))


def preempt(view: View, waiting: int, running: int, now_s: float) -> float:
    """Displace whoever is further down."""
    return 1.0 if view.requests.memo[waiting, LEVEL] < view.requests.memo[running, LEVEL] else 0.0


def wake(view: View, engine: int, now_s: float) -> float:
    """Return when the next quantum is used up or the next request starves."""
    moment_s = inf
    for place in range(view.engines.running[engine]):
        memo = view.requests.memo[view.running[engine, place]]
        moment_s = min(moment_s, memo[SERVED] + view.params[STARVE])
        if memo[LEVEL] < view.params[LEVELS] - 1.0:
            moment_s = min(moment_s, now_s + quantum_s(view, memo[LEVEL]) - memo[ATTAINED])
    for place in range(view.engines.waiting[engine]):
        memo = view.requests.memo[view.waiting[engine, place]]
        moment_s = min(moment_s, memo[SERVED] + view.params[STARVE])
    return float(moment_s)


POLICY = EnginePolicy(
    name="mlfq-skipjoin",
    order=place_in_levels,
    serve=place_in_levels,
    evict=place_in_levels,
    budget=budget,
    preempt=preempt,
    observe=observe,
    wake=wake,
    watches=(ARRIVAL, EVICT),
    params=(
        Param("q0_s", 0.05, 1e-6, 3600.0, "s", "service at the top level before moving down"),
        Param("ratio", 2.0, 1.0, 100.0, "times", "growth of the quantum from level to level"),
        Param("levels", 8, 1, 64, "levels", "number of levels"),
        Param("starve_s", 3.0, 1e-3, inf, "s", "without service; then it goes back to the top"),
    ),
    memo=Memo(requests=5, engines=2),
    dynamic=True,
    source="arXiv 2305.05920",
)
