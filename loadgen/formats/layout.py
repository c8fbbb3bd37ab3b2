"""What a reader of one family says about its rows: numbers, reasons, and how to write its clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loadgen.formats.blocks import Block, Table
from loadgen.formats.numbers import Ints, Reasons

ORPHAN, DITHERED, SPREAD, CAPPED = 1, 2, 4, 8
"""Bits of ``Trace.flags``: no parent in the file, second made finer, batch spread, prompt at the wall."""

KINDS_MAX = 127


class Rows(NamedTuple):
    """One block as numbers; n values each. ``reasons`` is 0 where the row is kept."""

    stamp_ns: Ints  # on the file's own clock
    prompt_tokens: Ints
    output_tokens: Ints
    reasons: Reasons
    session: Ints | None = None  # -1 none
    request: Ints | None = None  # the file's own id of a request
    parent: Ints | None = None  # the file's id of the request that this one follows, -1 none
    kind: npt.NDArray[np.int8] | None = None
    flags: npt.NDArray[np.uint8] | None = None
    hash_ids: Any = None  # pa.ListArray of ids as the file has them


@dataclass
class Names:
    """Numbers given to texts (sessions, kinds) in the order in which they are first seen."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, texts: Any, kept: npt.NDArray[np.bool_]) -> Ints:
        """Return the number of each text (n,); -1 for an empty one and for rows that are not kept."""
        encoded = texts.filter(pa.array(kept)).dictionary_encode()
        table = np.array([self._number(text) for text in encoded.dictionary.to_pylist()] + [-1], np.int64)
        codes = encoded.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)
        numbers = np.full(len(texts), -1, np.int64)
        numbers[kept] = table[codes]
        return numbers

    def _number(self, text: str | None) -> int:
        return self.numbers.setdefault(text, len(self.numbers)) if text else -1


@dataclass
class Memory:
    """What a reader must remember from one block to the next."""

    sessions: Names = field(default_factory=Names)
    kinds: Names = field(default_factory=Names)


@dataclass(frozen=True)
class Layout:
    """How the file of one family is read."""

    source: str
    family: str
    parse: Callable[[Block, Memory], Rows]
    clock: Callable[[int], str]  # writes a stamp (ns on the file's clock) as the file would
    table: Table | None = None  # CSV
    schema: Any = None  # JSONL: the Arrow schema of its fields
    kinds: tuple[str, ...] = ("request",)
    block_tokens: int = 0
    tie_ns: int = 0  # the stamp's step, over which rows with equal stamps are spread; 0 leaves them
    tie_flag: int = 0
    columns: dict[str, str] = field(default_factory=dict)  # a user's own: our name, the file's name
    tie_share: float = 1.0  # spread only if the distinct stamps are at most this share of the rows


def seconds_clock(stamp_ns: int) -> str:
    """Write ns as decimal seconds without trailing zeros."""
    whole, rest = divmod(stamp_ns, 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
