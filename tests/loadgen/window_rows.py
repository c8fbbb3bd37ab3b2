"""Hand-made traces for tests of windows: rows that nobody recorded, in the shape that readers give."""

from dataclasses import replace

import numpy as np

from loadgen.trace import Trace, TraceInfo

INFO = TraceInfo(
    source="own-rows",
    family="own",
    label="own",
    file="rows.csv",
    bytes=1234,
    sha256="ab" * 32,
    rows_read=0,
    kept=0,
    dropped={},
    moved=0,
    t0="2024-05-10 00:00:00.009930+00:00",
    block_tokens=0,
    transforms={},
    licence="none",
    citation="",
    generator="",
)


def hand_made(rows=1250, *, seed=0, rate=5.0, **info):
    """A trace of Poisson arrivals at ``rate`` a second with plain lengths; ``info`` overrides TraceInfo."""
    drawn = np.random.Generator(np.random.PCG64(seed))
    gaps_ns = np.round(drawn.exponential(1e9 / rate, rows)).astype(np.int64)
    gaps_ns[0] = 0
    return Trace(
        info=replace(INFO, rows_read=rows, kept=rows, **info),
        arrival_ns=np.cumsum(gaps_ns),
        prompt_tokens=drawn.integers(20, 3000, rows).astype(np.int32),
        output_tokens=drawn.integers(2, 600, rows).astype(np.int32),
        session=np.full(rows, -1, np.int32),
        parent=np.full(rows, -1, np.int32),
        source_row=np.arange(rows, dtype=np.int64),
        kind=np.zeros(rows, np.int8),
        kinds=("chat",),
        flags=np.zeros(rows, np.uint8),
        hash_offsets=None,
        hash_ids=None,
    )


def with_prefixes(trace):
    """The same trace with 1 to 3 prefix ids a row, each row of the trace going on from the one before."""
    rows = len(trace.arrival_ns)
    sizes = 1 + np.arange(rows) % 3
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.int32)
    return trace._replace(
        info=replace(trace.info, block_tokens=16),
        hash_offsets=offsets,
        hash_ids=ids,
        parent=np.arange(-1, rows - 1, dtype=np.int32),
        session=np.zeros(rows, np.int32),
    )
