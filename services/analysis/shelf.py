"""The shelf: which folders hold results, and the rows of their runs, read anew when a folder changes.

A study is a folder with ``runs/``; its ``invalid/`` and ``partial/`` belong to it. Ids are made here, from the
place below the folder that was given; what a client sends is only ever looked up among them.
"""

import os
import re
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from loadgen.result import InputError, read_failures
from loadgen.stored import readable_runs, stored_facts, stored_run

RANKED, INVALID, PARTIAL = "ranked", "invalid", "partial"
STANDINGS = (RANKED, INVALID, PARTIAL)
"""Where a run is kept: among the results, or beside them because it does not count."""

LISTED = (
    "scheduler", "source", "label", "region", "rho", "window_id", "driver", "control", "tiers", "arrivals",
    "finished", "rejected", "expired", "failed", "attainment_tier", "attainment_S2", "worst_group_tier",
    "ttft_p95_s", "e2e_mean_s", "lag_p99_s",
)  # fmt: skip
"""Columns that lists show; a run's page reads all of them."""

DEEPEST, MOST = 4, 500
"""So far below a given folder studies are looked for, and so many are taken."""

Fingerprint = tuple[tuple[str, int, int], ...]


class Study(NamedTuple):
    """A folder of results; ``name`` is for people, ``id`` for addresses."""

    id: str
    name: str
    folder: Path


class Listed(NamedTuple):
    """The runs of one study, and what of it can't be read."""

    runs: pd.DataFrame
    problems: tuple[InputError, ...]


class Shelf:
    """Studies of the given folders; safe to use from several threads."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[Fingerprint, Listed]] = {}

    def studies(self) -> dict[str, Study]:
        """Return the studies by id, by name."""
        found: dict[str, Study] = {}
        for root in self.folders:
            for folder in _studies_below(root, 0):
                inner = folder.relative_to(root).as_posix()
                name = root.name if inner == "." else f"{root.name}/{inner}"
                short = re.sub(r"[^A-Za-z0-9_-]+", ".", name).strip(".") or "results"
                if short in found:
                    short = f"{short}.{sha256(str(folder).encode()).hexdigest()[:6]}"
                found[short] = Study(short, name, folder)
                if len(found) >= MOST:
                    return found
        return dict(sorted(found.items(), key=lambda item: item[1].name))

    def study(self, named: str) -> Study:
        """Return a study by its id; raises KeyError."""
        return self.studies()[named]

    def runs(self, study: Study) -> Listed:
        """Return the rows of a study's runs with ``study``, ``standing``, ``shard`` and ``stored_s``."""
        now = fingerprint(study.folder)
        with self._lock:
            known = self._read.get(study.folder)
        if known is not None and known[0] == now:
            return known[1]
        listed = _listed(study)
        with self._lock:
            self._read[study.folder] = (now, listed)
            for gone in [folder for folder in self._read if not folder.is_dir()]:
                del self._read[gone]
        return listed

    def every_run(self, studies: dict[str, Study]) -> Listed:
        """Return the runs of several studies together."""
        parts = [self.runs(study) for study in studies.values()]
        frames = [part.runs for part in parts if len(part.runs)]
        runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_COLUMNS)
        return Listed(runs, tuple(problem for part in parts for problem in part.problems))

    def row(self, study: Study, run_id: str) -> dict[str, Any]:
        """Return one run's row with all its columns; raises KeyError, or InputError for a damaged shard."""
        runs = self.runs(study).runs
        places = runs[runs["run_id"] == run_id]
        if not len(places):
            raise KeyError(run_id)
        place = places.iloc[0]
        row = stored_run(part_of(study, place["standing"]), str(place["shard"]), run_id)
        if row is None:
            raise KeyError(run_id)
        own = {name: place[name] for name in ("study", "standing", "shard", "stored_s")}
        return row | own

    def facts(self, study: Study, row: dict[str, Any]) -> Any:
        """Return the facts of a run whose row is known, None if they were not kept; raises InputError."""
        return stored_facts(part_of(study, row["standing"]), row["shard"], row["run_id"])


def part_of(study: Study, standing: str) -> Path:
    """Return the folder in which a study keeps runs of a standing."""
    return study.folder if standing == RANKED else study.folder / standing


def fingerprint(folder: Path) -> Fingerprint:
    """Return names, times and sizes of all that a study is read from: equal if nothing changed."""
    found = []
    for part in (folder, folder / INVALID, folder / PARTIAL):
        for place in (part, part / "runs", part / "requests"):
            try:
                with os.scandir(place) as entries:
                    files = [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
                    told = [(entry.path, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in files]
            except OSError:
                continue
            found += told
    return tuple(sorted(found))


def _studies_below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield folders with ``runs/``, no links followed; the parts of a study are none by themselves."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return
    holds = any((folder / part / "runs").is_dir() for part in ("", INVALID, PARTIAL))
    if holds:
        yield folder
    inside = ("runs", "requests", "replays", INVALID, PARTIAL) if holds else ()
    for name in below if depth < DEEPEST else ():
        if name not in inside:
            yield from _studies_below(folder / name, depth + 1)


def _listed(study: Study) -> Listed:
    frames, problems = [], []
    for standing in STANDINGS:
        part = readable_runs(part_of(study, standing), LISTED)
        problems += list(part.problems)
        if len(part.runs):
            frames.append(part.runs.assign(study=study.id, standing=standing))
    try:
        read_failures(study.folder)
    except InputError as error:
        problems.append(error)
    runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_COLUMNS)
    for name in _COLUMNS:
        if name not in runs:
            runs[name] = None
    return Listed(runs, tuple({str(problem): problem for problem in problems}.values()))


_COLUMNS = ["run_id", *LISTED, "study", "standing", "shard", "stored_s"]
