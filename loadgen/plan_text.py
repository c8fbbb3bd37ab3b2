"""The text of a plan: values read by the types of their fields, with errors that name file, line and remedy."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from schedulers.errors import InputError


class Source:
    """A plan's text from line ``first`` on, to say where a key stands."""

    def __init__(self, path: str, text: str, first: int = 0) -> None:
        self.path, self.text, self.first = path, text, first

    def error(self, what: str, key: str, fix: str) -> InputError:
        """Return an error at the line of ``key``, or at the file if the key is not there."""
        return InputError(what, where=self.place(key), fix=fix)

    def place(self, key: str) -> str:
        """Return the file and the first line of ``key``, or the file if the key is not there."""
        lines = self.lines_with(key)
        return f"{self.path}:{lines[0]}" if lines else self.path

    def lines_with(self, key: str) -> list[int]:
        """Return the numbers of the lines that begin with ``key``, from 1."""
        begins = re.compile(rf"\s*\[*{re.escape(key)}\b")
        return [
            n for n, line in enumerate(self.text.splitlines(), 1) if n >= self.first and begins.match(line)
        ]

    def tier(self, number: int) -> "Source":
        """Return the text from the tier of that number on, so that errors point into it."""
        lines = self.lines_with("tiers")
        return Source(self.path, self.text, lines[number]) if number < len(lines) else self


def read_values(
    table: Mapping[str, Any], kind: Any, thing: str, source: Source, aside: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the table's values by field, each of its type; ``aside`` names fields that the caller reads itself.

    Raises InputError for a key that is no field, near names first, and for a field without value or default.
    """
    known = {field.name: field for field in fields(kind)}
    for key in table:
        if key not in known and key not in aside:
            names = list(dict.fromkeys(name for name in (*known, *aside) if name != "study"))
            close = get_close_matches(key, names, 1)
            fix = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(names)}"
            raise source.error(f"unknown key {key!r} in the {thing}", key, fix)
    values = {}
    for key, field in known.items():
        if key in aside:
            continue
        if key in table:
            values[key] = read_value(table[key], key, field.type, source)
        elif field.default is MISSING:
            raise source.error(f"the {thing} lacks {key}", f"{thing}s", f"add {key} = ...")
    return values


def read_value(value: Any, key: str, kind: Any, source: Source) -> Any:
    """Return ``value`` as the type of its field, or raise an error that says which type it should have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and number:
        return value
    if kind is float and number and value == value:
        try:
            return float(value)
        except OverflowError:
            raise source.error(f"{key} is too large", key, "write a smaller number") from None
    if isinstance(value, list) and kind == tuple[str, ...] and all(isinstance(one, str) for one in value):
        return tuple(value)
    if isinstance(value, list) and kind == tuple[int, ...]:
        return tuple(read_value(one, key, int, source) for one in value)
    if isinstance(value, list) and kind == tuple[float, ...]:
        return tuple(read_value(one, key, float, source) for one in value)
    if isinstance(value, list) and kind == tuple[tuple[str, str], ...]:
        if not all(isinstance(one, list) and len(one) == 2 for one in value):
            raise source.error(f"{key} is not a list of pairs", key, 'write [["edf", "sarathi"]]')
        return tuple((read_value(a, key, str, source), read_value(b, key, str, source)) for a, b in value)
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}.get(
        kind, "a list"
    )
    raise source.error(f"{key} is {json.dumps(value, default=str)}", key, f"write {words}")
