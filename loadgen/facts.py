"""Facts of requests, totals of runs and the key that names a run: what a result is made of."""

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SCHEMA_VERSION = 2
"""Raised when a column changes its meaning; rows of another version are not mixed."""

FINISHED, REJECTED, EXPIRED, FAILED = 0, 1, 2, 3
"""Values of ``Facts.outcome``; every arrival ends as exactly one of them."""

REASONS = (
    "", "prompt_too_long", "policy", "deadline", "stalled", "truncated", "engine_lost", "other", "queue_full",
    "rate_limited", "no_engine", "draining", "store_down", "queue_timeout", "engine_error", "client_gone", "internal",
    "bad_request", "bad_tier", "unsent", "unfinished", "unreachable",
)  # fmt: skip
"""Names of ``Facts.reason``; those from "other" on are of live runs, where "other" is what has no name here."""

GAP_BINS = 400
GAP_EDGES_S: Floats = np.geomspace(1e-4, 1e3, GAP_BINS + 1)
"""Edges of the histogram of gaps between tokens, seconds; what lies outside falls in an end bin."""


class Facts(NamedTuple):
    """One row a request, shape (n,) each; a missing time is NaN and a missing number -1 (null in parquet)."""

    arrival_s: Floats
    dispatched_s: Floats
    started_s: Floats
    first_token_s: Floats
    finished_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints  # delivered
    tier: Ints
    tenant: Ints
    session: Ints
    outcome: npt.NDArray[np.int8]
    reason: npt.NDArray[np.int8]  # row of REASONS
    engine: Ints
    migrations: Ints
    preemptions: Ints
    longest_gap_s: Floats
    idle_ttft_s: Floats  # the same request alone on an idle engine
    idle_e2e_s: Floats
    cached_tokens: Ints  # prompt tokens found in the prefix cache when it was first taken; -1: never taken


class Totals(NamedTuple):
    """One row a run: what the engines did between the first arrival and the end of the drain."""

    steps: int
    busy_s: float
    engine_s: float
    batch_mean: float
    kv_mean: float
    kv_peak: float
    queue_mean: float
    queue_peak: int
    evictions: int
    recomputed_tokens: int
    prefill_tokens: int
    cached_tokens: int  # not computed but found in a prefix cache, by new and by evicted requests
    decode_tokens: int
    truncated: int
    unfinished_at_last_arrival: int
    gaps: Ints  # (GAP_BINS,) histogram of gaps between tokens over GAP_EDGES_S


@dataclass(frozen=True)
class RunKey:
    """Everything that made a run; the same key gives the same bytes."""

    window_id: str
    window_sha256: str
    manifest_sha256: str
    source: str
    label: str  # real | surrogate | unpinned | own
    split: str
    scheduler: str
    scheduler_version: str
    params: str  # JSON
    control: bool
    engine_policy: str
    cluster_policy: str
    fleet: str  # JSON
    profile: str
    region: str  # "0.85"
    rho: float
    tiers: str  # JSON
    forecast: str
    seed: int
    driver: str  # sim | live
    git_rev: str  # told, not part of the identity: a commit that changes no bytes redoes nothing
    schema_version: int
    calibration_sha256: str

    @property
    def run_id(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON of every field but ``git_rev``."""
        made_by = {name: value for name, value in vars(self).items() if name != "git_rev"}
        text = json.dumps(made_by, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
