"""Traffic files as traces: recognised, checked, read in bounded memory, and put in time order.

Every family's traps are those of reference/traces.md section 3. What a file says is kept as it says it: rows
are dropped only for a named, counted reason; tokens and prompts are never repaired.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loadgen.catalogue import by_digest, origin
from loadgen.formats.detect import detect
from loadgen.formats.layout import CAPPED as CAPPED
from loadgen.formats.layout import DITHERED as DITHERED
from loadgen.formats.layout import ORPHAN as ORPHAN
from loadgen.formats.layout import SPREAD as SPREAD
from loadgen.formats.layout import Layout
from loadgen.formats.lineage import chain, family_tree, in_order_of_sight
from loadgen.formats.lines import Fingerprint, fingerprint
from loadgen.formats.reading import SCHEMA, Reading
from loadgen.formats.ties import dither, scatter
from schedulers.errors import InputError

Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]

CHUNK_ROWS = 65_536
_IDS = ("session", "request", "parent")
OWN = "own"
LEAST_KEPT = 0.5
"""A user's own file of which less than this share can be read was described wrongly, and is refused."""


@dataclass(frozen=True)
class TraceInfo:
    """About the file behind a trace; ``rows_read == kept + sum(dropped.values())``.

    ``bytes`` and ``sha256`` name the content: of a published file those of its catalogue entry, whether it
    lies here packed, unpacked, or with other line ends; of any other file those of its unpacked bytes.
    """

    source: str  # "azure2023-code", "burstgpt-1", "csv:NAME", ...
    family: str  # "azure2023", "burstgpt", "own", ...
    label: str  # real | surrogate | unpinned | own
    file: str  # name without folder
    bytes: int
    sha256: str
    rows_read: int
    kept: int
    dropped: dict[str, int]
    moved: int  # rows that stood behind a later one
    t0: str  # time of the first kept row, as the file writes times
    block_tokens: int  # size of a hash block; 0 without prefix ids
    transforms: dict[str, Any]
    licence: str
    citation: str
    generator: str  # "" for files


class Trace(NamedTuple):
    """The kept rows in time order, shape (n,) each."""

    info: TraceInfo
    arrival_ns: Ints  # since the first kept row
    prompt_tokens: SmallInts
    output_tokens: SmallInts
    session: SmallInts  # -1 none
    parent: SmallInts  # row of the parent, -1 none
    source_row: Ints  # data row in the file, 0-based
    kind: npt.NDArray[np.int8]
    kinds: tuple[str, ...]
    flags: npt.NDArray[np.uint8]
    hash_offsets: Ints | None  # (n + 1,)
    hash_ids: SmallInts | None  # chained prefix ids, flat


def parse_columns(text: str) -> dict[str, str]:
    """Read ``ours=theirs,ours=theirs``; raises InputError where an equals sign or a name is missing."""
    told: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        ours, sign, theirs = (piece.strip() for piece in part.partition("="))
        if not (sign and ours and theirs):
            fix = "--columns arrival_s=ts,prompt_tokens=in,output_tokens=out"
            raise InputError(f"{part!r} is not ours=theirs", where="--columns", fix=fix)
        if ours in told:
            raise InputError(f"{ours} is given twice", where="--columns", fix="give each of our names once")
        told[ours] = theirs
    return told


class _Identity(NamedTuple):
    layout: Layout
    label: str
    bytes: int
    sha256: str


def read(
    path: Path,
    *,
    source: str = "auto",
    unpinned: bool = False,
    columns: Mapping[str, str] | None = None,
    rows: int = CHUNK_ROWS,
) -> Trace:
    """Read a traffic file as a trace in time order.

    ``source`` is "auto", a family ("azure2023"), a file of one ("azure2023-code") or "own"; ``columns`` maps
    our names to a user's own (``{"arrival_s": "ts", "prompt_tokens": "in", "output_tokens": "out"}``). A file
    of a published family whose digest is not the published one is refused unless ``unpinned``. ``rows``
    bounds the memory of parsing and changes nothing else. Raises InputError that names file, line, remedy.
    """
    path = Path(path)
    identity = _identify(path, source, unpinned, columns)
    reading = Reading(path, identity.layout)
    columns_read = _gather(reading, rows)
    _check_kept(reading)
    return _in_time_order(columns_read, reading, identity)


def stream(
    path: Path,
    *,
    source: str = "auto",
    unpinned: bool = False,
    columns: Mapping[str, str] | None = None,
    rows: int = CHUNK_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the kept rows in the file's order, ``rows`` at a time, in memory that stays flat.

    Columns are those of ``loadgen.formats.reading.SCHEMA``: times on the file's own clock in ns, ids as the
    file has them. Same arguments and errors as ``read``.
    """
    path = Path(path)
    reading = Reading(path, _identify(path, source, unpinned, columns).layout)
    yield from reading.batches(rows)
    _check_kept(reading)


def _identify(path: Path, source: str, unpinned: bool, columns: Mapping[str, str] | None) -> _Identity:
    """Recognise the file and compare its digest with the published ones (traps G1, G2, G4, B6)."""
    layout = detect(path, source, columns)
    print_ = fingerprint(path)
    if layout.family == OWN:
        return _Identity(layout, OWN, print_.unpacked_bytes, print_.unpacked_sha256)
    entry = by_digest(print_.forms())
    if entry is not None and entry.origin.family == layout.family:
        if source not in ("auto", layout.family, entry.name):
            raise InputError(
                f"this is {entry.name}, not {source}", where=str(path), fix=f"--source {entry.name} or auto"
            )
        layout = detect(path, entry.name, columns)
        return _Identity(layout, "real", entry.bytes or _size(print_, entry.sha256), entry.sha256)
    if not unpinned:
        raise InputError(
            f"reads as {layout.source}, but its digest {print_.unpacked_sha256[:12]}... is not a published "
            "one: cut short, changed, or made up",
            where=str(path),
            fix="`windtunnel traces fetch` it again, or pass --unpinned to use it under that label",
        )
    return _Identity(layout, "unpinned", print_.unpacked_bytes, print_.unpacked_sha256)


def _size(print_: Fingerprint, sha256: str) -> int:
    sizes = {
        print_.stored_sha256: print_.stored_bytes,
        print_.crlf_sha256: print_.crlf_bytes,
        print_.unpacked_sha256: print_.unpacked_bytes,
    }
    return sizes[sha256]


def _check_kept(reading: Reading) -> None:
    """Refuse a file without rows, without good rows, or (a user's own) with too few good ones."""
    where, shown = str(reading.path), "; ".join(reading.first_bad)
    if not reading.rows_read:
        raise InputError("no data rows", where=where, fix="fetch or export the file again")
    if not reading.kept:
        raise InputError(
            f"none of {reading.rows_read} rows can be used",
            where=f"{where}, {shown}",
            fix="mend the rows named",
        )
    if reading.layout.family == OWN and reading.kept < LEAST_KEPT * reading.rows_read:
        raise InputError(
            f"only {reading.kept} of {reading.rows_read} rows can be used",
            where=f"{where}, {shown}",
            fix="check --columns and their units, or remove the rows named",
        )


def _gather(reading: Reading, rows: int) -> dict[str, Any]:
    """Collect the kept rows as one array a column; an id that no row has (all -1) takes no memory."""
    parts: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for batch in reading.batches(rows):
        for name in SCHEMA.names:
            column = batch[name]
            if name == "hash_ids":
                parts[name] += [column] if reading.layout.block_tokens else []
            elif name in _IDS and bool((column.to_numpy() == -1).all()):
                parts[name].append(np.broadcast_to(np.int64(-1), len(column)))
            else:
                parts[name].append(column.to_numpy())
    gathered: dict[str, Any] = {
        "hash_ids": pa.concat_arrays(parts["hash_ids"]) if parts["hash_ids"] else None
    }
    for name in SCHEMA.names[:-1]:
        pieces, parts[name] = parts[name], []
        if not any(piece.strides[0] for piece in pieces):
            gathered[name] = np.broadcast_to(np.int64(-1), reading.kept)
        else:
            gathered[name] = np.concatenate(pieces)
    return gathered


def _in_time_order(table: dict[str, Any], reading: Reading, identity: _Identity) -> Trace:
    """Sort by time (stably: equal stamps keep the file's order), make ties finer, resolve ids."""
    layout = identity.layout
    stamp: Ints = table["stamp_ns"]
    late = stamp < np.maximum.accumulate(stamp)
    moved = int(np.count_nonzero(late))
    if moved:
        order = np.argsort(stamp, kind="stable")
        listed = table["hash_ids"]
        table = {name: column[order] for name, column in table.items() if name != "hash_ids"}
        table["hash_ids"] = None if listed is None else listed.take(pa.array(order))
        stamp = table["stamp_ns"]
    flags = table["flags"]
    transforms: dict[str, Any] = {"rebased": True}
    if layout.columns:
        transforms["columns"] = layout.columns  # what it takes to read the same file again
    arrival = _untied(stamp, flags, layout, transforms)
    request, parent = table["request"], table["parent"]
    if (request >= 0).any():
        tree = family_tree(request, parent)
        parents, sessions = tree.parent, tree.session
        flags[tree.orphan] |= ORPHAN
    else:
        parents = np.full(len(stamp), -1, np.int32)
        sessions = in_order_of_sight(table["session"])
    offsets = ids = None
    if layout.block_tokens:
        listed = table["hash_ids"]
        offsets = listed.offsets.to_numpy().astype(np.int64)
        ids = chain(offsets - offsets[0], listed.flatten().to_numpy())
        offsets = offsets - offsets[0]
        transforms["chained"] = True
    return Trace(
        info=_info(reading, identity, layout.clock(int(stamp[0])), moved, transforms),
        arrival_ns=arrival - arrival[0],
        prompt_tokens=table["prompt_tokens"],
        output_tokens=table["output_tokens"],
        session=sessions,
        parent=parents,
        source_row=table["source_row"],
        kind=table["kind"],
        kinds=reading.kinds,
        flags=flags,
        hash_offsets=offsets,
        hash_ids=ids,
    )


def _untied(stamp: Ints, flags: npt.NDArray[np.uint8], layout: Layout, transforms: dict[str, Any]) -> Ints:
    """Spread rows whose stamps are coarser than ns; sets flags and says in ``transforms`` what was done."""
    distinct = 1 + int(np.count_nonzero(np.diff(stamp)))
    if not layout.tie_ns or distinct > layout.tie_share * len(stamp):
        return stamp
    if layout.tie_flag == DITHERED:
        spread = dither(stamp, layout.tie_ns, layout.source)
    else:
        spread = scatter(stamp, layout.tie_ns, layout.source)
    flags |= layout.tie_flag
    name = "dithered" if layout.tie_flag == DITHERED else "spread"
    # The first row's shift gives the raw stamp back: floor(arrival + shift) to the step, plus t0.
    transforms[name] = {"over_s": layout.tie_ns / 1e9, "first_shift_ns": int(spread[0] - stamp[0])}
    return spread


def _info(
    reading: Reading, identity: _Identity, t0: str, moved: int, transforms: dict[str, Any]
) -> TraceInfo:
    layout, whose = identity.layout, origin(identity.layout.family)
    return TraceInfo(
        source=layout.source,
        family=layout.family,
        label=identity.label,
        file=reading.path.name,
        bytes=identity.bytes,
        sha256=identity.sha256,
        rows_read=reading.rows_read,
        kept=reading.kept,
        dropped=dict(sorted(reading.dropped.items())),
        moved=moved,
        t0=t0,
        block_tokens=layout.block_tokens,
        transforms=transforms,
        licence=whose.licence,
        citation=whose.citation,
        generator="",
    )
