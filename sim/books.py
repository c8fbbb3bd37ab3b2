"""The books after a run: what a policy may not touch is as it was, and the work done is the work delivered.

A hook gets the live tables, since a copy at each call would cost more than the simulation. So a policy could write
where it may only read, and win; these checks find it out. They cost microseconds a run.
"""

import numpy as np

from loadgen.demand import Demand
from loadgen.result import FINISHED
from sim.rig import CACHED, DECODED, PREFILLED, RECOMPUTED, Rig


def tampered(demand: Demand, rig: Rig, before: Rig) -> str:
    """Name the first entry that does not add up, "" if all do; ``before`` was built from the same inputs."""
    for name in ("arrival_s", "prompt_tokens", "tier", "tenant", "session", "luck"):
        if not np.array_equal(getattr(rig.known.requests, name), getattr(demand, name)):
            return f"requests.{name} was overwritten"
    names = rig._fields[: rig._fields.index("plant")]
    for view, fresh in ((getattr(rig, name), getattr(before, name)) for name in names):
        if not np.array_equal(view.requests.forecast_tokens, fresh.requests.forecast_tokens):
            return "requests.forecast_tokens was overwritten"
        for table in ("tiers", "engines"):
            for name in ("ttft_s", "tpot_s", "e2e_s", "weight") if table == "tiers" else LIMITS:
                if not np.array_equal(
                    getattr(getattr(view, table), name), getattr(getattr(fresh, table), name)
                ):
                    return f"{table}.{name} was overwritten"
        for name in ("costs", "params"):
            if not np.array_equal(getattr(view, name), getattr(fresh, name)):
                return f"{name} was overwritten"
    return unbalanced(rig)


LIMITS = ("sequences_max", "budget_max", "blocks_total", "block_tokens", "reserve")
"""Columns of ``Engines`` that nothing in a run may change."""


def unbalanced(rig: Rig) -> str:
    """Every token delivered has its KV computed or found once, and once more for each time it was lost."""
    table, fleet, plant = rig.known.requests, rig.known.engines, rig.plant
    done = plant.outcome == FINISHED
    whole = table.prompt_tokens + table.generated_tokens - 1
    if (table.computed_tokens[done] != whole[done]).any():
        return "requests.computed_tokens does not add up to prompt and answer"
    if (table.generated_tokens[done] != plant.output_tokens[done]).any():
        return "requests.generated_tokens is not what was delivered"
    worked = plant.tally[:, (PREFILLED, DECODED, CACHED)].sum()
    if worked != table.computed_tokens.sum() + plant.tally[:, RECOMPUTED].sum():
        return "tokens were delivered that no step computed"
    if (fleet.blocks_free != fleet.blocks_total).any() or table.blocks.any():
        return "engines.blocks_free or requests.blocks does not add up"
    cache, last = rig.cache, rig.cache.after.shape[1] - 1
    ring = np.take_along_axis(cache.before, cache.after, axis=1) == np.arange(last + 1)
    if cache.holders.any() or not ring.all():
        raise AssertionError("invariant E1 broken: a cached block is held, or lost, after the last request")
    return ""
