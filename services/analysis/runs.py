"""Runs: lists, searches, and one run with its tiers, its timeline and what casts doubt on it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.metrics import METRICS, split_column
from analysis.numerals import plain
from analysis.one_run import TierShare, by_tier, scored_part, targets_of, timeline
from loadgen.result import Facts, InputError, broken_facts, shards_of
from services.analysis.models import (
    Problem,
    RunDetail,
    RunOut,
    RunPage,
    RunQuery,
    StretchOut,
    StudyOut,
    TierOut,
)
from services.analysis.shelf import INVALID, PARTIAL, RANKED, Shelf, Study

FILTERS = ("study", "driver", "source", "scheduler", "region", "standing")
SEARCHED = ("study", "scheduler", "source", "label", "window_id", "region", "driver", "standing", "run_id")
KEY = (
    "window_id", "source", "label", "scheduler", "scheduler_version", "params", "profile", "fleet", "forecast",
    "seed", "driver", "git_rev", "window_sha256", "manifest_sha256", "plan_sha256", "calibration_sha256", "speed",
)  # fmt: skip
COUNTS = ("arrivals", "finished", "rejected", "expired", "failed")
NAMES = ("run_id", "study", "standing", "driver", "scheduler", "source", "label", "region", "window_id")
MOST_BESIDE = 40


def study_out(shelf: Shelf, study: Study) -> StudyOut:
    """Return a study in numbers."""
    listed = shelf.runs(study)
    runs = listed.runs
    pairs = runs[["source", "label"]].drop_duplicates().dropna().sort_values(["source", "label"])
    rhos = runs[["region", "rho"]].drop_duplicates("region").sort_values("rho")
    return StudyOut(
        id=study.id,
        name=study.name,
        runs=int((runs["standing"] == RANKED).sum()),
        invalid=int((runs["standing"] == INVALID).sum()),
        partial=int((runs["standing"] == PARTIAL).sum()),
        schedulers=_distinct(runs, "scheduler"),
        sources=dict(zip(pairs["source"], pairs["label"], strict=True)),
        regions=[str(one) for one in rhos["region"]],
        drivers=_distinct(runs, "driver"),
        facts=bool(shards_of(study.folder, "requests")),
        stored=_when(runs["stored_s"].max()) if len(runs) else "",
        problems=problems_of(listed.problems, shelf),
    )


def problems_of(errors: tuple[InputError, ...], shelf: Shelf) -> list[Problem]:
    """Return errors with places told from the given folder on."""
    return [Problem(what=one.what, where=shown(one.where, shelf), fix=one.fix) for one in errors]


def shown(where: str, shelf: Shelf) -> str:
    """Return a place without what is above the folder that was given."""
    for root in sorted(shelf.folders, key=lambda folder: -len(str(folder))):
        if f"{root}/" in where or where.endswith(str(root)):
            return where.replace(f"{root.parent}/", "")
    return where


def search(shelf: Shelf, asked: RunQuery) -> RunPage:
    """Return one page of the runs that were asked for."""
    studies = shelf.studies()
    if asked.study:
        studies = {name: study for name, study in studies.items() if name == asked.study}
    listed = shelf.every_run(studies)
    runs = listed.runs
    choices = {name: _distinct(runs, name) for name in FILTERS if name != "study"}
    choices["study"] = sorted(shelf.studies())
    for name in FILTERS:
        if wanted := getattr(asked, name):
            runs = runs[runs[name] == wanted]
    if words := asked.q.lower().split():
        text = runs["study"].astype(str).str.lower()
        for name in SEARCHED[1:]:
            text = text + " " + runs[name].astype(str).str.lower()
        for word in words:
            runs, text = (
                runs[text.str.contains(word, regex=False)],
                text[text.str.contains(word, regex=False)],
            )
    order, up = {"stored": ("stored_s", False), "attainment": ("attainment_tier", False),
                 "scheduler": ("scheduler", True), "window": ("window_id", True)}[asked.sort]  # fmt: skip
    runs = runs.sort_values([order, "run_id"], ascending=[up, True], kind="stable", na_position="last")
    first = (asked.page - 1) * asked.size
    return RunPage(
        total=len(runs),
        page=asked.page,
        pages=max(1, ceil(len(runs) / asked.size)),
        runs=run_outs(runs.iloc[first : first + asked.size]),
        choices=choices,
        problems=problems_of(listed.problems, shelf),
    )


def run_outs(runs: pd.DataFrame) -> list[RunOut]:
    """Return rows as runs of a list."""
    return [run_out(row) for row in runs.to_dict("records")]


def run_out(row: Mapping[Any, Any]) -> RunOut:
    """Return a row, of a list or whole, as a run of a list."""
    attained = row.get("attainment_tier")
    if _missing(attained):
        attained = row.get("attainment_S2")
    told: dict[str, Any] = {name: int(row[name]) for name in COUNTS} | {
        name: str(row[name]) for name in NAMES
    }
    return RunOut(
        attainment=_number(attained),
        worst_group=_number(row.get("worst_group_tier")),
        ttft_p95_s=_number(row.get("ttft_p95_s")),
        stored=_when(row["stored_s"]),
        control=bool(row["control"]),
        **told,
    )


def detail(shelf: Shelf, study: Study, run_id: str) -> RunDetail:
    """Return one run; raises KeyError if there is none, InputError for damaged shards."""
    row = shelf.row(study, run_id)
    warnings = _standing_words(str(row["standing"]))
    tiers = targets_of(str(row["tiers"]))
    facts: Facts | None = None
    shares: tuple[TierShare, ...] = ()
    try:
        facts = shelf.facts(study, row)
        shares = () if facts is None else by_tier(scored_part(facts, str(row["window_id"])), tiers)
    except InputError as error:
        warnings.append(f"Its requests can't be read: {shown(str(error), shelf)}")
    replay = replay_of(study.folder, run_id)
    warnings += replay_warnings(replay)
    if facts is not None:
        warnings += [f"A law is broken: {text}." for text in broken_facts(facts)]
    beside = _beside(shelf, study, row)
    return RunDetail(
        run=run_out(row),
        key={name: str(row[name]) for name in KEY if not _missing(row.get(name))},
        metrics={name: _number(row[name]) for name in row if _is_metric(name)},
        facts=facts is not None,
        tiers=tier_outs(shares),
        timeline=[
            StretchOut.model_validate(plain(one._asdict()))
            for one in (timeline(facts, tiers) if facts is not None and shares else ())
        ],
        warnings=warnings,
        replay=replay,
        beside=beside,
    )


def tier_outs(shares: tuple[TierShare, ...]) -> list[TierOut]:
    """Return tiers as they are told."""
    return [
        TierOut(
            tier=one.tier,
            name=one.targets.name,
            targets={name: _number(getattr(one.targets, name)) for name in ("ttft_s", "tpot_s", "e2e_s")},
            weight=one.targets.weight,
            arrivals=one.arrivals,
            ends=one.ends,
            attainment=one.attainment,
            latencies=one.latencies,
        )
        for one in shares
    ]


def replay_of(folder: Path, run_id: str) -> dict[str, Any] | None:
    """Return what the load generator wrote about a live run, None if nothing that can be read."""
    try:
        told = json.loads((folder / "replays" / f"{run_id}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    cleaned = plain(told)
    return cleaned if isinstance(cleaned, dict) else None


def replay_warnings(replay: Mapping[str, Any] | None) -> list[str]:
    """Return what of a replay casts doubt on its run, a sentence each."""
    if replay is None:
        return []
    health = replay.get("health") or {}
    told = [f"Replay invalid: {fault}." for fault in replay.get("faults") or ()]
    told += [f"Load generator: {words}." for words in health.get("warnings") or ()]
    counts = {"lost_requests": "requests were lost", "lost_tokens": "tokens were lost",
              "repeated_tokens": "tokens came twice", "miscounted": "answers were miscounted"}  # fmt: skip
    told += [f"{replay[name]:,} {words}." for name, words in counts.items() if replay.get(name)]
    if replay.get("stopped"):
        told.append(f"It was stopped: {replay['stopped']}.")
    if replay.get("closed_within_session"):
        told.append("Later turns waited for earlier answers: within a session the loop was closed.")
    return told


def _standing_words(standing: str) -> list[str]:
    words = {INVALID: "This run did not keep its schedule: it is kept, and never ranked.",
             PARTIAL: "This run was interrupted: it is kept, and never ranked."}  # fmt: skip
    return [words[standing]] if standing in words else []


def _beside(shelf: Shelf, study: Study, row: Mapping[str, Any]) -> list[RunOut]:
    """Return other runs on the same window in the same region, of this study first."""
    runs = shelf.every_run(shelf.studies()).runs
    same = runs[(runs["window_id"] == row["window_id"]) & (runs["region"] == row["region"])]
    same = same[~((same["run_id"] == row["run_id"]) & (same["study"] == study.id))]
    same = same.assign(away=same["study"] != study.id).sort_values(["away", "study", "scheduler"])
    return run_outs(same.head(MOST_BESIDE))


def _distinct(runs: pd.DataFrame, name: str) -> list[str]:
    values = {str(value) for value in runs[name].dropna().unique()}
    return sorted(values, key=lambda value: (_as_number(value), value))


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _is_metric(name: str) -> bool:
    try:
        return split_column(name)[0] in METRICS
    except InputError:
        return False


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not isfinite(value))


def _number(value: Any) -> float | None:
    return None if _missing(value) else float(value)


def _when(at_s: Any) -> str:
    if at_s is None or not np.isfinite(at_s):
        return ""
    return datetime.fromtimestamp(float(at_s), UTC).isoformat(timespec="seconds")
