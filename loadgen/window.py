"""Windows: frozen slices of a trace, with their luck, their digest and their form in parquet.

The window is the unit of replication. Its identity is the content digest, which is taken over values and
never over a file's bytes, so that another version of the parquet writer freezes the same window
(reference/traces.md 7.3).
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.candidate import KINDS, Descriptors, describe
from loadgen.draws import normals, uniforms
from loadgen.trace import ORPHAN, Trace
from schedulers.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WINDOWS = "windows"
"""Folder of the parquet files, beside the manifest."""

DRAWN = ("luck", "tier_luck", "tenant_luck", "forecast_luck")
"""Columns of luck; ``forecast_luck`` is standard normal, the others are uniform in [0, 1)."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "arrival_s": "float64",
        "prompt_tokens": "int32",
        "output_tokens": "int32",
        "session": "int32?",
        "parent": "int32?",
        "source_row": "int64",
        "class": "utf8",
        "hash_ids": "list<int32>",
        "flags": "uint8",
        **dict.fromkeys(DRAWN, "float64"),
    }
)
"""Columns in the order of the canonical dump; ``?``: may hold nulls; ``hash_ids`` may be absent."""


@dataclass(frozen=True)
class ManifestLine:
    """Where a window comes from and what it is; one JSON object in ``manifest.jsonl``.

    ``first_row`` counts kept rows of the file, from 0; ``t0`` is the time of that row as the file tells time.
    """

    id: str
    kind: str
    source: str  # the family, which is compared across sources
    trace: str  # the file's own name in its family
    label: str  # "real" | "surrogate" | "unpinned" | "own"
    file: str
    bytes: int
    sha256: str
    first_row: int
    rows: int
    t0: str
    span_s: float
    content_sha256: str
    file_sha256: str
    descriptors: Descriptors
    stratum: str
    split: str
    seed: int
    transforms: dict[str, Any]
    generator: str
    licence: str
    citation: str
    block_tokens: int = 0  # size of a hash block, 0 if no prefix hashes


class Window(NamedTuple):
    """One frozen window, shape (n,) each; ``session`` and ``parent`` are -1 where there is none.

    ``parent`` is a row of the window; a request whose parent lies outside has none and carries the flag
    ORPHAN.
    """

    line: ManifestLine
    arrival_s: Floats  # from the first row of the window
    prompt_tokens: Ints
    output_tokens: Ints
    session: Ints
    parent: Ints
    source_row: Ints
    luck: Floats
    tier_luck: Floats
    tenant_luck: Floats
    forecast_luck: Floats
    flags: npt.NDArray[np.uint8]
    hash_offsets: Ints | None = None  # shape (n + 1,)
    hash_ids: npt.NDArray[np.int32] | None = None
    kind: npt.NDArray[np.int8] | None = None  # row of ``kinds``
    kinds: tuple[str, ...] = ()

    @property
    def scored(self) -> tuple[int, int]:
        """Rows [lo, hi) whose results count: the middle, after the system has filled and before it drains."""
        return scored_rows(self.line.kind, len(self.arrival_s))


def scored_rows(kind: str, rows: int) -> tuple[int, int]:
    """Return rows [lo, hi) that are scored in a window of this kind with so many rows."""
    spec = KINDS[kind]
    scored = rows * spec.scored // spec.rows
    first = (rows - scored) // 2
    return first, first + scored


def cut(trace: Trace, first_row: int, rows: int, kind: str, seed: int) -> Window:
    """Cut kept rows [first_row, first_row + rows) and draw their luck; same arguments, same bytes.

    The line lacks what only a choice among windows can know (stratum, split) and the file's digest. Raises
    InputError if the trace does not have these rows or the kind is unknown.
    """
    total = len(trace.arrival_ns)
    if kind not in KINDS:
        raise InputError(f"unknown kind of window {kind!r}", fix=f"use one of {', '.join(KINDS)}")
    if first_row < 0 or rows < 1 or first_row + rows > total:
        raise InputError(
            f"rows {first_row} to {first_row + rows - 1} were asked for, but {total} were kept",
            where=trace.info.file,
            fix="cut inside the file",
        )
    part = slice(first_row, first_row + rows)
    parent = trace.parent[part].astype(np.int64) - first_row
    outside = (trace.parent[part] >= 0) & ((parent < 0) | (parent >= rows))
    parent[(trace.parent[part] < 0) | outside] = -1
    elapsed_ns = trace.arrival_ns[part] - trace.arrival_ns[first_row]
    offsets, ids = prefixes(trace, first_row, rows)
    nothing = np.zeros(rows)
    bare = Window(
        line=line_of(trace, first_row, rows, kind, seed),
        arrival_s=elapsed_ns / 1e9,
        prompt_tokens=trace.prompt_tokens[part].astype(np.int64),
        output_tokens=trace.output_tokens[part].astype(np.int64),
        session=trace.session[part].astype(np.int64),
        parent=parent,
        source_row=trace.source_row[part].astype(np.int64),
        luck=nothing,
        tier_luck=nothing,
        tenant_luck=nothing,
        forecast_luck=nothing,
        flags=(trace.flags[part] | np.where(outside, ORPHAN, 0)).astype(np.uint8),
        hash_offsets=offsets,
        hash_ids=ids,
        kind=trace.kind[part].astype(np.int8),
        kinds=trace.kinds,
    )
    return named(with_luck(bare, seed))


def prefixes(trace: Trace, first_row: int, rows: int) -> tuple[Ints | None, npt.NDArray[np.int32] | None]:
    """Return the prefix ids of the rows, offsets from 0; (None, None) if the trace has none."""
    if trace.hash_offsets is None or trace.hash_ids is None:
        return None, None
    offsets = trace.hash_offsets[first_row : first_row + rows + 1].astype(np.int64)
    return offsets - offsets[0], trace.hash_ids[offsets[0] : offsets[-1]].astype(np.int32)


def with_luck(bare: Window, seed: int) -> Window:
    """Return the window with its columns of luck, keyed by seed, content before draws, column and row."""
    digest, rows = content_sha256(bare, drawn=False), len(bare.arrival_s)
    return bare._replace(
        luck=uniforms(seed, digest, "luck", rows),
        tier_luck=uniforms(seed, digest, "tier_luck", rows),
        tenant_luck=uniforms(seed, digest, "tenant_luck", rows),
        forecast_luck=normals(seed, digest, "forecast_luck", rows),
    )


def named(window: Window) -> Window:
    """Return the window with its content digest and the id that is made from it."""
    digest, line = content_sha256(window), window.line
    name = f"{line.source}-{line.kind}-{digest[:10]}"
    return window._replace(line=replace(line, content_sha256=digest, id=name))


def line_of(trace: Trace, first_row: int, rows: int, kind: str, seed: int) -> ManifestLine:
    """Return the line of a window that has no digest yet."""
    info = trace.info
    first_ns, last_ns = int(trace.arrival_ns[first_row]), int(trace.arrival_ns[first_row + rows - 1])
    return ManifestLine(
        id="",
        kind=kind,
        source=source_name(info.family, kind),
        trace=info.source,
        label=info.label,
        file=info.file,
        bytes=info.bytes,
        sha256=info.sha256,
        first_row=first_row,
        rows=rows,
        t0=later(info.t0, first_ns),
        span_s=(last_ns - first_ns) / 1e9,
        content_sha256="",
        file_sha256="",
        descriptors=describe(trace, first_row, rows),
        stratum="",
        split="",
        seed=seed,
        transforms=dict(info.transforms),
        generator=info.generator,
        licence=info.licence,
        citation=info.citation,
        block_tokens=info.block_tokens,
    )


def source_name(family: str, kind: str) -> str:
    """Return the source's name; short windows use up Azure's hour, leave no held-out part and say so."""
    return f"{family}_short" if (family, kind) == ("azure2023", "short") else family


def later(t0: str, elapsed_ns: int) -> str:
    """Return the time ``elapsed_ns`` after ``t0``, in the form of ``t0`` (seconds or ISO time), to 1 ns.

    A text that is neither comes back as ``TEXT + SECONDS s``.
    """
    try:
        seconds = Decimal(t0) + Decimal(elapsed_ns).scaleb(-9)
        return format(seconds.normalize(), "f")
    except InvalidOperation:
        pass
    head, dot, rest = t0.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if dot else ""
    try:
        whole = datetime.fromisoformat(head)
    except ValueError:
        return f"{t0} + {elapsed_ns / 1e9:.9f} s"
    carried, nanos = divmod(int(digits[:9].ljust(9, "0")) + elapsed_ns, 10**9)
    text = (whole + timedelta(seconds=carried)).isoformat(sep=" " if " " in head else "T")
    if not dot:  # the zone, if any, follows the whole seconds
        return text[:19] + f".{nanos:09d}" + text[19:]
    return f"{text}.{nanos:09d}{zone}"


def columns(window: Window) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of numbers of a window by name, in the order of the dump."""
    return {name: getattr(window, name) for name in TYPES if name not in ("class", "hash_ids")}


def classes(window: Window) -> list[str]:
    """Return the class of each row by name; "" where the window has none."""
    if window.kind is None or not window.kinds:
        return [""] * len(window.arrival_s)
    return [window.kinds[code] for code in window.kind.tolist()]


def content_sha256(window: Window, *, drawn: bool = True) -> str:
    """Return the sha256 of the canonical dump, with or without the columns of luck.

    The dump: rows as little-endian int64; then for each column in the order of TYPES its name, a zero
    byte, its type, a zero byte and its little-endian values. Texts and lists are int64 offsets, then
    values. A null is a 0 among the values; columns that may be null end with a bitmap, lowest bit first,
    1 where there is a value.
    """
    digest = hashlib.sha256(np.int64(len(window.arrival_s)).astype("<i8").tobytes())
    flat = columns(window)
    for name, kind in TYPES.items():
        if (name in DRAWN and not drawn) or (name == "hash_ids" and window.hash_ids is None):
            continue
        digest.update(f"{name}\0{kind.rstrip('?')}\0".encode())
        for part in dump(window, flat, name):
            digest.update(part)
    return digest.hexdigest()


def dump(window: Window, flat: dict[str, npt.NDArray[Any]], name: str) -> Iterator[bytes]:
    """Yield the bytes of one column's values."""
    kind = TYPES[name]
    if kind == "list<int32>":
        yield np.asarray(window.hash_offsets).astype("<i8").tobytes()
        yield np.asarray(window.hash_ids).astype("<i4").tobytes()
    elif kind == "utf8":
        texts = [text.encode() for text in classes(window)]
        yield np.cumsum([0, *map(len, texts)]).astype("<i8").tobytes()
        yield b"".join(texts)
    elif kind.endswith("?"):
        values = flat[name]
        yield np.where(values < 0, 0, values).astype("<i4").tobytes()
        yield np.packbits(values >= 0, bitorder="little").tobytes()
    else:
        yield flat[name].astype(np.dtype(kind).newbyteorder("<")).tobytes()


def to_parquet(window: Window) -> bytes:
    """Return the window as a parquet file; ``block_tokens`` stands in its metadata."""
    flat = columns(window)
    arrays: dict[str, pa.Array] = {}
    for name, kind in TYPES.items():
        if kind == "utf8":
            arrays[name] = pa.array(classes(window), pa.string()).dictionary_encode()
        elif kind == "list<int32>":
            if window.hash_ids is not None:
                offsets = pa.array(window.hash_offsets, pa.int32())
                arrays[name] = pa.ListArray.from_arrays(offsets, pa.array(window.hash_ids, pa.int32()))
        else:
            mask = flat[name] < 0 if kind.endswith("?") else None
            arrays[name] = pa.array(flat[name].astype(kind.rstrip("?")), mask=mask)
    table = pa.table(arrays, metadata={"block_tokens": str(window.line.block_tokens)})
    sink = pa.BufferOutputStream()
    # Chained ids mostly count up: as differences they take a thirteenth of the bytes.
    packed = {"hash_ids.list.element": "DELTA_BINARY_PACKED"} if "hash_ids" in arrays else None
    pq.write_table(table, sink, compression="zstd", use_dictionary=["class"], column_encoding=packed)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def from_parquet(payload: bytes, line: ManifestLine, where: str) -> Window:
    """Read a window back. Raises InputError if the bytes are not the window that ``line`` promises."""
    fix = "freeze it again with `windtunnel windows freeze`, same options and folder"
    try:
        table = pq.read_table(pa.BufferReader(payload))
        window = read_columns(table, line)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, KeyError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"the window cannot be read ({reason})", where=where, fix=fix) from error
    found = content_sha256(window)
    if found != line.content_sha256:
        raise InputError(
            f"the window is not the one that was frozen: content digest {found[:12]}, "
            f"manifest {line.content_sha256[:12]}",
            where=where,
            fix=fix,
        )
    return window


def read_columns(table: pa.Table, line: ManifestLine) -> Window:
    """Return a parquet table of ours as a window, unchecked."""

    def flat(name: str) -> npt.NDArray[Any]:
        column = table[name].combine_chunks()
        if TYPES[name].endswith("?"):
            return np.asarray(column.fill_null(-1)).astype(np.int64)
        if TYPES[name] == "int32":
            return np.asarray(column).astype(np.int64)
        return np.asarray(column)

    coded = pa.chunked_array(table["class"]).combine_chunks()
    offsets = ids = None
    if "hash_ids" in table.column_names:
        lists = table["hash_ids"].combine_chunks()
        offsets, ids = np.asarray(lists.offsets).astype(np.int64), np.asarray(lists.values)
    values = {name: flat(name) for name in TYPES if name not in ("class", "hash_ids")}
    return Window(
        line=line,
        **values,
        hash_offsets=offsets,
        hash_ids=ids,
        kind=np.asarray(coded.indices).astype(np.int8),
        kinds=tuple(coded.dictionary.to_pylist()),
    )


def window_path(folder: Path, line: ManifestLine) -> Path:
    """Return where the window of this line lies."""
    return folder / WINDOWS / f"{line.id}.parquet"


def read_window(folder: Path, line: ManifestLine) -> Window:
    """Read the window of a manifest line; its content digest is checked each time.

    Raises InputError that names the file and the remedy if it is missing, damaged or another window.
    """
    path = window_path(folder, line)
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the window's file is missing or unreadable ({error.strerror})",
            where=str(path),
            fix="freeze it again with `windtunnel windows freeze`, same options and folder",
        ) from error
    return from_parquet(payload, line, str(path))
