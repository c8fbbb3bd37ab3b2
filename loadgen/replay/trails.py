"""What a client saw of each request: when it was sent, when tokens came, how it ended, what was wrong."""

from collections import Counter
from collections.abc import Sequence
from math import nan
from typing import NamedTuple, Protocol

import numpy as np

from loadgen.facts import EXPIRED, FAILED, FINISHED, GAP_BINS, GAP_EDGES_S, REASONS, REJECTED, Facts
from loadgen.replay.schedule import Asked, Schedule
from loadgen.replay.tokens import faults_in
from schedulers.view import Floats, Ints

OPEN = -1
"""Outcome of a request that has not ended."""

NAMES = {"too_long": "prompt_too_long", "shed": "policy", "stop": "", "length": ""}
"""Live reasons that results know by another name."""

OUTCOMES = {"finished": FINISHED, "rejected": REJECTED, "expired": EXPIRED, "failed": FAILED}


class Moved(NamedTuple):
    """A move of a running request, one of ``WAYS``: KV that travelled, and the gap between tokens around it.

    ``why`` says why it went by recompute where KV could have travelled. Wall seconds, NaN where nobody said.
    """

    way: str
    bytes: int
    stall_s: float = nan
    why: str = ""


WAYS = ("blocks", "nixl", "recompute")
"""Ways of a move: simulated blocks, KV by NIXL, or its tokens alone, computed again."""


class Ending(NamedTuple):
    """How a request ended; durations in wall seconds since the system took it, NaN where nobody said."""

    outcome: int
    reason: str
    engine: int = -1
    migrations: int = 0
    preemptions: int = 0
    dispatched_after_s: float = nan
    started_after_s: float = nan
    usage_tokens: int = -1  # output tokens as the system counts them, -1 if it does not say
    moves: tuple[Moved, ...] = ()


class Sender(Protocol):
    """Sends requests to one kind of system."""

    async def send(self, asked: Asked, trails: "Trails") -> None:
        """Send one request and note in ``trails`` what comes back, the ending last; raises nothing."""


class Trails:
    """Notes on every request of a schedule; times in wall seconds after the start."""

    def __init__(self, schedule: Schedule, *, checked: bool) -> None:
        count = len(schedule.due_s)
        self.schedule = schedule
        self.checked = checked  # tokens are those of the seed: each can be held against what it must be
        self.seeds = [asked.seed for asked in schedule.requests()]
        self.now_s = 0.0
        self.due_s: Floats = schedule.due_s.copy()  # moved by ``think`` to the answer before
        self.sent_s, self.first_s, self.last_s, self.ended_s = (np.full(count, nan) for _ in range(4))
        self.dispatched_after_s, self.started_after_s = np.full(count, nan), np.full(count, nan)
        self.longest_gap_s = np.zeros(count)
        self.tokens: Ints = np.zeros(count, np.int64)
        self.lost, self.repeated = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.miscounted = np.zeros(count, bool)
        self.outcome = np.full(count, OPEN, np.int64)
        self.engine, self.migrations = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        self.preemptions = np.zeros(count, np.int64)
        self.reasons: list[str] = [""] * count
        self.moves: list[Moved] = []
        self.gaps: Ints = np.zeros(GAP_BINS, np.int64)  # of scaled seconds, as results have them
        self.open = 0

    def sent(self, row: int, now_s: float) -> None:
        """A request goes out."""
        self.sent_s[row] = now_s
        self.open += 1

    def took(self, row: int, offset: int, tokens: Sequence[int] | int, now_s: float) -> None:
        """Tokens came that start at index ``offset``: their ids, or only how many."""
        wanted = int(self.tokens[row])
        if isinstance(tokens, int):
            lost, again, count = max(0, offset - wanted), min(tokens, max(0, wanted - offset)), tokens
        else:
            count = len(tokens)
            lost, again = (
                faults_in(self.seeds[row], offset, tokens, wanted)
                if self.checked
                else (max(0, offset - wanted), min(count, max(0, wanted - offset)))
            )
        self.lost[row] += lost
        self.repeated[row] += again
        fresh = max(0, offset + count - max(wanted, offset))
        if fresh:
            self._gap(row, fresh, now_s)
            self.tokens[row] = offset + count  # the next index; what is missing before it is counted as lost

    def _gap(self, row: int, fresh: int, now_s: float) -> None:
        """Note the gap before tokens; those that come in one message are a gap of 0 apart."""
        if np.isnan(self.first_s[row]):
            self.first_s[row] = now_s
            self.gaps[0] += fresh - 1
        else:
            gap_s = (now_s - float(self.last_s[row])) * self.schedule.speed
            self.longest_gap_s[row] = max(self.longest_gap_s[row], gap_s)
            place = int(np.searchsorted(GAP_EDGES_S, gap_s, side="right")) - 1
            self.gaps[min(GAP_BINS - 1, max(0, place))] += 1
            self.gaps[0] += fresh - 1
        self.last_s[row] = now_s

    def ended(self, row: int, ending: Ending, now_s: float) -> None:
        """A request ended; a second ending of one request is a duplicate and counted so."""
        if self.outcome[row] != OPEN:
            self.repeated[row] += 1
            return
        self.open -= 1
        self.outcome[row], self.reasons[row], self.ended_s[row] = ending.outcome, ending.reason, now_s
        self.engine[row], self.migrations[row] = ending.engine, ending.migrations
        self.preemptions[row] = ending.preemptions
        self.moves += ending.moves
        self.dispatched_after_s[row] = ending.dispatched_after_s
        self.started_after_s[row] = ending.started_after_s
        self.miscounted[row] = 0 <= ending.usage_tokens != int(self.tokens[row])

    def close(self, reason: str) -> None:
        """Give an ending to what has none: "unsent" to what never went out, ``reason`` to the rest."""
        for row in np.flatnonzero(self.outcome == OPEN).tolist():
            unsent = bool(np.isnan(self.sent_s[row]))
            self.outcome[row], self.reasons[row] = FAILED, "unsent" if unsent else reason
        self.open = 0

    def ends(self) -> Counter[tuple[str, str]]:
        """Return how many requests ended in each (outcome, reason); those under way are not counted."""
        names = {code: name for name, code in OUTCOMES.items()}
        done = np.flatnonzero(self.outcome != OPEN).tolist()
        return Counter((names[int(self.outcome[row])], self.reasons[row]) for row in done)

    def moved(self) -> dict[str, float]:
        """Return columns of a run about its moves: how many each way, bytes of KV, downtime in scaled seconds."""
        told = {f"moves_{way}": float(sum(one.way == way for one in self.moves)) for way in WAYS}
        stalls = (
            np.array([one.stall_s for one in self.moves if not np.isnan(one.stall_s)]) * self.schedule.speed
        )
        told["moved_bytes"] = float(sum(one.bytes for one in self.moves))
        for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            told[f"move_stall_{name}_s"] = float(np.quantile(stalls, share)) if len(stalls) else nan
        return told

    def facts(self, idle_ttft_s: Floats, idle_e2e_s: Floats) -> Facts:
        """Return results' facts, all times stretched back by the speed and counted from the intended time.

        Where the system does not say when it dispatched and started a request, both are when it was sent.
        """
        speed, demand = self.schedule.speed, self.schedule.demand
        sent = self.sent_s
        first = np.where(np.isnan(self.first_s), np.inf, self.first_s)
        began = sent + np.where(np.isnan(self.started_after_s), 0.0, self.started_after_s)
        given = sent + np.where(np.isnan(self.dispatched_after_s), 0.0, self.dispatched_after_s)
        began = np.minimum(began, first)  # two processes measured them
        given = np.minimum(given, began)
        finished = self.outcome == FINISHED
        refused = self.outcome == REJECTED
        arrival_s = self.due_s * speed
        return Facts(
            arrival_s=arrival_s,
            dispatched_s=np.where(refused, nan, np.maximum(given * speed, arrival_s)),
            started_s=np.where(np.isinf(first), nan, np.maximum(began * speed, arrival_s)),
            first_token_s=np.maximum(self.first_s * speed, arrival_s),
            finished_s=np.where(finished, self.last_s * speed, nan),
            prompt_tokens=np.asarray(demand.prompt_tokens, np.int64),
            output_tokens=np.maximum(self.tokens - self.lost, 0),
            tier=np.asarray(demand.tier, np.int64),
            tenant=np.asarray(demand.tenant, np.int64),
            session=np.asarray(demand.session, np.int64),
            outcome=self.outcome.astype(np.int8),
            reason=np.array([reason_code(reason) for reason in self.reasons], np.int8),
            engine=self.engine.copy(),
            migrations=self.migrations.copy(),
            preemptions=self.preemptions.copy(),
            longest_gap_s=np.where(self.tokens > 1, self.longest_gap_s, nan),
            cached_tokens=np.full(len(finished), -1, np.int64),  # no system says
            idle_ttft_s=idle_ttft_s,
            idle_e2e_s=idle_e2e_s,
        )


def reason_code(reason: str) -> int:
    """Return the row of ``loadgen.facts.REASONS`` of a live reason; one that has none is "other"."""
    name = NAMES.get(reason, reason)
    return REASONS.index(name) if name in REASONS else REASONS.index("other")
