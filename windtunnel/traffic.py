"""Where traffic comes from: the files of a source, a user's own file, or a surrogate that is generated."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from schedulers.errors import InputError

if TYPE_CHECKING:
    from loadgen.trace import Trace

SURROGATE = "_surrogate"
FAMILIES = ("azure2023", "azure2024", "burstgpt", "bailian", "mooncake", "own")
SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz", ".json", ".json.gz")
POOL = {"burstgpt_surrogate": 14.0, "bailian_surrogate": 1.5}
"""Rows generated for each row wanted, so that strata can be filled; 4 elsewhere."""


def generated(source: str, count: int, kind: str, seed: int) -> "list[Trace]":
    """Generate the parts of a surrogate, long enough to choose ``count`` windows of this kind from."""
    from loadgen.candidate import KINDS, rules
    from loadgen.surrogate import PARTS, generate

    if source not in PARTS:
        raise InputError(f"no surrogate {source!r}", where="--source", fix=f"use one of {', '.join(PARTS)}")
    shares = dict(rules(source).shares)
    parts = {part: shares.get(part.rpartition("-")[2], 1.0) for part in PARTS[source]}
    rows = count * KINDS[kind].rows * POOL.get(source, 4.0) / sum(parts.values())
    least = 4 * KINDS[kind].rows
    return [generate(part, rows=max(least, round(rows * share)), seed=seed) for part, share in parts.items()]


def read_all(source: str, path: Path | None, *, unpinned: bool, columns: Mapping[str, str]) -> "list[Trace]":
    """Read the files of one source: a file, or those of its family in a folder."""
    from loadgen.trace import read

    if path is None:
        hint = f", or --source {source}{SURROGATE}" if f"{source}{SURROGATE}" in surrogates() else ""
        raise InputError(f"{source} needs its files", where="--from", fix=f"--from FILE_OR_FOLDER{hint}")
    return [
        read(file, source=source, unpinned=unpinned, columns=columns or None)
        for file in files_of(source, path)
    ]


def surrogates() -> tuple[str, ...]:
    """Names of the surrogates that can be generated."""
    from loadgen.surrogate import PARTS

    return tuple(PARTS)


def files_of(source: str, path: Path) -> list[Path]:
    """Return the files to read: ``path`` itself, or the files of the family in that folder or one below.

    Of a file that is there with and without failed requests, the one without is taken (BurstGPT).
    """
    from loadgen.formats.detect import detect

    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError("no such file or folder", where=str(path), fix="check --from")
    if source == "own":
        raise InputError("a folder, not a file", where=str(path), fix="name your file with --from")
    found = []
    for file in sorted(file for file in (*path.glob("*"), *path.glob("*/*")) if is_traffic(file)):
        try:
            layout = detect(file)
        except InputError:
            continue  # another kind of file; what is left to read says what is wrong, if nothing is
        if source in (layout.family, layout.source):
            found.append(file)
    if not found:
        raise InputError(
            f"no file of {source} in the folder",
            where=str(path),
            fix=f"windtunnel traces fetch {source}, or name a file; families: {', '.join(FAMILIES)}",
        )
    return without_failed(found)


def is_traffic(path: Path) -> bool:
    """Could this be a traffic file, by its name?"""
    return path.name.lower().endswith(SUFFIXES) and path.is_file()


def without_failed(files: list[Path]) -> list[Path]:
    """Leave out each file that stands there without its failed requests too."""
    names = {file.name.removesuffix(".gz") for file in files}
    return [
        file
        for file in files
        if file.name.removesuffix(".gz").replace("_", "_without_fails_", 1) not in names
    ]
