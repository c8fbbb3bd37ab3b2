"""A policy's hooks as functions over many requests: the shapes in which the kernel calls them."""

from collections.abc import Callable
from typing import Any

from schedulers.policy import EventHook, Hook, PairHook, Scheduler
from schedulers.view import Floats, Ints, View
from sim.rig import Batch, Hooks, Notice, Search

CENTRAL = {
    "dispatch": "dispatch", "cluster_admit": "admit", "cluster_order": "order", "migrate": "migrate",
    "pick": "pick", "scale": "scale", "cluster_observe": "observe",
}  # fmt: skip
"""Places of ``Hooks`` that cluster policies fill, and the names of their hooks."""

BATCHES = (
    "order",
    "admit",
    "serve",
    "budget",
    "evict",
    "wake",
    *(place for place in CENTRAL if place != "cluster_observe"),
)
SEARCHES = ("preempt",)
NOTICES = ("observe", "cluster_observe")


def batch(hook: Hook) -> Batch:
    """A hook that answers for one request, over many."""

    def fill(view: View, ids: Ints, count: int, now_s: float, out: Floats) -> None:
        for place in range(count):
            out[place] = hook(view, ids[place], now_s)

    return fill


def search(hook: PairHook) -> Search:
    """First of many running requests that the waiting one may displace."""

    def first(view: View, waiting: int, ids: Ints, count: int, now_s: float) -> int:
        for place in range(count):
            if hook(view, waiting, ids[place], now_s) == 1:
                return place
        return -1

    return first


def notice(hook: EventHook) -> Notice:
    """Tell of one event for many requests."""

    def tell(view: View, ids: Ints, count: int, event: int, now_s: float) -> None:
        for place in range(count):
            hook(view, ids[place], event, now_s)

    return tell


def absent_batch(view: View, ids: Ints, count: int, now_s: float, out: Floats) -> None:
    """Stands where a policy has no such hook; never called."""


def absent_search(view: View, waiting: int, ids: Ints, count: int, now_s: float) -> int:
    """Stands where a policy has no ``preempt``; never called."""
    return -1


def absent_notice(view: View, ids: Ints, count: int, event: int, now_s: float) -> None:
    """Stands where a policy has no ``observe``; never called."""


def declared(scheduler: Scheduler) -> dict[str, Callable[..., Any] | None]:
    """Every place of ``Hooks`` with the function that the scheduler's policies put there."""
    engine = scheduler.engine
    own = ("order", "admit", "serve", "budget", "evict", "wake", "preempt", "observe")
    central = {place: getattr(scheduler.part_for(hook).policy, hook) for place, hook in CENTRAL.items()}
    return {place: getattr(engine, place) for place in own} | central


def slow(scheduler: Scheduler, place: str) -> bool:
    """True if the policy that fills this place runs as plain Python."""
    if place in CENTRAL:
        return scheduler.part_for(CENTRAL[place]).policy.python
    return scheduler.engine.python


def interpreted(scheduler: Scheduler) -> Hooks:
    """The hooks as plain Python."""
    made: dict[str, Any] = {}
    for place, hook in declared(scheduler).items():
        if place in BATCHES:
            made[place] = batch(hook) if hook else absent_batch
        elif place in SEARCHES:
            made[place] = search(hook) if hook else absent_search
        else:
            made[place] = notice(hook) if hook else absent_notice
    return Hooks(**made)
