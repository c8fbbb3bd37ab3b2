"""What a run leaves of each atom: counts, waits and latencies by importance, as columns beside the run's metrics.

Reference multitier, section 5. A request's class in the facts is its atom, 0 the most important; what a scheduler was
shown of it is handed in beside. Counts are of scored arrivals; who overtook them may be any request of the run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.metrics import latencies, within
from loadgen.result import FINISHED, REJECTED, Facts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ATOMS = 10
FLAT = (2.0, 0.1)
"""TTFT and TPOT of SLO set S2: the ladder on which only importance differs."""

STARVED = 10.0
"""A request starves if it is without a token for this many times its first-token target."""

EDGES_S: Floats = np.geomspace(1e-2, 1e3, 41)
"""Edges of the latency histograms, seconds, eight bins a factor of ten; what lies outside falls in an end bin."""

HISTOGRAMS = ("ttft", "tpot", "e2e", "wait")
"""Latencies with a histogram an atom; ``wait`` is the longest time without a token."""

SUMS = (
    "arrivals", "met", "met_flat", "finished", "rejected", "preempted", "migrated", "inverted", "overtaken_tokens",
    "starved", "tokens", "met_tokens",
)  # fmt: skip
"""Columns that add up over windows, ``atom_`` before the name; shape (10,)."""

MOSTS = ("wait_most_s", "idle_most_s")
"""Columns of which the greatest counts."""

SCALARS = (
    "moves_started", "moves_committed", "moves_aborted", "moved_bytes", "moving_s", "downtime_s", "boots", "drains",
    "batch_most", "inside_first", "inside_last",
)  # fmt: skip


def by_class(
    facts: Facts,
    shown: Ints,
    moves: Any,
    scored: tuple[int, int],
    graded: Sequence[tuple[float, float, float, float]],
) -> dict[str, Any]:
    """Return the columns of one run; ``graded`` holds (ttft_s, tpot_s, e2e_s, weight) an atom."""
    low, high = scored
    atom = np.asarray(facts.tier, np.int64)[low:high]
    inside = Facts._make(column[low:high] for column in facts)
    latency = latencies(inside)
    ttft, e2e, tpot = latency["ttft"], latency["e2e"], np.nan_to_num(latency["tpot"])
    wait = np.fmax(ttft, latency["longest_gap"])
    done = inside.outcome == FINISHED
    targets = np.asarray(graded, np.float64)[atom]
    met = done & within(latency, targets)
    flat = done & within(latency, np.array([*FLAT, np.inf]))
    inverted, overtaken = overtakings(facts, low, high)

    def summed(values: npt.NDArray[Any]) -> Floats:
        return np.bincount(atom, weights=np.asarray(values, np.float64), minlength=ATOMS).astype(np.float64)

    row: dict[str, Any] = {
        "atom_weight": np.asarray(graded, np.float64)[:, 3],
        "atom_arrivals": summed(np.ones(len(atom))),
        "atom_met": summed(met),
        "atom_met_flat": summed(flat),
        "atom_finished": summed(done),
        "atom_rejected": summed(inside.outcome == REJECTED),
        "atom_preempted": summed(inside.preemptions),
        "atom_migrated": summed(inside.migrations),
        "atom_inverted": summed(inverted),
        "atom_overtaken_tokens": summed(overtaken),
        "atom_starved": summed(done & (wait > STARVED * targets[:, 0])),
        "atom_tokens": summed(inside.output_tokens),
        "atom_met_tokens": summed(inside.output_tokens * met),
        "atom_wait_most_s": greatest(atom, np.where(done, wait, 0.0)),
        "atom_idle_most_s": idle_most_s(facts),
    }
    for name, values in zip(HISTOGRAMS, (ttft, tpot, e2e, wait), strict=True):
        row[f"atom_{name}_histogram"] = histogram(atom[done], values[done])
    first_s, last_s = facts.arrival_s[low], facts.arrival_s[high - 1]
    return row | {
        "moves_started": float(moves.started),
        "moves_committed": float(moves.committed),
        "moves_aborted": float(moves.aborted),
        "moved_bytes": float(moves.bytes),
        "moving_s": float(moves.seconds),
        "downtime_s": float(np.sum(moves.downtime_s)),
        "boots": float(moves.boots),
        "drains": float(moves.drains),
        "batch_most": float(batch_most(facts)),
        "inside_first": inside_at(facts, float(first_s)),
        "inside_last": inside_at(facts, float(last_s)),
    }


def overtakings(facts: Facts, low: int, high: int) -> tuple[Flags, Floats]:
    """Return which scored requests were overtaken, and by how many prompt tokens.

    Overtaken is who waits for the first token while a less important request that arrived later gets its own.
    """
    atom = np.asarray(facts.tier, np.int64)
    first = np.where(np.isnan(facts.first_token_s), np.inf, facts.first_token_s)
    soonest = np.full((ATOMS, len(first) + 1), np.inf)  # first token of the less important that arrive later
    for one in range(ATOMS - 1):
        lower = np.where(atom > one, first, np.inf)
        soonest[one, :-1] = np.minimum.accumulate(lower[::-1])[::-1]
    rows = np.arange(low, high)
    inverted = np.isfinite(first[rows]) & (soonest[atom[rows], rows + 1] < first[rows])
    waited = rows[inverted]
    ahead = (first[None, :] < first[waited, None]) & (atom[None, :] > atom[waited, None])
    ahead &= np.arange(len(first))[None, :] > waited[:, None]
    tokens = np.zeros(high - low)
    tokens[inverted] = ahead.astype(np.float32) @ facts.prompt_tokens.astype(np.float32)
    return inverted, tokens


def idle_most_s(facts: Facts) -> Floats:
    """Return for each atom the longest time in which some of it waited and none of it was between tokens.

    From the first token to the last an atom counts as served: facts hold no other times. Rejected ones don't wait.
    """
    found = np.zeros(ATOMS)
    started = ~np.isnan(facts.first_token_s) & ~np.isnan(facts.finished_s)
    for atom in range(ATOMS):
        mine = np.flatnonzero(started & (facts.tier == atom))
        if len(mine) < 2:
            continue
        mine = mine[np.argsort(facts.first_token_s[mine], kind="stable")]
        served = np.maximum.accumulate(facts.finished_s[mine])[:-1]
        waiting = np.minimum.accumulate(facts.arrival_s[mine][::-1])[::-1][1:]
        gap = facts.first_token_s[mine][1:] - np.maximum(served, waiting)
        found[atom] = max(0.0, float(gap.max()))
    return found


def greatest(atom: Ints, values: Floats) -> Floats:
    """Return the greatest value of each atom, 0 without any."""
    found = np.zeros(ATOMS)
    np.maximum.at(found, atom, values)
    return found


def histogram(atom: Ints, values: Floats) -> Floats:
    """Return counts by atom and bin of EDGES_S, flattened (10 * 40,)."""
    bins = len(EDGES_S) - 1
    place = np.clip(np.searchsorted(EDGES_S, values, side="right") - 1, 0, bins - 1)
    return np.bincount(atom * bins + place, minlength=ATOMS * bins).astype(np.float64)


def quantile(counts: Floats, share: float) -> float:
    """Return the quantile of a histogram over EDGES_S, log-linear inside a bin; NaN of nothing."""
    total = float(counts.sum())
    if total <= 0:
        return float("nan")
    upto = np.cumsum(counts)
    place = min(int(np.searchsorted(upto, share * total, side="left")), len(counts) - 1)
    inside = (share * total - (upto[place] - counts[place])) / max(counts[place], 1.0)
    low, high = np.log(EDGES_S[place]), np.log(EDGES_S[place + 1])
    return float(np.exp(low + min(max(inside, 0.0), 1.0) * (high - low)))


def batch_most(facts: Facts) -> int:
    """Return the most requests that one engine had taken and not finished: its batch was never larger.

    A request counts on the engine where it ended, and also while it was evicted.
    """
    most = 0
    known = ~np.isnan(facts.started_s) & ~np.isnan(facts.finished_s)
    for engine in np.unique(facts.engine[known]):
        mine = known & (facts.engine == engine)
        times = np.concatenate([facts.finished_s[mine], facts.started_s[mine]])
        change = np.repeat([-1, 1], int(mine.sum()))
        order = np.lexsort((change, times))
        most = max(most, int(np.cumsum(change[order]).max(initial=0)))
    return most


def inside_at(facts: Facts, at_s: float) -> float:
    """Return how many requests had arrived and not ended at a time."""
    ended = np.where(np.isnan(facts.finished_s), facts.arrival_s, facts.finished_s)
    return float(np.sum((facts.arrival_s <= at_s) & (ended > at_s)))
