"""Which family a file belongs to, from its header or first object, its first row and its name."""

from collections.abc import Mapping
from pathlib import Path

from loadgen.formats import azure, bailian, burstgpt, mooncake, own
from loadgen.formats.blocks import header, json_lines
from loadgen.formats.layout import Layout
from loadgen.formats.lines import head
from schedulers.errors import InputError

FAMILIES = ("azure2023", "azure2024", "azure2025", "burstgpt", "bailian", "mooncake", "own")
KNOWN_HEADERS = (
    ("Azure 2023, 2024", ", ".join(azure.FIELDS)),
    ("Azure 2025", ", ".join((azure.FIELDS[0], azure.IMAGES, *azure.FIELDS[1:]))),
    ("BurstGPT", ", ".join(burstgpt.FIELDS)),
    ("Bailian (JSONL)", ", ".join(bailian.SCHEMA.names)),
    ("Mooncake (JSONL)", ", ".join(mooncake.SCHEMA.names)),
)


def detect(path: Path, source: str = "auto", columns: Mapping[str, str] | None = None) -> Layout:
    """Return how to read ``path``.

    ``source`` "auto" finds the family; a family or a file of one ("azure2023-code") must agree with what the
    file shows. ``columns`` makes it the user's own. Raises InputError that lists the known headers.
    """
    wanted = _family(source)
    first = head(path)
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    if first.lstrip().startswith(b"["):
        raise InputError("a JSON array, not one object a line", where=str(path), fix="write it as JSONL")
    is_json = first.lstrip().startswith(b"{")
    if columns or wanted == own_family():
        return _own(path, first, is_json, columns)
    layout = _known_json(first, path.name) if is_json else _known_csv(first, path.name)
    if layout is None:
        if wanted:
            raise InputError(f"does not look like {source}", where=str(path), fix=_headers())
        return _guessed(path, first, is_json)
    if wanted and layout.family != wanted:
        raise InputError(
            f"looks like {layout.family}, not {source}",
            where=str(path),
            fix=f"--source {layout.family} or auto",
        )
    if source in ("auto", layout.family):
        return layout
    return _named(layout, source, name)


def own_family() -> str:
    """Name of the family of users' own files."""
    return FAMILIES[-1]


def _family(source: str) -> str:
    """Return the family that ``source`` names, "" for "auto"; raises InputError for an unknown one."""
    if source == "auto":
        return ""
    for family in FAMILIES:
        if source == family or source.startswith(family + "-"):
            return family
    raise InputError(
        f"unknown source {source!r}",
        where="--source",
        fix=f"auto, one of {', '.join(FAMILIES)}, or a file of one such as azure2023-code",
    )


def _known_csv(first: bytes, file: str) -> Layout | None:
    table = header(first)
    if len(set(table.names)) != len(table.names):
        return None
    rows = first.split(b"\n", 2)
    first_row = rows[1].decode("utf-8", "replace") if len(rows) > 1 else ""
    if set(azure.FIELDS) <= set(table.names):
        year = azure.family(table, first_row)
        lower = file.lower()
        part = next((f"-{part}" for part in ("code", "conv") if part in lower), "")
        return azure.layout(table, f"{year}-mm" if year == "azure2025" else year + part, year)
    if set(burstgpt.FIELDS) <= set(table.names):
        return burstgpt.layout(table, burstgpt.part(table, first_row, file))
    return None


def _known_json(first: bytes, file: str) -> Layout | None:
    names = set(_names(first))
    if set(bailian.SCHEMA.names) <= names:
        return bailian.layout(bailian.part(file))
    if set(mooncake.SCHEMA.names) <= names:
        return mooncake.layout(mooncake.part(file))
    return None


def _named(layout: Layout, source: str, name: str) -> Layout:
    """Return ``layout`` for the file of a family that the user or the digest has named."""
    if layout.table is not None and layout.family.startswith("azure"):
        return azure.layout(layout.table, source, layout.family)
    if layout.family == "burstgpt" and layout.table is not None:
        return burstgpt.layout(layout.table, source)
    return bailian.layout(source) if layout.family == "bailian" else mooncake.layout(source)


def _own(path: Path, first: bytes, is_json: bool, columns: Mapping[str, str] | None) -> Layout:
    stem = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    if is_json:
        return own.layout(None, own.mapped(_names(first), columns, str(path)), stem)
    table = header(first)
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
    if twice:
        raise InputError(
            f"column names occur twice: {', '.join(twice)}", where=f"{path}:1", fix="rename one of them"
        )
    return own.layout(table, own.mapped(table.names, columns, f"{path}:1"), stem)


def _guessed(path: Path, first: bytes, is_json: bool) -> Layout:
    try:
        return _own(path, first, is_json, None)
    except InputError as error:
        raise InputError(error.what, where=error.where, fix=f"{error.fix}; {_headers()}") from None


def _headers() -> str:
    return "known headers: " + "; ".join(f"{name}: {fields}" for name, fields in KNOWN_HEADERS)


def _names(first: bytes) -> tuple[str, ...]:
    """Return the field names of the first object that can be read; broken lines are counted later."""
    longest = first.rfind(b"\n") + 1 or len(first)
    for _, record, _ in json_lines(first[:longest], 1):
        if record is not None:
            return tuple(record)
    return ()
