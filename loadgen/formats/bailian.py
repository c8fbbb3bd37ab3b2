"""Bailian (Qwen) usage traces: chats with parents, and 16-token block ids that need chaining.

``input_length`` is the full context after the chat template, so nothing is added to it (trap Q4).
reference/traces.md 2.3.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadgen.formats.blocks import Block
from loadgen.formats.layout import Layout, Memory, Rows, seconds_clock
from loadgen.formats.numbers import Ints, Reasons, code, mark, tokens

BLOCK_TOKENS = 16
KINDS = ("text", "search", "image", "file", "api", "thinking", "coder")
SCHEMA = pa.schema(
    [
        ("chat_id", pa.int64()),
        ("parent_chat_id", pa.int64()),
        ("timestamp", pa.float64()),
        ("input_length", pa.int64()),
        ("output_length", pa.int64()),
        ("type", pa.string()),
        ("hash_ids", pa.list_(pa.int64())),
    ]
)
_SECONDS_MAX = 1e9
_PARTS = {"tracea": "a", "traceb": "b", "thinking": "thinking", "coder": "coder"}


def part(file: str) -> str:
    """Tell the part from the file's name; the rows do not say it."""
    lower = file.lower()
    return next((f"bailian-{name}" for sign, name in _PARTS.items() if sign in lower), "bailian")


def layout(source: str) -> Layout:
    """Return the layout of a Bailian file."""
    return Layout(
        source=source,
        family="bailian",
        parse=parse,
        clock=seconds_clock,
        schema=SCHEMA,
        kinds=KINDS,
        block_tokens=BLOCK_TOKENS,
    )


def parse(block: Block, memory: Memory) -> Rows:
    """Read a block of chats; the number of block ids must fit the prompt (trap Q1)."""
    columns = block.columns
    reasons = np.zeros(len(block.row), np.int8)
    for name in SCHEMA.names:
        missing(columns[name], reasons)
    seconds = columns["timestamp"].fill_null(0.0).to_numpy(zero_copy_only=False)
    mark(reasons, ~np.isfinite(seconds), "not_a_number")
    mark(reasons, seconds < 0, "negative_time")
    mark(reasons, seconds > _SECONDS_MAX, "bad_row")
    milliseconds = np.rint(np.where(reasons == 0, seconds, 0.0) * 1e3).astype(np.int64)
    prompt = tokens(reasons, numbers(columns["input_length"]))
    output = tokens(reasons, numbers(columns["output_length"]))
    kind = pc.index_in(columns["type"], pa.array(KINDS)).fill_null(-1).to_numpy(zero_copy_only=False)
    mark(reasons, kind < 0, "unknown_type")
    check_ids(columns["hash_ids"], prompt, BLOCK_TOKENS, reasons)
    return Rows(
        milliseconds * 1_000_000,
        prompt,
        output,
        reasons,
        request=numbers(columns["chat_id"]),
        parent=np.maximum(numbers(columns["parent_chat_id"]), -1),
        kind=np.maximum(kind, 0).astype(np.int8),
        hash_ids=columns["hash_ids"],
    )


def missing(column: Any, reasons: Reasons) -> None:
    """Mark rows whose field is absent or of another type."""
    if column.null_count:
        mark(reasons, pc.is_null(column).to_numpy(zero_copy_only=False), "bad_row")


def numbers(column: Any) -> Ints:
    """Return whole numbers (n,), 0 where the field is missing."""
    values: Ints = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def check_ids(hash_ids: Any, prompt: Ints, block_tokens: int, reasons: Reasons) -> None:
    """Mark rows whose list of ids has not ceil(prompt / block) entries, or a null or negative one."""
    lengths = pc.list_value_length(hash_ids).fill_null(0).to_numpy(zero_copy_only=False)
    mark(reasons, lengths != -(-prompt // block_tokens), "bad_row")
    flat = hash_ids.flatten()
    ids = flat.fill_null(-1).to_numpy(zero_copy_only=False)
    if len(ids) and ids.min() < 0:
        row = pc.list_parent_indices(hash_ids).to_numpy(zero_copy_only=False)
        wrong = np.unique(row[ids < 0])
        reasons[wrong] = np.where(reasons[wrong] == 0, code("bad_row"), reasons[wrong])
