"""Results: what one run leaves behind, as facts a request, totals a run, and parquet shards a sweep.

A sweep's folder holds ``plan.toml``, ``plan.json``, ``runs/NAME.parquet`` (one row a run, with all that made
it) and ``requests/NAME.parquet`` (facts only, if kept). A shard is one finished task, written atomically:
what carries a final name is whole or was damaged afterwards. Missing is null in parquet, never -1 or NaN.
The metrics of ``analysis.metrics`` stand beside. The sweep may add, by ``run_row(extra=...)``, columns that
the report reads if present: ``stretch`` (factor on arrival times), ``stratum`` (the window's).
"""

import errno
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

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
from schedulers.errors import InputError as InputError

_ARROW = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_KEY_TYPES: dict[str, Any] = {field.name: _ARROW[field.type] for field in fields(RunKey)}  # type: ignore[index]
_TOTAL_TYPES: dict[str, Any] = {
    name: pa.list_(pa.int64()) if name == "gaps" else _ARROW[kind]
    for name, kind in Totals.__annotations__.items()
}
_COUNTS = ("arrivals", "finished", "rejected", "expired", "failed")
_NULLABLE_INTS = ("engine", "tenant", "session")
_BYTES = ("outcome", "reason")


def run_row(
    key: RunKey,
    facts: Facts,
    totals: Totals,
    metrics: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return one row of ``runs``: id, key, totals, outcomes counted over all arrivals, metrics, extras."""
    ends = np.bincount(np.asarray(facts.outcome, np.int64), minlength=4)
    counts = dict(zip(_COUNTS, (len(facts.arrival_s), *(int(count) for count in ends[:4])), strict=True))
    return {"run_id": key.run_id, **asdict(key), **totals._asdict(), **counts, **metrics, **(extra or {})}


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
        _write(Path(folder) / "requests" / f"{name}.parquet", _requests_table(requests))
    path = Path(folder) / "runs" / f"{name}.parquet"
    _write(path, _runs_table(rows))
    return path


def read_runs(folder: Path, *, sketches: bool = True) -> pd.DataFrame:
    """Return every run of a sweep's folder, one row each, sorted by key; without the list columns if asked.

    Raises InputError for a folder without results and for a damaged shard, with the remedy.
    """
    shards = _some_shards(Path(folder))
    tables = [_read(path, sketches=sketches) for path in shards]
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    order = ["source", "region", "scheduler", "window_id", "run_id"]
    missing = [name for name in order if name not in frame.columns]
    if missing:
        raise InputError(f"columns are missing: {', '.join(missing)}", where=str(shards[0]), fix=_REMEDY)
    return frame.sort_values(order, kind="stable", ignore_index=True)


def done_ids(folder: Path) -> set[str]:
    """Return the ids of the stored runs; temporary files don't count, a damaged shard raises InputError."""
    found: set[str] = set()
    for path in _shards(Path(folder), "runs"):
        found.update(_read(path, ["run_id"])["run_id"].to_pylist())
    return found


def read_requests(folder: Path, run_ids: set[str] | None = None) -> Iterator[tuple[str, Facts]]:
    """Yield (run id, facts) a run, a shard at a time; only those of ``run_ids`` if given."""
    for path in _shards(Path(folder), "requests"):
        table = _read(path)
        ids = np.asarray(table["run_id"].to_pylist(), dtype=object)
        cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1 if len(ids) else np.zeros(0, np.int64)
        for low, high in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            if high > low and (run_ids is None or ids[low] in run_ids):
                yield str(ids[low]), _facts(table.slice(low, high - low))


def verify(folder: Path) -> list[str]:
    """Return what is wrong with a sweep's folder, a sentence each that names the file; empty is good.

    Checks: shards whole and complete in columns; ids recomputed from the keys and unique; each arrival ends
    exactly once; arrival <= dispatched <= started <= first token <= finished. Raises InputError if the folder
    holds no results.
    """
    folder = Path(folder)
    problems: list[str] = []
    arrivals: dict[str, int] = {}
    seen: Counter[str] = Counter()
    damaged: set[str] = set()
    for path in _some_shards(folder):
        try:
            table = _complete(path, ("run_id", *_KEY_TYPES, *_TOTAL_TYPES, *_COUNTS))
        except InputError as error:
            problems.append(str(error))
            damaged.add(path.name)
            continue
        problems += _run_problems(path, table, arrivals, seen)
    problems += [f"run {run_id} is stored {n} times; fix: {_REMEDY}" for run_id, n in seen.items() if n > 1]
    for path in (shard for shard in _shards(folder, "requests") if shard.name not in damaged):
        problems += _request_problems(path, arrivals)
    return problems


_REMEDY = "delete this shard and run the same `windtunnel sweep` again; it redoes only those runs"


def _shards(folder: Path, table: str) -> list[Path]:
    # a temporary file begins with a dot and is no shard
    return sorted(path for path in (folder / table).glob("*.parquet") if path.name[0] != ".")


def _some_shards(folder: Path) -> list[Path]:
    shards = _shards(folder, "runs")
    if not shards:
        raise InputError(
            "no results here", where=str(folder), fix="name the folder of `windtunnel sweep --out`"
        )
    return shards


def _read(path: Path, columns: list[str] | None = None, *, sketches: bool = True) -> Any:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        if not sketches:
            columns = [field.name for field in file.schema_arrow if not pa.types.is_list(field.type)]
        return file.read(columns=columns)
    except (OSError, KeyError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        why = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError(
            f"a result shard is half-written or damaged ({why})", where=str(path), fix=_REMEDY
        ) from None


def _write(path: Path, table: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        os.replace(temporary, path)
    except OSError as error:
        what, fix = f"can't write: {error.strerror or error}", "check the folder's rights"
        if error.errno == errno.ENOSPC:
            what, fix = "the disk is full", "free some space and run the same command; finished runs are kept"
        raise InputError(what, where=str(path), fix=fix) from error
    finally:
        with suppress(OSError):  # never over the error that says what went wrong
            temporary.unlink(missing_ok=True)


def _runs_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a table: metrics are float64, sketches lists of float32, missing is null."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lacking = [name for name in ("run_id", *_KEY_TYPES, *_TOTAL_TYPES) if name not in names]
    if rows and lacking:
        raise ValueError(f"run rows lack {', '.join(lacking)}: build them with loadgen.result.run_row")
    columns = {}
    for name in names:
        values = [_plain(row.get(name)) for row in rows]
        columns[name] = pa.array(values, type=_kind(name, values), from_pandas=False)
    return pa.table(columns).replace_schema_metadata({"schema_version": str(SCHEMA_VERSION)})


def _kind(name: str, values: list[Any]) -> Any:
    if name == "run_id":
        return pa.string()
    known = _KEY_TYPES.get(name) or _TOTAL_TYPES.get(name)
    if known is not None:
        return known
    if name in _COUNTS:
        return pa.int64()
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, str):
        return pa.string()
    return pa.list_(pa.float32()) if isinstance(sample, list) else pa.float64()


def _plain(value: Any) -> Any:
    """Return a value as parquet should see it: numpy unwrapped, NaN as None."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _requests_table(requests: Sequence[tuple[str, Facts]]) -> Any:
    sizes = [len(facts.arrival_s) for _, facts in requests]
    columns: dict[str, Any] = {
        "run_id": pa.array(np.repeat([run_id for run_id, _ in requests], sizes)),
        "request": pa.array(np.concatenate([np.arange(size) for size in sizes]), pa.int64()),
    }
    for name in Facts._fields:
        values = np.concatenate([np.asarray(getattr(facts, name)) for _, facts in requests])
        if name.endswith("_s"):
            columns[name] = pa.array(values, pa.float64(), mask=np.isnan(values))
        elif name in _NULLABLE_INTS:
            columns[name] = pa.array(values.astype(np.int64), mask=values < 0)
        else:
            columns[name] = pa.array(values.astype(np.int8 if name in _BYTES else np.int64))
    return pa.table(columns)


def _facts(table: Any) -> Facts:
    columns = {}
    for name in Facts._fields:
        column = table[name]
        if name in _NULLABLE_INTS:
            column = column.fill_null(-1)
        columns[name] = column.to_numpy()
    return Facts(**columns)


def _complete(path: Path, names: Sequence[str]) -> Any:
    table = _read(path)
    lacking = [name for name in names if name not in table.column_names]
    if lacking:
        raise InputError(f"columns are missing: {', '.join(lacking)}", where=str(path), fix=_REMEDY)
    return table


def _run_problems(path: Path, table: Any, arrivals: dict[str, int], seen: Counter[str]) -> list[str]:
    problems = []
    for row in table.select(["run_id", *_KEY_TYPES, *_COUNTS]).to_pylist():
        run_id = row["run_id"]
        seen[run_id] += 1
        arrivals[run_id] = row["arrivals"]
        empty = [name for name in (*_KEY_TYPES, *_COUNTS) if row[name] is None]
        if empty:
            problems.append(f"{path}: run {run_id} has no {', '.join(empty)}; fix: {_REMEDY}")
            continue
        key = RunKey(**{name: row[name] for name in _KEY_TYPES})
        if key.run_id != run_id:
            problems.append(
                f"{path}: run {run_id} doesn't match its key, which gives {key.run_id}; fix: {_REMEDY}"
            )
        ended = sum(row[name] for name in _COUNTS[1:])
        if ended != row["arrivals"]:
            problems.append(
                f"{path}: run {run_id} had {row['arrivals']} arrivals, {ended} ended; fix: {_REMEDY}"
            )
    return problems


def _request_problems(path: Path, arrivals: Mapping[str, int]) -> list[str]:
    try:
        table = _complete(path, ("run_id", "request", *Facts._fields))
    except InputError as error:
        return [str(error)]
    problems = []
    for run_id, count in Counter(table["run_id"].to_pylist()).items():
        if run_id not in arrivals:
            problems.append(f"{path}: requests of run {run_id}, which is not in runs; fix: {_REMEDY}")
        elif arrivals[run_id] != count:
            problems.append(
                f"{path}: run {run_id} has {arrivals[run_id]} arrivals, {count} rows; fix: {_REMEDY}"
            )
    return problems + [f"{path}: {text}; fix: {_REMEDY}" for text in broken_facts(_facts(table))]


def broken_facts(facts: Facts) -> list[str]:
    """Return which laws these requests break, with the number of rows that break each."""
    ended = np.isin(facts.outcome, (FINISHED, REJECTED, EXPIRED, FAILED))
    finished = facts.outcome == FINISHED
    times = np.stack(facts[:5])
    known = np.where(np.isnan(times), -np.inf, times)
    latest = np.maximum.accumulate(known, axis=0)
    laws = {
        "requests end in no known way": ~ended,
        "requests have no arrival": np.isnan(facts.arrival_s),
        "finished requests lack a time": finished & np.isnan(times).any(axis=0),
        "requests that did not finish have a finish": ~finished & ~np.isnan(facts.finished_s),
        "finished requests delivered no token": finished & (facts.output_tokens < 1),
        "requests break arrival <= dispatched <= started <= first token <= finished": (
            (~np.isnan(times[1:])) & (times[1:] < latest[:-1] - 1e-9)
        ).any(axis=0),
    }
    return [f"{int(broken.sum())} {law}" for law, broken in laws.items() if broken.any()]
