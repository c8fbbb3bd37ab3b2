"""Shortest forecast output first, prompts counted in whole blocks: the study's policy 12, which it did not rank."""

from math import ceil

from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.published._formulas import GROWTH_SWITCH, fits, told_tokens
from schedulers.view import View

BLOCK = 1


def order(view: View, request: int, now_s: float) -> float:
    """Return the forecast output."""
    return told_tokens(view, request)


def admit(view: View, request: int, now_s: float) -> float:
    """Take the first whose prompt, rounded up, fits; pass the others. An idle engine takes it unrounded."""
    tokens = float(view.requests.prefill_tokens[request])
    if view.engines.running[int(view.requests.engine[request])] > 0:
        tokens = ceil(tokens / view.params[BLOCK]) * view.params[BLOCK]
    return TAKE if fits(view, request, tokens, view.params[0]) else WAIT


POLICY = EnginePolicy(
    name="vllm_style_token_budget@published",
    order=order,
    admit=admit,
    scan="skip",
    params=(
        GROWTH_SWITCH,
        Param("block_tokens", 16, 1, 1024, "tokens", "a prompt is rounded up to a multiple"),
    ),
    memo=Memo(engines=3),
    reads=("forecast",),
    source="doi 10.5281/zenodo.22306798",
)
