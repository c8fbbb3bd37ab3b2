"""Which engine a wish to grow or shrink falls on: the same functions for the simulator's kernel and live."""

from schedulers.view import Engines, Ints

OFF, BOOTING, SERVING, DRAINING, DEAD, LEAVING = range(6)
"""Lives of an engine. LEAVING: live only, drained to the end and told to stop; its place is not free yet."""


def first_in(life: Ints, wanted: int) -> int:
    """The first engine in a state, -1 if there is none."""
    for engine in range(life.shape[0]):
        if life[engine] == wanted:
            return engine
    return -1


def to_serve(life: Ints) -> int:
    """The engine that a wish for one more takes: one that drains, else one that is off; -1 if there is neither."""
    chosen = first_in(life, DRAINING)
    return chosen if chosen >= 0 else first_in(life, OFF)


def to_drain(life: Ints, engines: Engines, least: int) -> int:
    """The serving engine with the fewest requests, the last among equals; -1 where only ``least`` serve."""
    serving, chosen = 0, -1
    for engine in range(life.shape[0]):
        if life[engine] == SERVING:
            serving += 1
            load = engines.running[engine] + engines.waiting[engine]
            if chosen < 0 or load <= engines.running[chosen] + engines.waiting[chosen]:
                chosen = engine
    return chosen if serving > least else -1
