"""Statistics of a trace: rate, burstiness, correlation in time, lengths, sessions and prefix reuse.

Definitions of reference/traces.md section 5: gap CV = sd / mean of gaps; IoD(w) = sample variance / mean of
counts in complete bins of w; kappa(w) = (IoD(w) - 1) / mean count; lags in bins. What can't be told is None.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.formats.lineage import coarsen
from loadgen.trace import Trace
from schedulers.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WIDTHS_S = (1.0, 10.0, 60.0)
QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Bins:
    """Counts of arrivals in complete bins of ``width_s``, from the first arrival on."""

    width_s: float
    bins: int
    mean: float | None
    iod: float | None
    kappa: float | None
    lag_1: float | None
    peak_to_mean: float | None
    empty_share: float | None


@dataclass(frozen=True)
class Lengths:
    """Token counts of one side of the requests."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    min: int
    max: int
    sum: int


@dataclass(frozen=True)
class Reuse:
    """What a prefix cache without limit would hit, contiguous prefixes only."""

    block_tokens: int
    blocks: int
    distinct: int
    block_share: float
    token_share: float
    first_block_share: float  # rows that open with the most common first block: a floor of hits (trap M3)


@dataclass(frozen=True)
class Description:
    """A trace in numbers."""

    rows: int
    span_s: float
    rate_per_s: float | None
    gap_cv: float | None
    gamma_shape: float | None
    bins: tuple[Bins, ...]
    prompt: Lengths
    output: Lengths
    prompt_to_output: float
    pearson: float | None
    spearman: float | None
    sessions: int
    follow_up_share: float
    reuse: Reuse | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def describe(trace: Trace, widths_s: tuple[float, ...] = WIDTHS_S) -> Description:
    """Describe a trace; raises InputError for one without rows."""
    if not len(trace.arrival_ns):
        raise InputError("a trace without rows", where=trace.info.file, fix="take another part of it")
    arrival_ns = trace.arrival_ns - trace.arrival_ns[0]
    gaps = np.diff(arrival_ns) / 1e9
    span_s = float(arrival_ns[-1] / 1e9)
    prompt, output = trace.prompt_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
    named = trace.session[trace.session >= 0]
    sessions = len(np.unique(named))
    return Description(
        rows=len(arrival_ns),
        span_s=span_s,
        rate_per_s=len(arrival_ns) / span_s if span_s > 0 else None,
        gap_cv=gap_cv(gaps),
        gamma_shape=gamma_shape(gaps),
        bins=tuple(binned(arrival_ns, width) for width in widths_s),
        prompt=lengths(prompt),
        output=lengths(output),
        prompt_to_output=float(prompt.sum() / output.sum()),
        pearson=_correlation(prompt, output),
        spearman=_correlation(_ranks(prompt), _ranks(output)),
        sessions=sessions,
        follow_up_share=float(len(named) - sessions) / len(arrival_ns),
        reuse=reuse(trace),
    )


def counts(arrival_ns: Ints, width_s: float) -> Ints:
    """Return arrivals a complete bin of ``width_s``, from the first on; a partial last bin is left out.

    ``arrival_ns`` (n,) is sorted. Integer arithmetic, so an arrival on an edge belongs to the bin it opens.
    """
    width_ns = round(width_s * 1e9)
    since = arrival_ns - arrival_ns[0]
    complete = int(since[-1] // width_ns)
    place = since // width_ns
    filled: Ints = np.bincount(place[place < complete], minlength=complete).astype(np.int64)
    return filled


def binned(arrival_ns: Ints, width_s: float) -> Bins:
    """Return the statistics of counts in complete bins (trap G8)."""
    found = counts(arrival_ns, width_s)
    if len(found) == 0:
        return Bins(width_s, 0, None, None, None, None, None, None)
    mean = float(found.mean())
    spread = iod(found)
    return Bins(
        width_s=width_s,
        bins=len(found),
        mean=mean,
        iod=spread,
        kappa=kappa(found),
        lag_1=autocorrelation(found, 1),
        peak_to_mean=float(found.max() / mean) if mean > 0 else None,
        empty_share=float(np.mean(found == 0)),
    )


def iod(found: Ints) -> float | None:
    """Return the index of dispersion of counts (m,): sample variance over mean."""
    if len(found) < 2 or not found.any():
        return None
    return float(found.var(ddof=1) / found.mean())


def kappa(found: Ints) -> float | None:
    """Return (IoD - 1) / mean count of counts (m,): burstiness that thinning leaves alone (section 7.2)."""
    spread = iod(found)
    return None if spread is None else float((spread - 1.0) / found.mean())


def autocorrelation(found: Ints, lag: int) -> float | None:
    """Return the correlation of counts (m,) with themselves ``lag`` bins later, over the pairs there are."""
    return _correlation(found[:-lag], found[lag:])


def gap_cv(gaps: Floats) -> float | None:
    """Return sd / mean of gaps (m,)."""
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def gamma_shape(gaps: Floats) -> float | None:
    """Return the shape of a Gamma distribution fitted to gaps (m,) by maximum likelihood.

    Solves log k - digamma(k) = log(mean) - mean(log) by Newton's method on log k. Gaps of 0 have no
    likelihood and are left out; None for fewer than two gaps or equal ones.
    """
    from scipy.special import digamma, polygamma

    positive = gaps[gaps > 0]
    if len(positive) < 2:
        return None
    target = float(np.log(positive.mean()) - np.log(positive).mean())
    if target <= 1e-12:
        return None
    shape = (3.0 - target + np.sqrt((target - 3.0) ** 2 + 24.0 * target)) / (12.0 * target)
    for _ in range(_NEWTON_STEPS):
        error = np.log(shape) - digamma(shape) - target
        step = error / (1.0 - shape * polygamma(1, shape))
        shape *= float(np.exp(-step))
        if abs(step) < 1e-12:
            break
    return float(shape)


def lengths(tokens: Ints) -> Lengths:
    """Return mean and quantiles (linear between order statistics) of token counts (n,)."""
    low, middle, high, top = np.quantile(tokens, QUANTILES).tolist()
    return Lengths(
        float(tokens.mean()), low, middle, high, top, int(tokens.min()), int(tokens.max()), int(tokens.sum())
    )


def reuse(trace: Trace, block_tokens: int = 0) -> Reuse | None:
    """Return prefix reuse at blocks of ``block_tokens`` (0: the trace's); None without prefix ids.

    A chained id that was seen before was seen with all its predecessors, so counting first sights is
    enough. Tokens hit are capped at the prompt (trap Q1). Raises InputError for a size that is no multiple
    of the trace's.
    """
    if trace.hash_offsets is None or trace.hash_ids is None or not trace.info.block_tokens:
        return None
    own = trace.info.block_tokens
    size = block_tokens or own
    if size % own:
        raise InputError(
            f"blocks of {size} tokens can't be made of blocks of {own}",
            where=trace.info.file,
            fix="a multiple",
        )
    offsets, ids = coarsen(trace.hash_offsets, trace.hash_ids, size // own)
    return _reuse(offsets, ids, trace.prompt_tokens.astype(np.int64), size)


def _reuse(offsets: Ints, ids: npt.NDArray[np.int32], prompt: Ints, size: int) -> Reuse:
    seen = np.ones(len(ids), bool)
    seen[np.unique(ids, return_index=True)[1]] = False
    hits = (
        np.add.reduceat(np.r_[seen, False], offsets[:-1].clip(max=len(seen))) if len(prompt) else np.zeros(0)
    )
    hits = np.where(np.diff(offsets) > 0, hits, 0)
    firsts = ids[offsets[:-1][np.diff(offsets) > 0]]
    distinct = int(len(seen) - seen.sum())
    return Reuse(
        block_tokens=size,
        blocks=len(ids),
        distinct=distinct,
        block_share=float(seen.mean()) if len(ids) else 0.0,
        token_share=float(np.minimum(hits * size, prompt).sum() / prompt.sum()),
        first_block_share=float(np.bincount(firsts).max() / len(prompt)) if len(firsts) else 0.0,
    )


def rate_series(arrival_ns: Ints, points: int) -> tuple[Floats, float]:
    """Return arrivals a second in ``points`` equal bins over the whole span, and a bin's width in seconds."""
    since = arrival_ns - arrival_ns[0]
    width_ns = max(1, -(-int(since[-1] + 1) // points))
    filled = np.bincount(since // width_ns, minlength=points)
    return filled / (width_ns / 1e9), width_ns / 1e9


def _ranks(values: Ints) -> Floats:
    from scipy.stats import rankdata

    ranks: Floats = rankdata(values)
    return ranks


def _correlation(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float | None:
    if len(one) < 2 or np.all(one == one[0]) or np.all(other == other[0]):
        return None
    return float(np.corrcoef(one, other)[0, 1])
