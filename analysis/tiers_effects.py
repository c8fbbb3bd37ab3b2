"""What each mechanism adds, alone and together: the factorial of dispatch, queue order, headroom and migration.

Reference multitier, section 4: effects are paired contrasts over windows at equal resources. Queue order, headroom
and what dispatch gains from tiers are the *tier* effect; migration, and dispatch at one tier, balance load.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.ranks import DRAWS, LEVEL, one_sided
from analysis.tiers_results import MARGIN, Results, Setting, aligned

Floats = npt.NDArray[np.float64]

FACTORS = {"D": "dispatch", "Q": "queue order", "H": "headroom", "M": "migration"}


class Effect(NamedTuple):
    """A mean over windows with its interval; ``p`` that it is not above 0, and not below."""

    mean: float
    low: float
    high: float
    p_gain: float
    p_loss: float
    windows: int

    @property
    def shown(self) -> str:
        """ "gain" or "loss" if shown at the level, "" else."""
        return "gain" if self.p_gain <= LEVEL else "loss" if self.p_loss <= LEVEL else ""

    @property
    def equivalent(self) -> bool:
        """Whether the interval lies within the margin of 0."""
        return bool(self.low > -MARGIN and self.high < MARGIN)


class Factorial(NamedTuple):
    """Effects in one setting by one metric, named "Q" or "QH"; shares of their sum of squares."""

    setting: Setting
    metric: str
    effects: dict[str, Effect]
    shares: dict[str, float]
    d_by_tier: Effect | None  # dispatch here, less dispatch at one tier


def factors_of(spec: str) -> tuple[int, ...]:
    """Return the levels of D, Q, H and M of a scheduler of the factorial, as its name has them."""
    engine, *centre = spec.split("+")
    return (
        int(any(piece.partition(":")[0] == "tier-freeness" for piece in centre)),
        int("order=1" in engine),
        int("headroom=1" in engine or "headroom=on" in engine),
        int(any(piece.partition(":")[0] == "rebalance" for piece in centre)),
    )


def cells_of(specs: Sequence[str]) -> dict[tuple[int, ...], str]:
    """Return the schedulers of the whole factorial by their levels; {} if one of the sixteen is missing."""
    found = {factors_of(spec): spec for spec in specs}
    return found if all(levels in found for levels in product((0, 1), repeat=4)) else {}


def names() -> tuple[str, ...]:
    """Return the names of all effects: four main ones, then the interactions."""
    return tuple("".join(some) for size in range(1, 5) for some in combinations(FACTORS, size))


def contrasts(values: Mapping[tuple[int, ...], Floats]) -> dict[str, Floats]:
    """Return each effect a window: half the sum of signs, so that a main effect is (mean at 1) - (mean at 0)."""
    places = {letter: at for at, letter in enumerate(FACTORS)}
    found = {}
    for name in names():
        signs = [np.prod([2 * cell[places[one]] - 1 for one in name]) for cell in values]
        found[name] = np.einsum("c,cw->w", np.asarray(signs, np.float64), np.stack([*values.values()])) / 8.0
    return found


def effect_of(differences: Floats) -> Effect:
    """Return the mean of paired differences a window with its bootstrap interval; NaN without any."""
    return effects_of(np.asarray(differences, np.float64)[None])[0]


def effects_of(rows: Floats) -> list[Effect]:
    """Return an effect a row of paired differences, (rows, windows); all rows meet the same draws."""
    size, n = rows.shape
    if not n:
        return [Effect(*(float("nan"),) * 5, 0)] * size
    low, high = np.quantile(counts(n) @ rows.T / n, [LEVEL / 2, 1 - LEVEL / 2], axis=0)
    p = one_sided(np.concatenate([rows, -rows]))
    return [
        Effect(float(row.mean()), float(low[i]), float(high[i]), float(p[i]), float(p[size + i]), n)
        for i, row in enumerate(rows)
    ]


def intervals(rows: Floats) -> list[tuple[float, float, float]]:
    """Return mean and bootstrap interval of each row, (rows, windows), without testing anything."""
    n = rows.shape[1]
    if not n:
        return [(float("nan"),) * 3] * len(rows)
    low, high = np.quantile(counts(n) @ rows.T / n, [LEVEL / 2, 1 - LEVEL / 2], axis=0)
    return [(float(row.mean()), float(low[i]), float(high[i])) for i, row in enumerate(rows)]


@lru_cache(maxsize=32)
def counts(windows: int, seed: int = 0) -> Floats:
    """Return how often each of DRAWS bootstrap draws takes each window, (draws, windows)."""
    rng = np.random.default_rng([windows, seed])
    return np.asarray(rng.multinomial(windows, np.full(windows, 1 / windows), size=DRAWS), np.float64)


def factorial(of: Results, setting: Setting, metric: str) -> Factorial | None:
    """Return the effects in a setting; None if the plan has no whole factorial or a cell did not run."""
    found = _values(of, setting, metric)
    if found is None:
        return None
    made = contrasts(found)
    effects = dict(zip(made, effects_of(np.stack([*made.values()])), strict=True))
    squares = {name: effect.mean**2 for name, effect in effects.items()}
    whole = sum(squares.values())
    by_tier = None
    base = _values(of, of.told(setting, 1), metric)
    if base is not None and setting.tiers > 1:
        plain = contrasts(base)["D"]
        by_tier = effect_of(made["D"] - plain) if len(plain) == len(made["D"]) else None
    shares = {name: square / whole if whole > 0 else 0.0 for name, square in squares.items()}
    return Factorial(setting, metric, effects, shares, by_tier)


def _values(of: Results, setting: Setting, metric: str) -> dict[tuple[int, ...], Floats] | None:
    specs = cells_of(of.schedulers)
    cells = [of.cell(setting, spec) for spec in specs.values()]
    known = [cell for cell in cells if cell is not None]
    if not specs or len(known) < len(specs):
        return None
    _, values = aligned(known, metric)
    return dict(zip(specs, values, strict=True))


def pooled(of: Results, settings: Sequence[Setting], metric: str) -> dict[str, Effect]:
    """Return effects over settings: each window's mean over the settings that it is in; every source counts alike."""
    by_source: dict[str, list[dict[str, Floats]]] = {}
    for setting in settings:
        found = _values(of, setting, metric)
        if found is not None:
            by_source.setdefault(setting.source, []).append(contrasts(found))
    return {
        name: over_sources([np.mean([one[name] for one in made], axis=0) for made in by_source.values()])
        for name in (names() if by_source else ())
    }


def over_sources(values: Sequence[Floats]) -> Effect:
    """Return the mean over sources of paired differences a window, windows drawn anew inside each source."""
    drawn = np.mean([counts(len(one), at) @ one / len(one) for at, one in enumerate(values)], axis=0)
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    size = min(map(len, values))
    p_gain, p_loss = (float((1 + np.sum(sign * drawn <= 0)) / (1 + len(drawn))) for sign in (1, -1))
    return Effect(
        float(np.mean([one.mean() for one in values])), float(low), float(high), p_gain, p_loss, size
    )


def alone_and_together(of: Results, settings: Sequence[Setting], metric: str) -> list[dict[str, Any]]:
    """Return what each mechanism adds to the plain cell alone, and what all add together, as pooled differences."""
    specs = cells_of(of.schedulers)
    rows = []
    wanted = {"D": (1, 0, 0, 0), "Q": (0, 1, 0, 0), "H": (0, 0, 1, 0), "M": (0, 0, 0, 1), "Q+H": (0, 1, 1, 0),
              "all": (1, 1, 1, 1)}  # fmt: skip
    for name, levels in wanted.items() if specs else ():
        by_source: dict[str, list[Floats]] = {}
        for setting in settings:
            pair = [of.cell(setting, specs[levels]), of.cell(setting, specs[0, 0, 0, 0])]
            known = [cell for cell in pair if cell is not None]
            if len(known) == 2:
                _, values = aligned(known, metric)
                by_source.setdefault(setting.source, []).append(values[0] - values[1])
        if by_source:
            effect = over_sources([np.mean(one, axis=0) for one in by_source.values()])
            rows.append({"what": name, **effect._asdict()})
    return rows
