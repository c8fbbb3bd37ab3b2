"""Early rejection: turn away at the door what would miss its targets on the engine it would go to (Mooncake)."""

from schedulers.cost import prefill_rate, prefill_s, step_s
from schedulers.fleet import fewest, held
from schedulers.policy import REFUSE, TAKE, ClusterPolicy
from schedulers.view import View


def first_token_s(view: View, request: int, engine: int, now_s: float) -> float:
    """Predicted time from arrival to the first token: waited, owed by the engine, own prompt. [Y/v + Pre(p-h)]"""
    waited_s = now_s - view.requests.arrival_s[request]
    owed_s = view.engines.pending_tokens[engine] / prefill_rate(view, engine)
    fresh = view.requests.prompt_tokens[request] - view.sent[engine, request]
    return float(waited_s + owed_s + prefill_s(view, engine, float(fresh)))


def token_gap_s(view: View, request: int, engine: int) -> float:
    """Predicted time between tokens: a step in which all that the engine holds, and this one, decode.

    No more decode than have a slot, and no more KV is read than there is.
    """
    fleet = view.engines
    decodes = min(held(view, engine) + 1, int(fleet.sequences_max[engine]))
    blocks = fleet.blocks_total[engine] - fleet.blocks_free[engine] + fleet.queued_blocks[engine]
    tokens = blocks * fleet.block_tokens[engine] + view.requests.prompt_tokens[request]
    tokens = min(tokens, fleet.blocks_total[engine] * fleet.block_tokens[engine])
    return step_s(view.costs[engine], 0.0, 0.0, float(decodes), float(tokens))


def admit(view: View, request: int, now_s: float) -> float:
    """Refuse a request whose predicted TTFT or time between tokens is over its tier's target.

    The engine it is judged by is the one it would be sent to: the one with the fewest requests.
    """
    engine, tier = fewest(view, request), view.requests.tier[request]
    if engine < 0:
        return TAKE  # nobody serves: it is held, and asked about again
    late = first_token_s(view, request, engine, now_s) > view.tiers.ttft_s[tier]
    slow = token_gap_s(view, request, engine) > view.tiers.tpot_s[tier]
    return REFUSE if late or slow else TAKE


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the serving engine with the fewest requests; luck picks among equals, none serving holds."""
    return float(fewest(view, request))


POLICY = ClusterPolicy(
    name="early-reject",
    admit=admit,
    dispatch=dispatch,
    reads=("prefix", "targets"),
    source="arXiv 2407.00079",
)
