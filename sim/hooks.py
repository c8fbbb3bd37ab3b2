"""A policy's hooks as functions over many requests: the shapes in which the kernel calls them."""

from collections.abc import Callable
from typing import Any

from schedulers.policy import ClusterPolicy, EnginePolicy, EventHook, Hook, PairHook
from schedulers.view import Floats, Ints, View
from sim.rig import Batch, Hooks, Notice, Search

BATCHES = ("order", "admit", "serve", "budget", "evict", "wake", "dispatch", "cluster_admit", "cluster_order")
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


def declared(engine: EnginePolicy, cluster: ClusterPolicy) -> dict[str, Callable[..., Any] | None]:
    """Every place of ``Hooks`` with the function that the two policies put there."""
    return {
        "order": engine.order,
        "admit": engine.admit,
        "serve": engine.serve,
        "budget": engine.budget,
        "evict": engine.evict,
        "wake": engine.wake,
        "preempt": engine.preempt,
        "observe": engine.observe,
        "dispatch": cluster.dispatch,
        "cluster_admit": cluster.admit,
        "cluster_order": cluster.order,
        "cluster_observe": cluster.observe,
    }


def interpreted(engine: EnginePolicy, cluster: ClusterPolicy) -> Hooks:
    """The hooks as plain Python."""
    made: dict[str, Any] = {}
    for place, hook in declared(engine, cluster).items():
        if place in BATCHES:
            made[place] = batch(hook) if hook else absent_batch
        elif place in SEARCHES:
            made[place] = search(hook) if hook else absent_search
        else:
            made[place] = notice(hook) if hook else absent_notice
    return Hooks(**made)
