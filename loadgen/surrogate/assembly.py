"""From drawn columns to a trace that says what it is: a surrogate, of whom, by which generator and seed."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.surrogate.sampling import GENERATOR, Integers, Stream
from loadgen.trace import Trace, TraceInfo


@dataclass(frozen=True)
class Source:
    """Whose published statistics a family of surrogates is fitted to."""

    family: str
    licence: str
    citation: str


class Drawn(NamedTuple):
    """Rows of a surrogate in time order, shape (n,) each, from the first that is kept."""

    arrival_ns: Integers
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    session: Integers
    parent: Integers
    kind: npt.NDArray[np.int8]
    kinds: tuple[str, ...]
    flags: npt.NDArray[np.uint8]
    block_tokens: int = 0
    hash_offsets: Integers | None = None  # shape (n + 1,)
    hash_ids: npt.NDArray[np.int32] | None = None


def digest(drawn: Drawn) -> str:
    """Return the sha256 over the values of all columns: what another machine's draw is compared with."""
    summed = hashlib.sha256(len(drawn.arrival_ns).to_bytes(8, "little"))
    for column in (
        drawn.arrival_ns,
        drawn.prompt_tokens,
        drawn.output_tokens,
        drawn.session,
        drawn.parent,
        drawn.kind,
        drawn.flags,
        drawn.hash_offsets,
        drawn.hash_ids,
    ):
        if column is not None:
            summed.update(np.ascontiguousarray(column).data)
    return summed.hexdigest()


def assemble(drawn: Drawn, stream: Stream, source: Source) -> Trace:
    """Return the trace of ``drawn``, with arrivals counted from the first row.

    ``info.generator`` is what ``loadgen.surrogate.regenerate`` reads to draw the same trace again.
    """
    rows = len(drawn.arrival_ns)
    seconds, nanos = divmod(int(drawn.arrival_ns[0]), 10**9)
    drawn = drawn._replace(arrival_ns=drawn.arrival_ns - drawn.arrival_ns[0])
    info = TraceInfo(
        source=stream.name,
        family=source.family,
        label="surrogate",
        file=f"{stream.name}.seed{stream.seed}",
        bytes=0,
        sha256=digest(drawn),
        rows_read=rows,
        kept=rows,
        dropped={},
        moved=0,
        t0=f"{seconds}.{nanos:09d}",
        block_tokens=drawn.block_tokens,
        transforms={"seed": stream.seed, "rows": rows},
        licence=source.licence,
        citation=source.citation,
        generator=f"{GENERATOR} {stream.name} rows={rows} seed={stream.seed}",
    )
    return Trace(
        info=info,
        arrival_ns=drawn.arrival_ns,
        prompt_tokens=drawn.prompt_tokens,
        output_tokens=drawn.output_tokens,
        session=drawn.session.astype(np.int32),
        parent=drawn.parent.astype(np.int32),
        source_row=np.arange(rows, dtype=np.int64),
        kind=drawn.kind,
        kinds=drawn.kinds,
        flags=drawn.flags,
        hash_offsets=drawn.hash_offsets,
        hash_ids=drawn.hash_ids,
    )
