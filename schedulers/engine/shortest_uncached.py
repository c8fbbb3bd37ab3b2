"""Shortest uncached prefill first; without a prefix cache that is the whole prompt (SGLang)."""

from schedulers.cost import owed_tokens
from schedulers.policy import EnginePolicy
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return the prefill tokens that are owed: p - h, generated ones too after an eviction."""
    return float(owed_tokens(view, request))


POLICY = EnginePolicy(name="shortest-uncached", order=order, source="SGLang, TensorRT-LLM")
