"""Power: what so many windows could have shown, so that "no difference" is read as what it is.

Reference statistics, section 7. Wilcoxon's signed-rank test has about the power of Student's t with 3 / pi of
its windows when differences are normal (its asymptotic relative efficiency). Where the reference's table of
least detectable effects uses normal quantiles, Student's are used here: with 20 windows they ask for more.
"""

from functools import lru_cache
from itertools import combinations

import numpy as np
from scipy import optimize, special

from analysis.answers import Power
from analysis.ranks import LEVEL
from analysis.scores import Scores

WANTED = 0.8
"""Power at which a difference counts as detectable."""

EFFICIENCY = 3 / np.pi
"""Windows that the t-test needs where Wilcoxon's needs one."""


def wilcoxon_power(windows: int, effect: float, level: float = LEVEL) -> float:
    """Return the power of the two-sided signed-rank test for normal differences of mean effect * sd."""
    if windows < 3:
        return 0.0
    freedom, shift = windows - 1, effect * np.sqrt(EFFICIENCY * windows)
    limit = float(special.stdtrit(freedom, 1 - level / 2))
    return _beyond(limit, freedom, shift) + _beyond(limit, freedom, -shift)


@lru_cache(maxsize=256)
def least_effect(windows: int, level: float = LEVEL, power: float = WANTED) -> float:
    """Return the least standardised effect that the signed-rank test finds with ``power``; NaN if none is."""
    if windows < 3:
        return float("nan")
    return float(optimize.brentq(lambda d: wilcoxon_power(windows, d, level) - power, 0.0, 100.0))


@lru_cache(maxsize=256)
def least_shift(windows: int, level: float, power: float = WANTED) -> float:
    """Return the least mean / sd that a one-sided t-test at ``level`` finds with ``power``; NaN if none."""
    if windows < 3 or not 0 < level < 1:
        return float("nan")
    freedom, root = windows - 1, np.sqrt(windows)
    limit = float(special.stdtrit(freedom, 1 - level))
    return float(optimize.brentq(lambda d: _beyond(limit, freedom, d * root) - power, 0.0, 1000.0))


def _beyond(limit: float, freedom: int, shift: float) -> float:
    """Return P(T > limit) of Student's t with a shift, by the mirrored tail, which keeps its digits."""
    found = float(special.nctdtr(freedom, -shift, -limit))
    # Beyond a shift of about 37 the function gives up; normal tails are right there to many digits.
    return float(special.ndtr(shift - limit)) if np.isnan(found) else found


def reversal_power(difference: float, margin: float, spread: float, windows: int) -> float:
    """Return the power to show a reversal of +difference against -difference, alone at 5 %.

    Both sides must exceed the margin; the two orientations halve the level (section 6.3).
    """
    freedom = windows - 1
    limit = float(special.stdtrit(freedom, 1 - LEVEL / 2))
    shift = (difference - margin) / (spread / np.sqrt(windows))
    return _beyond(limit, freedom, shift) ** 2


def detectable_reversal(margin: float, spread: float, windows: int, penalty: float) -> float:
    """Return the least +-difference that shows as a material reversal with power 0.8; NaN if none does.

    ``spread`` is the sd of paired differences, ``penalty`` what the correction multiplies the least p by.
    Each side needs the root of the power at half the level.
    """
    shift = least_shift(windows, LEVEL / 2 / max(penalty, 1.0), float(np.sqrt(WANTED)))
    return float(margin + shift * spread)


def power_of(cell: Scores) -> Power:
    """Return what a condition could have shown between two schedulers of typical spread."""
    key, windows, count = (cell.source, cell.region, cell.column), len(cell.windows), len(cell.schedulers)
    nan = float("nan")
    if windows < 3 or count < 2:
        return Power(key, windows, nan, nan, nan, nan, nan)
    pairs = list(combinations(range(count), 2))
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    spread = float(np.median((cell.values[first] - cell.values[second]).std(axis=1, ddof=1)))
    effect = least_effect(windows)
    return Power(
        key=key,
        windows=windows,
        spread=spread,
        effect=effect,
        difference=effect * spread,
        beyond_margin=cell.margin + least_shift(windows, LEVEL) * spread,
        corrected=least_effect(windows, LEVEL / len(pairs)) * spread,
    )
