"""Several traces as one: parts of one clock in a row, or a declared superposition of different traffic."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from loadgen.formats.numbers import Ints
from loadgen.trace import Trace, TraceInfo
from schedulers.errors import InputError

ONE_CLOCK = ("burstgpt",)
"""Families whose files share one clock."""

HOLE_S = 86_400.0
"""A longer silence between two parts is a hole in the data, not quiet traffic (trap B3)."""


def join(traces: Sequence[Trace], *, superposed: bool = False, shifts_s: Sequence[float] = ()) -> Trace:
    """Join traces to one in time order.

    Parts of one clock (BurstGPT) follow each other and need no flag. Anything else covers different times,
    such as Azure 2024 code and conv (trap A4), and is laid over each other only if ``superposed`` says so,
    each from its first row on plus its shift. Sessions, parents and prefix ids stay apart a copy (Q8).
    Raises InputError.
    """
    if not traces:
        raise InputError("no traces to join", where="join", fix="name at least one")
    starts = _superposed(traces, shifts_s) if superposed else _consecutive(traces)
    arrival = np.concatenate([trace.arrival_ns + start for trace, start in zip(traces, starts, strict=True)])
    order = np.argsort(arrival, kind="stable")
    arrival = arrival[order]
    kinds = tuple(dict.fromkeys(name for trace in traces for name in trace.kinds))
    places = [np.array([kinds.index(name) for name in trace.kinds], np.int8) for trace in traces]
    offsets, ids = _prefixes(traces, order)
    return Trace(
        info=_info(traces, superposed, shifts_s),
        arrival_ns=arrival - arrival[0],
        prompt_tokens=_column(traces, "prompt_tokens")[order],
        output_tokens=_column(traces, "output_tokens")[order],
        session=_apart([trace.session for trace in traces])[order].astype(np.int32),
        parent=_parents(traces, order),
        source_row=_column(traces, "source_row")[order],
        kind=np.concatenate([place[one.kind] for place, one in zip(places, traces, strict=True)])[order],
        kinds=kinds,
        flags=_column(traces, "flags")[order],
        hash_offsets=offsets,
        hash_ids=None if ids is None else ids.astype(np.int32),
    )


def _consecutive(traces: Sequence[Trace]) -> list[int]:
    """Return where each part starts on the shared clock; refuses other families, overlaps and holes."""
    for trace in traces:
        if trace.info.family not in ONE_CLOCK or trace.info.family != traces[0].info.family:
            raise InputError(
                f"{' and '.join(one.info.source for one in traces)} do not share a clock",
                where=trace.info.file,
                fix="declare a superposition (superposed=True) or use them apart",
            )
    starts = [_start_ns(trace) for trace in traces]
    for before, trace, from_ns, to_ns in zip(traces, traces[1:], starts, starts[1:], strict=False):
        silence_s = (to_ns - from_ns - int(before.arrival_ns[-1])) / 1e9
        if not -1.0 <= silence_s <= HOLE_S:
            what = f"{'a hole' if silence_s > 0 else 'an overlap'} of {abs(silence_s) / 86_400:.1f} days"
            raise InputError(
                f"{what} between {before.info.source} and {trace.info.source}",
                where=trace.info.file,
                fix="use the parts apart, in their order",
            )
    return starts


def _start_ns(trace: Trace) -> int:
    shift = trace.info.transforms.get("dithered", {}).get("first_shift_ns", 0)
    return int(Decimal(trace.info.t0) * 10**9) + int(shift)


def _superposed(traces: Sequence[Trace], shifts_s: Sequence[float]) -> list[int]:
    if shifts_s and len(shifts_s) != len(traces):
        raise InputError(
            f"{len(shifts_s)} shifts for {len(traces)} traces",
            where="shifts_s",
            fix="give one a trace, or none",
        )
    if len({trace.info.block_tokens for trace in traces}) > 1:
        sizes = ", ".join(f"{one.info.source} {one.info.block_tokens}" for one in traces)
        raise InputError(f"prefix blocks of different sizes: {sizes}", where="join", fix="join equal ones")
    return [round(shift * 1e9) for shift in shifts_s] or [0] * len(traces)


def _column(traces: Sequence[Trace], name: str) -> Any:
    return np.concatenate([getattr(trace, name) for trace in traces])


def _apart(numbers: Sequence[Any]) -> Ints:
    """Raise each array's numbers above those before, so that none is shared; -1 stays."""
    raised, above = [], 0
    for one in numbers:
        raised.append(np.where(one >= 0, one.astype(np.int64) + above, -1))
        above += int(one.max(initial=-1)) + 1
    return np.concatenate(raised)


def _parents(traces: Sequence[Trace], order: Any) -> Any:
    new = np.empty(len(order), np.int64)
    new[order] = np.arange(len(order))
    firsts = np.cumsum([0] + [len(trace.parent) for trace in traces[:-1]])
    old = np.concatenate(
        [np.where(one.parent >= 0, one.parent + first, -1) for one, first in zip(traces, firsts, strict=True)]
    )
    return np.where(old >= 0, new[old], -1)[order].astype(np.int32)


def _prefixes(traces: Sequence[Trace], order: Any) -> tuple[Ints | None, Ints | None]:
    lengths, lists = [], []
    for trace in traces:
        if trace.hash_offsets is None or trace.hash_ids is None:
            return None, None
        lengths.append(np.diff(trace.hash_offsets))
        lists.append(trace.hash_ids)
    ids, each = _apart(lists), np.concatenate(lengths)
    start = np.r_[0, np.cumsum(each)][:-1]
    offsets = np.r_[0, np.cumsum(each[order])].astype(np.int64)
    within = np.arange(len(ids)) - np.repeat(offsets[:-1], each[order])
    return offsets, ids[np.repeat(start[order], each[order]) + within]


def _info(traces: Sequence[Trace], superposed: bool, shifts_s: Sequence[float]) -> TraceInfo:
    infos = [trace.info for trace in traces]
    families = {info.family for info in infos}
    dropped: Counter[str] = Counter()
    for info in infos:
        dropped.update(info.dropped)
    doubtful = ("own", "unpinned", "surrogate", "real")
    joined = {
        "sources": [info.source for info in infos],
        "superposed": superposed,
        "shifts_s": list(shifts_s),
    }
    return replace(
        infos[0],
        source="+".join(info.source for info in infos),
        family=infos[0].family if len(families) == 1 else "joined",
        label=min((info.label for info in infos), key=doubtful.index),
        file="+".join(info.file for info in infos),
        bytes=sum(info.bytes for info in infos),
        sha256=hashlib.sha256("".join(info.sha256 for info in infos).encode()).hexdigest(),
        rows_read=sum(info.rows_read for info in infos),
        kept=sum(info.kept for info in infos),
        dropped=dict(sorted(dropped.items())),
        moved=sum(info.moved for info in infos),
        transforms={"joined": joined, "parts": [info.transforms for info in infos]},
        licence=" and ".join(dict.fromkeys(info.licence for info in infos if info.licence)),
        citation="; ".join(dict.fromkeys(info.citation for info in infos if info.citation)),
    )
