"""Records of the journal, their bytes, and what a sequence of them says is still open."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


class Accepted(msgspec.Struct, tag="a", array_like=True, frozen=True):
    """A request was taken: its submission (protobuf), who sent it, and when by the wall clock."""

    number: int
    request_id: str
    owner: str
    submission: bytes
    digest: bytes
    wall_s: float


class Sent(msgspec.Struct, tag="s", array_like=True, frozen=True):
    """A request was given to a worker (an attempt counts the engines that had it)."""

    number: int
    attempt: int
    worker_id: str
    migrated: bool = False


class Run(msgspec.Struct, array_like=True, frozen=True):
    """Tokens of a request from an index on: little-endian uint32, and their texts if the client wants text."""

    number: int
    offset: int
    tokens: bytes
    pieces: list[str]


class Kept(msgspec.Struct, tag="k", array_like=True, frozen=True):
    """Tokens of many requests: one record a flush."""

    runs: list[Run]


class Ended(msgspec.Struct, tag="e", array_like=True, frozen=True):
    """How a request ended (protobuf Ending). Its tokens stay until it is forgotten."""

    number: int
    ending: bytes


class Forgotten(msgspec.Struct, tag="f", array_like=True, frozen=True):
    """Nobody can ask for these requests any more."""

    numbers: list[int]


class Next(msgspec.Struct, tag="n", array_like=True, frozen=True):
    """Numbers below this were given out: none is ever used again."""

    number: int


Record = Accepted | Sent | Kept | Ended | Forgotten | Next

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


def encode(records: list[Record]) -> bytes:
    """One batch as bytes."""
    return _encoder.encode(records)


def decode(batch: bytes) -> list[Record]:
    """The records of a batch; raises msgspec.DecodeError for foreign bytes."""
    return _decoder.decode(batch)


class Saved(NamedTuple):
    """What the journal knows of one request."""

    accepted: Accepted
    tokens: list[int]
    pieces: list[str]
    sent: Sent | None
    migrations: int
    ended: Ended | None


class Recovered(NamedTuple):
    """What a journal says: open and not yet forgotten requests by number, and the next number."""

    requests: dict[int, Saved]
    next_number: int


def fold(records: Iterable[Record]) -> Recovered:
    """Read records in order; a run that would leave a gap is left out (it is asked for again)."""
    found: dict[int, Saved] = {}
    following = 1
    for record in records:
        if isinstance(record, Accepted):
            following = max(following, record.number + 1)
            found.setdefault(
                record.number, Saved(record, [], [], None, 0, None)
            )  # a retried write says it twice
        elif isinstance(record, Next):
            following = max(following, record.number)
        elif isinstance(record, Kept):
            for run in record.runs:
                _add(found.get(run.number), run)
        elif isinstance(record, Forgotten):
            for number in record.numbers:
                found.pop(number, None)
        elif record.number in found:
            here = found[record.number]
            if isinstance(record, Sent):
                plain = msgspec.structs.replace(record, migrated=False)  # the count says it
                found[record.number] = here._replace(
                    sent=plain, migrations=here.migrations + int(record.migrated)
                )
            elif here.ended is None:
                found[record.number] = here._replace(ended=record)
    return Recovered(found, following)


def _add(saved: Saved | None, run: Run) -> None:
    if saved is None or run.offset > len(saved.tokens):
        return
    skip = len(saved.tokens) - run.offset
    fresh = np.frombuffer(run.tokens, "<u4").tolist()[skip:]
    saved.tokens.extend(fresh)
    saved.pieces.extend(run.pieces[skip:])


def packed(tokens: list[int]) -> bytes:
    """Token ids as a ``Run`` holds them."""
    return np.array(tokens, "<u4").tobytes()


def unfold(recovered: Recovered) -> list[Record]:
    """The shortest journal that says the same: what a compacted store holds."""
    records: list[Record] = [Next(recovered.next_number)]
    for number, saved in sorted(recovered.requests.items()):
        records.append(saved.accepted)
        if saved.sent is not None:
            records += [msgspec.structs.replace(saved.sent, migrated=True)] * saved.migrations
            records.append(saved.sent)
        if saved.tokens:
            records.append(Kept([Run(number, 0, packed(saved.tokens), saved.pieces)]))
        if saved.ended is not None:
            records.append(saved.ended)
    return records
