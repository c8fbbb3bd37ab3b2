"""Mooncake traces: times in ms, block ids of 512 tokens, conversation requests gathered in batches every 3 s.

The batches are spread over their period (trap M1); a file without batches (synthetic) is left as it is.
reference/traces.md 2.3.
"""

import numpy as np
import pyarrow as pa

from loadgen.formats.bailian import check_ids, missing, numbers
from loadgen.formats.blocks import Block
from loadgen.formats.layout import SPREAD, Layout, Memory, Rows, seconds_clock
from loadgen.formats.numbers import mark, tokens

BLOCK_TOKENS = 512
BATCH_NS = 3_000_000_000
BATCHED_SHARE = 0.5
"""Stamps are batches if distinct ones are at most this share of rows (conversation .10, synthetic 1.0)."""

SCHEMA = pa.schema(
    [
        ("timestamp", pa.int64()),
        ("input_length", pa.int64()),
        ("output_length", pa.int64()),
        ("hash_ids", pa.list_(pa.int64())),
    ]
)
_MS_MAX = 10**12


def part(file: str) -> str:
    """Tell the part from the file's name; the rows do not say it."""
    lower = file.lower()
    names = ("conversation", "toolagent", "synthetic")
    if lower.startswith("mooncake_trace"):
        return "mooncake-arxiv"
    return next((f"mooncake-{name}" for name in names if name in lower), "mooncake")


def layout(source: str) -> Layout:
    """Return the layout of a Mooncake file."""
    return Layout(
        source=source,
        family="mooncake",
        parse=parse,
        clock=seconds_clock,
        schema=SCHEMA,
        block_tokens=BLOCK_TOKENS,
        tie_ns=BATCH_NS,
        tie_flag=SPREAD,
        tie_share=BATCHED_SHARE,
    )


def parse(block: Block, memory: Memory) -> Rows:
    """Read a block; ms become ns, and the number of block ids must fit the prompt (traps M2, Q1)."""
    columns = block.columns
    reasons = np.zeros(len(block.row), np.int8)
    for name in SCHEMA.names:
        missing(columns[name], reasons)
    milliseconds = numbers(columns["timestamp"]).copy()
    mark(reasons, milliseconds < 0, "negative_time")
    mark(reasons, milliseconds > _MS_MAX, "bad_row")
    milliseconds[reasons != 0] = 0
    prompt = tokens(reasons, numbers(columns["input_length"]))
    output = tokens(reasons, numbers(columns["output_length"]))
    check_ids(columns["hash_ids"], prompt, BLOCK_TOKENS, reasons)
    return Rows(milliseconds * 1_000_000, prompt, output, reasons, hash_ids=columns["hash_ids"])
