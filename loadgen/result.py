"""Results: what one run leaves behind, as facts a request, totals a run, and parquet shards a sweep.

A sweep's folder holds ``plan.toml``, ``plan.json``, ``runs/NAME.parquet`` (one row a run, with all that made
it), ``requests/NAME.parquet`` (facts only, if kept) and ``failures.jsonl`` (runs that left no result, if any).
A shard is one finished task, written atomically: what carries a final name is whole or was damaged afterwards.
Missing is null in parquet, never -1 or NaN.
The metrics of ``analysis.metrics`` stand beside. The sweep may add, by ``run_row(extra=...)``, columns that
the report reads if present: ``stretch`` (factor on arrival times), ``stratum`` (the window's).
"""

import errno
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.facts import EXPIRED as EXPIRED
from loadgen.facts import FAILED as FAILED
from loadgen.facts import FINISHED as FINISHED
from loadgen.facts import GAP_BINS as GAP_BINS
from loadgen.facts import GAP_EDGES_S as GAP_EDGES_S
from loadgen.facts import REASONS as REASONS
from loadgen.facts import REJECTED as REJECTED
from loadgen.facts import SCHEMA_VERSION as SCHEMA_VERSION
from loadgen.facts import Facts as Facts
from loadgen.facts import RunKey as RunKey
from loadgen.facts import Totals as Totals
from loadgen.tables import COUNTS, KEY_TYPES, TOTAL_TYPES, facts_of, requests_table, runs_table
from loadgen.tables import broken_facts as broken_facts
from loadgen.tables import run_row as run_row
from loadgen.window import scored_rows as scored_rows
from schedulers.errors import InputError as InputError


class FailedRun(NamedTuple):
    """A run that left no result, and what its policy did."""

    scheduler: str
    window_id: str
    region: str
    what: str


def write_shard(
    folder: Path,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    requests: Sequence[tuple[str, Facts]] | None = None,
) -> Path:
    """Write ``requests/NAME.parquet`` if given, then ``runs/NAME.parquet``, atomically; return its path.

    Raises InputError naming the file when the disk is full or the folder can't be written.
    """
    if requests:
        _write(Path(folder) / "requests" / f"{name}.parquet", requests_table(requests))
    path = Path(folder) / "runs" / f"{name}.parquet"
    _write(path, runs_table(rows))
    return path


def read_runs(folder: Path, *, sketches: bool = True) -> pd.DataFrame:
    """Return every run of a sweep's folder, one row each, sorted by key; without the list columns if asked.

    Raises InputError for a folder without results and for a damaged shard, with the remedy.
    """
    shards = _some_shards(Path(folder))
    tables = [read_shard(path, sketches=sketches) for path in shards]
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    order = ["source", "region", "scheduler", "window_id", "run_id"]
    missing = [name for name in order if name not in frame.columns]
    if missing:
        raise InputError(f"columns are missing: {', '.join(missing)}", where=str(shards[0]), fix=_REMEDY)
    return frame.sort_values(order, kind="stable", ignore_index=True)


def run_shards(folder: Path) -> Iterator[Any]:
    """Yield the runs of a sweep's folder, an arrow table a shard, sketches and all: what memory would not hold.

    Raises InputError for a folder without results and for a damaged shard, with the remedy.
    """
    for path in _some_shards(Path(folder)):
        yield read_shard(path)


def frozen_plan(folder: Path) -> dict[str, Any]:
    """Return what plan.json of a sweep's folder holds, {} without one; raises InputError if it is damaged."""
    path = Path(folder) / "plan.json"
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        read = None
    inner = read.get("plan", read) if isinstance(read, dict) else None
    if not isinstance(inner, dict):
        raise InputError("the frozen plan is damaged", where=str(path), fix=PLAN_REMEDY)
    return inner


def done_ids(folder: Path) -> set[str]:
    """Return the ids of the stored runs; temporary files don't count, a damaged shard raises InputError.

    Under a plan that keeps requests, a run whose facts can't be read is not done.
    """
    keeps = _keeps_facts(Path(folder))
    found: set[str] = set()
    for path in shards_of(Path(folder), "runs"):
        ids = set(read_shard(path, ["run_id"])["run_id"].to_pylist())
        found |= ids & _ids_with_facts(path) if keeps else ids
    return found


def drop_factless(folder: Path) -> int:
    """Take runs that are not done for want of their facts out of the shards; return how many were.

    A sweep calls this before it redoes them, so that no run is stored twice. A shard that loses all its runs
    is deleted with what is left of its requests. Raises InputError for damaged shards of runs.
    """
    dropped = 0
    for path in shards_of(Path(folder), "runs") if _keeps_facts(Path(folder)) else ():
        told = _ids_with_facts(path)
        lost = set(read_shard(path, ["run_id"])["run_id"].to_pylist()) - told
        dropped += len(lost)
        if lost and told:
            table = read_shard(path)
            kept = [run_id not in lost for run_id in table["run_id"].to_pylist()]
            _write(path, table.filter(pa.array(kept)))
        elif lost:
            _delete(path)
            _delete(_facts_beside(path))
    return dropped


def write_failures(folder: Path, rows: Sequence[tuple[str, str, str, str]]) -> Path:
    """Write failures.jsonl, atomically: ``rows`` (scheduler, window id, region, what) of the sweep that ended.

    What earlier sweeps wrote stays for runs that this one did not reach (it was stopped), until they are
    stored; with nothing to tell the file goes. Raises InputError naming the file if it can't be written.
    """
    path = Path(folder) / FAILURES
    told = {row[:3]: FailedRun(*row) for row in (*read_failures(folder), *rows)}
    if not told:
        _delete(path)
        return path
    text = "".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for _, row in sorted(told.items()))
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return path


def read_failures(folder: Path) -> tuple[FailedRun, ...]:
    """Return the failed runs of a sweep's folder that are not stored by now, sorted; () without any.

    Raises InputError for a damaged failures.jsonl.
    """
    path = Path(folder) / FAILURES
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        told = [FailedRun(**json.loads(line)) for line in lines]
        if not all(isinstance(part, str) for row in told for part in row):
            raise TypeError
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, RecursionError):
        fix = "delete it and run the same `windtunnel sweep` again; it tries again what failed"
        raise InputError("the list of failed runs is damaged", where=str(path), fix=fix) from None
    names = list(FailedRun._fields[:3])
    stored = {
        tuple(run.values())
        for shard in shards_of(Path(folder), "runs")
        for run in read_shard(shard, names).select(names).to_pylist()
    }
    return tuple(sorted(row for row in told if row[:3] not in stored))


def read_requests(folder: Path, run_ids: set[str] | None = None) -> Iterator[tuple[str, Facts]]:
    """Yield (run id, facts) a run, a shard at a time; only those of ``run_ids`` if given."""
    for path in shards_of(Path(folder), "requests"):
        table = complete_shard(path, ("run_id", *Facts._fields))
        ids = np.asarray(table["run_id"].to_pylist(), dtype=object)
        cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1 if len(ids) else np.zeros(0, np.int64)
        for low, high in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            if high > low and (run_ids is None or ids[low] in run_ids):
                yield str(ids[low]), facts_of(table.slice(low, high - low))


def verify(folder: Path) -> list[str]:
    """Return what is wrong with a sweep's folder, a sentence each that names the file; empty is good.

    Checks: plan and shards whole, and complete in columns; ids recomputed from the keys and unique; facts of
    every run, if the plan keeps them; each arrival ends exactly once; arrival <= dispatched <= started <=
    first token <= finished. Raises InputError if the folder holds no results.
    """
    folder = Path(folder)
    problems: list[str] = []
    keeps = False
    stored: dict[str, dict[str, int]] = {}  # shard -> run -> arrivals
    seen: Counter[str] = Counter()
    damaged: set[str] = set()
    shards = _some_shards(folder)
    try:
        keeps = _keeps_facts(folder)
    except InputError as error:
        problems.append(str(error))
    problems += _failure_problems(folder)
    for path in shards:
        try:
            table = complete_shard(path, ("run_id", *KEY_TYPES, *TOTAL_TYPES, *COUNTS))
        except InputError as error:
            problems.append(str(error))
            damaged.add(path.name)
            continue
        problems += _run_problems(path, table, stored.setdefault(path.name, {}), seen)
    problems += [f"run {run_id} is stored {n} times; fix: {_REMEDY}" for run_id, n in seen.items() if n > 1]
    kept = shards_of(folder, "requests")
    if keeps:
        without = {path.name for path in shards} - {path.name for path in kept} - damaged
        kept += [folder / "requests" / name for name in without]
    for path in (path for path in sorted(kept) if path.name not in damaged):
        problems += _request_problems(path, stored.get(path.name, {}), keeps)
    return problems


FAILURES = "failures.jsonl"

PLAN_REMEDY = (
    "delete plan.json and run the same `windtunnel sweep` again (its plan is plan.toml beside it): that writes "
    "plan.json anew and keeps the finished runs"
)
"""What to do about a damaged plan.json, in every command's words."""

_REMEDY = "delete this shard and run the same `windtunnel sweep` again; it redoes only those runs"


def _remedy(path: Path) -> str:
    """Return what to do about a shard; runs without their facts would stay where their shard stays."""
    if path.parent.name != "requests":
        return _REMEDY
    return _REMEDY.replace("this shard", f"this shard, and runs/{path.name} if it is there,")


def _keeps_facts(folder: Path) -> bool:
    return frozen_plan(folder).get("keep") == "requests"


def _facts_beside(path: Path) -> Path:
    return path.parent.parent / "requests" / path.name


def _ids_with_facts(path: Path) -> set[str]:
    """Return the runs whose facts are in the requests shard beside a runs shard; none if it can't be read."""
    beside = _facts_beside(path)
    try:
        return (
            set(read_shard(beside, ["run_id"])["run_id"].unique().to_pylist()) if beside.exists() else set()
        )
    except InputError:
        return set()


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        what = f"can't delete: {error.strerror or error}"
        raise InputError(what, where=str(path), fix="check the folder's rights") from error


def shards_of(folder: Path, table: str) -> list[Path]:
    """Return the shards of "runs" or "requests" by name; a temporary file begins with a dot and is none."""
    return sorted(path for path in (folder / table).glob("*.parquet") if path.name[0] != ".")


def _some_shards(folder: Path) -> list[Path]:
    shards = shards_of(folder, "runs")
    if not shards:
        if failed := read_failures(folder):
            first = f"{failed[0].scheduler} on {failed[0].window_id}: {failed[0].what}"
            what, fix = f"all {len(failed)} runs failed, first {first}", "mend the policies, use a new --out"
            raise InputError(what, where=str(folder), fix=fix)
        raise InputError(
            "no results here", where=str(folder), fix="name the folder of `windtunnel sweep --out`"
        )
    return shards


def read_shard(path: Path, columns: list[str] | None = None, *, sketches: bool = True) -> Any:
    """Return a shard as an Arrow table; raises InputError naming the file and the remedy if it is damaged."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        if not sketches:
            columns = [field.name for field in file.schema_arrow if not pa.types.is_list(field.type)]
        return file.read(columns=columns)
    except (OSError, KeyError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        why = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError(
            f"a result shard is half-written or damaged ({why})", where=str(path), fix=_remedy(path)
        ) from None


def _write(path: Path, table: Any) -> None:
    def write(temporary: Path) -> None:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)

    _replace(path, write)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file and give it the final name once it is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        what, fix = f"can't write: {error.strerror or error}", "check the folder's rights"
        if error.errno == errno.ENOSPC:
            what, fix = "the disk is full", "free some space and run the same command; finished runs are kept"
        raise InputError(what, where=str(path), fix=fix) from error
    finally:
        with suppress(OSError):  # never over the error that says what went wrong
            temporary.unlink(missing_ok=True)


def complete_shard(path: Path, names: Sequence[str]) -> Any:
    """Return a shard as an Arrow table; raises InputError if it is damaged or lacks a column of ``names``."""
    table = read_shard(path)
    lacking = [name for name in names if name not in table.column_names]
    if lacking:
        raise InputError(f"columns are missing: {', '.join(lacking)}", where=str(path), fix=_remedy(path))
    return table


def _run_problems(path: Path, table: Any, arrivals: dict[str, int], seen: Counter[str]) -> list[str]:
    problems = []
    for row in table.select(["run_id", *KEY_TYPES, *COUNTS]).to_pylist():
        run_id = row["run_id"]
        seen[run_id] += 1
        arrivals[run_id] = row["arrivals"]
        empty = [name for name in (*KEY_TYPES, *COUNTS) if row[name] is None]
        if empty:
            problems.append(f"{path}: run {run_id} has no {', '.join(empty)}; fix: {_REMEDY}")
            continue
        key = RunKey(**{name: row[name] for name in KEY_TYPES})
        if key.run_id != run_id:
            problems.append(
                f"{path}: run {run_id} doesn't match its key, which gives {key.run_id}; fix: {_REMEDY}"
            )
        ended = sum(row[name] for name in COUNTS[1:])
        if ended != row["arrivals"]:
            problems.append(
                f"{path}: run {run_id} had {row['arrivals']} arrivals, {ended} ended; fix: {_REMEDY}"
            )
    return problems


def _failure_problems(folder: Path) -> list[str]:
    try:
        read_failures(folder)
    except InputError as error:
        return [str(error)] if error.where.endswith(FAILURES) else []  # shards are named by themselves
    return []


def _request_problems(path: Path, arrivals: Mapping[str, int], keeps: bool) -> list[str]:
    """Return what is wrong with a requests shard; ``arrivals`` a run of the runs shard of the same name."""
    if not path.exists():
        fix = _REMEDY.replace("this shard", f"runs/{path.name}")
        return [f"{path}: the facts of {len(arrivals)} runs are missing; fix: {fix}"]
    try:
        table = complete_shard(path, ("run_id", "request", *Facts._fields))
    except InputError as error:
        return [str(error)]
    told = Counter(table["run_id"].to_pylist())
    problems = [f"has no facts of run {run_id}" for run_id in arrivals if keeps and run_id not in told]
    for run_id, count in told.items():
        if run_id not in arrivals:
            problems.append(f"requests of run {run_id}, which is not in runs/{path.name}")
        elif arrivals[run_id] != count:
            problems.append(f"run {run_id} has {arrivals[run_id]} arrivals, {count} rows")
    return [f"{path}: {text}; fix: {_remedy(path)}" for text in problems + broken_facts(facts_of(table))]
