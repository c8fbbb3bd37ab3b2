"""The slow door: Python hooks that compiled code calls back, with arrays handed over as addresses."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

DOORS: dict[str, Callable[..., Any]] = {}


def at(address: int, count: int, kind: Any) -> Any:
    """Return the array of so many 8-byte numbers at an address of the rig, which outlives the call."""
    return np.ctypeslib.as_array((kind * count).from_address(address))


def knock_fill(slot: str, ids: int, count: int, now_s: float, out: int) -> None:
    """Call the Python hook behind this slot for many requests; arrays come as addresses."""
    DOORS[slot](at(ids, count, ctypes.c_int64), count, now_s, at(out, count, ctypes.c_double))


def knock_first(slot: str, waiting: int, ids: int, count: int, now_s: float) -> int:
    """Call the Python ``preempt`` behind this slot."""
    return int(DOORS[slot](waiting, at(ids, count, ctypes.c_int64), count, now_s))


def knock_tell(slot: str, ids: int, count: int, event: int, now_s: float) -> None:
    """Call the Python ``observe`` behind this slot."""
    DOORS[slot](at(ids, count, ctypes.c_int64), count, event, now_s)
