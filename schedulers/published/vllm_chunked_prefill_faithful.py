"""Decodes and prompt chunks in order of arrival, 512 tokens a step: the study's policy 9, after vLLM 0.4.2."""

from math import inf

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import can_hold
from schedulers.published._shadow import LEFT, SHADOW_SWITCH, count_down, counting_s, start
from schedulers.view import TAKE as TAKEN
from schedulers.view import View

SHADOW, TOKENS, SEQUENCES = 0, 1, 2


def budget(view: View, engine: int, now_s: float) -> float:
    """Cap the step; as published only the private count is capped, and the engine works at its own limit."""
    limit = float(view.engines.budget_max[engine])
    if view.params[SHADOW] == 0.0:
        return float(min(limit, view.params[TOKENS]))
    view.engines.memo[engine, LEFT] = count_down(view, engine, view.params[TOKENS], False)
    return limit


def admit(view: View, request: int, now_s: float) -> float:
    """Take prompts in turn while whole prompts have blocks, and the step has a token and a sequence."""
    fleet, engine = view.engines, int(view.requests.engine[request])
    chunk = view.params[SHADOW] == 0.0 or fleet.memo[engine, LEFT] > 0.0
    fits = can_hold(view, engine, int(view.requests.prefill_tokens[request]))
    return TAKE if chunk and fits and fleet.running[engine] < view.params[SEQUENCES] else WAIT


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Open the private count of a request that is taken."""
    if view.params[SHADOW] == 1.0:
        start(view, request)


def wake(view: View, engine: int, now_s: float) -> float:
    """Count at every step while anything is owed."""
    return counting_s(view, engine, now_s) if view.params[SHADOW] == 1.0 else inf


POLICY = EnginePolicy(
    name="vllm_chunked_prefill_faithful@published",
    admit=admit,
    budget=budget,
    observe=observe,
    wake=wake,
    watches=(TAKEN,),
    params=(
        SHADOW_SWITCH,
        Param("step_tokens", 512, 1, 1e9, "tokens", "decodes and prompt chunks a step"),
        Param("sequences", 256, 1, 65536, "requests", "running at once, never more than the engine's limit"),
    ),
    memo=Memo(requests=1, engines=1),
    source="doi 10.5281/zenodo.22306798",
)
