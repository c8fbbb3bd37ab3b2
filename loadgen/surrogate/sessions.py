"""Sessions of several turns: when their turns come, how prompts grow from turn to turn, who follows whom."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from loadgen.surrogate.sampling import Floats, Integers, Stream
from loadgen.trace import ORPHAN

PILOT_SESSIONS = 200_000
SCORES_MAX = 4.5


class Growth(NamedTuple):
    """How prompt lengths hang together inside a session, on a latent scale that is ranked afterwards.

    A session starts at a standard normal, plus ``follow`` if it has several turns. A later turn resends the
    history with probability ``resend`` and then lies an exponential step of mean ``step`` above the turn
    before; otherwise it starts anew.
    """

    follow: float
    step: float
    resend: float = 1.0


class Turns(NamedTuple):
    """Rows of sessions, session after session, shape (rows,) each; ``first`` has shape (sessions,)."""

    first: Integers  # row of each session's first turn
    session: Integers
    turn: Integers  # 0-based


def unfold(sizes: Integers) -> Turns:
    """Return the rows of sessions of ``sizes`` turns each, shape (sessions,)."""
    ends = np.cumsum(sizes)
    first = ends - sizes
    session = np.repeat(np.arange(len(sizes)), sizes)
    return Turns(first, session, np.arange(len(session)) - first[session])


def summed_within(steps: Floats, turns: Turns) -> Floats:
    """Return running sums of ``steps`` that restart, at 0, with each session, shape (rows,)."""
    restarted = np.where(turns.turn == 0, 0.0, steps)
    running = np.cumsum(restarted)
    within: Floats = running - running[turns.first][turns.session]
    return within


def sizes_from_turns(uniforms: Floats, turn_rows: Floats) -> Integers:
    """Return session sizes, same shape as ``uniforms``, from the expected rows at turn 1, 2, ..."""
    ends = 1.0 - turn_rows[1:] / turn_rows[0]  # P(size <= k), k = 1, 2, ...
    sizes: Integers = np.searchsorted(ends, uniforms, side="right") + 1
    return sizes


def latent(stream: Stream, turns: Turns, growth: Growth) -> Floats:
    """Return the latent prompt length of each row, shape (rows,); it rises where history is resent."""
    rows = len(turns.turn)
    sizes = np.diff(np.append(turns.first, rows))
    anew = (turns.turn == 0) | (stream.uniforms("resend", rows) >= growth.resend)
    starts = np.flatnonzero(anew)
    chain = np.cumsum(anew) - 1
    climbed = np.cumsum(np.where(anew, 0.0, -growth.step * np.log(stream.uniforms("prompt step", rows))))
    level = stream.normals("prompt level", rows) + growth.follow * (sizes[turns.session] > 1)
    grown: Floats = (level - climbed)[starts][chain] + climbed
    return grown


class Ranking(NamedTuple):
    """The way from the latent scale to normal scores, from a pilot that belongs to the generator."""

    levels: Floats
    scores: Floats

    def at(self, latents: Floats) -> Floats:
        """Return normal scores, same shape; over all rows of a long trace they are standard normal."""
        scores: Floats = np.interp(latents, self.levels, self.scores)
        return scores


def ranking(name: str, turn_rows: Floats, growth: Growth) -> Ranking:
    """Return the ranking of the part ``name``: the same for every seed."""
    pilot = Stream(f"{name}/pilot", 0)
    turns = unfold(sizes_from_turns(pilot.uniforms("size", PILOT_SESSIONS), turn_rows))
    scores = np.linspace(-SCORES_MAX, SCORES_MAX, 361)
    levels = np.quantile(latent(pilot, turns, growth), ndtr(scores))
    return Ranking(levels, scores)


class Kept(NamedTuple):
    """The rows of a trace in time order, shape (n,) each."""

    rows: Integers  # row before sorting
    session: Integers  # numbered as first seen, -1 none
    parent: Integers  # row of the trace, -1 none
    flags: npt.NDArray[np.uint8]


def parents(turns: Turns) -> Integers:
    """Return the row that each row follows, -1 for a first turn, shape (rows,)."""
    before: Integers = np.where(turns.turn > 0, np.arange(len(turns.turn)) - 1, -1)
    return before


def keep(order: Integers, part: slice, session: Integers, parent: Integers) -> Kept:
    """Keep a ``part`` of ``order`` (rows by time); ``session`` and ``parent`` are of all rows, -1 none.

    A row whose parent is not kept is an orphan: it has no parent and carries the flag.
    """
    kept = order[part]
    place = np.full(len(session), -1, np.int64)
    place[kept] = np.arange(len(kept))
    follows = parent[kept] >= 0
    found = np.where(follows, place[parent[kept]], -1)
    named = session[kept]
    seen, first_seen, number = np.unique(named, return_index=True, return_inverse=True)
    known = seen >= 0
    renumbered = np.full(len(seen), -1, np.int64)
    renumbered[np.flatnonzero(known)[np.argsort(first_seen[known])]] = np.arange(int(known.sum()))
    flags = np.where(follows & (found < 0), ORPHAN, 0).astype(np.uint8)
    return Kept(kept, renumbered[number], found, flags)
