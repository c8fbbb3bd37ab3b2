"""First come, first served, prompts cut into chunks that share a token budget with decodes (vLLM V1)."""

from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def budget(view: View, engine: int, now_s: float) -> float:
    """Cap the step at the smaller of the engine's limit and ``budget_tokens``."""
    return float(min(float(view.engines.budget_max[engine]), view.params[0]))


POLICY = EnginePolicy(
    name="fcfs-chunked",
    budget=budget,
    params=(Param("budget_tokens", 2048, 64, 65536, "tokens", "tokens that a step may carry"),),
    source="vLLM V1",
)
