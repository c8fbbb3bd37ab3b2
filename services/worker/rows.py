"""The tables of an engine that never stops: rows grow with demand and are used again after a request has left."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.demand import Demand
from schedulers.policy import Scheduler
from sim.rig import Plant, Rig
from sim.run import Setup, build

OF_REQUESTS = (
    "output_tokens", "outcome", "reason", "dispatched_s", "started_s", "finished_s", "longest_gap_s",
    "order_key", "serve_key", "evict_key", "chunk",
)  # fmt: skip
"""Columns of ``sim.rig.Plant`` that hold a value a request."""


class Ask(NamedTuple):
    """A request as the engine gets it; times on the engine's clock in seconds, sizes in tokens.

    ``output_tokens`` is what the model will say, known to the engine alone. ``generated_tokens`` were made
    elsewhere before: their keys and values are computed again with the prompt's.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    forecast_tokens: float
    tier: int = 0
    tenant: int = 0
    session: int = -1
    luck: float = 0.0
    generated_tokens: int = 0


def lay_out(scheduler: Scheduler, setup: Setup, rows: int, tenants: int) -> Rig:
    """Return a rig of one engine with so many blank rows; nothing in it has arrived."""
    zeros = np.zeros(rows, np.int64)
    tenant = zeros.copy()
    tenant[0] = tenants - 1  # the highest number says how many there are
    blank = Demand(
        arrival_s=np.zeros(rows),
        prompt_tokens=zeros,
        output_tokens=zeros,
        forecast_tokens=np.zeros(rows),
        tier=zeros,
        tenant=tenant,
        session=zeros - 1,
        luck=np.zeros(rows),
    )
    rig = build(blank, scheduler, setup, jump=False, audit=False)
    rig.known.requests.tenant[:] = 0
    return rig


def grown(rig: Rig, scheduler: Scheduler, setup: Setup, rows: int, tenants: int) -> Rig:
    """Return a rig with more rows or tenants that holds all that the old one held."""
    wide = lay_out(scheduler, setup, rows, tenants)
    for old, new in zip(arrays(rig), arrays(wide), strict=True):
        new[tuple(slice(0, size) for size in old.shape)] = old
    return wide


def take_over(old: Rig, new: Rig) -> None:
    """Copy the state of a rig into one of the same size under another policy: all but memo and settings."""
    for there, here in (
        (old.plant, new.plant),
        (old.known.requests, new.known.requests),
        (old.known.engines, new.known.engines),
    ):
        for name in type(there)._fields:
            if name not in ("memo", "budget_max"):
                getattr(here, name)[:] = getattr(there, name)
    new.known.waiting[:], new.known.running[:] = old.known.waiting, old.known.running


def arrays(rig: Rig) -> Iterator[npt.NDArray[np.generic]]:
    """Yield every array of view, board and plant, in one order."""
    for tables in (rig.known, rig.board, rig.plant):
        for part in tables:
            yield from (part,) if isinstance(part, np.ndarray) else part


def clear(rig: Rig, blank: Rig, row: int) -> None:
    """Make a row as it was before its first request; ``blank`` is a rig of one untouched row."""
    for name in type(rig.known.requests)._fields:
        getattr(rig.known.requests, name)[row] = getattr(blank.known.requests, name)[0]
    rig.board.requests.memo[row] = blank.board.requests.memo[0]
    for name in OF_REQUESTS:
        getattr(rig.plant, name)[row] = getattr(blank.plant, name)[0]


def fill(rig: Rig, row: int, ask: Ask, room_tokens: int) -> None:
    """Write a request into a cleared row; its answer is cut where the engine's length ends.

    ``room_tokens`` is the most that prompt and answer may hold together.
    """
    table, plant = rig.known.requests, rig.plant
    for name in ("arrival_s", "prompt_tokens", "forecast_tokens", "tier", "tenant", "session", "luck"):
        getattr(table, name)[row] = getattr(ask, name)
    table.generated_tokens[row] = ask.generated_tokens
    plant.output_tokens[row] = min(ask.output_tokens, max(room_tokens - ask.prompt_tokens, 1))


def widest(plant: Plant) -> int:
    """Return how many rows there are."""
    return int(plant.outcome.shape[0])
