"""Which windows to freeze: a draw, seeded and blind to outcomes, within strata and spread over time.

Strata are 4 quartiles of priced work a second x 3 tertiles of kappa at 1 s (reference/traces.md 7.2),
each taken within a part of the source (a service, a mix of channels): so each part fills every stratum,
and a stratum says "busy for its service", not "which service". Or they are the thirds of each file in time,
half of the windows from the first (the design of reference/published-studies.md A.1). Picks are made one
after another and the next never depends on how many were asked for: a longer choice begins with the shorter
one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from loadgen.candidate import Candidate, Recipe, candidates, grid_start, rules
from loadgen.trace import Trace

WORK_BINS, KAPPA_BINS = 4, 3
TIME_BLOCKS, DEV_BLOCKS = 10, 6
"""A trace's candidates in time order fall in 10 blocks: the first 60 % for development, then tests."""
CELLS: Mapping[str, float] = MappingProxyType(
    {f"w{work}k{kappa}": 1.0 for work in range(WORK_BINS) for kappa in range(KAPPA_BINS)}
)
"""Cells of work rate x burstiness, all of one weight."""
TERCILES: Mapping[str, float] = MappingProxyType({"early": 2.0, "middle": 1.0, "late": 1.0})
"""Thirds of a file in time with their weights: of 40 windows 20, 10 and 10."""
SCRIPT = "script"
SCRIPTS_KEPT, SCRIPT_EVERY = 4, 10
"""Windows of one repeated prompt or output are kept on purpose: each tenth pick, four at most, labelled."""

Place = tuple[int, int]


class Pick(NamedTuple):
    """A candidate with its stratum, block of time (0-9) and split.

    The stratum is ``w0k0`` .. ``w3k2`` or ``script``; ``early``, ``middle`` or ``late`` where strata are times.
    """

    candidate: Candidate
    stratum: str
    block: int
    split: str


class Choice(NamedTuple):
    """What was chosen, and what was not and why; candidates = pool + sum(rejected.values())."""

    picked: tuple[Pick, ...]
    asked: int
    candidates: int
    pool: int  # candidates that nothing speaks against
    rejected: dict[str, int]  # reason: candidates (those of ``script`` that were kept on purpose too)
    too_close: int  # candidates of the pool that overlap a picked one or lie too close in time
    ramp_rows: int  # rows left out before the grid begins
    strata: dict[str, int]  # stratum: windows picked; empty ones stand here with 0


def choose(traces: Sequence[Trace], recipe: Recipe) -> Choice:
    """Choose windows of one source, whose files are ``traces``; fewer than asked for if there are no more."""
    listed = [one for index, trace in enumerate(traces) for one in candidates(trace, recipe, index)]
    rejected = Counter(one.reason for one in listed if one.reason)
    fit = [one for one in listed if one.reason in ("", SCRIPT)]
    by_time = recipe.strata == "terciles"
    pool = in_terciles(fit) if by_time else stratified(fit)
    asked = rules(traces[0].info.family)
    weights = TERCILES if by_time else CELLS
    picked, too_close = draw(pool, recipe.count, Wish(dict(asked.shares), weights, asked.apart_s))
    strata = dict.fromkeys(weights, 0)
    strata.update(Counter(one.stratum for one in picked))
    return Choice(
        picked=tuple(picked),
        asked=recipe.count,
        candidates=len(listed),
        pool=len(listed) - rejected.total(),
        rejected=dict(sorted(rejected.items())),
        too_close=too_close,
        ramp_rows=sum(grid_start(trace) for trace in traces),
        strata=strata,
    )


def stratified(pool: Sequence[Candidate]) -> list[Pick]:
    """Return the pool with strata and splits: bins of rank within a part, blocks of rank within a trace."""
    plain = [one for one in pool if one.reason != SCRIPT]
    work: dict[Place, int] = {}
    kappa: dict[Place, int] = {}
    block: dict[Place, int] = {}
    for part in sorted({one.part for one in plain}):
        members = [one for one in plain if one.part == part]
        work |= ranked(members, "work_per_s", WORK_BINS)
        kappa |= ranked(members, "kappa_1s", KAPPA_BINS)
    for trace in sorted({one.trace for one in pool}):
        members = [one for one in pool if one.trace == trace]
        block |= ranked(members, "", TIME_BLOCKS)
    return [
        Pick(
            one,
            SCRIPT if one.reason == SCRIPT else f"w{work[one.place]}k{kappa[one.place]}",
            block[one.place],
            "dev" if block[one.place] < DEV_BLOCKS else "test",
        )
        for one in pool
    ]


def in_terciles(pool: Sequence[Candidate]) -> list[Pick]:
    """Return the pool with the third of its trace as stratum; blocks and splits as elsewhere."""
    third: dict[Place, int] = {}
    for trace in sorted({one.trace for one in pool}):
        third |= ranked([one for one in pool if one.trace == trace], "", len(TERCILES))
    names = list(TERCILES)
    return [pick._replace(stratum=names[third[pick.candidate.place]]) for pick in stratified(pool)]


def ranked(members: Sequence[Candidate], descriptor: str, bins: int) -> dict[Place, int]:
    """Return the bin of each member by the middle of its rank; descriptor "" ranks by time."""
    order = sorted(members, key=lambda one: ((one.descriptors.get(descriptor) or 0.0), one.place))
    return {one.place: int(bins * (rank + 0.5) / len(order)) for rank, one in enumerate(order)}


class Wish(NamedTuple):
    """What a draw aims at: shares of the parts, weights of the strata, seconds between windows."""

    shares: Mapping[str, float]
    weights: Mapping[str, float]
    apart_s: float


def draw(pool: Sequence[Pick], count: int, wish: Wish) -> tuple[list[Pick], int]:
    """Return up to ``count`` picks in the order drawn, and how many others came too close to one of them.

    Each pick takes the part that is furthest behind its share, then the stratum that is furthest behind its
    weight, then the block of time with the fewest, then the candidate's luck.
    """
    left, too_close = list(pool), 0
    picked: list[Pick] = []
    parts: Counter[str] = Counter()
    cells: Counter[tuple[str, str]] = Counter()
    strata: Counter[str] = Counter()
    blocks: Counter[tuple[str, int]] = Counter()

    def urgency(one: Pick) -> tuple[float | int | str | Place, ...]:
        part, weight = one.candidate.part, wish.weights.get(one.stratum, 1.0)
        return (
            (parts[part] + 1) / wish.shares.get(part.rpartition("-")[2], 1.0),
            part,
            (cells[part, one.stratum] + 1) / weight,
            (strata[one.stratum] + 1) / weight,
            blocks[part, one.block],
            one.candidate.luck,
            one.candidate.place,
        )

    while len(picked) < count:
        scripts = [one for one in left if one.stratum == SCRIPT]
        plain = [one for one in left if one.stratum != SCRIPT]
        turn = len(picked) % SCRIPT_EVERY == SCRIPT_EVERY - 1 or not plain
        open_to = scripts if turn and scripts and strata[SCRIPT] < SCRIPTS_KEPT else plain
        if not open_to:
            break
        best = min(open_to, key=urgency)
        picked.append(best)
        parts[best.candidate.part] += 1
        cells[best.candidate.part, best.stratum] += 1
        strata[best.stratum] += 1
        blocks[best.candidate.part, best.block] += 1
        left.remove(best)
        kept = [one for one in left if not too_near(one.candidate, best.candidate, wish.apart_s)]
        too_close += sum(one.stratum != SCRIPT for one in left) - sum(one.stratum != SCRIPT for one in kept)
        left = kept
    return picked, too_close


def too_near(one: Candidate, other: Candidate, apart_s: float) -> bool:
    """Do two candidates share rows, or lie less than ``apart_s`` apart in one trace?"""
    if one.trace != other.trace:
        return False
    first, second = sorted((one, other), key=lambda candidate: candidate.first_row)
    if first.first_row + first.rows > second.first_row:
        return True
    return apart_s > 0.0 and second.start_s - first.end_s < apart_s
