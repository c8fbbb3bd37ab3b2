"""Freezing a window set: each of its sources in turn, from files that are given or as surrogates."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from schedulers.errors import InputError
from windtunnel.traffic import FAMILIES, SURROGATE, generated, read_all, surrogates

if TYPE_CHECKING:
    from loadgen.manifest import Frozen
    from loadgen.sets import WindowSet
    from loadgen.trace import Trace

OWN = "own"


class FrozenSet(NamedTuple):
    """A set as it lies in its folder: one freeze a source, and how many windows are as they ship."""

    of: "WindowSet"
    sources: tuple[tuple["Frozen", "tuple[Trace, ...]"], ...]
    as_shipped: int
    shipped: int

    @property
    def manifest_sha256(self) -> str:
        """Digest of the folder's manifest after the last source."""
        return self.sources[-1][0].manifest_sha256

    @property
    def total(self) -> int:
        """Windows in the folder, also those that lay there before."""
        return self.sources[-1][0].total


def freeze_set(
    of: "WindowSet",
    out: Path,
    taken: Mapping[str, Path | None],
    told: Callable[[str], None],
    reading: "Reading | None" = None,
) -> FrozenSet:
    """Freeze the sources ``taken`` (path of the files, None for a surrogate) by the set's recipe into ``out``.

    ``told`` hears each source before its turn. What the folder holds already stays as it is, so a stopped
    freeze goes on. Raises InputError for a source without files, and as ``loadgen.manifest.freeze`` does.
    """
    from loadgen.manifest import freeze
    from loadgen.sets import as_shipped, find_set, write_set

    pool = find_set(of.name).recipe  # generated rows are those of the whole set, also for a part of it
    ample = pool.count * (
        2 if pool.strata == "terciles" else 1
    )  # one third of the rows gives half of the windows
    frozen = []
    for source, path in taken.items():
        told(f"Freezing {of.recipe.count} windows of {source}")
        if path is None:
            traces = generated(source, ample, pool.kind, pool.seed)
        else:
            traces = files_as(source, path, reading or Reading())
        frozen.append((freeze(traces, out, of.recipe), tuple(traces)))
    lines = [line for one, _ in frozen for line in one.lines]
    same, shipped = as_shipped(of, lines)
    write_set(out, of, lines, frozen[-1][0].manifest_sha256)
    return FrozenSet(of, tuple(frozen), same, shipped)


class Reading(NamedTuple):
    """How files are read: a user's names of columns, and whether other files than the official ones will do."""

    columns: Mapping[str, str] = MappingProxyType({})
    unpinned: bool = False


def files_as(source: str, path: Path, reading: Reading) -> "list[Trace]":
    """Read the files of a family, or a user's own file, which then is the source of that name."""
    if source in FAMILIES and source != OWN:
        return read_all(source, path, unpinned=reading.unpinned, columns={})
    traces = read_all(OWN, path, unpinned=False, columns=reading.columns)
    return [trace._replace(info=replace(trace.info, family=source)) for trace in traces]


def sources_of(of: "WindowSet", given: Sequence[str]) -> dict[str, Path | None]:
    """Return the sources to freeze, from ``SOURCE=PATH`` or the name of a surrogate; the set's own if none.

    Raises InputError for a real source without a path, a surrogate with one, and a source named twice.
    """
    if not given:
        lacking = [source for source in of.sources if not source.endswith(SURROGATE)]
        if lacking:
            named = " ".join(f"--from {source}=PATH" for source in lacking)
            fix = f"{named}, or the surrogates: {of.name}-surrogate"
            raise InputError(f"{of.name} is cut from files", where="--from", fix=fix)
        return dict.fromkeys(of.sources)
    taken: dict[str, Path | None] = {}
    for text in given:
        source, equals, path = (part.strip() for part in text.partition("="))
        if source in taken:
            raise InputError(f"{source} is named twice", where="--from", fix="name a folder with its files")
        if not re.fullmatch(r"\w[\w.-]*", source):
            raise InputError(f"{text!r} names no source", where="--from", fix="--from azure2023=traces/azure")
        if source.endswith(SURROGATE) or not equals:
            if source not in surrogates() or path:
                fix = f"SOURCE=PATH for files, or one of {', '.join(surrogates())}"
                raise InputError(f"{text!r} is neither files nor a surrogate", where="--from", fix=fix)
        elif not path:
            raise InputError(f"{source} has no path", where="--from", fix=f"--from {source}=PATH")
        taken[source] = Path(path) if path else None
    return taken
