"""Session affinity: a conversation keeps the engine next to it on a ring of hashes, unless that is overloaded."""

from schedulers.dispatcher import serving
from schedulers.fleet import crowded, fewest
from schedulers.policy import ClusterPolicy, Param
from schedulers.view import View

PRIME = 2_147_483_647
"""2^31 - 1: products of two smaller numbers stay below 2^62, so that no integer ever wraps."""

FIRST, SECOND, THIRD = 742_938_285, 950_706_376, 1_226_874_159
"""Multipliers modulo PRIME with a good lattice (Fishman and Moore, 1986)."""

POINTS = 32
"""Places of each engine on the ring: the more, the more alike their shares."""

SPILL = 0


def scattered(number: int) -> int:
    """Return where a number from 0 lies on the ring, 0..PRIME, the same in Python and compiled."""
    place = (int(number % PRIME) * FIRST + 1) % PRIME
    place = (place ^ (place >> 15)) * SECOND % PRIME
    place = (place ^ (place >> 13)) * THIRD % PRIME
    return place ^ (place >> 16)


def home(view: View, session: int) -> int:
    """Return the serving engine whose point is the next one on the ring from the session; -1 if none serves.

    An engine that joins or leaves moves no sessions but its own.
    """
    place, chosen, nearest = scattered(2 * (session % PRIME)), -1, 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            for point in range(POINTS):
                ahead = (scattered(2 * (engine * POINTS + point) + 1) - place) % (PRIME + 1)
                if chosen < 0 or ahead < nearest:
                    chosen, nearest = engine, ahead
    return chosen


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the session's home; fewest requests where it holds over ``spill`` x the mean, or there is no session."""
    session = int(view.requests.session[request])
    here = home(view, session) if session >= 0 else -1
    if here < 0 or crowded(view, here, float(view.params[SPILL])):
        return float(fewest(view, request))
    return float(here)


POLICY = ClusterPolicy(
    name="session",
    dispatch=dispatch,
    params=(Param("spill", 1.25, 1.0, 1000.0, "x mean", "requests that the home may hold before it spills"),),
    source="consistent hashing (Karger et al., STOC 1997), spill by reference/policies.md 4.1",
)
