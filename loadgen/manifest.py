"""The manifest of a folder of windows: written with the windows, read back strictly, verified on demand.

A folder holds ``manifest.jsonl`` (one line a window, sorted by id) and ``windows/ID.parquet``. Every file is
written under a temporary name and then renamed, the manifest last: what carries a final name is whole.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from loadgen.candidate import KINDS, Recipe
from loadgen.choose import Choice, Pick, choose
from loadgen.trace import Trace, read
from loadgen.window import (
    WINDOWS,
    ManifestLine,
    Window,
    cut,
    read_window,
    source_name,
    to_parquet,
    window_path,
)
from schedulers.errors import InputError

MANIFEST = "manifest.jsonl"
EQUAL, DIFFERS, CANNOT_TELL = "equal", "differs", "cannot tell"


class Frozen(NamedTuple):
    """What one freeze left in its folder."""

    folder: Path
    lines: tuple[ManifestLine, ...]  # of this freeze, in the order of the draw
    choice: Choice
    written: int  # windows written now; the others were there already, unchanged
    total: int  # windows in the folder
    manifest_sha256: str


class Verdict(NamedTuple):
    """What ``verify`` found about one window; ``note`` says why, and what to do."""

    id: str
    answer: str  # EQUAL, DIFFERS or CANNOT_TELL
    note: str


def freeze(traces: Sequence[Trace], out: Path, recipe: Recipe) -> Frozen:
    """Choose windows of one source, cut them and add them to the folder ``out``.

    ``traces`` are the source's files. Lines of other windows in the folder stay. Raises InputError if no
    window can be chosen, if the folder holds the same rows with other luck, or if the disk is full.
    """
    ordered = checked(traces)
    choice = choose(ordered, recipe)
    if not choice.picked:
        files = ", ".join(trace.info.file for trace in ordered)
        longest = max(trace.info.kept for trace in ordered)
        raise InputError(none_chosen(choice, recipe), where=files, fix=cure(longest, recipe))
    windows = [frozen(ordered, pick, recipe) for pick in choice.picked]
    there = {line.id: line for line in written_lines(out)} if (out / MANIFEST).is_file() else {}
    for window, _ in windows:
        refuse_overlap(window.line, there.values(), out)
    lines, written = [], 0
    for window, payload in windows:
        line = unchanged(out, there.get(window.line.id), window.line)
        if line is None:
            line = window.line
            write_whole(window_path(out, line), payload)
            written += 1
        lines.append(line)
    everything = there | {line.id: line for line in lines}
    write_manifest(out, tuple(everything.values()))
    return Frozen(out, tuple(lines), choice, written, len(everything), manifest_sha256(out))


def checked(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces by name. Raises InputError unless they are different files of one source."""
    ordered = sorted(traces, key=lambda trace: trace.info.source)
    names = [trace.info.source for trace in ordered]
    families = sorted({trace.info.family for trace in ordered})
    if len(families) != 1:
        raise InputError(
            f"windows are frozen from one source at a time, not from {', '.join(families) or 'none'}",
            fix="name one family with --source",
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        files = ", ".join(trace.info.file for trace in ordered if trace.info.source == twice)
        raise InputError(f"several files hold {twice}", where=files, fix="name one of them with --from")
    for trace in ordered:
        if (trace.info.label == "surrogate") != trace.info.family.endswith("_surrogate"):
            raise InputError(
                f"{trace.info.source} is labelled {trace.info.label}, which its name does not say",
                fix="a surrogate's name, and no other, ends with _surrogate",
            )
    return ordered


def none_chosen(choice: Choice, recipe: Recipe) -> str:
    """Say why there is no window."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in choice.rejected.items())
    tried = f"{choice.candidates} candidates, rejected: {reasons}" if choice.candidates else "no rows to cut"
    return f"no window of {KINDS[recipe.kind].rows} rows can be cut ({tried})"


def cure(longest: int, recipe: Recipe) -> str:
    """Say what would help, where the longest file has so many rows."""
    fitting = {name: kind.rows for name, kind in KINDS.items() if kind.rows <= longest}
    smaller = [name for name, rows in fitting.items() if rows < KINDS[recipe.kind].rows]
    return "use a longer file" + (f", or smaller windows: --kind {smaller[0]}" if smaller else "")


def frozen(traces: Sequence[Trace], pick: Pick, recipe: Recipe) -> tuple[Window, bytes]:
    """Cut one pick and return it with its final line, and its bytes as a file."""
    one = pick.candidate
    window = cut(traces[one.trace], one.first_row, one.rows, recipe.kind, recipe.seed)
    payload = to_parquet(window)
    family = traces[one.trace].info.family
    held_out = source_name(family, recipe.kind) == family
    line = replace(
        window.line,
        descriptors=one.descriptors,
        stratum=pick.stratum,
        split=pick.split if held_out else "dev",
        file_sha256=hashlib.sha256(payload).hexdigest(),
    )
    return window._replace(line=line), payload


def refuse_overlap(line: ManifestLine, there: Iterable[ManifestLine], out: Path) -> None:
    """Raise InputError if the folder holds a window of this kind with some of the same rows."""
    end = line.first_row + line.rows
    for other in there:
        same = other.kind == line.kind and drawn_from(other) == drawn_from(line)
        shared = other.first_row < end and line.first_row < other.first_row + other.rows
        if same and shared and other.id != line.id:
            raise InputError(
                f"{other.id}, frozen here before with another seed or count, has rows in common with "
                f"{line.id}: together they would count the same traffic twice",
                where=str(out / MANIFEST),
                fix="freeze into another folder, or with the options that were used before",
            )


def drawn_from(line: ManifestLine) -> tuple[str, str]:
    """Return what tells the rows of one trace from those of another; a longer surrogate has the same rows."""
    seed = line.transforms.get("seed") if line.label == "surrogate" else None
    return line.trace, line.sha256 if seed is None else f"seed {seed}"


def unchanged(out: Path, old: ManifestLine | None, new: ManifestLine) -> ManifestLine | None:
    """Return the old line if its window still stands as frozen and only the file's bytes could differ."""
    if old is None or as_json(replace(old, file_sha256="")) != as_json(replace(new, file_sha256="")):
        return None
    path = window_path(out, old)
    whole = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == old.file_sha256
    return old if whole else None


def write_whole(path: Path, payload: bytes) -> None:
    """Write a file so that its final name never holds half of it. Raises InputError if the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(payload)
        os.replace(temporary, path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise InputError(
            "the disk is full" if full else f"the file cannot be written ({error.strerror or error})",
            where=str(path),
            fix="make room and run the command again: what was written before is kept"
            if full
            else "choose a folder that you may write to",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def as_json(line: ManifestLine) -> str:
    """Return one line of the manifest, without the newline."""
    return json.dumps(asdict(line), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def write_manifest(folder: Path, lines: Sequence[ManifestLine]) -> None:
    """Write ``manifest.jsonl`` with these lines, sorted by id."""
    text = "".join(f"{as_json(line)}\n" for line in sorted(lines, key=lambda line: line.id))
    write_whole(folder / MANIFEST, text.encode())


def read_manifest(folder: Path) -> tuple[ManifestLine, ...]:
    """Read the lines of a folder of windows, in the file's order.

    Raises InputError that names a bad line, or the file if it holds none: that agrees with everything.
    """
    lines = written_lines(folder)
    if not lines:
        raise InputError(
            "the manifest holds no windows",
            where=str(folder / MANIFEST),
            fix="restore the file, or fill it again with the same `windtunnel windows freeze`",
        )
    return lines


def written_lines(folder: Path) -> tuple[ManifestLine, ...]:
    """Read the lines of a folder to which windows may yet be added: there may be none."""
    lines = []
    for number, text in enumerate(manifest_bytes(folder).decode(errors="replace").splitlines(), start=1):
        try:
            line = ManifestLine(**json.loads(text))
            if line.kind not in KINDS or not re.fullmatch(r"[\w][\w.-]*", line.id):
                raise ValueError("unknown kind or bad id")
        except (ValueError, TypeError) as error:
            raise InputError(
                f"the line is half-written or not one of a manifest ({error})",
                where=f"{folder / MANIFEST}:{number}",
                fix="delete that line, then freeze again with the same options and folder",
            ) from error
        lines.append(line)
    ids = [line.id for line in lines]
    if len(set(ids)) != len(ids):
        twice = max(ids, key=ids.count)
        raise InputError(
            f"{twice} stands there twice", where=str(folder / MANIFEST), fix="delete one of its lines"
        )
    return tuple(lines)


def manifest_sha256(folder: Path) -> str:
    """Return the sha256 of the manifest's bytes, which is a column of every result row."""
    return hashlib.sha256(manifest_bytes(folder)).hexdigest()


def manifest_bytes(folder: Path) -> bytes:
    """Return the bytes of the manifest. Raises InputError if there is none."""
    path = folder / MANIFEST
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"no frozen windows there ({error.strerror})",
            where=str(path),
            fix=f"windtunnel windows freeze --source azure_surrogate --out {folder}",
        ) from error


def verify(folder: Path, sources: Path | None = None) -> list[Verdict]:
    """Recompute every window of a folder: from its file, and again from where it came, if that is here.

    ``sources`` is a trace file or a folder with some; surrogates are generated again. ``differs``: the stored
    rows, or those cut again from the same source file, are not what the manifest says. ``cannot tell``: the
    source was asked for and is absent or another one, or a surrogate comes out otherwise on this machine.
    A folder with a manifest and no ``windows/`` is checked against the sources alone.
    """
    if sources is not None and not sources.exists():
        raise InputError("no such file or folder", where=str(sources), fix="name where the trace files lie")
    origins: dict[tuple[str, str, str], Trace | str] = {}
    verdicts = []
    for line in read_manifest(folder):
        try:
            if (folder / WINDOWS).is_dir():
                read_window(folder, line)
        except InputError as error:
            verdicts.append(Verdict(line.id, DIFFERS, str(error)))
            continue
        key = (line.trace, line.sha256, json.dumps(line.transforms, sort_keys=True))
        if key not in origins:
            origins[key] = origin(line, sources)
        verdicts.append(compared(line, origins[key], stored=(folder / WINDOWS).is_dir()))
    return verdicts


def compared(line: ManifestLine, found: Trace | str, *, stored: bool) -> Verdict:
    """Cut the window again from the trace it came from; ``found`` is that trace, or why there is none."""
    if found == "" and stored:
        return Verdict(line.id, EQUAL, "rows as frozen; name the trace files to cut it again")
    if isinstance(found, str):
        return Verdict(line.id, CANNOT_TELL, found or "neither its file nor its source is here")
    try:
        again = cut(found, line.first_row, line.rows, line.kind, line.seed).line.content_sha256
    except InputError as error:
        again = str(error)
    if again == line.content_sha256:
        return Verdict(line.id, EQUAL, "rows as frozen, and as cut again")
    if line.label == "surrogate":
        return Verdict(line.id, CANNOT_TELL, "regenerated, differs: another generator, numpy or machine")
    return Verdict(line.id, DIFFERS, f"cut again from {found.info.file}, the rows are others ({again[:60]})")


def origin(line: ManifestLine, sources: Path | None) -> Trace | str:
    """Return the trace that a window was cut from, or why it can't be had ("": nobody asked for it)."""
    if line.label == "surrogate":
        return regenerated(line)
    if sources is None:
        return ""
    bare = line.file.removesuffix(".gz")
    names = {bare, f"{bare}.gz"}
    files = [sources] if sources.is_file() else sorted(sources.rglob("*"))
    why = f"source file absent: {line.file} is not in {sources}"
    columns, named_as = line.transforms.get("columns"), "own" if line.label == "own" else "auto"
    for path in files:
        if path.name not in names or not path.is_file():
            continue
        try:
            trace = read(path, source=named_as, unpinned=line.label == "unpinned", columns=columns)
        except InputError as error:
            why = f"the source file cannot be read: {error}"
            continue
        if trace.info.sha256 == line.sha256:
            return trace
        why = f"{path.name} is there, but it is another file than the one that was cut (sha256 differs)"
    return why


def regenerated(line: ManifestLine) -> Trace | str:
    """Draw the surrogate of a line again, or say why not."""
    from loadgen.surrogate import regenerate

    try:
        return regenerate(line.generator)
    except InputError as error:
        return str(error)
