"""What is sent and when: one frozen window as requests with absolute times, the same bytes in every process."""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from loadgen.demand import Demand
from loadgen.replay.tokens import tokens_at
from loadgen.window import Window
from schedulers.errors import InputError
from schedulers.view import Floats, Ints

ABSOLUTE, THINK = "absolute", "think"
TURNS = (ABSOLUTE, THINK)
"""When a later turn of a conversation is sent: at its recorded time, or its gap after the answer before it.

Under ``think`` the loop is closed within a conversation: a slow system is asked more slowly.
"""

PROMPT_DRAW = 1 << 41
"""Index from which a prompt's tokens are drawn; no answer is so long."""


class Asked(NamedTuple):
    """One request as a sender gets it; ``due_s`` in wall seconds after the start."""

    row: int
    request_id: str
    due_s: float
    prompt_tokens: int
    output_tokens: int
    forecast_tokens: float
    tier: int
    tenant: int
    session: int
    luck: float
    seed: int


class Schedule(NamedTuple):
    """One window ready to be sent, shape (n,) each; ``parent`` is -1 for a request that waits for no answer.

    ``run`` tells the requests of one run from those of another: a system may know an id that it has seen.
    """

    run: str
    window_id: str
    window_sha256: str
    speed: float
    demand: Demand
    due_s: Floats  # wall seconds after the start
    parent: Ints
    gap_s: Floats  # wall seconds after the parent's answer, under ``think``
    hash_offsets: Ints | None
    hash_ids: Ints | None
    block_tokens: int

    def requests(self) -> Iterator[Asked]:
        """Yield the requests in the window's order."""
        return (self.asked(row) for row in range(len(self.due_s)))

    def asked(self, row: int) -> Asked:
        """Return one request."""
        demand = self.demand
        return Asked(
            row=row,
            request_id=f"{self.window_id}.{self.run}.{row}",
            due_s=float(self.due_s[row]),
            prompt_tokens=int(demand.prompt_tokens[row]),
            output_tokens=int(demand.output_tokens[row]),
            forecast_tokens=float(demand.forecast_tokens[row]),
            tier=int(demand.tier[row]),
            tenant=int(demand.tenant[row]),
            session=int(demand.session[row]),
            luck=float(demand.luck[row]),
            seed=seed_of(self.window_sha256, row),
        )

    def prompt_ids(self, row: int) -> list[int]:
        """Return the prompt's tokens: blocks with a hash are a function of it, the rest of (window, row)."""
        count, ids = int(self.demand.prompt_tokens[row]), []
        if self.hash_ids is not None and self.hash_offsets is not None and self.block_tokens:
            hashes = self.hash_ids[self.hash_offsets[row] : self.hash_offsets[row + 1]].tolist()
            for one in hashes[: count // self.block_tokens]:
                ids += tokens_at(one, PROMPT_DRAW, self.block_tokens)
        own = tokens_at(seed_of(self.window_sha256, row), PROMPT_DRAW, count - len(ids))
        return ids + own

    def hashes(self, row: int) -> list[int]:
        """Return the prompt's chained prefix hashes, [] where the traffic has none."""
        if self.hash_ids is None or self.hash_offsets is None:
            return []
        found: list[int] = self.hash_ids[self.hash_offsets[row] : self.hash_offsets[row + 1]].tolist()
        return found


def seed_of(window_sha256: str, row: int) -> int:
    """Return the seed of a request's prompt and answer: a pure function of (window, row), in 1 to 2**63 - 1.

    Servers read a signed number of 64 bits, and 0 often stands for no seed.
    """
    return int.from_bytes(sha256(f"{window_sha256}:{row}".encode()).digest()[:8], "big") >> 1 | 1


def schedule_of(
    window: Window, demand: Demand, run: str, *, speed: float = 1.0, turns: str = ABSOLUTE
) -> Schedule:
    """Return when each request of a prepared window is due, every time divided by ``speed``.

    Raises InputError for a speed that is not above 0 and for unknown ``turns``.
    """
    if not speed > 0.0:
        raise InputError(f"a speed of {speed:g}", where="--speed", fix="use a number above 0; 1 is real time")
    if turns not in TURNS:
        raise InputError(f"unknown turns {turns!r}", where="--turns", fix=f"use {' or '.join(TURNS)}")
    due_s = np.asarray(demand.arrival_s, np.float64) / speed
    parent = np.asarray(window.parent, np.int64) if turns == THINK else np.full(len(due_s), -1, np.int64)
    gap_s = np.where(parent >= 0, due_s - due_s[np.maximum(parent, 0)], 0.0)
    return Schedule(
        run=run,
        window_id=window.line.id,
        window_sha256=window.line.content_sha256,
        speed=speed,
        demand=demand,
        due_s=due_s,
        parent=parent,
        gap_s=gap_s,
        hash_offsets=window.hash_offsets,
        hash_ids=None if window.hash_ids is None else np.asarray(window.hash_ids, np.int64),
        block_tokens=window.line.block_tokens,
    )
