"""A user's own traffic file: CSV, or JSONL with one flat object a line, whose columns the user names."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from loadgen.formats.blocks import Block, Table
from loadgen.formats.layout import KINDS_MAX, Layout, Memory, Rows, seconds_clock
from loadgen.formats.numbers import decimals, instants, integers, mark, tokens
from schedulers.errors import InputError

TIMES = {"arrival_s": 9, "arrival_ms": 6, "arrival_us": 3, "arrival_ns": 0, "arrival_time": -1}
"""Our names for the arrival, with the decimal digits down to 1 ns; ``arrival_time`` is ISO text."""

OTHERS = {
    "prompt_tokens": ("prompt_tokens", "input_tokens", "input_length"),
    "output_tokens": ("output_tokens", "completion_tokens", "output_length"),
    "session": ("session", "session_id", "conversation_id"),
    "kind": ("kind", "model"),
}
"""Our names for the rest, each with the names under which it is found without being told."""

NEEDED = ("prompt_tokens", "output_tokens")
EXAMPLE = "--columns arrival_s=ts,prompt_tokens=in,output_tokens=out,session=chat"


def mapped(names: tuple[str, ...], columns: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """Return our name: the file's name, from what the user said and what the file's own names say.

    Raises InputError for an unknown name on either side, and if the arrival or a token count stays unnamed.
    """
    told = dict(columns or {})
    ours = (*TIMES, *OTHERS)
    for our, theirs in told.items():
        if our not in ours:
            raise InputError(
                f"{our!r} is none of our column names", where="--columns", fix=f"one of: {', '.join(ours)}"
            )
        if theirs not in names:
            raise InputError(
                f"no column {theirs!r}; the file has: {', '.join(names) or 'none'}", where=where, fix=EXAMPLE
            )
    lower = {name.lower(): name for name in reversed(names)}
    if not any(name in told for name in TIMES):
        told.update({name: lower[name] for name in [name for name in TIMES if name in lower][:1]})
    for our, guesses in OTHERS.items():
        found = [lower[guess] for guess in guesses if guess in lower]
        if our not in told and found:
            told[our] = found[0]
    times = [name for name in TIMES if name in told]
    lacking = [name for name in NEEDED if name not in told]
    if len(times) != 1 or lacking:
        what = (
            ", ".join([*lacking, *([] if times else [" or ".join(TIMES)])]) or "one time column, not several"
        )
        raise InputError(f"needs {what}; the file has: {', '.join(names)}", where=where, fix=EXAMPLE)
    return told


def layout(table: Table | None, told: Mapping[str, str], name: str) -> Layout:
    """Return the layout of a user's file, CSV if it has a ``table``; ``told`` maps our names to its own."""
    return Layout(
        source=f"{'jsonl' if table is None else 'csv'}:{name}",
        family="own",
        parse=_parser(told),
        clock=_iso_clock if "arrival_time" in told else seconds_clock,
        table=None if table is None else table._replace(wanted=tuple(told.values())),
        columns=dict(told),
    )


def _parser(told: Mapping[str, str]) -> Callable[[Block, Memory], Rows]:
    time = next(name for name in TIMES if name in told)

    def parse(block: Block, memory: Memory) -> Rows:
        columns = {our: block.columns[theirs] for our, theirs in told.items()}
        reasons = np.zeros(len(block.row), np.int8)
        if time == "arrival_time":
            stamp = _instants(columns[time], reasons)
        else:
            stamp = decimals(columns[time], reasons, TIMES[time])
            mark(reasons, stamp < 0, "negative_time")
        prompt = tokens(reasons, integers(columns["prompt_tokens"], reasons))
        output = tokens(reasons, integers(columns["output_tokens"], reasons))
        kept = reasons == 0
        session = memory.sessions.number(columns["session"], kept) if "session" in columns else None
        kind = None
        if "kind" in columns:
            number = memory.kinds.number(columns["kind"].fill_null(""), kept)
            # The classes beyond what int8 holds share the last number.
            kind = np.clip(number, 0, KINDS_MAX - 1).astype(np.int8)
        return Rows(stamp, prompt, output, reasons, session=session, kind=kind)

    return parse


def _instants(column: pa.Array, reasons: np.ndarray) -> np.ndarray:
    """Read ISO times; those without a zone are taken as UTC."""
    zone = pa.compute.match_substring_regex(column.fill_null(""), r"(Z|[+-]\d\d:?\d\d)$").to_numpy(False)
    stamp = np.zeros(len(column), np.int64)
    for zoned in (False, True):
        rows = zone == zoned
        if rows.any():
            part = np.zeros(int(rows.sum()), np.int8)
            stamp[rows] = instants(column.filter(pa.array(rows)), part, zoned)
            reasons[rows] = part
    return stamp


def _iso_clock(stamp_ns: int) -> str:
    return str(np.datetime64(stamp_ns, "ns")) + "Z"
