"""Tables: the numbers of a report as rows, which the page shows and which are written as CSV and LaTeX."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.answers import OUTCOMES, Crossing, Family, Statistics
from analysis.figures import by_mean_rank, labelled, metric_places
from analysis.findings import Findings
from analysis.metrics import METRICS, split_column
from analysis.numerals import ceiling, number, share, tau
from analysis.portability import Agreement
from analysis.words import pair_words


class Table(NamedTuple):
    """Rows under named columns. ``kinds`` say how a column is shown, one of ``KINDS`` each."""

    name: str  # its id in the page and its file's name
    title: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def shown(self) -> list[list[str]]:
        """Return the cells as people read them."""
        return [[KINDS[kind](cell) for kind, cell in zip(self.kinds, row, strict=True)] for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """Return the cells as they are, for CSV."""
        return pd.DataFrame(list(self.rows), columns=list(self.columns))


def _or_dash(form: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "–" if value is None or value == "" else form(value)


KINDS: Mapping[str, Callable[[Any], str]] = {
    "text": _or_dash(str),
    "prose": _or_dash(str),
    "count": _or_dash(lambda value: "–" if pd.isna(value) else f"{value:,.0f}"),
    "number": number,
    "fine": lambda value: number(value, 4),
    "p": lambda value: number(value, 2),
    "tau": _or_dash(lambda value: tau(float(value))),
    "ceiling": _or_dash(lambda value: ceiling(float(value))),
    "rank": _or_dash(lambda value: f"{value:.1f}" if np.isfinite(value) else "–"),
    "share": _or_dash(lambda value: share(float(value))),
}
"""How a column's cells become text."""


def table(name: str, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table; a column is "heading|kind", text if it names no kind."""
    parts = [column.partition("|") for column in columns]
    heads, kinds = tuple(part[0] for part in parts), tuple(part[2] or "text" for part in parts)
    return Table(name, title, heads, kinds, tuple(tuple(row) for row in rows))


def rank_tables(of: Findings) -> list[Table]:
    """Return one table a source: every scheduler's rank, mean and difference in every region."""
    columns = ("rho", "scheduler", "rank|count", "95% low|count", "95% high|count", "mean|fine", "mean 95% low|fine",
               "mean 95% high|fine", "to best|number", "to best 95% low|number", "to best 95% high|number",
               "p worse by more than margin|p", "top set", "windows|count")  # fmt: skip
    found = []
    for source, name in labelled(of.study).items():
        rows = []
        for region in of.study.regions:
            ranking = of.rankings[source, region, of.study.primary]
            for row in ranking.rows:
                top = ("yes" if row.in_top else "no") if ranking.testable else "untestable"
                rows.append((region, row.scheduler, row.rank, row.rank_low, row.rank_high, row.mean, row.low,
                             row.high, row.difference, row.difference_low, row.difference_high, row.p_worse,
                             top, ranking.windows))  # fmt: skip
        found.append(table(f"ranks-{source}", f"Ranks on {name} by {of.study.primary}", columns, rows))
    return found


def agreement_tables(of: Findings) -> list[Table]:
    """Return the comparisons between sources (primary, then other metrics), regions and metrics."""
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary]
    others = [one for one in of.across_sources if one.a[2] != of.study.primary]
    return [
        _agreements(of, "agreement-sources", f"Between sources, {of.study.primary}", primary),
        _agreements(of, "agreement-sources-other-metrics", "Between sources, other metrics", others),
        _agreements(of, "agreement-regions", f"Between regions, {of.study.primary}", of.across_regions),
        _agreements(of, "agreement-metrics", f"{of.study.primary} and other metrics", of.across_metrics),
    ]


def _agreements(of: Findings, name: str, title: str, listed: Sequence[Agreement]) -> Table:
    columns = ("between", "metric", "tau-b|tau", "top-weighted|tau", "ceiling|ceiling", "agreement (halves)|tau",
               "gap|tau", "gap 95% low|tau", "gap 95% high|tau", "p same|p", "p corrected|p", "verdict",
               "counted")  # fmt: skip
    rows = [
        (pair_words(one), one.a[2], one.tau, one.tau_top, one.ceiling, one.cross, one.gap, one.gap_low, one.gap_high,
         one.p_same, of.p_sources.get((one.a, one.b)), one.verdict, "yes" if of.comparable(one) else "no")
        for one in listed
    ]  # fmt: skip
    return table(name, title, columns, rows)


def metric_table(of: Findings) -> Table:
    """Return each metric's words, its best scheduler and its mean ranks."""
    order = by_mean_rank(of)
    rows = []
    for column in of.study.metrics:
        places, cells = metric_places(of, column)
        entry = METRICS[split_column(column)[0]]
        best = min(places, key=lambda name: (places[name], name)) if places else ""
        rows.append((column, entry.words, "higher" if entry.higher_is_better else "lower", cells, best,
                     *(places.get(name, float("nan")) for name in order)))  # fmt: skip
    columns = ("metric", "in words|prose", "better", "conditions|count", "best mean rank",
               *(f"{name}|rank" for name in order))  # fmt: skip
    return table("metric-ranks", "Mean rank by each metric", columns, rows)


def condition_table(of: Findings, stats: Statistics) -> Table:
    """Return a row a condition: top set, confidence set, Friedman, what could be found, how many windows suffice."""
    names = labelled(of.study)
    columns = ("source", "rho", "best", "not shown worse than the best|prose", "model confidence set|prose",
               "Friedman p|p", "Kendall W|tau", "critical difference|number", "windows|count",
               "shown beyond margin|number", "told from 0|number", "after Bonferroni|number",
               "enough windows")  # fmt: skip
    rows = []
    for key, top in stats.top_sets.items():
        omnibus, power, recovery = stats.omnibus.get(key), stats.power.get(key), stats.recovery.get(key)
        enough = ""
        if recovery and len(recovery.sizes):
            enough = str(recovery.enough) if recovery.enough else f"more than {recovery.sizes[-1]}"
        rows.append((names[key[0]], key[1], top.best, ", ".join(top.members), ", ".join(top.confidence_set),
                     omnibus and omnibus.p, omnibus and omnibus.kendall_w, omnibus and omnibus.critical_difference,
                     omnibus and omnibus.windows, power and power.beyond_margin, power and power.difference,
                     power and power.corrected, enough))  # fmt: skip
    return table("conditions", f"Every condition by {of.study.primary}", columns, rows)


def component_table(stats: Statistics) -> Table:
    """Return variance components: shares with intervals, and why one is missing."""
    rows: list[tuple[Any, ...]] = []
    for one in stats.components:
        axes = f"{one.axes[0]}, {one.axes[1]}"
        if one.why_not:
            rows.append((axes, "", None, None, None, None, one.why_not))
        for name, value in one.shares.items():
            told = name.replace("policy", "scheduler")
            rows.append((axes, told, value, one.share_low[name], one.share_high[name],
                         one.variances.get(name), ""))  # fmt: skip
    columns = (
        "axes",
        "part",
        "share|share",
        "95% low|share",
        "95% high|share",
        "variance|number",
        "note|prose",
    )
    return table("components", "Variance components between schedulers", columns, rows)


def family_table(of: Family, frame: pd.DataFrame, title: str) -> Table:
    """Return hypotheses of a family (rows of its table) with differences, intervals and adjusted p."""
    columns = ("A", "B", "condition x|prose", "condition y|prose", "A − B in x|number", "x low|number",
               "x high|number", "A − B in y|number", "y low|number", "y high|number", "windows x|count",
               "windows y|count",
               "p reversal|p", "p stable|p", "p sign|p", "p equivalent|p", "reversal by BH|p", "outcome")  # fmt: skip
    rows = [
        (row["a"], row["b"], _where(row, "x"), _where(row, "y"), row["diff_x"], row["low_x"], row["high_x"],
         row["diff_y"], row["low_y"], row["high_y"], row["n_x"], row["n_y"], row["q_rev"], row["q_stable"],
         row["q_sign"], row["q_eq"], row["bh_rev"], row["outcome"])
        for row in frame.to_dict("records")
    ]  # fmt: skip
    return table(f"reversals-{of.name}", title, columns, rows)


def outcome_table(stats: Statistics) -> Table:
    """Return the five counts of each family, by correction and margin."""
    columns = ("family", "axis", "correction", "margin x|number", "hypotheses|count", "left out|count",
               *(f"{outcome}|count" for outcome in OUTCOMES), "detectable reversal|number")  # fmt: skip
    rows = []
    for one in stats.families:
        told = {"holm": "Holm", "fdr_by": "BY", "fdr_bh": "BH"}.get(one.adjustment, one.adjustment)
        lines = [(told, scale, counts) for scale, counts in sorted(one.by_margin.items())]
        lines += [] if 1.0 in one.by_margin else [(told, 1.0, one.counts)]
        for correction, scale, counts in [*lines, ("BH", 1.0, one.counts_bh)]:
            rows.append((one.name, one.axis, correction, scale, one.size, one.excluded,
                         *(counts.get(outcome, 0) for outcome in OUTCOMES), one.detectable))  # fmt: skip
    return table("outcomes", "Outcomes of each family", columns, rows)


def crossing_table(of: Crossing) -> Table:
    """Return Gail and Simon's test of every pair over three or more sources at once."""
    columns = ("A", "B", "rho", "sources|count", "Q|number", "p|p", "p beyond margin|p", "corrected (BY)|p")
    rows = of.table[["a", "b", "region", "sources", "q", "p", "p_margin", "q_by"]].itertuples(index=False)
    return table("crossings", f"Gail and Simon's test for crossing orders, {of.column}", columns, rows)


def attribution_table(listed: Sequence[Mapping[str, Any]]) -> Table:
    """Return the parts of each axis in the distance between two sources' orders."""
    columns = ("sources", "rho", "SLO axis", "axis", "distance|number", "95% low|number", "95% high|number",
               "share|share", "swapped alone|number", "given back|number", "pairs of windows|count")  # fmt: skip
    rows = []
    for one in listed:
        where = (" and ".join(one["sources"]), one["region"], one["slo"]["mode"])
        rows.append((*where, "all together", *(one["distance"][part] for part in ("value", "low", "high")), None,
                     None, None, one["windows"]))  # fmt: skip
        rows += [
            (*where, part["axis"], part["value"], part["low"], part["high"], part["share"], part["alone"],
             part["last"], one["windows"])
            for part in one["shares"]
        ]  # fmt: skip
    return table("attribution", "What moves the order between sources", columns, rows)


def control_table(of: Findings) -> Table:
    """Return what became of each expectation about a control."""
    rows = [(check.control, check.place, check.column, check.status, check.says) for check in of.checks]
    return table("controls", "Controls", ("control", "must be", "on", "came out", "measured|prose"), rows)


def warning_table(of: Findings) -> Table:
    """Return every caution with its place and size."""
    rows = [(flag.kind, flag.where, flag.says) for flag in of.flags]
    return table("warnings", "Warnings", ("caution", "where|prose", "why|prose"), rows)


def pressure_table(of: Findings) -> Table:
    """Return the pressure that each source reached in each region."""
    names = [str(name) for name in of.pressure]
    columns = [name if name in ("region", "source") else f"{name.replace('_', ' ')}|number" for name in names]
    return table("pressure", "Pressure reached", columns, of.pressure.itertuples(index=False))


def _where(row: Mapping[Any, Any], side: str) -> str:
    return f"{row[f'source_{side}']}, rho {row[f'region_{side}']}, {row[f'column_{side}']}"


def matrix_table(stats: Statistics) -> Table:
    """Return every agreement of every matrix, a row a pair of conditions: for files."""
    columns = ("axis", "source", "rho", "metric", "A", "B", "tau-b|tau", "95% low|tau", "95% high|tau",
               "top-weighted|tau", "rank-biased overlap|tau", "ceiling|tau", "agreement (halves)|tau", "gap|tau",
               "gap 95% low|tau", "gap 95% high|tau", "overlap of top sets|tau", "counted",
               "Kendall W of all orders|tau")  # fmt: skip
    rows = []
    for one in stats.matrices:
        for i, a in enumerate(one.labels):
            for j in range(i + 1, len(one.labels)):
                parts = (one.tau, one.tau_low, one.tau_high, one.top, one.rbo, one.ceiling, one.cross, one.gap,
                         one.gap_low, one.gap_high, one.jaccard)  # fmt: skip
                values = [float(part[i, j]) for part in parts]
                counted = "yes" if one.counted[i, j] else "no"
                rows.append((one.axis, *one.fixed, a, one.labels[j], *values, counted, one.concordance))
    return table("matrices", "Agreement of the orders in every two conditions", columns, rows)


def pair_table(of: Findings, stats: Statistics) -> Table:
    """Return every pair of schedulers in every condition: differences, effect sizes, tests: for files."""
    columns = ("source", "rho", "A", "B", "A − B|number", "95% low|number", "95% high|number", "standardised|number",
               "rank-biserial|number", "P(A > B)|number", "Cliff's delta|number", "Wilcoxon p, Holm|p",
               "P(A better)|number", "P(equivalent)|number", "P(B better)|number")  # fmt: skip
    names = labelled(of.study)
    rows = []
    for key, one in stats.effects.items():
        tests, beliefs = stats.omnibus[key], stats.bayes[key]
        at_test = {name: place for place, name in enumerate(tests.schedulers)}
        at_belief = {name: place for place, name in enumerate(beliefs.schedulers)}
        for i, a in enumerate(one.schedulers):
            for j in range(i + 1, len(one.schedulers)):
                b = one.schedulers[j]
                sizes = (
                    one.difference,
                    one.low,
                    one.high,
                    one.standardised,
                    one.rank_biserial,
                    one.wins,
                    one.cliff,
                )
                p = tests.p_pairs[at_test[a], at_test[b]] if {a, b} <= set(at_test) else float("nan")
                believed = [float("nan")] * 3
                if {a, b} <= set(at_belief):
                    x, y = at_belief[a], at_belief[b]
                    believed = [beliefs.better[x, y], beliefs.equivalent[x, y], beliefs.better[y, x]]
                rows.append((names[key[0]], key[1], a, b, *(float(part[i, j]) for part in sizes), float(p),
                             *map(float, believed)))  # fmt: skip
    return table("pairs", f"Every pair of schedulers in every condition by {of.study.primary}", columns, rows)
