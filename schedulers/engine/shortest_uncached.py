"""Shortest uncached prefill first: the prompt less what the prefix cache has of it (SGLang)."""

from schedulers.cost import uncached_tokens
from schedulers.policy import EnginePolicy
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return the prefill tokens to compute: p - h, generated ones too after an eviction."""
    return float(uncached_tokens(view, request))


POLICY = EnginePolicy(
    name="shortest-uncached", order=order, dynamic=True, reads=("prefix",), source="SGLang, TensorRT-LLM"
)
