"""The answer of a study of tiers in sentences: each says what was seen, over what, and how sure it is."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.ranks import LEVEL
from analysis.tiers_effects import FACTORS, Effect
from analysis.tiers_levels import Levels, Travel
from analysis.tiers_results import MARGIN

if TYPE_CHECKING:
    from analysis.tiers_answer import Answer

FOUR = 4


def sentences(found: "Answer") -> list[str]:
    """Return the answer, most important first."""
    return [
        *(four_words(one, found) for one in systems(found.levels)),
        *mechanism_words(found),
        *metric_words(found),
        *travel_words(found.travel),
        *placebo_words(found),
        *price_words(found),
        *fleet_words(found),
        *doubt_words(found),
    ]


def systems(levels: Sequence[Levels]) -> list[list[Levels]]:
    """Return the levels a system, in the order in which they came."""
    named = dict.fromkeys(one.system for one in levels)
    return [[one for one in levels if one.system == name] for name in named]


def points(value: float) -> str:
    """Return a difference of attainments in percentage points, with its sign."""
    return f"{100 * value:+.1f}".replace("-", "−")


def spread(effect: Effect) -> str:
    """Return an effect in points with its interval."""
    return f"{points(effect.mean)} points [{points(effect.low)}, {points(effect.high)}]"


def survivors_words(levels: Sequence[Levels]) -> str:
    """Say in how many conditions each number of tiers survives as best."""
    counted = Counter(k for one in levels for k in one.survivors)
    return ", ".join(f"{k}: {counted[k]}" for k in sorted({k for one in levels for k in one.levels}))


def four_words(levels: Sequence[Levels], found: "Answer") -> str:
    """Say whether four tiers is best under one system, where, and what one more or fewer does."""
    name = levels[0].system
    told = [one for one in levels if one.informative]
    if not told:
        return (
            f"With {name}, numbers of tiers differ by more than {MARGIN} in none of {len(levels)} conditions."
        )
    have = [one for one in told if FOUR in one.levels]
    best = [one for one in have if FOUR in one.survivors]
    only = [one for one in best if one.survivors == (FOUR,)]
    fewer = [one for one in best if one.least < FOUR]
    least = Counter(one.least for one in told)
    distribution = ", ".join(f"{k} in {count}" for k, count in sorted(least.items()))
    return (
        f"With {name}, numbers of tiers differ by more than {MARGIN} in {len(told)} of {len(levels)} conditions. "
        f"Four tiers may be best (is not shown worse than the best by more than the margin) in {len(best)} of "
        f"{len(have)} of them, is alone the best in {len(only)}, and where it may be best fewer tiers do as well in "
        f"{len(fewer)}. The fewest tiers that do as well as any: {distribution}. Conditions in which each survives: "
        f"{survivors_words(told)}.{untestable_words(told)}"
    )


def untestable_words(levels: Sequence[Levels]) -> str:
    """Say where too few windows were run to show any number of tiers to be worse."""
    blind = sum(not one.testable for one in levels)
    return (
        f" In {blind} of them there are too few windows to show any worse: they say nothing." if blind else ""
    )


def mechanism_words(found: "Answer") -> list[str]:
    """Say what each mechanism adds by its main effect, alone, and all together."""
    told = []
    named = {"U": "weighted attainment", "top": "the top's attainment", "bottom": "the bottom's attainment"}
    for metric, words in named.items():
        effects = found.pooled.get(metric) or {}
        if not effects:
            continue
        main = ", ".join(f"{FACTORS[name]} {spread(effects[name])}" for name in FACTORS)
        crossed = {name: one for name, one in effects.items() if len(name) > 1}
        most = max(crossed, key=lambda name: abs(crossed[name].mean))
        rows = {row["what"]: row for row in found.alone.get(metric, ())}
        both = ""
        if "all" in rows:
            alone = ", ".join(f"{name} {points(rows[name]['mean'])}" for name in rows if name != "all")
            whole = rows["all"]
            both = (
                f" Added to the plain scheduler one by one: {alone}; all together {points(whole['mean'])} "
                f"[{points(whole['low'])}, {points(whole['high'])}]."
            )
        told.append(
            f"At {found.results.home.tiers} tiers, over all conditions with the whole factorial, mean effects on "
            f"{words}: {main}; largest interaction {most} {spread(crossed[most])}.{both}"
        )
    return told


def metric_words(found: "Answer") -> list[str]:
    """Say what other metrics make of the number of tiers."""
    parts = []
    for metric, levels in found.by_metric.items():
        for mine in systems([one for one in levels if one.informative and FOUR in one.levels]):
            best = sum(FOUR in one.survivors for one in mine)
            one = sum(1 in level.survivors for level in mine)
            parts.append(
                f"{metric} ({mine[0].system}): four survives in {best} of {len(mine)}, one tier in {one}"
            )
    return [f"By other metrics: {'; '.join(parts)}."] if parts else []


def travel_words(travel: Sequence[Travel]) -> list[str]:
    """Say how far the answer travels, beside how far it holds against itself."""
    told = [
        f"across {one.axis} ({one.system}): overlap {one.overlap:.2f}, against {one.ceiling:.2f} between halves of "
        f"one condition; K* of one is in the other's set in {one.inside:.0%} (halves: {one.inside_ceiling:.0%})"
        for one in travel if not one.axis.startswith("metric")
    ]  # fmt: skip
    blind = any(not one.testable for one in travel)
    more = (
        " Halves hold too few windows to show any number worse, so that their sets hold all." if blind else ""
    )
    return [f"Does the set of best numbers travel? {'; '.join(told)}.{more}"] if told else []


def placebo_words(found: "Answer") -> list[str]:
    """Say what tiers gain that tell nothing."""
    effects = [one for _, _, one in found.placebo]
    if not effects:
        return []
    most = max(effects, key=lambda one: one.mean)
    mean = points(float(np.mean([one.mean for one in effects])))
    told = [
        f"{at.source} at load {at.region}, {at.tiers} tiers, {spec}: {spread(one)}"
        for at, spec, one in found.placebo if one.mean > MARGIN
    ]  # fmt: skip
    more = (
        f" Gains beyond the margin there are no merit of what tiers say: {'; '.join(told)}." if told else ""
    )
    first = f"Placebo (tiers shown at random): mean gain {mean} points over {len(effects)} settings"
    return [f"{first}, most {spread(most)}.{more}"]


def price_words(found: "Answer") -> list[str]:
    """Say who pays for the top's gain."""
    prices: dict[str, list[float | None]] = {}
    for row in found.board:
        if row["tiers"] > 1:
            prices.setdefault(row["scheduler"], []).append(row["price"])
    told = []
    for spec in ("tiered:order=1+least-kv", "tiered:order=1,headroom=1+tier-freeness+rebalance"):
        known = [one for one in prices.get(spec, ()) if one is not None]
        if spec in prices:
            value = f"{np.median(known):.2f} (median)" if known else "undefined"
            told.append(
                f"{spec} {value}, undefined in {len(prices[spec]) - len(known)} of {len(prices[spec])}"
            )
    if not told:
        return []
    return [f"Price of isolation, requests that others lose for each that the top wins: {'; '.join(told)}."]


def fleet_words(found: "Answer") -> list[str]:
    """Say how many engines equal attainment takes."""
    told = [
        f"{one.source} at load {one.region}, {one.tiers} tier{'s' if one.tiers > 1 else ''}, {one.spec}: "
        + (f"{one.least} engines" if one.least else f"none of {', '.join(map(str, one.engines))} engines")
        + (f" (U alone reached at {one.fraction:.2f} [{one.fraction_low:.2f}, {one.fraction_high:.2f}])"
           if np.isfinite(one.fraction) else "")
        for one in found.fleets
    ]  # fmt: skip
    aim = "0.95 at the top, 0.90 weighted and 0.70 at the bottom"
    return [f"Fewest engines that attain {aim}: {'; '.join(told)}."] if told else []


def doubt_words(found: "Answer") -> list[str]:
    """Say what limits all of this."""
    steady = [row["steady"] for row in found.board]
    broken = [one["check"] for one in found.checks if one["holds"] is False]
    words = [
        f"In {np.mean(steady):.0%} of windows as many requests were inside at the end of the score as at its start, "
        f"to a tenth of all scored; elsewhere a queue grows, as it must beyond capacity, or the window is short "
        f"beside its requests. All tests at {LEVEL:.0%}, margin {MARGIN}."
    ] if steady else []  # fmt: skip
    return [*words, *([f"NOT TO BE RELIED ON: {'; '.join(broken)} does not hold."] if broken else [])]
