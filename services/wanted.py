"""What a dispatcher wants of its scaler, and how each knows that the other speaks: a key that never travels.

Both sign what they say (HMAC-SHA256). The scaler's question carries a nonce and the answer is signed with it, so that
nobody else can give an order, and an old order can't be given again.
"""

import hmac
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import orjson

from schedulers.errors import InputError

SIGNATURE, NONCE = "x-windtunnel-signature", "x-windtunnel-nonce"
ASK, ANSWER = b"ask", b"answer"
"""What is signed, so that a question never passes for an answer."""

NAMES_MAX, NAME_MAX = 4096, 256
"""How many workers or orders a message may name, and how long a name may be."""


@dataclass(frozen=True)
class Wanted:
    """All that the dispatcher wants at one moment; workers by id.

    ``orders`` are numbers of workers that are to boot, each once; ``stop`` are to end; ``here`` have joined, those
    that drain and those whose link is cut for a moment included.
    """

    orders: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    here: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """What a scaler says of itself: where its metrics are, the most workers it would run, what runs."""

    metrics: str = ""
    most: int = 0
    units: tuple[tuple[str, str, str], ...] = ()  # worker, order ("" if somebody else started it), state


def signature(key: str, kind: bytes, nonce: str, body: bytes) -> str:
    """The signature of a message, in hex."""
    parts = kind + b"\0" + nonce.encode() + b"\0" + body
    return hmac.new(key.encode(), parts, sha256).hexdigest()


def signed(key: str, kind: bytes, nonce: str, body: bytes, shown: str) -> bool:
    """True if somebody with the key said this; in constant time."""
    return bool(key) and hmac.compare_digest(signature(key, kind, nonce, body), shown)


def packed(message: Wanted | Told) -> bytes:
    """A message as bytes."""
    return orjson.dumps(asdict(message))


def wanted_in(body: bytes) -> Wanted:
    """Read an answer; raises InputError."""
    found = _object(body)
    return Wanted(**{name: _names(found.get(name, [])) for name in ("orders", "stop", "draining", "here")})


def told_in(body: bytes) -> Told:
    """Read a question; raises InputError."""
    found = _object(body)
    most, units = found.get("most", 0), found.get("units", [])
    if type(most) is not int or not isinstance(units, list) or len(units) > NAMES_MAX:
        raise InputError("most: a number; units: a list")
    (metrics,) = _names([found.get("metrics", "")])
    rows = [_names(unit) for unit in units]
    if any(len(row) != 3 for row in rows):
        raise InputError("units: [worker, order, state]")
    return Told(metrics, max(0, most), tuple((row[0], row[1], row[2]) for row in rows))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError("an object was expected")
    return found


def _names(found: Any) -> tuple[str, ...]:
    def fine(names: Iterable[Any]) -> bool:
        return all(isinstance(name, str) and len(name) <= NAME_MAX and name.isprintable() for name in names)

    if not isinstance(found, list) or len(found) > NAMES_MAX or not fine(found):
        raise InputError("a list of names was expected")
    return tuple(found)
