"""One pass over a trace file: kept rows in batches, dropped rows counted by reason."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loadgen.formats.blocks import Block, csv_blocks, json_blocks, json_text_blocks
from loadgen.formats.layout import Layout, Memory, Rows
from loadgen.formats.lines import opened
from loadgen.formats.numbers import REASONS

SCHEMA = pa.schema(
    [
        ("stamp_ns", pa.int64()),  # on the file's own clock
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("session", pa.int64()),
        ("request", pa.int64()),  # the file's id of the row, -1 none
        ("parent", pa.int64()),  # the file's id of the parent, -1 none
        ("source_row", pa.int64()),
        ("kind", pa.int8()),
        ("flags", pa.uint8()),
        ("hash_ids", pa.list_(pa.int64())),
    ]
)
"""Columns of a batch, in the file's order: before sorting, spreading of ties and chaining of prefix ids."""

_BYTES_A_ROW, _LEAST_BYTES, _MOST_BYTES = 64, 256, 1 << 20
_SHOWN = 5


class Reading:
    """Reads one file once; counts are complete when ``batches`` is exhausted."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout, self.memory = path, layout, Memory()
        self.rows_read, self.kept = 0, 0
        self.dropped: Counter[str] = Counter()
        self.first_bad: list[str] = []

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of rows: the family's, or those found in the file."""
        return tuple(self.memory.kinds.numbers) or self.layout.kinds

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the kept rows as batches of exactly ``rows`` rows, the last one maybe shorter (trap G6)."""
        waiting: list[Any] = []
        held = 0
        for batch in self._kept_rows(min(max(rows * _BYTES_A_ROW, _LEAST_BYTES), _MOST_BYTES)):
            waiting.append(batch)
            held += len(batch)
            if held < rows:
                continue
            table = pa.concat_batches(waiting)
            for start in range(0, held - rows + 1, rows):
                yield table.slice(start, rows)
            rest = table.slice(held - held % rows)
            waiting, held = ([rest] if len(rest) else []), len(rest)
        if held:
            yield pa.concat_batches(waiting)

    def _kept_rows(self, size: int) -> Iterator[pa.RecordBatch]:
        with opened(self.path) as handle:
            if self.layout.table is not None:
                blocks = csv_blocks(handle, self.layout.table, size)
            elif self.layout.columns:
                blocks = json_text_blocks(handle, tuple(self.layout.columns.values()), size)
            else:
                blocks = json_blocks(handle, self.layout.schema, size)
            for block in blocks:
                self.rows_read += block.rows
                for _, line, reason, text in block.shapeless:
                    self.dropped[reason] += 1
                    self._show(line, reason, text)
                if len(block.row):
                    batch = self._convert(block)
                    if len(batch):
                        self.kept += len(batch)
                        yield batch

    def _convert(self, block: Block) -> pa.RecordBatch:
        rows = self.layout.parse(block, self.memory)
        for reason, count in enumerate(np.bincount(rows.reasons, minlength=1).tolist()):
            if reason and count:
                self.dropped[REASONS[reason]] += count
        for at in np.flatnonzero(rows.reasons)[: _SHOWN - len(self.first_bad)].tolist():
            fields = (f"{name}={values[at].as_py()!r}" for name, values in block.columns.items())
            self._show(int(block.line[at]), REASONS[rows.reasons[at]], ", ".join(fields))
        return _batch(rows, block)

    def _show(self, line: int, reason: str, text: str) -> None:
        if len(self.first_bad) < _SHOWN:
            self.first_bad.append(f"line {line} ({reason}): {text[:120]}")


def _batch(rows: Rows, block: Block) -> pa.RecordBatch:
    """Put the kept rows into the columns of ``SCHEMA``; what a family lacks is -1, 0 or null."""
    kept = rows.reasons == 0
    count = int(kept.sum())
    none = np.full(count, -1, np.int64)
    zero = np.zeros(count, np.int8)

    def chosen(values: Any, otherwise: Any) -> Any:
        return otherwise if values is None else values[kept]

    if rows.hash_ids is None:
        hash_ids = pa.nulls(count, SCHEMA.field("hash_ids").type)
    else:
        hash_ids = rows.hash_ids.filter(pa.array(kept))
    columns = [
        rows.stamp_ns[kept],
        rows.prompt_tokens[kept].astype(np.int32),
        rows.output_tokens[kept].astype(np.int32),
        chosen(rows.session, none),
        chosen(rows.request, none),
        chosen(rows.parent, none),
        block.row[kept],
        chosen(rows.kind, zero),
        chosen(rows.flags, zero.astype(np.uint8)),
        hash_ids,
    ]
    arrays = [pa.array(one, field.type) for one, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
