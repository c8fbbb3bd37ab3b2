"""Metrics of one run, derived from facts, and the table that says how each is read.

Formulas: reference statistics, sections 5 (margins), 10 (metrics) and 11 (SLO sets). All are over the
*scored* arrivals (the window's middle) but the gaps between tokens, whose histogram covers the whole run. A
request that was rejected, expired, failed or never finished counts as missed. A metric that is conditional
on finishing is None if nobody finished; show the rejected share beside it. SLO set S5 (fluidity) needs the
time of every token, which facts don't hold, so it isn't offered.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.result import FINISHED, GAP_EDGES_S, REJECTED, Facts, InputError, Totals

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SKETCH_POINTS = 101
"""Quantiles 0, 0.01 ... 1 kept of each latency."""


_SKETCH_PLACES = np.linspace(0, 1, SKETCH_POINTS)
SKETCHES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "slowdown": "slowdown_e2e"}
"""Name of a sketch column, less its ending: the latency whose quantiles it holds."""

LIMIT_SLACK_S = 1e-9
"""Rounding allowed when a time is held against its target."""


class Metric(NamedTuple):
    """How a metric is read: unit, direction, kind, practical margin (section 5) and plain words."""

    unit: str
    higher_is_better: bool
    kind: str  # "rate": compared as it is; "latency" and "throughput": compared as logarithms
    margin: float  # on the compared scale: 0.02 absolute, or 0.05 of a logarithm
    words: str
    by_slo: bool = False  # one column an SLO set


_STATS = {
    "mean": "mean",
    "p50": "median",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
}
_LATENCIES = {
    "ttft": ("s", "time to first token"),
    "tpot": ("s", "time per output token"),
    "e2e": ("s", "end-to-end latency"),
    "normalised": ("s", "end-to-end latency per output token"),
    "slowdown_e2e": ("x", "end-to-end slowdown against an idle engine"),
    "slowdown_ttft": ("x", "first-token slowdown against an idle engine"),
    "itl": ("s", "gap between tokens"),
    "longest_gap": ("s", "longest gap of a request"),
}
_TAILS = ("p50", "p95", "p99")


def _column(base: str, stat: str) -> str:
    return f"{base}_{stat}_s" if _LATENCIES[base][0] == "s" else f"{base}_{stat}"


METRICS: dict[str, Metric] = {
    "attainment": Metric("share", True, "rate", 0.02, "share of arrivals that met every target", True),
    "weighted_attainment": Metric("share", True, "rate", 0.02, "attainment weighted by tier", True),
    "goodput": Metric("1/s", True, "throughput", 0.05, "requests a second that met every target", True),
    "jain": Metric("index", True, "rate", 0.02, "evenness of attainment over groups (Jain)", True),
    "worst_group": Metric("share", True, "rate", 0.02, "attainment of the worst group", True),
    "jain_slowdown": Metric("index", True, "rate", 0.02, "evenness of mean slowdown over groups (Jain)"),
    "slowdown_spread": Metric("x", False, "latency", 0.05, "greatest end-to-end slowdown over the median"),
    "engine_s_per_attained": Metric(
        "s", False, "throughput", 0.05, "engine-seconds for each request that met every target", True
    ),
    "wasted_tokens_share": Metric(
        "share", False, "rate", 0.02, "share of delivered tokens whose request missed a target", True
    ),
    "throughput_tokens_per_s": Metric("1/s", True, "throughput", 0.05, "tokens delivered a second"),
    "rejected_share": Metric("share", False, "rate", 0.02, "share of arrivals turned away"),
    "finished_share": Metric("share", True, "rate", 0.02, "share of arrivals that finished"),
    "recomputed_share": Metric(
        "share", False, "rate", 0.02, "share of prefill work done again after evictions"
    ),
} | {
    _column(base, stat): Metric(unit, False, "latency", 0.05, f"{_STATS[stat]} {words}")
    for base, (unit, words) in _LATENCIES.items()
    for stat in (_TAILS if base in ("itl", "longest_gap") else _STATS)
}
"""Every metric that can be ranked, by name; those ``by_slo`` have one column an SLO set, e.g.
attainment_S2.
"""

_FIXED_SLOS = {"S1": (0.5, 0.030), "S2": (2.0, 0.100)}
_E2E_FACTORS = {"S4-5": 5.0, "S4-10": 10.0, "S4-20": 20.0}
SLO_SETS = ("tier", "S1", "S2", "S3", *_E2E_FACTORS)
"""SLO sets that facts can answer; "S4" stands for its three."""


def split_column(column: str) -> tuple[str, str]:
    """Return (metric, SLO set) of a column, the set "" where the metric has none.

    "attainment_S2", "attainment:S2" and "attainment/S2" are read alike. Raises InputError for an unknown
    name.
    """
    if column in METRICS and not METRICS[column].by_slo:
        return column, ""
    for metric, entry in METRICS.items():
        if (
            entry.by_slo
            and column.startswith(metric)
            and column[len(metric) : len(metric) + 1] in tuple("_:/@")
        ):
            slo = column[len(metric) + 1 :]
            if slo in SLO_SETS:
                return metric, slo
    known = ", ".join(name + ("_SLO" if entry.by_slo else "") for name, entry in METRICS.items())
    raise InputError(f"no metric is called {column!r}", where="--metric", fix=f"name one of: {known}")


def orient(values: Floats, column: str) -> Floats:
    """Return values on the compared scale, higher is better: rates as they are or negated, the rest as +-ln.

    What has no logarithm (0, negative) becomes NaN: undefined, never imputed.
    """
    entry = METRICS[split_column(column)[0]]
    sign = 1.0 if entry.higher_is_better else -1.0
    if entry.kind == "rate":
        return sign * values
    with np.errstate(divide="ignore", invalid="ignore"):
        return sign * np.where(values > 0, np.log(values), np.nan)


def natural(values: Floats, column: str) -> Floats:
    """Undo ``orient``: means of logarithms come back as geometric means in the metric's unit."""
    entry = METRICS[split_column(column)[0]]
    sign = 1.0 if entry.higher_is_better else -1.0
    return sign * values if entry.kind == "rate" else np.exp(sign * values)


def summarise(
    facts: Facts,
    totals: Totals,
    scored: tuple[int, int],
    tiers: Sequence[tuple[float, float, float, float]],
    slo_sets: Sequence[str],
) -> dict[str, Any]:
    """Return the metric and sketch columns of one run; floats, lists of 101 floats, or None where undefined.

    ``scored`` are rows [lo, hi) whose results count; ``tiers`` holds (ttft_s, tpot_s, e2e_s, weight) a
    tier, times in seconds and +inf for no target. Raises InputError for an unknown SLO set or an empty
    score.
    """
    low, high = scored
    if not 0 <= low < high <= len(facts.arrival_s):
        raise InputError(f"no arrivals to score in rows {low} to {high}", fix="use a longer window")
    inside = Facts._make(column[low:high] for column in facts)
    done = inside.outcome == FINISHED
    span_s = _span(facts.arrival_s, low, high)
    latency = latencies(inside)
    row: dict[str, Any] = {"scored": float(high - low), "scored_s": span_s}
    row["finished_share"] = float(done.mean())
    row["rejected_share"] = float((inside.outcome == REJECTED).mean())
    weights = np.asarray([tier[3] for tier in tiers], np.float64)[inside.tier]
    names, groups = _groups(inside)
    row["group_by"] = names
    for slo in expand(slo_sets):
        met = done & _met(slo, inside, latency, tiers)
        row[f"attainment_{slo}"] = float(met.mean())
        row[f"weighted_attainment_{slo}"] = (
            float((weights * met).sum() / weights.sum()) if weights.sum() else None
        )
        row[f"goodput_{slo}"] = float(met.sum() / span_s) if span_s > 0 else None
        row[f"jain_{slo}"], row[f"worst_group_{slo}"] = _fairness(met, groups, names)
        row[f"engine_s_per_attained_{slo}"] = _cost(facts, totals, span_s, int(met.sum()))
        tokens = int(inside.output_tokens.sum())
        row[f"wasted_tokens_share_{slo}"] = (
            float(inside.output_tokens[~met].sum() / tokens) if tokens > 0 else None
        )
    row["jain_slowdown"], row["slowdown_spread"] = _slowdowns(latency["slowdown_e2e"], done, groups, names)
    sketched = {base: name for name, base in SKETCHES.items()}
    sketches: dict[str, list[float] | None] = {}
    for base, values in latency.items():
        stats, sketch = _quantiles(base, values[done], base in sketched)
        row.update(stats)
        if base in sketched:
            sketches[f"{sketched[base]}_sketch"] = sketch
    row.update({_column("itl", stat): gap_quantile(totals.gaps, stat) for stat in _TAILS})
    row["throughput_tokens_per_s"] = _throughput(facts, facts.arrival_s[low], span_s)
    row["recomputed_share"] = (
        totals.recomputed_tokens / totals.prefill_tokens if totals.prefill_tokens else None
    )
    row["utilisation"] = totals.busy_s / totals.engine_s if totals.engine_s > 0 else None
    row.update({f"{name}_sketch": sketches[f"{name}_sketch"] for name in SKETCHES})
    return row


def met(slo: str, facts: Facts, tiers: Sequence[tuple[float, float, float, float]]) -> Flags:
    """Return which requests finished and met every target of an SLO set, shape (n,); ``tiers`` as above."""
    return np.asarray((facts.outcome == FINISHED) & _met(slo, facts, latencies(facts), tiers), np.bool_)


def expand(slo_sets: Sequence[str]) -> tuple[str, ...]:
    """Return the SLO sets with "S4" replaced by its three; raises InputError for one that facts can't
    answer.
    """
    names = [name for slo in slo_sets for name in (_E2E_FACTORS if slo == "S4" else (slo,))]
    for name in names:
        if name not in SLO_SETS:
            why = "S5 needs the time of every token" if name == "S5" else f"there is no SLO set {name!r}"
            raise InputError(why, where="slo_sets", fix=f"choose from {', '.join(SLO_SETS)}, S4")
    return tuple(dict.fromkeys(names))


def jain(values: Floats) -> float | None:
    """Return Jain's index (sum x)^2 / (n sum x^2), None if all are 0."""
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares > 0 else None


def _span(arrival_s: Floats, low: int, high: int) -> float:
    """Return the length of the scored interval: to the next arrival, or one mean gap beyond the last."""
    if high < len(arrival_s):
        return float(arrival_s[high] - arrival_s[low])
    count = high - low
    return float((arrival_s[high - 1] - arrival_s[low]) * count / max(1, count - 1))


def latencies(facts: Facts) -> dict[str, Floats]:
    """Return each latency a request, NaN where it has none (TPOT of a single token, for one)."""
    ttft = facts.first_token_s - facts.arrival_s
    e2e = facts.finished_s - facts.arrival_s
    gaps = np.where(facts.output_tokens > 1, facts.output_tokens - 1, 1)
    tpot = np.where(facts.output_tokens > 1, (e2e - ttft) / gaps, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "ttft": ttft,
            "tpot": tpot,
            "e2e": e2e,
            "normalised": np.where(facts.output_tokens > 0, e2e / np.maximum(1, facts.output_tokens), np.nan),
            "slowdown_e2e": e2e / facts.idle_e2e_s,
            "slowdown_ttft": ttft / facts.idle_ttft_s,
            "longest_gap": facts.longest_gap_s,
        }


def within(latency: Mapping[str, Floats], targets: Floats) -> Flags:
    """Return which requests met TTFT, TPOT and E2E targets, shape (n, 3) or (3,), to a nanosecond.

    A request of one token has no TPOT and meets any; one that never finished meets none.
    """
    ttft, e2e = latency["ttft"] - LIMIT_SLACK_S, latency["e2e"] - LIMIT_SLACK_S
    tpot = np.where(np.isnan(latency["tpot"]) & ~np.isnan(e2e), 0.0, latency["tpot"] - LIMIT_SLACK_S)
    limits = np.asarray(targets, np.float64)
    return np.asarray((ttft <= limits[..., 0]) & (tpot <= limits[..., 1]) & (e2e <= limits[..., 2]))


def _met(
    slo: str, facts: Facts, latency: dict[str, Floats], tiers: Sequence[tuple[float, float, float, float]]
) -> Flags:
    """Return which requests met every target of a set; a request of one token has no TPOT and meets any.

    Targets hold to a nanosecond, as times are differences of larger ones. S3 reads its TBT limit on the
    mean gap: TPOT <= 1.5 times that of the idle engine.
    """
    ttft, e2e = latency["ttft"] - LIMIT_SLACK_S, latency["e2e"] - LIMIT_SLACK_S
    tpot = np.where(np.isnan(latency["tpot"]) & ~np.isnan(e2e), 0.0, latency["tpot"] - LIMIT_SLACK_S)
    if slo in _E2E_FACTORS:
        return np.asarray(e2e <= _E2E_FACTORS[slo] * facts.idle_e2e_s)
    if slo == "S3":
        idle_tpot = (facts.idle_e2e_s - facts.idle_ttft_s) / np.maximum(1, facts.output_tokens - 1)
        return np.asarray((ttft <= 3 * facts.idle_ttft_s) & (tpot <= 1.5 * idle_tpot))
    if slo in _FIXED_SLOS:
        limit_ttft, limit_tpot = _FIXED_SLOS[slo]
        return np.asarray((ttft <= limit_ttft) & (tpot <= limit_tpot))
    return within(latency, np.asarray(tiers, np.float64)[facts.tier])


def _groups(facts: Facts) -> tuple[str | None, npt.NDArray[np.int64]]:
    """Return what fairness is over (tiers, else tenants, else sessions, with two or more) and each
    row's group.
    """
    for name in ("tier", "tenant", "session"):
        values = np.asarray(getattr(facts, name), np.int64)
        known = np.unique(values[values >= 0])
        if len(known) >= 2:
            return name, np.where(values >= 0, np.searchsorted(known, values), -1)
    return None, np.full(len(facts.tier), -1, np.int64)


def _fairness(
    met: Flags, groups: npt.NDArray[np.int64], name: str | None
) -> tuple[float | None, float | None]:
    """Return (Jain index over group attainments, the worst group's); sessions are too short for a
    worst one.
    """
    if name is None:
        return None, None
    inside = groups >= 0
    counts = np.bincount(groups[inside])
    shares = np.bincount(groups[inside], weights=met[inside].astype(np.float64)) / counts
    return jain(shares), (None if name == "session" else float(shares.min()))


def _slowdowns(
    slowdown: Floats, done: Flags, groups: npt.NDArray[np.int64], name: str | None
) -> tuple[float | None, float | None]:
    """Return (Jain index over groups' mean slowdown, the greatest slowdown over the median) of who finished.

    A group of which nobody finished has no mean slowdown, and leaves the index undefined.
    """
    known = done & np.isfinite(slowdown)
    if not known.any():
        return None, None
    median = float(np.median(slowdown[known]))
    spread = float(slowdown[known].max() / median) if median > 0 else None
    if name is None:
        return None, spread
    size = int(groups.max()) + 1
    inside = known & (groups >= 0)
    counts = np.bincount(groups[inside], minlength=size)
    if not counts.all():
        return None, spread
    return jain(np.bincount(groups[inside], weights=slowdown[inside], minlength=size) / counts), spread


def _cost(facts: Facts, totals: Totals, span_s: float, met: int) -> float | None:
    """Return engine-seconds of the scored interval for each of its requests that met every target.

    Engines as they stood on average from the first arrival to the end: a long drain of one stuck request
    costs nobody's score.
    """
    ends = facts.finished_s[~np.isnan(facts.finished_s)]
    length_s = float(max(ends.max(initial=0.0), facts.arrival_s[-1]) - facts.arrival_s[0])
    if not met or length_s <= 0 or span_s <= 0:
        return None
    return totals.engine_s / length_s * span_s / met


def _quantiles(
    base: str, values: Floats, sketched: bool
) -> tuple[dict[str, float | None], list[float] | None]:
    """Return a latency's columns, and its sketch if asked: all quantiles from one look at the values."""
    known = values[~np.isnan(values)]
    stats = _TAILS if base == "longest_gap" else tuple(_STATS)
    if not len(known):
        return {_column(base, stat): None for stat in stats}, None
    tails = [stat for stat in stats if stat != "mean"]
    places = [int(stat[1:]) / 100 for stat in tails]
    points = np.quantile(known, [*places, *_SKETCH_PLACES] if sketched else places)
    found = dict(zip(tails, points.tolist(), strict=False))
    if "mean" in stats:
        found["mean"] = float(known.mean())
    columns: dict[str, float | None] = {_column(base, stat): found[stat] for stat in stats}
    sketch = points[len(places) :].astype(np.float32).tolist() if sketched else None
    return columns, sketch


def gap_quantile(gaps: npt.NDArray[np.int64], stat: str) -> float | None:
    """Return a quantile of the gap histogram, log-interpolated inside its bin (4 % wide); None without
    gaps.
    """
    total = int(gaps.sum())
    if not total:
        return None
    reached = np.cumsum(gaps)
    wanted = total * int(stat[1:]) / 100
    bin_ = int(np.searchsorted(reached, wanted))
    before = int(reached[bin_ - 1]) if bin_ else 0
    share = (wanted - before) / int(gaps[bin_])
    low, high = np.log(GAP_EDGES_S[bin_]), np.log(GAP_EDGES_S[bin_ + 1])
    return float(np.exp(low + share * (high - low)))


def _throughput(facts: Facts, start_s: float, span_s: float) -> float | None:
    """Return tokens delivered a second inside [start, start + span) by requests that finish, whenever they
    arrived.

    A request's first token falls at its time and the others evenly until the last, as facts hold no more
    than that.
    """
    if span_s <= 0:
        return None
    done = facts.outcome == FINISHED
    first, last, tokens = facts.first_token_s[done], facts.finished_s[done], facts.output_tokens[done]
    end_s = start_s + span_s
    decode_s = last - first
    overlap = np.clip(np.minimum(last, end_s) - np.maximum(first, start_s), 0.0, None)
    share = np.where(
        decode_s > 0, overlap / np.where(decode_s > 0, decode_s, 1.0), (first >= start_s) & (first < end_s)
    )
    heads = int(((first >= start_s) & (first < end_s)).sum())
    return float((heads + (share * (tokens - 1)).sum()) / span_s)
