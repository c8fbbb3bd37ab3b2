"""A policy: a name and a few pure functions, each answering one question about a request.

Every hook takes ``(view, request, now_s)`` and returns a number, save ``preempt`` (which sees two requests) and
``observe`` (which sees an event and returns nothing). A hook left out is None and costs nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

from schedulers.view import View

Hook = Callable[[View, int, float], float]
PairHook = Callable[[View, int, int, float], float]
EventHook = Callable[[View, int, int, float], None]

TAKE, WAIT, REFUSE = 1.0, 0.0, -1.0
"""Answers of ``admit``: join the batch now, stay in the queue, be rejected."""

USUAL, GIVE_WAY = 2.0, 3.0
"""Two more of an engine policy: as the engine does without ``admit``; stay, and let none but higher tiers pass."""

HOLD = -1.0
"""Answer of ``dispatch``: keep the request in the central queue."""


class Param(NamedTuple):
    """A number that a user may set, as in ``sarathi:phi=0.8``; its index is its place in ``View.params``."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str


class Memo(NamedTuple):
    """How many float columns of its own a policy keeps."""

    requests: int = 0
    engines: int = 0
    tenants: int = 0


class EnginePolicy(NamedTuple):
    """Decides inside one engine, every step. Keys are smaller-first, ties by (arrival, luck)."""

    name: str
    order: Hook | None = None  # key of a waiting request; default arrival
    admit: Hook | None = (
        None  # TAKE, WAIT, REFUSE, USUAL or GIVE_WAY; default (and USUAL): it fits above the watermark
    )
    serve: Hook | None = None  # key of a running request, +inf holds it back this step; default arrival
    budget: Hook | None = (
        None  # (view, engine, now_s): tokens this step may carry; default the engine's limit
    )
    evict: Hook | None = None  # score when memory runs out, the largest leaves; default arrival
    preempt: PairHook | None = None  # (view, waiting, running, now_s): 1 if it may displace; default never
    observe: EventHook | None = None  # (view, request, event, now_s), for the events in `watches`
    wake: Hook | None = (
        None  # (view, engine, now_s): next moment at which an answer changes by itself; default never
    )
    watches: tuple[int, ...] = ()
    params: tuple[Param, ...] = ()
    memo: Memo = Memo()
    scan: str = "stop"  # does one held request end the scan of the queue? "stop" or "skip"
    chunked: bool = True  # False: whole prompts, and the step limit is at least the longest legal prompt
    rekey: bool = False  # re-read the order after each take
    waiting_rank: int | None = (
        None  # waiting requests enter before running ones of this rank; None: after all
    )
    dynamic: bool = False  # the order of waiting requests can change between events
    reads: tuple[str, ...] = ()  # of "forecast", "targets", "tier", "tenant", "prefix"; a cluster's: "usage"
    oracle: bool = False  # forecasts are true lengths: controls only
    python: bool = False  # hooks numba can't compile: run through a slow door
    control: bool = False  # run and reported, never ranked
    version: int = 1
    source: str = ""  # paper or artifact


class ClusterPolicy(NamedTuple):
    """Decides at the dispatcher."""

    name: str
    admit: Hook | None = None  # TAKE, WAIT or REFUSE; default take
    order: Hook | None = None  # key in the central queue; default arrival
    dispatch: Hook | None = None  # engine, or HOLD; default fewest requests
    migrate: Hook | None = (
        None  # (view, engine, now_s): engine to which that one should give a request, or HOLD; default none
    )
    pick: Hook | None = None  # key of a request that might move, smallest goes, +inf never; default `movable`
    scale: Hook | None = None  # (view, -1, now_s): change in the number of engines; default 0
    observe: EventHook | None = None
    watches: tuple[int, ...] = ()
    params: tuple[Param, ...] = ()
    memo: Memo = Memo()
    dynamic: bool = False
    period_s: float = 0.0  # how often migrate and scale are asked; 0: never
    reads: tuple[str, ...] = ()
    oracle: bool = False
    python: bool = False
    control: bool = False
    version: int = 1
    source: str = ""


CLUSTER_HOOKS = ("admit", "order", "dispatch", "migrate", "pick", "scale", "observe")
"""Questions of a cluster; each is answered by one policy, or by its default."""


class Part(NamedTuple):
    """A cluster policy with the values of its parameters."""

    policy: ClusterPolicy
    params: tuple[float, ...]


class Scheduler(NamedTuple):
    """What is ranked: an engine policy and a cluster policy with their parameter values.

    ``more`` are cluster policies that answer what the first leaves open, e.g. who moves and when to scale.
    """

    name: str
    engine: EnginePolicy
    cluster: ClusterPolicy
    engine_params: tuple[float, ...]
    cluster_params: tuple[float, ...]
    more: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All cluster policies, the first one first."""
        return (Part(self.cluster, self.cluster_params), *self.more)

    def part_for(self, hook: str) -> Part:
        """The cluster policy that answers a question; the first one if none does."""
        return next((part for part in self.parts if getattr(part.policy, hook) is not None), self.parts[0])

    @property
    def control(self) -> bool:
        """True if it is run and reported but never ranked."""
        return self.engine.control or any(part.policy.control for part in self.parts)

    @property
    def version(self) -> str:
        """Versions of all policies, part of a result's key."""
        return ".".join(
            str(version) for version in (self.engine.version, *(p.policy.version for p in self.parts))
        )
