"""First come first served in whole prompts, 2,560 tokens a step: the study's policy 8, after vLLM 0.1.0.

A prompt that alone is over the step's tokens can never be taken: in the study it closed the queue for ever.
"""

from schedulers.policy import REFUSE, TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import can_hold, switch
from schedulers.view import TAKE as TAKEN
from schedulers.view import View

STALL, TOKENS, SEQUENCES = 0, 1, 2
ADMITTED, NEWCOMERS, CLOSED, ARRIVAL, LUCK = 0, 1, 2, 3, 4
"""Memo of an engine: prompt tokens and requests taken in this step; whether a prompt closed the queue, and which."""


def budget(view: View, engine: int, now_s: float) -> float:
    """Start the step's count; the engine's own limit is at least the longest legal prompt."""
    view.engines.memo[engine, ADMITTED] = view.engines.memo[engine, NEWCOMERS] = 0.0
    return float(view.engines.budget_max[engine])


def observe(view: View, request: int, event: int, now_s: float) -> None:
    """Count the prompts that are taken in this step."""
    memo = view.engines.memo[view.requests.engine[request]]
    memo[ADMITTED] += view.requests.prompt_tokens[request]
    memo[NEWCOMERS] += 1.0


def shut_out(view: View, request: int, engine: int) -> bool:
    """Tell whether a request stands behind a prompt that closed the queue, and close it by one that must."""
    table, memo = view.requests, view.engines.memo[engine]
    if view.params[STALL] == 0.0:
        return False
    if memo[CLOSED] == 1.0:
        if table.arrival_s[request] != memo[ARRIVAL]:
            return bool(table.arrival_s[request] > memo[ARRIVAL])
        return bool(table.luck[request] >= memo[LUCK])
    if table.prompt_tokens[request] <= view.params[TOKENS]:
        return False
    memo[CLOSED], memo[ARRIVAL], memo[LUCK] = 1.0, table.arrival_s[request], table.luck[request]
    return True


def admit(view: View, request: int, now_s: float) -> float:
    """Take whole prompts in turn while blocks, the step's tokens and sequences last.

    Whoever can never be served, behind a prompt that stalls, is refused: that is how it ended unserved.
    """
    fleet, engine = view.engines, int(view.requests.engine[request])
    if shut_out(view, request, engine):
        return REFUSE
    if not can_hold(view, engine, int(view.requests.prefill_tokens[request]) + 1):
        return WAIT
    limit = view.params[TOKENS] if view.params[STALL] == 1.0 else float(fleet.budget_max[engine])
    # one token a running request, and prompts: as published an evicted one counts without what it generated
    batched = fleet.running[engine] - fleet.memo[engine, NEWCOMERS] + fleet.memo[engine, ADMITTED]
    if batched + view.requests.prompt_tokens[request] > limit:
        return WAIT
    return TAKE if fleet.running[engine] < view.params[SEQUENCES] else WAIT


POLICY = EnginePolicy(
    name="vllm_faithful@published",
    admit=admit,
    budget=budget,
    observe=observe,
    watches=(TAKEN,),
    params=(
        switch("stall", "1: a prompt over the step's tokens closes the queue for ever; 0: it is taken whole"),
        Param(
            "step_tokens", 2560, 1, 1e9, "tokens", "running requests and whole prompts a step, if stall is on"
        ),
        Param("sequences", 256, 1, 65536, "requests", "running at once, never more than the engine's limit"),
    ),
    memo=Memo(engines=5),
    chunked=False,
    source="doi 10.5281/zenodo.22306798",
)
