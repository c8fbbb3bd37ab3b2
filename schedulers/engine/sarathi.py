"""Stall-free chunking: decodes first, prompt chunks that keep the tightest token pace (arXiv 2403.02310)."""

from schedulers.cost import blocks_for, owed_tokens, ranked, step_s
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import View

PHI, MIN_BUDGET, BUDGET = 0, 1, 2
WATERMARK, MULTIPLE = 0.01, 64


def paced_tokens(view: View, engine: int) -> float:
    """Return the largest budget whose step, S/2 decodes in it, fits ``phi`` of the tightest pace. [B*]"""
    fleet, pace_s = view.engines, view.tiers.tpot_s[0]
    for tier in range(len(view.tiers.tpot_s)):
        pace_s = min(pace_s, view.tiers.tpot_s[tier])
    decodes = fleet.sequences_max[engine] / 2.0
    kv = fleet.blocks_total[engine] * fleet.block_tokens[engine] / 2.0
    tokens = float(fleet.budget_max[engine] // MULTIPLE * MULTIPLE)
    while tokens >= view.params[MIN_BUDGET]:
        prefill = max(tokens - decodes, 0.0)
        # the attention work is that of a prompt's first chunk
        if (
            step_s(view.costs[engine], prefill, prefill * prefill / 2.0, decodes, kv)
            <= view.params[PHI] * pace_s
        ):
            return tokens
        tokens -= MULTIPLE
    return float(view.params[MIN_BUDGET])


def budget(view: View, engine: int, now_s: float) -> float:
    """Derive the budget once a run, unless ``budget_tokens`` sets it; engine memo column 0 keeps it."""
    tokens = view.params[BUDGET]
    if tokens == 0.0:
        if view.engines.memo[engine, 0] == 0.0:
            view.engines.memo[engine, 0] = paced_tokens(view, engine)
        tokens = view.engines.memo[engine, 0]
    return float(min(float(view.engines.budget_max[engine]), tokens))


def serve(view: View, request: int, now_s: float) -> float:
    """Serve decodes before started prompts, each by arrival."""
    return ranked(1.0 if owed_tokens(view, request) > 0 else 0.0, float(view.requests.arrival_s[request]))


def admit(view: View, request: int, now_s: float) -> float:
    """Take a prompt only if all of it fits above the watermark, or the engine is empty.

    Started prompts come first, so by now they have had their last chunk: nothing else is reserved.
    """
    engine = int(view.requests.engine[request])
    spare = view.engines.blocks_free[engine] - blocks_for(view, engine, view.requests.prefill_tokens[request])
    fits = spare >= WATERMARK * view.engines.blocks_total[engine]
    return TAKE if fits or view.engines.running[engine] == 0 else WAIT


POLICY = EnginePolicy(
    name="sarathi",
    admit=admit,
    serve=serve,
    budget=budget,
    params=(
        Param("phi", 0.9, 0.05, 10.0, "share", "of the tightest time between tokens that a step may fill"),
        Param("min_budget", 256, 64, 65536, "tokens", "budget where no larger one keeps the pace"),
        Param("budget_tokens", 0, 0, 65536, "tokens", "fixed budget; 0 derives it from the pace"),
    ),
    memo=Memo(engines=1),
    reads=("targets",),
    source="arXiv 2403.02310",
)
