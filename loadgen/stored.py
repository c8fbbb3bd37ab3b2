"""Stored runs: the rows of a results folder beside the shard that holds each, and one run found again.

Unlike ``loadgen.result.read_runs`` a damaged shard does not hide the others: it is told beside them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.facts import Facts
from loadgen.result import complete_shard, read_shard, shards_of
from loadgen.tables import facts_of
from schedulers.errors import InputError


class Stored(NamedTuple):
    """Rows a run with ``shard`` (its file's name) and ``stored_s`` (when it was written), and what is damaged."""

    runs: pd.DataFrame
    problems: tuple[InputError, ...]


def readable_runs(folder: Path, columns: Sequence[str]) -> Stored:
    """Return those of ``columns`` that the shards have, of every shard that can be read; no rows is no error."""
    tables, problems = [], []
    for path in shards_of(Path(folder), "runs"):
        try:
            table = read_shard(path, _held(path, ("run_id", *columns)))
            written_s = path.stat().st_mtime
        except InputError as error:
            problems.append(error)
            continue
        except OSError:
            continue  # taken away since the folder was listed
        told = {"shard": pa.array([path.stem] * len(table)), "stored_s": pa.array([written_s] * len(table))}
        for name, values in told.items():
            table = table.append_column(name, values)
        tables.append(table)
    if not tables:
        return Stored(pd.DataFrame({"run_id": pd.Series(dtype=str)}), tuple(problems))
    return Stored(pa.concat_tables(tables, promote_options="permissive").to_pandas(), tuple(problems))


def _held(path: Path, columns: Sequence[str]) -> list[str] | None:
    """Return which of the columns a shard has; None, to let the reader complain, if that can't be told."""
    try:
        names = set(pq.read_schema(path).names)
    except (OSError, ValueError):
        return None
    return [name for name in columns if name in names] if "run_id" in names else ["run_id"]


def stored_run(folder: Path, shard: str, run_id: str) -> dict[str, Any] | None:
    """Return one run's row without sketches, None if the shard has none; raises InputError for a damaged shard."""
    path = next((one for one in shards_of(Path(folder), "runs") if one.stem == shard), None)
    if path is None:
        return None
    rows = _only(read_shard(path, sketches=False), run_id).to_pylist()
    return dict(rows[0]) if rows else None


def stored_facts(folder: Path, shard: str, run_id: str) -> Facts | None:
    """Return one run's facts, None if they were not kept; raises InputError for a damaged shard."""
    path = next((one for one in shards_of(Path(folder), "requests") if one.stem == shard), None)
    if path is None:
        return None
    table = _only(complete_shard(path, ("run_id", *Facts._fields)), run_id)
    return facts_of(table) if len(table) else None


def _only(table: Any, run_id: str) -> Any:
    return table.filter(pc.equal(table["run_id"], run_id))
