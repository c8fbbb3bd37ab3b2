"""Azure LLM inference traces of 2023, 2024 and 2025: a row an invocation, tokens as final counts.

The 2023 and 2024 files share a header and differ by the zone suffix of their times (trap A2). Prompts at
the service's wall are kept and flagged (A5); the 2025 context includes image tokens (A6).
Source: reference/traces.md 2.1.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from loadgen.formats.blocks import Block, Table
from loadgen.formats.layout import CAPPED, Layout, Memory, Rows
from loadgen.formats.numbers import instants, integers, tokens

FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
IMAGES = "NumImages"
WALLS = {
    "azure2023-code": (7434, 1 << 31),
    "azure2023-conv": (4083, 4143),
    "azure2024-code": (7743, 1 << 31),
    "azure2024-conv": (7999, 1 << 31),
}
"""Prompt lengths [low, high) at which the service cut or refused longer ones."""

_DIGITS = {"azure2023": 7, "azure2024": 6, "azure2025": 3}


def family(table: Table, first_row: str) -> str:
    """Tell the year from the columns and from the first data row's time."""
    if IMAGES in table.names:
        return "azure2025"
    cells = first_row.split(table.delimiter)
    at = table.names.index("TIMESTAMP")
    stamp = cells[at].strip().strip('"') if at < len(cells) else ""
    return "azure2024" if stamp.endswith(("Z", "+00:00", "+00", "+0000")) else "azure2023"


def layout(table: Table, source: str, year: str) -> Layout:
    """Return the layout of an Azure file; ``source`` (``azure2023-code``) says where its wall stands."""
    wanted = (*FIELDS, IMAGES) if year == "azure2025" else FIELDS
    part = source.removeprefix(year).removeprefix("-")
    kinds = ("text", "image") if year == "azure2025" else (part or "request",)
    return Layout(
        source=source,
        family=year,
        parse=_parser(year, source),
        clock=_clock(year),
        table=table._replace(wanted=wanted),
        kinds=kinds,
    )


def _parser(year: str, source: str) -> Callable[[Block, Memory], Rows]:
    low, high = WALLS.get(source, (1 << 31, 1 << 31))

    def parse(block: Block, memory: Memory) -> Rows:
        reasons = np.zeros(len(block.row), np.int8)
        stamp = instants(block.columns["TIMESTAMP"], reasons, zoned=year != "azure2023")
        prompt = tokens(reasons, integers(block.columns["ContextTokens"], reasons))
        output = tokens(reasons, integers(block.columns["GeneratedTokens"], reasons))
        kind = np.zeros(len(stamp), np.int8)
        if year == "azure2025":
            images = integers(block.columns[IMAGES], reasons)
            kind = (images > 0).astype(np.int8)
        flags = np.where((prompt >= low) & (prompt < high), CAPPED, 0).astype(np.uint8)
        return Rows(stamp, prompt, output, reasons, kind=kind, flags=flags)

    return parse


def _clock(year: str) -> Callable[[int], str]:
    digits = _DIGITS[year]

    def write(stamp_ns: int) -> str:
        whole, rest = divmod(stamp_ns, 10**9)
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S")
        text += f".{rest:09d}"[: digits + 1]
        if year == "azure2024":
            text += "+00:00"
        return text.replace(" ", "T") + "Z" if year == "azure2025" else text

    return write
