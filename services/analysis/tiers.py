"""Tiers: attainment of each tier a scheduler and condition, from the requests that a study keeps."""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from analysis.charts import Figure, unchecked
from analysis.metrics import met
from analysis.numerals import plain
from analysis.one_run import Targets, scored_part, targets_of
from loadgen.result import InputError, frozen_plan, read_requests
from services.analysis.models import TierCell, TiersOut
from services.analysis.shelf import RANKED, Shelf, Study

MOST_RUNS = 3_000
"""Runs of which every request is read, at most; the others count by the metrics stored with them."""

Condition = tuple[str, str, str, str]
"""(source, region, driver, scheduler)."""


def tiers_out(shelf: Shelf, study: Study) -> TiersOut:
    """Return means over windows by scheduler and condition; seconds of work where requests are kept.

    Raises InputError for damaged shards, and for runs whose tiers differ.
    """
    runs = shelf.runs(study).runs
    runs = runs[runs["standing"] == RANKED]
    texts = sorted(set(runs["tiers"].dropna()))
    if len(texts) > 1:
        raise InputError(
            f"its runs have {len(texts)} different sets of tiers",
            where=study.name,
            fix="give each plan a folder",
        )
    tiers = targets_of(texts[0]) if texts else ()
    by_id = {row["run_id"]: row for row in runs.head(MOST_RUNS).to_dict("records")}
    shares = {
        run_id: _shares(scored_part(facts, by_id[run_id]["window_id"]), tiers)
        for run_id, facts in read_requests(study.folder, set(by_id))
    }
    cells: dict[Condition, list[dict[Any, Any]]] = defaultdict(list)
    for row in runs.to_dict("records"):
        cells[row["source"], row["region"], row["driver"], row["scheduler"]].append(row)
    told = [_cell(key, listed, shares, len(tiers)) for key, listed in cells.items()]
    told.sort(
        key=lambda one: (one.source, float(one.region), one.driver, -(one.attainment or 0.0), one.scheduler)
    )
    return TiersOut(
        study=study.id,
        names=[one.name for one in tiers],
        targets=[
            {name: plain(getattr(one, name)) for name in ("ttft_s", "tpot_s", "e2e_s")} for one in tiers
        ],
        measured=len(shares),
        cells=told,
    )


def _shares(facts: Any, tiers: tuple[Targets, ...]) -> list[float]:
    """Return the share of each tier's arrivals that met every target; NaN for a tier in which nobody came."""
    limits = [(one.ttft_s, one.tpot_s, one.e2e_s, one.weight) for one in tiers]
    good = met("tier", facts, limits)
    return [
        float(good[facts.tier == tier].mean()) if (facts.tier == tier).any() else float("nan")
        for tier in range(len(tiers))
    ]


def _cell(key: Condition, rows: list[dict[Any, Any]], shares: dict[str, list[float]], tiers: int) -> TierCell:
    source, region, driver, scheduler = key
    known = np.array([shares[row["run_id"]] for row in rows if row["run_id"] in shares], np.float64)
    by_tier = [_mean(known[:, tier].tolist()) for tier in range(tiers)] if len(known) else []
    return TierCell(
        scheduler=scheduler, source=source, region=region, driver=driver, windows=len(rows),
        attainment=_mean([row["attainment_tier"] for row in rows]),
        worst_group=_mean([row["worst_group_tier"] for row in rows]),
        tiers=by_tier,
    )  # fmt: skip


def _mean(values: list[Any]) -> float | None:
    known = [float(value) for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known else None


class TierAnswer(NamedTuple):
    """What a study of the number of tiers found: sentences, what was run, tables as ``analysis.tables.Table``."""

    sentences: tuple[str, ...]
    facts: dict[str, str]
    tables: tuple[Any, ...]
    figures: tuple[Figure, ...]


def asks_for_tiers(study: Study) -> bool:
    """Whether a study is one of the number of tiers; raises InputError for a damaged plan."""
    return bool(frozen_plan(study.folder).get("atoms"))


def tier_answer(study: Study) -> TierAnswer:
    """Return how many tiers pay, as ``windtunnel study tiers`` tells it: seconds of work; raises InputError."""
    from analysis.tiers_answer import answer  # brings libraries that take seconds to load
    from analysis.tiers_figures import figures
    from analysis.tiers_report import facts, page_tables
    from loadgen.plan_arms import runs_as

    found = answer(study.folder, runs_as)
    with unchecked():
        drawn = tuple(one for listed in figures(found).values() for one in listed)
    return TierAnswer(tuple(found.sentences), facts(found), tuple(page_tables(found)), drawn)
