"""First come first served, prompts first and whole: decodes pause while the head fits (arXiv 2309.06180)."""

from math import inf

from schedulers.cost import blocks_for
from schedulers.policy import TAKE, WAIT, EnginePolicy, Memo, Param
from schedulers.view import View

LOOKED, HEAD_FITS = 0, 1  # engine memo: step of the latest look at the queue plus one, and what it found


def first_waiting(view: View, engine: int) -> int:
    """Return the waiting request that arrived first, ties by luck; -1 if nobody waits."""
    arrival_s, luck = view.requests.arrival_s, view.requests.luck
    head = -1
    for place in range(view.engines.waiting[engine]):
        request = int(view.waiting[engine, place])
        earlier = head < 0 or arrival_s[request] < arrival_s[head]
        if earlier or (arrival_s[request] == arrival_s[head] and luck[request] < luck[head]):
            head = request
    return head


def fits(view: View, request: int, engine: int) -> bool:
    """Tell whether the whole prompt and one token fit above the watermark, or the engine is empty."""
    fleet, need = view.engines, blocks_for(view, engine, view.requests.prefill_tokens[request] + 1)
    spare = fleet.blocks_free[engine] - need >= view.params[0] * fleet.blocks_total[engine]
    return bool((spare or fleet.running[engine] == 0) and fleet.running[engine] < fleet.sequences_max[engine])


def admit(view: View, request: int, now_s: float) -> float:
    """Take whole prompts only; the same test as in ``serve``, so that a pause is never in vain."""
    return TAKE if fits(view, request, int(view.requests.engine[request])) else WAIT


def serve(view: View, request: int, now_s: float) -> float:
    """Hold every decode back while the head of the queue fits; look at the queue once a step."""
    engine = int(view.requests.engine[request])
    memo, step = view.engines.memo, view.engines.steps[engine] + 1.0
    if memo[engine, LOOKED] != step:
        head = first_waiting(view, engine)
        memo[engine, LOOKED] = step
        memo[engine, HEAD_FITS] = 1.0 if head >= 0 and fits(view, head, engine) else 0.0
    return inf if memo[engine, HEAD_FITS] == 1.0 else float(view.requests.arrival_s[request])


POLICY = EnginePolicy(
    name="fcfs-prefill",
    admit=admit,
    serve=serve,
    params=(Param("watermark", 0.01, 0.0, 0.1, "share", "KV blocks kept free when a prompt is taken"),),
    memo=Memo(engines=2),
    chunked=False,
    source="arXiv 2309.06180",
)
