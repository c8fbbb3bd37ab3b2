"""Places where a window could be cut: a grid of row offsets, described, and rejected for named reasons.

Everything here is blind to outcomes: no scheduler has run (reference/traces.md 7.1 and 7.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.draws import uniforms
from loadgen.trace import ORPHAN, Trace
from schedulers.errors import InputError

Descriptors = dict[str, float | None]


class Kind(NamedTuple):
    """Rows of a window of this kind, and how many in its middle are scored (reference/traces.md 7.1)."""

    rows: int
    scored: int


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "main": Kind(1250, 1000),
        "tier": Kind(2500, 2000),
        "short": Kind(625, 500),
        "published": Kind(200, 200),
        "brief": Kind(125, 100),
    }
)

REASONS = ("few_rows", "no_span", "gap", "too_long", "edge_gap", "one_prompt", "script")
"""Why a candidate is rejected, in the order in which they are asked."""

SPAN_MAX_S = 3600.0
SILENCE_MAX_S = 1800.0
"""A silence longer than this is a hole in the record, not traffic (BurstGPT's is 104 days)."""
EDGE_SILENCE_SHARE = 0.5
"""Largest share of the span that one silence among the first or last tenth of arrivals may take."""
BINS_MAX = 1_000_000
ONE_PROMPT_SHARE, SCRIPT_SHARE = 0.25, 0.5


@dataclass(frozen=True)
class Prices:
    """Seconds of engine time that work costs, to compare windows by; no result depends on them.

    Defaults: Llama-3-8B on an A100 (reference/engine.md section 1), the step's fixed 9.99 ms shared by 128.
    """

    prefill_s: float = 53.1e-6  # a prompt token
    attention_s: float = 4.9e-9  # a prompt token and token before it
    decode_s: float = 123e-6  # an output token
    kv_s: float = 0.086e-6  # an output token and token of context


STRATA = ("crossed", "terciles")
"""Work rate x burstiness (reference/traces.md 7.2), or early, middle and late (published-studies.md A.1)."""


@dataclass(frozen=True)
class Recipe:
    """How to choose: kind and number of windows, seed, step of the grid in rows (0: disjoint), prices, strata."""

    kind: str = "main"
    count: int = 80
    seed: int = 0
    stride_rows: int = 0
    prices: Prices = Prices()
    strata: str = "crossed"

    def __post_init__(self) -> None:
        if self.strata not in STRATA:
            raise InputError(f"unknown strata {self.strata!r}", fix=f"use one of {', '.join(STRATA)}")
        if self.kind not in KINDS:
            raise InputError(
                f"unknown kind of window {self.kind!r}", where="--kind", fix=f"use one of {', '.join(KINDS)}"
            )
        if self.count < 1 or self.stride_rows < 0:
            raise InputError("the number of windows must be at least 1", where="--count", fix="--count 10")


@dataclass(frozen=True)
class Rules:
    """What a family asks for: shares of its parts, a quiet ramp to leave out, time between windows."""

    shares: tuple[tuple[str, float], ...] = ()
    ramp_s: float = 0.0
    apart_s: float = 0.0


RULES: Mapping[str, Rules] = MappingProxyType(
    {
        "azure2024": Rules(apart_s=3600.0),
        "bailian": Rules(shares=(("a", 28.0), ("b", 28.0), ("coder", 16.0), ("thinking", 8.0))),
        "burstgpt": Rules(
            shares=(("api", 32.0), ("mixed", 24.0), ("conversation", 24.0)),
            ramp_s=9 * 86400.0,  # BurstGPT#11: the first days run at a ninetieth of the later rate
            apart_s=3600.0,
        ),
    }
)


class Candidate(NamedTuple):
    """One place where a window could be cut; ``reason`` is empty if nothing speaks against it."""

    trace: int  # index into the traces
    first_row: int
    rows: int
    start_s: float
    end_s: float
    part: str
    reason: str
    luck: float
    descriptors: Descriptors

    @property
    def place(self) -> tuple[int, int]:
        """Trace and first row: what tells one candidate of a source from another."""
        return self.trace, self.first_row


def describe(trace: Trace, first_row: int, rows: int, prices: Prices | None = None) -> Descriptors:
    """Return what is known of rows [first_row, first_row + rows) before any scheduler has met them.

    Rates are per second of the window's span; kappa(w) = (IoD(w) - 1) / mean count over complete bins of
    w; ``work_s`` is mean engine seconds a request at ``prices``; undefined is None. Values keep 9 digits,
    so that another machine's last bits don't show.
    """
    part = slice(first_row, first_row + rows)
    elapsed_ns = trace.arrival_ns[part] - trace.arrival_ns[first_row]
    prompt = trace.prompt_tokens[part].astype(np.float64)
    output = trace.output_tokens[part].astype(np.float64)
    span_s, gaps = float(elapsed_ns[-1] / 1e9), np.diff(elapsed_ns) / 1e9
    prefill_s, decode_s = priced(prompt, output, prices or Prices())
    seconds = counts(elapsed_ns, 1)
    edge = max(1, rows // 10)
    edge_silence_s = max(gaps[:edge].max(initial=0.0), gaps[-edge:].max(initial=0.0))

    def a_second(total: float) -> float | None:
        return total / span_s if span_s > 0 else None

    found: Descriptors = {
        "requests_per_s": a_second(rows),
        "prefill_tokens_per_s": a_second(prompt.sum()),
        "decode_tokens_per_s": a_second(output.sum()),
        "work_s": float((prefill_s + decode_s).mean()),
        "work_per_s": a_second(float((prefill_s + decode_s).sum())),
        "kappa_1s": kappa(seconds),
        "kappa_10s": kappa(counts(elapsed_ns, 10)),
        "gap_cv": float(gaps.std() / gaps.mean()) if span_s > 0 else None,
        "output_share": float(output.sum() / max(1.0, prompt.sum() + output.sum())),
        "prompt_p99_tokens": float(np.quantile(prompt, 0.99)),
        "largest_prompt_share": float(prefill_s.max() / prefill_s.sum()) if prefill_s.sum() > 0 else None,
        "script_share": max(repeated(trace.prompt_tokens[part]), repeated(trace.output_tokens[part])),
        "idle_second_share": float((seconds == 0).mean()) if len(seconds) else None,
        "follow_up_share": float(follow_ups(trace, part).mean()),
        "longest_silence_s": float(gaps.max(initial=0.0)),
        "edge_silence_share": float(edge_silence_s / span_s) if span_s > 0 else None,
        "start_s": float(trace.arrival_ns[first_row] / 1e9),
    }
    return {name: None if value is None else float(f"{value:.9g}") for name, value in found.items()}


def priced(
    prompt: npt.NDArray[np.float64], output: npt.NDArray[np.float64], prices: Prices
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return prefill and decode seconds of each request, shapes (n,)."""
    prefill_s = prices.prefill_s * prompt + prices.attention_s * prompt * prompt / 2.0
    return prefill_s, prices.decode_s * output + prices.kv_s * output * (prompt + output / 2.0)


def counts(elapsed_ns: npt.NDArray[np.int64], width_s: int) -> npt.NDArray[np.int64]:
    """Return arrivals in each complete bin of ``width_s``; the last, partial bin would look like a lull.

    No bins beyond BINS_MAX: rows that span years (a wrong unit, a hole) are refused for that, not counted.
    """
    place = elapsed_ns // (width_s * 10**9)
    bins = int(place[-1])
    if bins > BINS_MAX:
        return np.zeros(0, np.int64)
    return np.bincount(place[place < bins], minlength=bins)


def kappa(bins: npt.NDArray[np.int64]) -> float | None:
    """Return (IoD - 1) / mean count: burstiness that thinning leaves as it is. None below two bins."""
    if len(bins) < 2 or not bins.any():
        return None
    mean = float(bins.mean())
    return (float(bins.var(ddof=1)) / mean - 1.0) / mean


def repeated(tokens: npt.NDArray[np.int32]) -> float:
    """Return the share of rows that carry the most frequent value."""
    return float(np.unique(tokens, return_counts=True)[1].max() / len(tokens))


def follow_ups(trace: Trace, part: slice) -> npt.NDArray[np.bool_]:
    """Return which rows go on with something: a parent, known or lost, or a session seen before."""
    session = trace.session[part]
    again = np.ones(len(session), np.bool_)
    again[np.unique(session, return_index=True)[1]] = False
    lost = (trace.flags[part] & ORPHAN) != 0
    found: npt.NDArray[np.bool_] = (trace.parent[part] >= 0) | lost | (again & (session >= 0))
    return found


def rules(family: str) -> Rules:
    """Return the rules of a family; a surrogate has those of the one it stands for, without the ramp."""
    real = family.removesuffix("_surrogate")
    found = RULES.get(real, Rules())
    if real == family:
        return found
    return Rules(found.shares, 0.0, found.apart_s)


def objection(found: Descriptors, kind: str) -> str:
    """Return why a candidate with these descriptors is rejected, or "".

    Windows of kind ``published`` were cut without a look at their content: holes alone are refused there.
    """
    span_s = 0.0 if found["requests_per_s"] is None else KINDS[kind].rows / found["requests_per_s"]
    tests = {
        "no_span": span_s <= 0.0,
        "gap": (found["longest_silence_s"] or 0.0) > SILENCE_MAX_S,
        "too_long": span_s > SPAN_MAX_S,
        "edge_gap": (found["edge_silence_share"] or 0.0) > EDGE_SILENCE_SHARE,
        "one_prompt": (found["largest_prompt_share"] or 0.0) > ONE_PROMPT_SHARE,
        "script": (found["script_share"] or 0.0) > SCRIPT_SHARE,
    }
    asked = ("no_span", "gap") if kind == "published" else REASONS[1:]
    return next((reason for reason in asked if tests[reason]), "")


def part_of(trace: Trace, first_row: int, rows: int) -> str:
    """Return the part of its source that a candidate is of: a service, or BurstGPT's mix of channels."""
    if trace.info.family.removesuffix("_surrogate") != "burstgpt":
        return trace.info.source
    api = np.array(["api" in name.lower() for name in trace.kinds] or [False])
    share = float(api[trace.kind[first_row : first_row + rows]].mean())
    return "api" if share >= 2 / 3 else "conversation" if share <= 1 / 3 else "mixed"


def grid_start(trace: Trace) -> int:
    """Return the first row that a window may hold: the first after the quiet ramp of the family's record."""
    ramp_s = rules(trace.info.family).ramp_s
    if ramp_s <= 0.0:
        return 0
    try:
        t0_s = float(trace.info.t0)
    except ValueError:
        return 0
    return int(np.searchsorted(trace.arrival_ns, round((ramp_s - t0_s) * 1e9), side="left"))


def candidates(trace: Trace, recipe: Recipe, index: int = 0) -> list[Candidate]:
    """Return every place on the trace's grid of row offsets, described, with the reason that rejects it."""
    rows = KINDS[recipe.kind].rows
    total = len(trace.arrival_ns)
    listed = []
    for first in range(grid_start(trace), total, recipe.stride_rows or rows):
        luck = float(
            uniforms(recipe.seed, f"{trace.info.source}:{trace.info.sha256}:{first}", "choose", 1)[0]
        )
        last = min(first + rows, total) - 1
        start_s, end_s = float(trace.arrival_ns[first] / 1e9), float(trace.arrival_ns[last] / 1e9)
        if first + rows > total:
            listed.append(Candidate(index, first, total - first, start_s, end_s, "", "few_rows", luck, {}))
            continue
        found = describe(trace, first, rows, recipe.prices)
        part, reason = part_of(trace, first, rows), objection(found, recipe.kind)
        listed.append(Candidate(index, first, rows, start_s, end_s, part, reason, luck, found))
    return listed
