"""Search: the mildest change that makes something happen, and the fewest rows that still show it.

Nothing here knows what is searched: ``worth`` is a number above 0 where it happens. A coarse grid along each
knob comes first, then a low-discrepancy fill of the box, then refinement of what was found: Nelder-Mead on the
distance and bisection towards no change. Everything is deterministic for a seed.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats
from scipy.spatial.distance import cdist

from schedulers.view import Floats, Ints

Worth = Callable[[Floats], float]
"""Where it happens this is above 0; the larger, the more clearly. NaN where it can't be told."""

Notice = Callable[[int, int], None]
"""Told (evaluations done, budget)."""

STEPS = 6
"""Points of the coarse grid along a knob, each way."""

FILL = 0.4
"""Share of the budget that may be spent when grid and fill have ended; the rest refines."""

HALVINGS = 7
LATEST = 0.02
"""Bisections towards no change, and the relative gain below which refinement stops."""

SIMPLEXES = (0.1, -0.05, 0.03)
"""Sizes of Nelder-Mead's first simplex, as shares of the box: when one gains little the next looks elsewhere."""

SLOPE, STRIDES = 0.04, (1.0, 0.95, 0.8, 0.5, 0.25)
"""Step to tell a slope by, as a share of the box, and how far towards the foot of the plane is tried in turn."""

PROBES = 4096
"""Points of the box whose distance to the nearest evaluated one says how densely it was covered."""


class Space(NamedTuple):
    """A box of changes around 0, one range a knob; ``low`` <= 0 <= ``high``, shape (knobs,)."""

    knobs: tuple[str, ...]
    low: Floats
    high: Floats


class Looked(NamedTuple):
    """What a search saw; ``points`` (evaluations, knobs) in the order of asking, ``worths`` beside them."""

    points: Floats
    worths: Floats
    candidates: tuple[Floats, ...]  # where it happens, mildest first; the best of each way there

    @property
    def best(self) -> Floats | None:
        """The mildest change that was seen to do it."""
        return self.candidates[0] if self.candidates else None


class Spent(Exception):  # noqa: N818 - no error: it ends a search in good order
    """The budget is used up."""


class Ledger:
    """Asks for worths, once a point, and never more often than the budget allows."""

    def __init__(self, worth: Worth, space: Space, budget: int, notice: Notice) -> None:
        self.worth, self.space, self.budget, self.notice = worth, space, budget, notice
        self.points: list[Floats] = []
        self.worths: list[float] = []
        self.known: dict[bytes, float] = {}

    def ask(self, point: Floats) -> float:
        """Return the worth of a point moved into the box, -inf where it can't be told; raises Spent."""
        inside = np.clip(np.asarray(point, np.float64), self.space.low, self.space.high)
        key = np.round(inside, 9).tobytes()
        if key not in self.known:
            if len(self.points) >= self.budget:
                raise Spent
            found = float(self.worth(inside))
            self.known[key] = -inf if np.isnan(found) else found
            self.points.append(inside)
            self.worths.append(self.known[key])
            self.notice(len(self.points), self.budget)
        return self.known[key]

    @property
    def reached(self) -> tuple[Floats, float] | None:
        """The mildest point so far at which it happens, and its distance."""
        hits = [(float(np.linalg.norm(p)), n) for n, p in enumerate(self.points) if self.worths[n] > 0.0]
        if not hits:
            return None
        distance, n = min(hits)
        return self.points[n], distance


def mildest(worth: Worth, space: Space, budget: int, seed: int, notice: Notice) -> Looked:
    """Return what was seen in at most ``budget`` evaluations, and the mildest points at which worth > 0."""
    ledger = Ledger(worth, space, budget, notice)
    try:
        if ledger.ask(np.zeros(len(space.knobs))) <= 0.0:
            walk_knobs(ledger)
            fill(ledger, seed)
            if ledger.reached is None:
                climb(ledger)
            refine(ledger)
    except Spent:
        pass
    points = np.array(ledger.points).reshape(-1, len(space.knobs))
    return Looked(points, np.array(ledger.worths), distinct(ledger))


def walk_knobs(ledger: Ledger) -> None:
    """Go out along each knob, all at one pace so that mild changes come first; stop a way where it happens."""
    space = ledger.space
    ways = [
        (knob, end)
        for knob in range(len(space.knobs))
        for end in (space.low[knob], space.high[knob])
        if end != 0.0
    ]
    steps = sorted(
        (abs(end) * step / STEPS, way, step)
        for way, (_, end) in enumerate(ways)
        for step in range(1, STEPS + 1)
    )
    done: dict[int, tuple[Floats, Floats]] = {}
    last = {way: np.zeros(len(space.knobs)) for way in range(len(ways))}
    for distance, way, step in steps:
        reached = ledger.reached
        if way in done or (reached is not None and distance >= reached[1]):
            continue
        knob, end = ways[way]
        point = np.zeros(len(space.knobs))
        point[knob] = end * step / STEPS
        if ledger.ask(point) > 0.0:
            done[way] = (last[way], point)
        last[way] = point
    for miss, hit in done.values():
        halve(ledger, miss, hit)


def halve(ledger: Ledger, miss: Floats, hit: Floats) -> Floats:
    """Return the point nearest to ``miss`` at which it happens, on the way from it to ``hit``, by bisection."""
    for _ in range(HALVINGS):
        middle = (miss + hit) / 2.0
        if ledger.ask(middle) > 0.0:
            hit = middle
        else:
            miss = middle
    return hit


def fill(ledger: Ledger, seed: int) -> None:
    """Ask at points of a Sobol sequence, in the box or, once it has happened, in the ball that is milder."""
    space, dims = ledger.space, len(ledger.space.knobs)
    if dims < 2:
        return
    draw = stats.qmc.Sobol(dims + 1, seed=seed)
    for _ in range(int(FILL * ledger.budget) - len(ledger.points)):
        row = draw.random(1)[0]
        point = space.low + row[:dims] * (space.high - space.low)
        reached, size = ledger.reached, float(np.linalg.norm(point))
        if reached is not None and size >= reached[1]:
            point *= reached[1] / size * row[dims] ** (1.0 / dims)  # uniform in the ball
        ledger.ask(point)


def climb(ledger: Ledger) -> None:
    """Nothing found: go uphill from the best points seen until it happens, or nowhere is higher."""
    starts = [ledger.points[n] for n in np.argsort(ledger.worths)[::-1][:3]]
    for start in starts:
        nelder_mead(lambda x: -ledger.ask(x), start, ledger, stop=lambda: ledger.reached is not None)
        if ledger.reached is not None:
            return


def refine(ledger: Ledger) -> None:
    """Shorten the way to the mildest point by Nelder-Mead on its length, then towards 0, until it gains little."""
    bound = float(np.linalg.norm(np.maximum(-ledger.space.low, ledger.space.high)))

    def length(point: Floats) -> float:
        inside = np.clip(point, ledger.space.low, ledger.space.high)
        worth = ledger.ask(inside)
        size = float(np.linalg.norm(inside))
        return size if worth > 0.0 else 2.0 * bound + size - max(worth, -1e6)

    turn = 0
    while (reached := ledger.reached) is not None and turn < len(SIMPLEXES):
        point, distance = reached
        hit = halve(ledger, np.zeros_like(point), point)
        if len(point) > 1:
            hit = project(ledger, hit)
            nelder_mead(length, hit, ledger, size=SIMPLEXES[turn])
        again = ledger.reached
        gained = again is not None and again[1] < distance * (1.0 - LATEST)
        turn = 0 if gained and len(point) > 1 else turn + 1


def project(ledger: Ledger, point: Floats) -> Floats:
    """Return a milder point by steps along the edge, to where its tangent plane is nearest to 0.

    That is the search for the most probable point of structural reliability (Hasofer and Lind 1974, Rackwitz and
    Fiessler 1978), with slopes from one more evaluation a knob. ``point`` is taken to lie on the edge, whatever
    its worth: counts of requests jump over 0. It ends where a step makes nothing milder.
    """
    step = SLOPE * (ledger.space.high - ledger.space.low)
    while True:
        worth = ledger.ask(point)
        sides = np.where(point + step <= ledger.space.high, step, -step)
        moved = np.array(
            [ledger.ask(point + side * one) for side, one in zip(sides, np.eye(len(point)), strict=True)]
        )
        slope = (moved - worth) / np.where(sides == 0.0, 1.0, sides)
        steepness = float(slope @ slope)
        if not np.isfinite(steepness) or steepness == 0.0:
            return point
        foot = (slope @ point) / steepness * slope
        for reach in STRIDES:
            tried = np.clip(point + reach * (foot - point), ledger.space.low, ledger.space.high)
            if np.linalg.norm(tried) < np.linalg.norm(point) * (1.0 - LATEST) and ledger.ask(tried) > 0.0:
                point = tried
                break
        else:
            return point


def nelder_mead(
    aim: Callable[[Floats], float],
    start: Floats,
    ledger: Ledger,
    size: float = SIMPLEXES[0],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Minimise ``aim`` from ``start`` with a first simplex of this share of the box; the ledger keeps all it saw."""
    reach = size * (ledger.space.high - ledger.space.low)
    room = (start + reach <= ledger.space.high) & (start + reach >= ledger.space.low)
    simplex = np.vstack([start, *(start + np.where(room, reach, -reach) * one for one in np.eye(len(start)))])

    def hear(intermediate_result: Any) -> None:
        if stop():
            raise StopIteration

    options: Any = {"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-4, "maxfev": ledger.budget}
    optimize.minimize(aim, start, method="Nelder-Mead", callback=hear, options=options)


def distinct(ledger: Ledger) -> tuple[Floats, ...]:
    """Return the points at which it happens, mildest first, those left out that lie close to a milder one."""
    hits = sorted(
        (n for n, worth in enumerate(ledger.worths) if worth > 0.0),
        key=lambda n: (float(np.linalg.norm(ledger.points[n])), n),
    )
    kept: list[Floats] = []
    for n in hits:
        point = ledger.points[n]
        near = 0.25 * float(np.linalg.norm(point))
        if all(float(np.linalg.norm(point - other)) > near for other in kept):
            kept.append(point)
    return tuple(kept)


def farthest(looked: Looked, space: Space, seed: int) -> float:
    """Return how far a point of the box is at most from the nearest evaluated one, over PROBES points."""
    probes = stats.qmc.Sobol(len(space.knobs), seed=seed).random(PROBES)
    probes = space.low + probes * (space.high - space.low)
    return float(cdist(probes, looked.points).min(axis=1).max()) if len(looked.points) else inf


def fewest(rows: int, shows: Callable[[Ints], bool], budget: int, least: int = 2) -> list[Ints]:
    """Return ever smaller subsets of rows 0..rows-1 that show it, largest first: delta debugging.

    Zeller and Hildebrandt (2002): parts, then what is left without a part, in ever finer parts, until no single
    part can go or ``budget`` subsets were tried. The whole is not tried; it stands first.
    """
    kept = np.arange(rows)
    found = [kept]
    tried, parts = 0, 2
    while len(kept) > least:
        cuts: Iterable[Ints] = [part for part in np.array_split(kept, min(parts, len(kept))) if len(part)]
        smaller = None
        for attempt in attempts(kept, list(cuts)):
            if len(attempt) < least:
                continue
            if tried >= budget:
                return found
            tried += 1
            if shows(attempt):
                smaller = attempt
                break
        if smaller is not None:
            parts = 2 if len(smaller) <= len(kept) / 2 else max(parts - 1, 2)
            kept = smaller
            found.append(kept)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return found


def attempts(kept: Ints, cuts: list[Ints]) -> Iterable[Ints]:
    """Yield each part alone, then all without it; with two parts the one is the other."""
    yield from cuts
    if len(cuts) > 2:
        for cut in cuts:
            yield np.setdiff1d(kept, cut, assume_unique=True)
