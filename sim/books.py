"""The books after a run: what a policy may not touch is as it was, and the work done is the work delivered.

A hook gets the live tables, since a copy at each call would cost more than the simulation. So a policy could write
where it may only read, and win; these checks find it out. They cost microseconds a run.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.result import FINISHED
from sim.rig import CACHED, DECODED, PREFILLED, RECOMPUTED, Rig

Array = npt.NDArray[Any]


REQUESTS = ("arrival_s", "prompt_tokens", "tier", "tenant", "session", "luck", "forecast_tokens")
LIMITS = ("sequences_max", "budget_max", "blocks_total", "block_tokens", "reserve")
TARGETS = ("ttft_s", "tpot_s", "e2e_s", "weight")
"""Columns of ``Requests``, ``Engines`` and ``Tiers`` that nothing in a run may change."""


class Sealed(NamedTuple):
    """A column that must stay as it is, and a copy of what it was before the run."""

    name: str
    column: Array
    before: Array


def seal(rig: Rig) -> list[Sealed]:
    """Copy, before a run, whatever a policy may only read."""
    kept: dict[int, Sealed] = {}
    for name in rig._fields[: rig._fields.index("plant")]:
        view = getattr(rig, name)
        columns = [(f"requests.{column}", getattr(view.requests, column)) for column in REQUESTS]
        columns += [(f"engines.{column}", getattr(view.engines, column)) for column in LIMITS]
        columns += [(f"tiers.{column}", getattr(view.tiers, column)) for column in TARGETS]
        columns += [("costs", view.costs), ("params", view.params)]
        for called, column in columns:  # most views share most columns
            if id(column) not in kept:
                kept[id(column)] = Sealed(called, column, column.copy())
    return list(kept.values())


def tampered(rig: Rig, sealed: list[Sealed]) -> str:
    """Name the first entry that does not add up, "" if all do."""
    for name, column, before in sealed:
        if not np.array_equal(column, before):
            return f"{name} was overwritten"
    return unbalanced(rig)


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
