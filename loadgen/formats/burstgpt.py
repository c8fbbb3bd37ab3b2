"""BurstGPT parts 1, 2 and 3: whole-second stamps on one clock, failures as zero tokens.

Part 3 inserts a session and an elapsed time in front of the model, so columns are read by name (traps B1,
G7). Ties say "same second, in this order" and are spread within it (B2). Source: reference/traces.md 2.2.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadgen.formats.blocks import Block, Table
from loadgen.formats.layout import DITHERED, Layout, Memory, Rows, seconds_clock
from loadgen.formats.numbers import integers, mark, tokens

FIELDS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
SESSION = "Session ID"
MODELS = ("ChatGPT", "GPT-4")
CHANNELS = ("Conversation log", "API log")
KINDS = ("chatgpt-conversation", "chatgpt-api", "gpt-4-conversation", "gpt-4-api")
PART_2_STARTS_S = 61 * 86_400
SECOND_NS = 1_000_000_000
_SECONDS_MAX = 1 << 33


def part(table: Table, first_row: str, file: str) -> str:
    """Tell the part from its columns, its first time and its name; ``-ok`` for the files without failures."""
    if SESSION in table.names:
        number = "3"
    else:
        cells = first_row.split(table.delimiter)
        at = table.names.index("Timestamp")
        stamp = cells[at].strip().partition(".")[0] if at < len(cells) else ""
        number = "2" if stamp.isdigit() and int(stamp) >= PART_2_STARTS_S else "1"
    return f"burstgpt-{number}" + ("-ok" if "without_fails" in file else "")


def layout(table: Table, source: str) -> Layout:
    """Return the layout of a BurstGPT file."""
    wanted = (*FIELDS, SESSION) if SESSION in table.names else FIELDS
    return Layout(
        source=source,
        family="burstgpt",
        parse=parse,
        clock=seconds_clock,
        table=table._replace(wanted=wanted),
        kinds=KINDS,
        tie_ns=SECOND_NS,
        tie_flag=DITHERED,
    )


def parse(block: Block, memory: Memory) -> Rows:
    """Read a block; a row without an answer, or without a prompt, is an arrival without work (trap B4)."""
    columns = block.columns
    reasons = np.zeros(len(block.row), np.int8)
    seconds = integers(columns["Timestamp"], reasons)
    mark(reasons, seconds < 0, "negative_time")
    mark(reasons, seconds > _SECONDS_MAX, "bad_row")
    model = _place(columns["Model"], MODELS)
    channel = _place(columns["Log Type"], CHANNELS)
    mark(reasons, model < 0, "unknown_model")
    mark(reasons, channel < 0, "unknown_log_type")
    output = tokens(reasons, integers(columns["Response tokens"], reasons), zero="failed")
    prompt = tokens(reasons, integers(columns["Request tokens"], reasons))
    session = memory.sessions.number(columns[SESSION], reasons == 0) if SESSION in columns else None
    kind = (2 * np.maximum(model, 0) + np.maximum(channel, 0)).astype(np.int8)
    seconds[reasons != 0] = 0
    return Rows(seconds * SECOND_NS, prompt, output, reasons, session=session, kind=kind)


def _place(column: pa.Array, names: tuple[str, ...]) -> np.ndarray:
    """Return the place of each text (n,) among ``names``, -1 if it is not there."""
    found = pc.index_in(column, pa.array(names)).fill_null(-1)
    places: np.ndarray = found.to_numpy(zero_copy_only=False)
    return places
