"""Step time and the quantities that policies derive from it, in seconds.

One form covers both published ones (reference/engine.md section 4):
``max(floor, base + prefill*P + joint*D) + attention*sum p_i(ctx_i + p_i/2) + decode*D + kv*sum kv_j``.
The five-term form has floor 0 and joint 0; the hinge form has joint = prefill. Both are affine in pure decode.
"""

from math import inf

from schedulers.view import Floats, View

FLOOR, BASE, PREFILL, JOINT, ATTENTION, DECODE, KV = 0, 1, 2, 3, 4, 5, 6
"""Columns of ``View.costs``."""

RANK_S = 1e6
"""Width of one rank in a key made by ``ranked``; longer than any window."""


def step_s(costs: Floats, prefill: float, attention: float, decodes: float, kv: float) -> float:
    """Seconds of one step: P prefill tokens, their attention work, D decodes, KV tokens read by them. [step]"""
    linear = costs[BASE] + costs[PREFILL] * prefill + costs[JOINT] * decodes
    if linear < costs[FLOOR]:
        linear = costs[FLOOR]
    return float(linear + costs[ATTENTION] * attention + costs[DECODE] * decodes + costs[KV] * kv)


def token_s(view: View, engine: int) -> float:
    """Reference seconds a decode token: half the slots, half the memory. [tau]"""
    fleet = view.engines
    sequences = fleet.sequences_max[engine] / 2.0
    kv = fleet.blocks_total[engine] * fleet.block_tokens[engine] / 2.0
    return step_s(view.costs[engine], 0.0, 0.0, sequences, kv)


def prefill_s(view: View, engine: int, tokens: float) -> float:
    """Seconds to prefill so many tokens on an idle engine, in chunks of its budget. [Pre]"""
    costs, chunk = view.costs[engine], float(view.engines.budget_max[engine])
    full = tokens // chunk
    rest = tokens - full * chunk
    total = float(full * step_s(costs, chunk, 0.0, 0.0, 0.0) + costs[ATTENTION] * tokens * tokens / 2.0)
    if rest > 0.0:
        total += step_s(costs, rest, 0.0, 0.0, 0.0)
    return total


def prefill_rate(view: View, engine: int) -> float:
    """Prefill tokens a second at full budget. [v]"""
    chunk = float(view.engines.budget_max[engine])
    return float(chunk / step_s(view.costs[engine], chunk, chunk * chunk / 2.0, 0.0, 0.0))


def owed_tokens(view: View, request: int) -> int:
    """Prefill tokens still to compute; after an eviction they cover generated tokens too. [P]"""
    owed = view.requests.prefill_tokens[request] - view.requests.computed_tokens[request]
    return int(owed) if owed > 0 else 0


def uncached_tokens(view: View, request: int) -> int:
    """Prefill tokens of a waiting request that the prefix cache does not have. [p - h]"""
    return int(owed_tokens(view, request) - view.requests.cached_tokens[request])


def forecast_tokens(view: View, request: int) -> float:
    """Forecast of the whole output; once it is overrun, one more than was generated. [o']"""
    forecast = view.requests.forecast_tokens[request]
    least = view.requests.generated_tokens[request] + 1.0
    return float(forecast) if forecast > least else float(least)


def remaining_s(view: View, request: int, engine: int) -> float:
    """Predicted remaining service. [R]"""
    tokens = forecast_tokens(view, request) - view.requests.generated_tokens[request]
    return float(prefill_s(view, engine, float(owed_tokens(view, request))) + tokens * token_s(view, engine))


def token_due_s(view: View, request: int) -> float:
    """Deadline of the next token: a + F + g*T; a + E where a tier lacks that target but has an E. [dn]"""
    tier, arrival_s = view.requests.tier[request], view.requests.arrival_s[request]
    generated = view.requests.generated_tokens[request]
    endless = view.tiers.tpot_s[tier] == inf if generated > 0 else view.tiers.ttft_s[tier] == inf
    if endless and view.tiers.e2e_s[tier] < inf:
        return float(arrival_s + view.tiers.e2e_s[tier])
    pace_s = view.tiers.tpot_s[tier] * generated if generated > 0 else 0.0
    return float(arrival_s + view.tiers.ttft_s[tier] + pace_s)


def end_due_s(view: View, request: int) -> float:
    """Deadline of the whole answer: a + E, else a + F + (o' - 1)*T. [dE]"""
    tier, arrival_s = view.requests.tier[request], view.requests.arrival_s[request]
    if view.tiers.e2e_s[tier] < inf:
        return float(arrival_s + view.tiers.e2e_s[tier])
    tokens = forecast_tokens(view, request) - 1.0
    return float(arrival_s + view.tiers.ttft_s[tier] + tokens * view.tiers.tpot_s[tier])


def blocks_for(view: View, engine: int, tokens: int) -> int:
    """KV blocks that hold so many tokens. [blocks(n)]"""
    size = view.engines.block_tokens[engine]
    return int((tokens + size - 1) // size)


def ranked(rank: float, key: float) -> float:
    """A key that sorts by rank first, then by ``key`` (seconds, below RANK_S/2 either way)."""
    return rank * RANK_S + key
