"""Answers: the types of what ``analysis.statistics`` finds, read by the report, the JSON and the tables.

Reference statistics defines every estimator; the section stands beside each type. Differences, margins and
means are on the compared scale of ``analysis.metrics.orient`` (shares as they are, latencies and throughputs
as logarithms), higher is better. NaN stands for "undefined": too few windows, no order, nobody ranked.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Key = tuple[str, str, str]
"""(source, region, column): a condition."""

REVERSAL, STABLE, SIGN, EQUIVALENT, UNDECIDED = (
    "material reversal", "stable", "reversal in sign only", "equivalent in at least one", "undecided",
)  # fmt: skip
OUTCOMES = (REVERSAL, STABLE, SIGN, EQUIVALENT, UNDECIDED)
"""Outcomes of a pair in two conditions, in the order in which they are tried (section 6.3)."""

AXES = ("source", "region", "metric", "slo")
"""What may change between two conditions that are compared."""


class Matrix(NamedTuple):
    """Agreement between the conditions along one axis, everything else fixed (sections 2 and 3).

    Arrays have shape (c, c), c labels, symmetric. ``tau`` and its like compare all windows with all windows
    (1 on the diagonal); ``cross``, ``ceiling`` and ``gap`` compare halves with disjoint halves.
    """

    axis: str  # one of AXES
    fixed: Key  # the condition without what the axis changes, "" in its place
    labels: tuple[str, ...]
    tau: Floats  # tau-b of the orders by mean over windows
    tau_low: Floats  # 95 %: 1.96 standard deviations over half-samples of windows, cut at -1 and 1
    tau_high: Floats
    top: Floats  # top-weighted tau (Vigna)
    top_low: Floats
    top_high: Floats
    rbo: Floats  # rank-biased overlap, q = 0.9
    ceiling: Floats  # (within_a + within_b) / 2; on the diagonal the condition's own split-half tau
    cross: Floats
    gap: Floats  # ceiling - cross: what noise doesn't explain; 0 on the diagonal
    gap_low: Floats  # all three terms resampled together
    gap_high: Floats
    jaccard: Floats  # overlap of top sets
    concordance: float  # Kendall's W of all the orders together, 0 to 1; NaN unless all rank the same
    counted: Flags  # both cells can show an order and were pushed alike


class TopSet(NamedTuple):
    """The schedulers that may be best in one condition (section 6.4), best mean first."""

    key: Key
    best: str
    members: tuple[str, ...]  # not shown worse than the best by more than the margin, Holm
    confidence_set: tuple[str, ...]  # Model Confidence Set at 5 %: no margin, equal predictive ability
    confidence_p: dict[str, float]  # scheduler -> p of the Model Confidence Set
    at_margin: dict[float, tuple[str, ...]]  # 0.4, 1 and 2 times the margin -> members


class Omnibus(NamedTuple):
    """Whether schedulers differ at all in one condition, and which pairs do (section 6.2)."""

    key: Key
    schedulers: tuple[str, ...]  # by mean rank, best first
    mean_ranks: Floats  # (k,) within-window ranks averaged, 1 is best
    windows: int
    chi2: float  # Friedman
    p: float
    kendall_w: float  # agreement of the windows among themselves, 0 to 1
    critical_difference: float  # Nemenyi's at 5 %, for the picture only
    p_pairs: Floats  # (k, k) two-sided Wilcoxon signed-rank, Holm over pairs; 1 on the diagonal
    cliques: tuple[tuple[str, ...], ...]  # maximal runs of neighbours that Wilcoxon-Holm doesn't tell apart
    worth: Floats  # (k,) Plackett-Luce worth of the within-window orders, sums to 1 (secondary)


class Effects(NamedTuple):
    """Sizes of the differences of every pair in one condition, row against column (section 6.1); (k, k) each."""

    key: Key
    schedulers: tuple[str, ...]
    difference: Floats  # mean paired difference
    low: Floats  # its 95 % interval by Student's t
    high: Floats
    standardised: Floats  # over the sd of paired differences; +-inf where they don't vary
    rank_biserial: Floats  # matched pairs: of the signed ranks, the share for the row less that against it
    wins: Floats  # P(row > column) on the same window, ties half
    cliff: Floats  # Cliff's delta over windows unpaired: 0.147, 0.33, 0.474 are small, medium, large


class Bayes(NamedTuple):
    """Bayesian signed-rank test of every pair in one condition, equivalence within +-margin (section 6.1)."""

    key: Key
    schedulers: tuple[str, ...]
    margin: float
    better: Floats  # (k, k) probability that the row beats the column by more than the margin
    equivalent: Floats  # (k, k) probability that they are within the margin; 1 on the diagonal


class Components(NamedTuple):
    """How much of the differences between schedulers is portable (section 4)."""

    axes: tuple[str, str]  # ("source", "region"), ("source", "metric"), ("source", "slo")
    column: str  # the metric, or "" if the second axis is metrics or SLO sets
    schedulers: int
    sources: tuple[str, ...]
    levels: tuple[str, ...]  # regions, metrics or SLO sets
    windows: int  # a source
    variances: dict[str, float]  # "policy", "policy x source", ..., "policy x window", "residual"
    shares: dict[str, float]  # of policy and its interactions with the axes; they sum to 1
    share_low: dict[str, float]
    share_high: dict[str, float]
    portability: float  # the share of "policy"
    low: float  # 95 %; covers windows, not the choice of sources
    high: float
    why_not: str = ""  # why there is nothing here, if so


class Family(NamedTuple):
    """A declared family of reversal hypotheses and what became of each (section 6.3).

    ``table`` has one row a pair of schedulers and pair of conditions, columns: a, b (schedulers), source_x,
    region_x, column_x, source_y, region_y, column_y; diff_x, low_x, high_x, diff_y, low_y, high_y (A - B and
    its 95 % interval); n_x, n_y; p_rev, p_stable, p_sign, p_eq (raw); q_rev, q_stable, q_sign, q_eq (adjusted
    as ``adjustment`` says), bh_rev (BH, beside it); equivalent_x, equivalent_y (TOST in that condition, raw
    p <= 5 %); outcome (one of OUTCOMES); winner_x, winner_y (who has the better mean, "" if tied).
    """

    name: str  # "sources" | "regions" | "metrics" | "slo" | "planned"
    axis: str  # one of AXES
    planned: bool  # pairs were named beforehand
    declared: bool  # the plan asks for it; what it doesn't ask for is told beside, as exploration
    adjustment: str  # "holm" | "fdr_by"
    size: int
    excluded: int  # hypotheses left out since the cells were not pushed alike or one has no value
    table: pd.DataFrame
    counts: dict[str, int]  # outcome -> how many
    counts_bh: dict[str, int]  # the same with BH in place of ``adjustment``
    by_margin: dict[float, dict[str, int]]  # 0.4, 1 and 2 times the margin -> counts
    detectable: float  # a reversal by +-this is found with power 0.8 at the family's level (median spread)
    detectable_alone: float  # the same for one pair tested alone at 5 %
    least_p: float  # least adjusted p that so few windows can give


class Crossing(NamedTuple):
    """Gail and Simon's test for three or more sources at once, one metric (section 6.3).

    ``table``: a, b, region, sources (count), q, p, p_margin (differences moved towards 0 by the margin
    first), q_by (p_margin after Benjamini-Yekutieli over the table).
    """

    column: str
    table: pd.DataFrame


class Recovery(NamedTuple):
    """How many windows are enough in one condition: two disjoint sets of m against each other (section 8)."""

    key: Key
    sizes: tuple[int, ...]  # m
    tau: Floats  # (sizes,) mean over draws
    jaccard: Floats  # of top sets
    best_kept: Floats  # share of draws in which the best of one is in the top set of the other
    plateau: float  # of the fitted plateau * (1 - c / sqrt(m))
    enough: int  # the smallest m that suffices, 0 for "more than half of the windows"


class Power(NamedTuple):
    """What a condition could have shown, between two schedulers of typical spread (section 7)."""

    key: Key
    windows: int
    spread: float  # median sd of paired differences
    effect: float  # least standardised difference that Wilcoxon finds with power 0.8 at 5 %
    difference: float  # the same in units: effect * spread
    beyond_margin: float  # least true difference shown to exceed the margin with power 0.8 at 5 %
    corrected: float  # least true difference told from 0, Bonferroni over all pairs of the condition


class Panel(NamedTuple):
    """Which metrics say the same (section 10): groups whose |tau| is 1 in every cell."""

    columns: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]  # two or more each; the first is kept
    kept: tuple[str, ...]
    median_tau: Floats  # (c, c) over cells, signed
    least: Floats  # (c, c) least |tau| over cells


class Statistics(NamedTuple):
    """Everything that the report says beyond ``Findings``; made by ``analysis.statistics.statistics``."""

    matrices: tuple[Matrix, ...]
    top_sets: dict[Key, TopSet]  # primary metric, every cell
    omnibus: dict[Key, Omnibus]  # primary metric, every cell
    effects: dict[Key, Effects]  # primary metric, every cell
    bayes: dict[Key, Bayes]  # primary metric, every cell
    components: tuple[Components, ...]
    families: tuple[Family, ...]
    crossings: tuple[Crossing, ...]
    recovery: dict[Key, Recovery]  # primary metric, every cell
    power: dict[Key, Power]  # primary metric, every cell
    panel: Panel
    seconds: dict[str, float]  # what each part took
