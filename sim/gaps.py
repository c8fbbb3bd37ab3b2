"""Histogram of the gaps between tokens: log-spaced bins, counted one by one or a whole stretch at a time."""

from math import log

from schedulers.view import Ints

LOWEST_S, HIGHEST_S, BINS = 1e-4, 1e3, 400
SCALE = BINS / log(HIGHEST_S / LOWEST_S)


def bin_of(gap_s: float) -> int:
    """Bin of a gap; what lies outside goes to the first or last bin."""
    if gap_s <= LOWEST_S:
        return 0
    return min(BINS - 1, int(log(gap_s / LOWEST_S) * SCALE))


def count_stretch(gaps: Ints, first_s: float, rise_s: float, steps: int, times: int) -> None:
    """Count the gaps ``first + i*rise``, i in 1..steps-1, each so many times; they rise, so do their bins."""
    step = 1
    while step < steps:
        here, low, high = bin_of(first_s + step * rise_s), step, steps
        if bin_of(first_s + (steps - 1) * rise_s) != here:
            while high - low > 1:  # the last step that is still in this bin
                middle = (low + high) // 2
                if bin_of(first_s + middle * rise_s) == here:
                    low = middle
                else:
                    high = middle
        gaps[here] += times * (high - step)
        step = high
