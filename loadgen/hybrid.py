"""Hybrid windows: each axis of the traffic, arrivals, lengths and tenants, taken from one of two windows.

Reference statistics, section 9. Row k of a hybrid has the k-th arrival of one window and the k-th pair of
lengths of the other: by rank in the order of arrival, so that bursts stay bursts and prompt and output stay
together. What is lost is how lengths depend on the moment; a swap of both brings that back, as interaction.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from loadgen.candidate import Descriptors, describe
from loadgen.manifest import write_manifest, write_whole
from loadgen.trace import Trace, TraceInfo
from loadgen.window import ManifestLine, Window, named, to_parquet, window_path
from schedulers.errors import InputError

HYBRID = "hybrid"
"""Label of a window whose axes come from two windows: neither is what was recorded."""

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "arrivals": ("arrival_s", "source_row", "flags", "luck", "tier_luck"),
        "lengths": (
            "prompt_tokens", "output_tokens", "kind", "kinds", "hash_offsets", "hash_ids", "forecast_luck",
        ),
        "tenants": ("session", "parent", "tenant_luck"),
    }
)  # fmt: skip
"""Columns that travel with an axis. Luck goes with what it decides: forecasts err about lengths, tenants are
drawn a conversation. The luck of tiers goes with arrivals, not with targets: equal targets must change nothing."""


def has_tenants(windows: Iterable[Window]) -> bool:
    """Return whether any window tells conversations: without them tenants are luck, and no axis of their own."""
    return any(bool((window.session >= 0).any()) for window in windows)


def cross(base: Window, other: Window, taken: frozenset[str]) -> Window:
    """Return ``base`` with the axes ``taken`` (of COLUMNS) from ``other``.

    With no axis taken it is ``base`` itself and with all of them ``other``, bit for bit, id and line too.
    Raises InputError if the windows differ in kind or rows.
    """
    if not taken:
        return base
    if taken == COLUMNS.keys():
        return other
    one, two = base.line, other.line
    if (one.kind, len(base.arrival_s)) != (two.kind, len(other.arrival_s)):
        raise InputError(
            f"{one.id} ({one.kind}, {one.rows} rows) and {two.id} ({two.kind}, {two.rows} rows) can't be crossed",
            where=two.id,
            fix="freeze windows of one kind for both sources",
        )
    swapped = {name: getattr(other, name) for axis in sorted(taken) for name in COLUMNS[axis]}
    whose = {axis: two if axis in taken else one for axis in COLUMNS}
    name = source_of(whose["arrivals"], whose["lengths"], whose["tenants"])
    made = base._replace(**swapped)
    line = replace(
        made_line(made, one, HYBRID, {HYBRID: {axis: line.id for axis, line in whose.items()}}),
        source=name,
        trace=name,
        block_tokens=whose["lengths"].block_tokens,
    )
    return named(made._replace(line=line))


def source_of(arrivals: ManifestLine, lengths: ManifestLine, tenants: ManifestLine) -> str:
    """Return the source's name of such a hybrid; tenants are named where they don't come with the arrivals."""
    told = "" if tenants.source == arrivals.source else f".tenants-{tenants.source}"
    return f"arrivals-{arrivals.source}.lengths-{lengths.source}{told}"


def made_line(window: Window, base: ManifestLine, label: str, how: Mapping[str, Any]) -> ManifestLine:
    """Return the line of a window that was made from ``base``: described anew, labelled, with how it was made.

    ``verify`` can compare its rows with its digest; it can't be cut again from a source file, and says so.
    """
    return replace(
        base,
        id="",
        label=label,
        file=base.id,
        bytes=0,
        sha256=base.content_sha256,
        first_row=0,
        rows=len(window.arrival_s),
        span_s=float(window.arrival_s[-1] - window.arrival_s[0]),
        content_sha256="",
        file_sha256="",
        descriptors=descriptors(window, base),
        transforms={**base.transforms, **how},
        generator="",
    )


def descriptors(window: Window, line: ManifestLine) -> Descriptors:
    """Return what is known of a made window before any scheduler has met it, as of one that was cut."""
    info = TraceInfo(
        source=line.trace, family=line.source, label=line.label, file=line.file, bytes=0, sha256="",
        rows_read=line.rows, kept=line.rows, dropped={}, moved=0, t0=line.t0, block_tokens=line.block_tokens,
        transforms={}, licence=line.licence, citation=line.citation, generator="",
    )  # fmt: skip
    trace = Trace(
        info=info,
        arrival_ns=np.round(window.arrival_s * 1e9).astype(np.int64),
        prompt_tokens=window.prompt_tokens.astype(np.int32),
        output_tokens=window.output_tokens.astype(np.int32),
        session=window.session.astype(np.int32),
        parent=window.parent.astype(np.int32),
        source_row=window.source_row,
        kind=np.zeros(len(window.arrival_s), np.int8),
        kinds=("",),
        flags=window.flags,
        hash_offsets=None,
        hash_ids=None,
    )
    return describe(trace, 0, len(window.arrival_s))


def freeze_made(folder: Path, windows: Sequence[Window]) -> tuple[ManifestLine, ...]:
    """Write windows that were made, not cut, into a folder that ``sweep`` can read; return their lines.

    Raises InputError if the disk refuses.
    """
    lines = []
    for window in windows:
        payload = to_parquet(window)
        line = replace(window.line, file_sha256=hashlib.sha256(payload).hexdigest())
        write_whole(window_path(folder, line), payload)
        lines.append(line)
    write_manifest(folder, lines)
    return tuple(lines)
