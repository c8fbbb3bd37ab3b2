"""Comparing: two studies over the runs that they share, or two runs metric by metric."""

from typing import Any

import numpy as np

from analysis.numerals import plain
from loadgen.result import InputError
from services.analysis.models import CompareOut, Difference
from services.analysis.runs import detail
from services.analysis.shelf import RANKED, Shelf, Study

MOST_PAIRS = 2_000
"""Runs of the smaller study that are read, request by request, at most."""

SHOWN = (
    "attainment_tier", "attainment_S1", "attainment_S2", "worst_group_tier", "goodput_tier", "jain_tier",
    "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p95_s", "itl_p95_s", "e2e_mean_s", "e2e_p95_s",
    "slowdown_e2e_mean", "longest_gap_p95_s", "throughput_tokens_per_s", "finished_share", "rejected_share",
    "recomputed_share",
)  # fmt: skip
"""Metrics of two runs that stand side by side, where either has them."""


def compare_studies(shelf: Shelf, a: Study, b: Study) -> CompareOut:
    """Return errors of requests and agreement of ranks over the runs of both; b against a.

    Raises InputError for damaged shards, or where there is too much to read.
    """
    from analysis.fidelity import held

    for study in (a, b):
        listed = shelf.runs(study)
        if listed.problems:
            raise listed.problems[0]
        if not (listed.runs["standing"] == RANKED).any():
            raise InputError("no ranked runs", where=study.name, fix="choose a study that has some")
    if min(len(shelf.runs(study).runs) for study in (a, b)) > MOST_PAIRS:
        fix = "use `windtunnel compare`"
        raise InputError(f"both studies have over {MOST_PAIRS:,} runs", where=f"{a.name}, {b.name}", fix=fix)
    told = plain(held(a.folder, b.folder))
    return CompareOut(kind="studies", a=a.id, b=b.id, differences=[], tiers=[], **told)


def compare_runs(shelf: Shelf, a: tuple[Study, str], b: tuple[Study, str]) -> CompareOut:
    """Return two runs metric by metric and tier by tier; errors of requests if both served the same ones.

    Raises KeyError for a run that is not there, InputError for damaged shards.
    """
    from analysis.fidelity import LATENCIES

    details = [detail(shelf, study, run_id) for study, run_id in (a, b)]
    differences = [_difference(name, *(one.metrics.get(name) for one in details)) for name in SHOWN]
    errors = request_errors_of(shelf, a, b)
    return CompareOut(
        kind="runs",
        a=f"{a[0].id}/{a[1]}",
        b=f"{b[0].id}/{b[1]}",
        pairs=1,
        errors=[] if errors is None else [plain(errors)],
        pooled={} if errors is None else {name: errors[name] for name in LATENCIES if name in errors},
        ranks=[],
        differences=[one for one in differences if one.a is not None or one.b is not None],
        tiers=[one.tiers for one in details],
    )


def request_errors_of(shelf: Shelf, a: tuple[Study, str], b: tuple[Study, str]) -> dict[str, Any] | None:
    """Return relative errors of requests of two runs of one window in one region; None for others."""
    from analysis.fidelity import request_errors

    rows = [shelf.row(study, run_id) for study, run_id in (a, b)]
    if any(rows[0][name] != rows[1][name] for name in ("window_sha256", "region")):
        return None
    try:
        facts = [shelf.facts(study, row) for (study, _), row in zip((a, b), rows, strict=True)]
    except InputError:
        return None  # each run's own page says what is damaged
    names = ("source", "region", "window_id", "scheduler")
    return request_errors(
        {**{name: rows[0][name] for name in names}, "sim": (rows[0], facts[0]), "live": (rows[1], facts[1])}
    )


def _difference(name: str, a: float | None, b: float | None) -> Difference:
    from analysis.words import metric_words

    relative = None
    if a is not None and b is not None and a != 0:
        change = (b - a) / abs(a)
        relative = float(change) if np.isfinite(change) else None
    return Difference(metric=name, words=metric_words(name), a=a, b=b, relative=relative)
