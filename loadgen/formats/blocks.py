"""Blocks of lines as columns of text or of JSON fields, each row with its place in the file."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json

from loadgen.formats.lines import whole_lines
from loadgen.formats.numbers import Ints

Fit = Callable[[Any], Any]


class Block(NamedTuple):
    """Consecutive rows of a file: ``columns`` has n values each, ``row`` and ``line`` say where they stood.

    ``shapeless`` are the rows that have no columns at all: (row, line, reason, text).
    """

    columns: dict[str, Any]  # pa.Array of strings, or of the JSON field's type
    row: Ints  # data row in the file, 0-based
    line: Ints  # line in the file, 1-based
    shapeless: list[tuple[int, int, str, str]]
    rows: int  # n + len(shapeless)


class Table(NamedTuple):
    """How a CSV file is laid out."""

    names: tuple[str, ...]
    wanted: tuple[str, ...]
    delimiter: str


def csv_blocks(handle: IO[bytes], table: Table, size: int) -> Iterator[Block]:
    """Yield the rows of a CSV file in blocks of about ``size`` bytes, every wanted column as text.

    A blank line is no row; a line with another number of fields is a shapeless ``bad_row``.
    """
    row, line, past_header = 0, 1, False
    for data in whole_lines(handle, size):
        if not past_header:
            data, line, past_header = data.partition(b"\n")[2], 2, True
            if not data:
                continue
        block, lines = _csv_block(data, table, row, line)
        yield block
        row, line = row + block.rows, line + lines


def _csv_block(data: bytes, table: Table, row: int, line: int) -> tuple[Block, int]:
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    odd: list[tuple[int, str]] = []

    def note(invalid: Any) -> str:
        odd.append((invalid.number - 1, invalid.text))
        return "skip"

    columns: dict[str, Any] | None = None
    try:
        read = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(
                column_names=list(table.names), block_size=len(data) + 1, use_threads=False
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=table.delimiter, ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: pa.string() for name in table.names},
                include_columns=list(dict.fromkeys(table.wanted)),
                strings_can_be_null=False,
            ),
        )
        # Fewer rows than lines: a stray quote has swallowed line ends, so each line is read by itself.
        if len(read) + len(odd) == lines:
            columns = {name: read[name].combine_chunks() for name in read.column_names}
    except pa.ArrowInvalid:
        pass
    if columns is None:
        columns, odd = _csv_line_by_line(data, table)
    texts = _split(data) if _may_be_blank(columns) else []
    return _placed(columns, odd, texts or lines, (row, line)), lines


def _csv_line_by_line(data: bytes, table: Table) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    odd: list[tuple[int, str]] = []
    kept: list[list[str]] = []
    wanted = [table.names.index(name) for name in dict.fromkeys(table.wanted)]
    for number, raw in enumerate(_split(data)):
        text = raw.decode("utf-8", "replace")
        try:
            fields = next(csv.reader([text], delimiter=table.delimiter), [])
        except csv.Error:
            fields = []
        if not text.strip():
            kept.append([""] * len(wanted))
        elif len(fields) != len(table.names):
            odd.append((number, text))
        else:
            kept.append([fields[at] for at in wanted])
    columns = {
        table.names[at]: pa.array([fields[place] for fields in kept], pa.string())
        for place, at in enumerate(wanted)
    }
    return columns, odd


def _split(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n")


def _placed(
    columns: dict[str, Any], odd: list[tuple[int, str]], lines: list[bytes] | int, at: tuple[int, int]
) -> Block:
    """Give every row its row and line number; blank ones among the ``lines`` do not count as rows."""
    total = lines if isinstance(lines, int) else len(lines)
    shaped = np.ones(total, bool)
    shaped[[number for number, _ in odd]] = False
    is_row = np.ones(total, bool)
    is_row[[number for number, text in odd if not text.strip()]] = False
    if not isinstance(lines, int):
        is_row &= np.array([bool(text.strip()) for text in lines])
        keep = pa.array(is_row[shaped])
        columns = {name: values.filter(keep) for name, values in columns.items()}
    numbers = at[0] + np.cumsum(is_row) - 1
    here = shaped & is_row
    shapeless = [
        (int(numbers[number]), at[1] + number, "bad_row", text.rstrip("\r"))
        for number, text in odd
        if text.strip()
    ]
    return Block(columns, numbers[here], at[1] + np.flatnonzero(here), shapeless, int(is_row.sum()))


def _may_be_blank(columns: dict[str, Any]) -> bool:
    """Say whether a row lacks a character in every wanted column, as an empty line does."""
    return (
        bool(columns)
        and min(pa.compute.sum(pa.compute.equal(values, "")).as_py() or 0 for values in columns.values()) > 0
    )


def json_blocks(handle: IO[bytes], schema: Any, size: int) -> Iterator[Block]:
    """Yield the objects of a JSONL file in blocks of about ``size`` bytes, with the fields of ``schema``.

    A field that is missing or of another type is null. A line that holds no object is ``broken_json``.
    """
    row, line = 0, 1
    for data in whole_lines(handle, size):
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        try:
            read = pa.json.read_json(
                pa.BufferReader(data),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            if len(read) != lines or b"\n\n" in data or b"\n\r\n" in data:
                raise pa.ArrowInvalid("not one object a line")
            columns = {name: read[name].combine_chunks() for name in schema.names}
            where = np.arange(lines)
            block = Block(columns, row + where, line + where, [], lines)
        except pa.ArrowInvalid:
            block = _json_line_by_line(data, schema, (row, line))
        yield block
        row, line = row + block.rows, line + lines


def json_text_blocks(handle: IO[bytes], names: tuple[str, ...], size: int) -> Iterator[Block]:
    """Yield the objects of a JSONL file with their fields ``names`` as text, as a CSV file would have them.

    A field that is missing, null, or a list or object is empty text.
    """
    schema = pa.schema([(name, pa.string()) for name in dict.fromkeys(names)])
    row, line = 0, 1
    for data in whole_lines(handle, size):
        block = _json_line_by_line(data, schema, (row, line), _as_text)
        yield block
        row, line = row + block.rows, line + data.count(b"\n")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return repr(value) if type(value) in (int, float) else ""


def _json_line_by_line(data: bytes, schema: Any, at: tuple[int, int], way: Fit | None = None) -> Block:
    row, line = at
    fits: dict[str, Fit] = {field.name: way or _fit(field.type) for field in schema}
    fields: dict[str, list[Any]] = {name: [] for name in fits}
    rows: list[int] = []
    lines: list[int] = []
    shapeless: list[tuple[int, int, str, str]] = []
    for number, record, text in json_lines(data, line):
        if record is None:
            shapeless.append((row, number, "broken_json", text))
        else:
            rows.append(row)
            lines.append(number)
            for name, fit in fits.items():
                fields[name].append(fit(record.get(name)))
        row += 1
    columns = {field.name: pa.array(fields[field.name], field.type) for field in schema}
    return Block(
        columns, np.array(rows, np.int64), np.array(lines, np.int64), shapeless, len(rows) + len(shapeless)
    )


def json_lines(data: bytes, line: int) -> Iterator[tuple[int, Mapping[str, Any] | None, str]]:
    """Yield (line number, object or None if it is none, text) of each line that is not blank."""
    for number, raw in enumerate(_split(data), line):
        text = raw.decode("utf-8", "replace").strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        yield number, record if isinstance(record, dict) else None, text


def _fit(kind: Any) -> Fit:
    """Return a function that gives a JSON value if it is of the Arrow type ``kind``, else None."""

    def whole(value: Any) -> int | None:
        return value if type(value) is int and abs(value) < 2**63 else None

    def number(value: Any) -> float | None:
        return float(value) if type(value) in (int, float) else None

    def text(value: Any) -> str | None:
        return value if isinstance(value, str) else None

    def numbers(value: Any) -> list[int] | None:
        whole_list = isinstance(value, list) and all(whole(one) is not None for one in value)
        return value if whole_list else None

    return {pa.int64(): whole, pa.float64(): number, pa.string(): text}.get(kind, numbers)


def header(first: bytes) -> Table:
    """Read the names of a CSV file's columns from its opening bytes; every column is wanted."""
    text = first.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    delimiter = max(",;\t", key=lambda sign: (text.count(sign), sign == ","))
    names = next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
    stripped = tuple(name.strip() for name in names)
    return Table(stripped, stripped, delimiter)
