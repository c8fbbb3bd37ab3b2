"""Serving engines as cluster policies look at them: how many requests each holds, in turn and by number."""

from schedulers.dispatcher import serving
from schedulers.view import View


def held(view: View, engine: int) -> int:
    """Requests that an engine holds. [n + m]"""
    return int(view.engines.running[engine] + view.engines.waiting[engine])


def in_turn(view: View, request: int, turn: int) -> int:
    """Return the engine at a turn, 0 up to the number of engines; -1 if that engine takes no request.

    Turns go by number and begin where the request's luck says: who keeps the first of equals breaks ties by
    the lowest number, rotated by luck (reference/policies.md section 4).
    """
    count = len(view.engines.alive)
    engine = (int(view.requests.luck[request] * count) + turn) % count
    return engine if serving(view, engine) else -1


def serving_count(view: View) -> int:
    """Return how many engines take requests."""
    count = 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            count += 1
    return count


def crowded(view: View, engine: int, times: float) -> bool:
    """True if an engine holds more than so many times the mean of the engines that take requests."""
    total = 0
    for other in range(len(view.engines.alive)):
        if serving(view, other):
            total += held(view, other)
    return bool(held(view, engine) * serving_count(view) > times * total)


def nth_serving(view: View, number: int) -> int:
    """Return the engine that is ``number``-th, from 0, of those that take requests; -1 if there are fewer."""
    left = number
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            if left == 0:
                return engine
            left -= 1
    return -1


def fewest(view: View, request: int) -> int:
    """Return the serving engine with the fewest requests, the request's luck picks among equals; -1: none."""
    least, equals = 0, 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            here = held(view, engine)
            if equals == 0 or here < least:
                least, equals = here, 0
            if here == least:
                equals += 1
    skip = int(view.requests.luck[request] * equals)
    for engine in range(len(view.engines.alive)):
        if serving(view, engine) and held(view, engine) == least:
            if skip == 0:
                return engine
            skip -= 1
    return -1
