"""Tables: runs and facts as parquet holds them, and the laws that facts obey."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from loadgen.facts import EXPIRED, FAILED, FINISHED, REJECTED, SCHEMA_VERSION, Facts, RunKey, Totals

_ARROW = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
KEY_TYPES: dict[str, Any] = {field.name: _ARROW[field.type] for field in fields(RunKey)}  # type: ignore[index]
TOTAL_TYPES: dict[str, Any] = {
    name: pa.list_(pa.int64()) if name == "gaps" else _ARROW[kind]
    for name, kind in Totals.__annotations__.items()
}
COUNTS = ("arrivals", "finished", "rejected", "expired", "failed")
TEXTS = ("group_by", "stratum", "plan_sha256")
"""Columns of text beside the key, which may be missing in all runs of a shard."""
_NULLABLE_INTS = ("engine", "tenant", "session", "cached_tokens")
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
    counts = dict(zip(COUNTS, (len(facts.arrival_s), *(int(count) for count in ends[:4])), strict=True))
    return {"run_id": key.run_id, **vars(key), **totals._asdict(), **counts, **metrics, **(extra or {})}


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a table: metrics are float64, sketches lists of float32, missing is null."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lacking = [name for name in ("run_id", *KEY_TYPES, *TOTAL_TYPES) if name not in names]
    if rows and lacking:
        raise ValueError(f"run rows lack {', '.join(lacking)}: build them with loadgen.result.run_row")
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    return pa.table(columns).replace_schema_metadata({"schema_version": str(SCHEMA_VERSION)})


def _column(name: str, values: list[Any]) -> Any:
    """Return a column of one row a value, of the type that its name or its first value says."""
    kind = _kind(name, values)
    if not pa.types.is_list(kind):
        return pa.array([_plain(value) for value in values], type=kind, from_pandas=False)
    # A run has five lists of some hundred numbers: taken one by one they cost more than the run itself.
    lists = [np.zeros(0) if value is None else np.asarray(value) for value in values]
    ends = np.cumsum([0, *map(len, lists)])
    flat = np.concatenate([*lists, np.zeros(0)]).astype(kind.value_type.to_pandas_dtype())
    absent = pa.array([value is None for value in values])
    missing = np.isnan(flat) if flat.dtype.kind == "f" else None
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(flat, kind.value_type, mask=missing), type=kind, mask=absent
    )


def _kind(name: str, values: list[Any]) -> Any:
    """Return the type of a column: the same in every shard, also in one where all values are missing."""
    if name == "run_id" or name in TEXTS:
        return pa.string()
    known = KEY_TYPES.get(name) or TOTAL_TYPES.get(name)
    if known is not None:
        return known
    if name in COUNTS:
        return pa.int64()
    sample = next((value for value in values if value is not None), None)
    if isinstance(sample, str):
        return pa.string()
    is_list = name.endswith("_sketch") or isinstance(sample, list | np.ndarray)
    return pa.list_(pa.float32()) if is_list else pa.float64()


def _plain(value: Any) -> Any:
    """Return a value as parquet should see it: numpy unwrapped, NaN as None."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def requests_table(requests: Sequence[tuple[str, Facts]]) -> Any:
    """Return the facts of runs, given by id, as a table: one row a request, missing is null."""
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


def facts_of(table: Any) -> Facts:
    """Return the facts that a table of ``requests_table``, or a part of it, holds."""
    columns = {}
    for name in Facts._fields:
        column = table[name]
        if name in _NULLABLE_INTS:
            column = column.fill_null(-1)
        columns[name] = column.to_numpy()
    return Facts(**columns)


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
