"""Headline: the answer of a sweep in two sentences and a few numbers, claiming no more than tests show."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.answers import EQUIVALENT, REVERSAL, SIGN, STABLE, UNDECIDED, Components, Family, Statistics
from analysis.controls import broken
from analysis.findings import Findings, top_set
from analysis.numerals import number, share, tau
from analysis.portability import DIFFERS, HELD
from analysis.ranks import LEVEL
from analysis.words import BAD, GOOD, NOTE, OPEN, margin_words, metric_words

FEW = "With so few windows a lone reversal could not be shown after correction, however large."

CORRECTIONS = {"holm": "Holm", "fdr_by": "Benjamini-Yekutieli", "fdr_bh": "Benjamini-Hochberg"}


class Tile(NamedTuple):
    """One number of the headline, what it is, what it means, and how it stands."""

    value: str
    about: str
    says: str
    stands: str  # GOOD | BAD | OPEN | NOTE


class Headline(NamedTuple):
    """Doubts first if there are any, then sentences, then numbers."""

    doubts: tuple[str, ...]
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]


def headline(of: Findings, stats: Statistics | None) -> Headline:
    """Return the headline of a sweep; what is unknown is said, not left out."""
    doubts = [of.study.incomplete] if of.study.incomplete else []
    doubts += [f"{len(of.study.failures):,} runs failed"] if of.study.failures else []
    doubts += [f"control {one.control} came out wrongly" for one in broken(of.checks)]
    tiles = [
        _best(of),
        _agreement(of, stats),
        _reversals(stats),
        _portable(stats),
        _metrics(of, stats),
        _found(of),
    ]
    if doubts:
        tiles = [one._replace(stands=OPEN) if one.stands == GOOD else one for one in tiles]
    return Headline(tuple(doubts), (_scope(of), _answer(of, stats)), tuple(tiles))


def _scope(of: Findings) -> str:
    kinds = {
        label: [s for s, own in of.study.labels.items() if own == label] for label in of.study.labels.values()
    }
    traffic = " and ".join(
        f"{len(sources)} {label} source{'s' if len(sources) > 1 else ''} ({', '.join(sources)})"
        for label, sources in kinds.items()
    )
    metric = metric_words(of.study.primary)
    count, loads = len(of.study.schedulers), len(of.study.regions)
    return (
        f"{count} schedulers, ranked by the {metric}, on {traffic} at {loads} load{'s' if loads > 1 else ''}."
    )


def _answer(of: Findings, stats: Statistics | None) -> str:
    """Say whether the order holds when the traffic changes, by comparisons and by pairs."""
    if len(of.study.sources) < 2:
        return "With one source nothing can be said about other traffic."
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary]
    kept = [one for one in primary if of.comparable(one)]
    if not kept:
        return "No two sources can be compared: no order shows, or they were not pushed alike."
    differ, held = (sum(one.verdict == verdict for one in kept) for verdict in (DIFFERS, HELD))
    open_ = len(kept) - differ - held
    counts = f"differs in {differ}, held in {held}, undecided in {open_}"
    if differ:
        text = (
            f"The order does not travel everywhere: of {len(kept)} comparisons between sources it {counts}."
        )
    elif held == len(kept):
        text = f"The order held in all {len(kept)} comparisons between sources."
    else:
        text = (
            f"No change of order between sources is shown, which does not prove there is none: it {counts}."
        )
    family = _family(stats, "sources")
    if family is None or not family.size:
        return text
    named = CORRECTIONS.get(family.adjustment, family.adjustment)
    lost, margin = family.counts.get(REVERSAL, 0), margin_words(of.study, of.study.primary)
    what = f"{lost:,} of {family.size:,} pairs of schedulers" if lost else "No pair of schedulers"
    return (
        f"{text} {what} {'are' if lost > 1 else 'is'} shown to change places between two sources by more than "
        f"{margin} on either side ({named}, 5%); {family.counts.get(STABLE, 0):,} keep a clear winner, "
        f"{family.counts.get(UNDECIDED, 0):,} stay undecided.{' ' + FEW if family.least_p > LEVEL else ''}"
    )


def _best(of: Findings) -> Tile:
    keys = [key for key in of.rankings if key[2] == of.study.primary and of.rankings[key].informative]
    if not keys:
        return Tile(
            "none", "best scheduler", "no two schedulers differ by more than the margin anywhere", OPEN
        )
    firsts: dict[str, int] = {}
    for key in keys:
        name = of.rankings[key].rows[0].scheduler
        firsts[name] = firsts.get(name, 0) + 1
    best = max(firsts, key=lambda name: (firsts[name], name))
    tested = [key for key in keys if of.rankings[key].testable]
    tops = sum(best in top_set(of.rankings[key]) for key in tested)
    says = f"has the best mean in {firsts[best]} of {len(keys)} conditions"
    says += (
        f"; not shown worse than the best in {tops} of {len(tested)}"
        if tested
        else "; too few windows to test"
    )
    return Tile(best, "most often first", says, GOOD if firsts[best] == len(keys) else NOTE)


def _agreement(of: Findings, stats: Statistics | None) -> Tile:
    about = "agreement of sources, of what noise allows"
    kept = [one for one in of.across_sources if one.a[2] == of.study.primary and of.comparable(one)]
    kept = [one for one in kept if np.isfinite(one.gap)]
    if not kept:
        return Tile("–", about, "no two sources can be compared", OPEN)
    cross = float(np.median([one.cross for one in kept]))
    most = float(np.median([one.ceiling for one in kept]))
    beyond = sum(one.verdict == DIFFERS for one in kept)
    says = f"median tau-b of {len(kept)} comparisons, halves against halves; {beyond} differ after correction"
    return Tile(f"{tau(cross)} of {tau(most)}", about, says, BAD if beyond else NOTE)


def _reversals(stats: Statistics | None) -> Tile:
    about = "material reversals between sources"
    family = _family(stats, "sources")
    if family is None or not family.size:
        return Tile("–", about, "not tested: two sources, pushed alike, are needed", OPEN)
    counts = family.counts
    says = (
        f"{counts.get(STABLE, 0):,} stable, {counts.get(SIGN, 0):,} in sign only, "
        f"{counts.get(EQUIVALENT, 0):,} equivalent, {counts.get(UNDECIDED, 0):,} undecided; "
    )
    if family.least_p > LEVEL:
        says += "with so few windows a lone one could not be shown"
    else:
        says += f"one by {number(family.detectable, 2)} on either side would be found with power 0.8"
    lost = counts.get(REVERSAL, 0)
    stands = BAD if lost else OPEN if counts.get(UNDECIDED, 0) else GOOD
    return Tile(f"{lost:,} of {family.size:,}", about, says, stands)


def _portable(stats: Statistics | None) -> Tile:
    about = "of the variance between schedulers is portable"
    found: Sequence[Components] = (
        [one for one in stats.components if one.axes == ("source", "region")] if stats else ()
    )
    if not found or not np.isfinite(found[0].portability):
        return Tile("–", about, (found[0].why_not if found else "") or "not computed", OPEN)
    one = found[0]
    says = f"95% interval {share(one.low)} to {share(one.high)}, over windows, not over the choice of sources"
    return Tile(share(one.portability), about, says, NOTE)


def _metrics(of: Findings, stats: Statistics | None) -> Tile:
    about = "agreement with the order by another metric"
    kept = [one for one in of.across_metrics if of.comparable(one) and np.isfinite(one.cross)]
    if not kept:
        return Tile("–", about, "one metric, or no two that can be compared", OPEN)
    middle, most = (
        float(np.median([one.cross for one in kept])),
        float(np.median([one.ceiling for one in kept])),
    )
    least = min(kept, key=lambda one: one.cross)
    says = f"median over metrics and conditions; least {tau(least.cross)}, with {least.b[2]}"
    return Tile(f"{tau(middle)} of {tau(most)}", about, says, NOTE)


def _found(of: Findings) -> Tile:
    about = "least difference to the best that would show"
    rankings = [r for key, r in of.rankings.items() if key[2] == of.study.primary and r.informative]
    known = [r.detectable for r in rankings if np.isfinite(r.detectable)]
    if not known:
        return Tile("–", about, "too few windows to show anybody worse", OPEN)
    margin = margin_words(of.study, of.study.primary)
    says = f"median over conditions, power 0.8, beyond the margin of {margin}, corrected over schedulers"
    return Tile(number(float(np.median(known)), 2), about, says, NOTE)


def _family(stats: Statistics | None, name: str) -> Family | None:
    return next((one for one in stats.families if one.name == name), None) if stats else None
