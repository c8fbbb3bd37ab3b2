"""Words: the summary of a report, made from its numbers and claiming no more than they show."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.controls import BROKEN, LEAST_RHO, UNKNOWN, beaten
from analysis.findings import Findings, Key, best_changes, place_comparisons, top_set
from analysis.metrics import METRICS, split_column
from analysis.portability import DIFFERS, GAP_MARGIN, HELD, Agreement
from analysis.scores import Study

CONTROLS_TITLE = "Controls, checked by latency"
"""Controls are checked by metrics of their own, not by the one that ranks."""

SAME_FIRST = (
    "A rank interval of 1-1 beside others in the top set is no contradiction: the order is stable, but the "
    "difference is not shown to exceed the margin after correction."
)

GOOD, BAD, OPEN, NOTE = "holds", "does not hold", "open", "note"

SLO_WORDS = {
    "tier": "targets of the request's own tier",
    "S1": "S1: first token 0.5 s, then 30 ms a token",
    "S2": "S2: first token 2 s, then 100 ms a token",
    "S3": "S3: first token 3 times, tokens 1.5 times the idle engine",
    "S4-5": "S4: 5 times the idle engine end to end",
    "S4-10": "S4: 10 times the idle engine end to end",
    "S4-20": "S4: 20 times the idle engine end to end",
}


class Sentence(NamedTuple):
    """One finding: what it is about, how it stands, and the words."""

    about: str
    stands: str  # GOOD | BAD | OPEN | NOTE
    text: str


def metric_words(column: str) -> str:
    """Return a metric in plain words, e.g. "share of arrivals that met every target (S2: ...)"."""
    metric, slo = split_column(column)
    return METRICS[metric].words + (f" ({SLO_WORDS[slo]})" if slo else "")


def margin_words(of: Study, column: str) -> str:
    """Return the declared margin in plain words: "0.02" for shares, "5%" for the rest."""
    margin = of.declared.margin(column)
    return f"{margin:g}" if METRICS[split_column(column)[0]].kind == "rate" else f"{100 * margin:g}%"


def parameter_words(params: str) -> str:
    """Return a run's parameters (JSON, of the engine's and the cluster's policy) as "phi = 0.9, cluster k = 2"."""
    try:
        held = json.loads(params or "{}")
    except ValueError:
        return params
    told = []
    for part, inner in held.items() if isinstance(held, dict) else ():
        named = inner.items() if isinstance(inner, dict) else [("", inner)]
        before = "" if part == "engine" else f"{part} "
        told += [f"{before}{name} = {_plain(value)}".replace("  ", " ") for name, value in named]
    return ", ".join(told)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def summary(of: Findings) -> tuple[Sentence, ...]:
    """Return the summary's sentences, the answer to "does the ranking hold?" first."""
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary]
    sentences: tuple[Sentence, ...] = (
        _sources(of, primary),
        _winner(of),
        _agreement(of, "pressure", "regions", of.across_regions, _region_pair),
        _agreement(of, "metric", "metrics", of.across_metrics, _metric_pair),
        _best(of),
        _controls(of),
        _origin(of),
        _resolution(of),
    )
    doubts = [of.study.incomplete] if of.study.incomplete else []
    if of.study.failures:
        doubts.append(f"{len(of.study.failures):,} runs failed")
        sentences += (Sentence("Failed runs", BAD, " ".join(f"{line}." for line in failure_lines(of.study))),)
    if any(check.status == BROKEN for check in of.checks):
        doubts.append("controls came out wrongly")
    if not doubts:
        return sentences
    why = f" (Not claimed to hold: {'; '.join(doubts)}.)"
    return tuple(
        one._replace(stands=OPEN, text=one.text + why) if one.stands == GOOD else one for one in sentences
    )


def failure_lines(of: Study) -> list[str]:
    """Return one line a scheduler that failed: in how many runs, where first, why, and what follows."""
    lines = []
    for name in dict.fromkeys(run.scheduler for run in of.failures):
        runs = [run for run in of.failures if run.scheduler == name]
        first, stored = runs[0], int((of.runs["scheduler"] == name).sum())
        follows = "not ranked where it failed" if stored else "not ranked anywhere"
        lines.append(
            f"{name} failed in {len(runs):,} of {len(runs) + stored:,} runs, first on {first.window_id} at rho "
            f"{first.region} ({first.what}): {follows}"
        )
    return lines


def pair_words(one: Agreement) -> str:
    """Return what two conditions an agreement is between."""
    if one.a[0] != one.b[0]:
        return f"{one.a[0]} and {one.b[0]} at rho {one.a[1]}"
    return _region_pair(one) if one.a[1] != one.b[1] else _metric_pair(one)


def _region_pair(one: Agreement) -> str:
    return f"rho {one.a[1]} and {one.b[1]} on {one.a[0]}"


def _metric_pair(one: Agreement) -> str:
    return f"{one.a[2]} and {one.b[2]} on {one.a[0]} at rho {one.a[1]}"


def _sources(of: Findings, primary: Sequence[Agreement]) -> Sentence:
    if len(of.study.sources) < 2:
        text = "There is one source, so nothing can be said about other traffic."
        return Sentence("Other traffic", OPEN, text)
    sentence = _agreement(of, "traffic", "sources", primary, pair_words)
    kept = [one for one in primary if of.comparable(one)]
    before = (
        f"After correction over all {len(primary)} comparisons (interval, margin and Holm's permutation p "
        "must all say so): "
        if kept
        else ""
    )
    text = sentence.text if not before else before + sentence.text[0].lower() + sentence.text[1:]
    return sentence._replace(text=text)


def _agreement(
    of: Findings, axis: str, plural: str, all_: Sequence[Agreement], words: Callable[[Agreement], str]
) -> Sentence:
    """Return how the order fares along one axis, counted over comparable pairs of cells."""
    about = {"traffic": "Other traffic", "pressure": "Other load", "metric": "Other metrics"}[axis]
    if not all_:
        return Sentence(about, OPEN, f"There is one {axis} only, so there is nothing to compare.")
    kept = [one for one in all_ if of.comparable(one)]
    left = len(all_) - len(kept)
    aside = f" {left} more are not counted (no order in a cell, or uneven pressure)." if left else ""
    if not kept:
        text = (
            f"None of {len(all_)} comparisons between {plural} can be counted: no order in a cell, or "
            "uneven pressure."
        )
        return Sentence(about, OPEN, text)
    differ = [one for one in kept if one.verdict == DIFFERS]
    held = [one for one in kept if one.verdict == HELD]
    open_ = len(kept) - len(differ) - len(held)
    counts = f"held in {len(held)} of {len(kept)} comparisons, differs in {len(differ)}, undecided in {open_}"
    if differ:
        worst = max(differ, key=lambda one: one.gap)
        text = (
            f"The order of schedulers does not hold everywhere when the {axis} changes: {counts}. "
            "The largest gap "
            f"below the noise ceiling is {worst.gap:.2f} in tau (95% interval {worst.gap_low:.2f} to "
            f"{worst.gap_high:.2f}), between {words(worst)}: the same order would agree by "
            f"{worst.ceiling:.2f} "
            f"there, these two agree by {worst.cross:.2f}."
        )
        stands = BAD
    elif len(held) == len(kept):
        text = (
            f"The order of schedulers held in all {len(kept)} comparisons between {plural}, to "
            f"{GAP_MARGIN:g} in tau."
        )
        stands = GOOD
    else:
        text = (
            f"No change of order between {plural} is shown, but that is not proof of none: "
            f"{counts}. More windows "
            "would decide."
        )
        stands = OPEN
    return Sentence(about, stands, text + aside)


def _winner(of: Findings) -> Sentence:
    keys = [key for key in of.rankings if key[2] == of.study.primary and of.rankings[key].informative]
    words = metric_words(of.study.primary)
    if not keys:
        text = (
            f"No scheduler stands out: by {words} none differs from another by more than the margin anywhere."
        )
        return Sentence("Best scheduler", OPEN, text)
    tops = [top_set(of.rankings[key]) for key in keys]
    counts = {name: sum(name in top for top in tops) for name in of.study.schedulers}
    firsts = {name: sum(of.rankings[key].rows[0].scheduler == name for key in keys) for name in counts}
    places = {name: _mean_place(of, keys, name) for name in counts}
    best, *others = sorted(counts, key=lambda name: (-firsts[name], *places[name], name))
    text = (
        f"By {words}, {best} has the best mean in {firsts[best]} of {len(keys)} cells where "
        "schedulers differ, and "
        f"in {counts[best]} it is not shown worse than the best by more than "
        f"{margin_words(of.study, of.study.primary)}."
    )
    if others:
        text += (
            f" Next is {others[0]}: best mean in {firsts[others[0]]}, mean rank {places[others[0]][0]:.1f}, not "
            f"shown worse in {counts[others[0]]}."
        )
    stands = GOOD if firsts[best] == counts[best] == len(keys) else NOTE
    if others and all(len(top) == len(of.rankings[key].rows) for top, key in zip(tops, keys, strict=True)):
        text += " Nowhere is any scheduler shown worse than the best: more windows are needed."
        stands = OPEN
    if of.study.twins:
        pairs = "; ".join(f"{name} = {', '.join(same)}" for name, same in of.study.twins.items())
        text += f" Exact duplicates are ranked once: {pairs}."
    return Sentence("Best scheduler", stands, text)


def _mean_place(of: Findings, keys: Sequence[Key], name: str) -> tuple[float, float]:
    """Return a scheduler's mean rank and its mean distance behind the best; last where it isn't ranked."""
    ranks, behind = [], []
    for key in keys:
        rows = of.rankings[key].rows
        row = next((row for row in rows if row.scheduler == name), None)
        ranks.append(row.rank if row else len(rows) + 1)
        behind.append(-row.difference if row else -min(row.difference for row in rows))
    return float(np.mean(ranks)), float(np.mean(behind))


def _best(of: Findings) -> Sentence:
    agreements = place_comparisons(of)
    changed, beyond = best_changes(of, agreements)
    if not agreements:
        return Sentence("First place", OPEN, "No two cells can be compared for who comes first.")
    text = (
        f"First place changes hands in {len(changed)} of {len(agreements)} comparisons between sources or "
        f"regions; in {len(beyond)} of these the best of one side is shown worse on the other. A change that "
        "is not shown so may be noise."
    )
    return Sentence("First place", BAD if beyond else (OPEN if changed else GOOD), text)


def control_words(of: Findings) -> str:
    """Return how many ranked schedulers each control beats by the ranked metric, and what beat the oracle."""
    won = [f"{name} beats {count} of {ranked}" for name, count, ranked in beaten(of.study)]
    text = (
        f"By the ranked metric, {of.study.primary}, at rho {LEAST_RHO:g} and above, of the ranked schedulers "
        f"{', '.join(won)}; no place is expected there."
        if won
        else ""
    )
    notes = [f"Note: {check.note}." for check in of.checks if check.note]
    return " ".join([text, *notes] if text else notes)


def _controls(of: Findings) -> Sentence:
    sentence = _checked(of)
    return sentence._replace(about=CONTROLS_TITLE, text=f"{sentence.text} {control_words(of)}".rstrip())


def _checked(of: Findings) -> Sentence:
    lost = [check for check in of.checks if check.status == BROKEN]
    unknown = [check for check in of.checks if check.status == UNKNOWN]
    if lost:
        which = "; ".join(
            f"{check.control} should be {check.place} on {check.column}: {check.says}" for check in lost
        )
        text = f"Do not trust this sweep before this is explained: controls came out wrongly ({which})."
        return Sentence("Controls", BAD, text)
    if unknown:
        which = "; ".join(f"{check.control}: {check.says}" for check in unknown)
        return Sentence("Controls", OPEN, f"Not every control could be checked ({which}).")
    says = "; ".join(f"{check.control} {check.place} on {check.column}" for check in of.checks)
    return Sentence(
        "Controls", GOOD, f"Controls came out where they must ({says}), so the metrics notice order."
    )


def _origin(of: Findings) -> Sentence:
    labels = of.study.labels
    unreal = [source for source, label in labels.items() if label != "real"]
    if not unreal:
        return Sentence(
            "Origin of traffic", GOOD, f"All traffic is from published real traces: {', '.join(labels)}."
        )
    surrogate = [source for source in unreal if "surrogate" in labels[source]]
    if len(surrogate) == len(labels):
        text = (
            "All traffic is surrogate: generated, and fitted to published statistics of real "
            "traces. It shows how "
            "schedulers would rank on traffic like that, not that they do on the real traces."
        )
    else:
        text = (
            "Not all traffic is real: "
            + ", ".join(f"{source} is {labels[source]}" for source in unreal)
            + "."
        )
    return Sentence("Origin of traffic", NOTE, text)


def untestable_words(windows: int, needed: int) -> str:
    """Return why nobody can be shown worse than the best, and with how many windows one could be."""
    return f"with {windows} windows nothing can be shown worse; at least {needed} are needed"


def _resolution(of: Findings) -> Sentence:
    rankings = [r for key, r in of.rankings.items() if key[2] == of.study.primary]
    windows = [ranking.windows for ranking in rankings]
    barred = [ranking for ranking in rankings if not ranking.testable and len(ranking.rows) > 1]
    lost = ""
    if barred:
        words = untestable_words(min(r.windows for r in barred), max(r.windows_needed for r in barred))
        lost = f"{words[0].upper()}{words[1:]} ({len(barred)} of {len(rankings)} cells)."
    found = [r for r in rankings if r.informative and np.isfinite(r.detectable)]
    if not found:
        unknown = "What difference could have been detected is unknown."
        return Sentence("Resolution", OPEN, lost or unknown)
    typical, margin = float(np.median([ranking.detectable for ranking in found])), found[0].margin
    spread = f"{min(windows)} to {max(windows)}" if min(windows) < max(windows) else f"{max(windows)}"
    text = (
        f"With {spread} windows a cell, a scheduler that truly trails the best by about {typical:.3f} is shown "
        f"worse by more than the margin of {margin:g} with power 0.8 (median over cells, by the test of the "
        "top set with its correction)."
    )
    # As before correction for the margin: what is found beyond it shouldn't exceed the margin itself.
    stands = GOOD if typical <= 2 * margin and not barred else OPEN
    return Sentence("Resolution", stands, f"{text} {lost}".rstrip())
