"""Text to numbers, a column at a time: what cannot be read is named, never guessed."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Reasons = npt.NDArray[np.int8]

REASONS = (
    "kept",
    "bad_row",  # a field is missing, unreadable, or breaks the format's own rule
    "broken_json",
    "not_a_number",  # NaN, infinite or empty
    "negative_time",
    "negative_tokens",
    "zero_tokens",
    "failed",  # the service gave no answer
    "unknown_model",
    "unknown_log_type",
    "unknown_type",
    "too_large",  # more tokens than an int32 holds
)
"""Why a row is dropped; row 0 means that it is kept."""

TOKENS_MAX = np.iinfo(np.int32).max
_NO_NUMBER = {"", "nan", "inf", "-inf", "+inf", "infinity", "-infinity", "null", "none", "na", "n/a"}
_EXACT = 2.0**53


def code(name: str) -> int:
    """Return the code of a reason."""
    return REASONS.index(name)


def mark(reasons: Reasons, rows: npt.NDArray[np.bool_], name: str) -> None:
    """Give ``rows`` (n,) the reason ``name`` unless an earlier check has already spoken."""
    reasons[(reasons == 0) & rows] = code(name)


def tokens(reasons: Reasons, counts: Ints, zero: str = "zero_tokens") -> Ints:
    """Mark rows whose token counts (n,) are negative, zero or too large; return them as they are."""
    mark(reasons, counts < 0, "negative_tokens")
    mark(reasons, counts == 0, zero)
    mark(reasons, counts > TOKENS_MAX, "too_large")
    return counts


def integers(column: Any, reasons: Reasons) -> Ints:
    """Read whole numbers from text (n,); ``12`` and ``12.0`` pass, ``12.5`` is a ``bad_row`` (trap B7)."""
    return _read(column, reasons, (_whole, _whole_float))


def decimals(column: Any, reasons: Reasons, digits: int = 9) -> Ints:
    """Read decimal text (n,) as integers of 10^-digits, exactly: seconds as ns by 9, milliseconds by 6.

    Digits beyond are cut off; so are none of the published files' digits.
    """

    def exact(part: Any) -> Ints:
        return _fixed_point(part, digits)

    def cut(part: Any) -> Ints:
        return np.array([_cut_decimal(text, digits) for text in part.to_pylist()], np.int64)

    return _read(column, reasons, (exact, cut))


def instants(column: Any, reasons: Reasons, zoned: bool) -> Ints:
    """Read ISO times (n,) as ns since 1970 with up to 9 fraction digits (trap A1)."""
    kind = pa.timestamp("ns", "UTC") if zoned else pa.timestamp("ns")

    def parse(part: Any) -> Ints:
        return _numpy(pc.cast(part, kind).cast(pa.int64()))

    return _read(column, reasons, (parse,))


def _read(column: Any, reasons: Reasons, ways: tuple[Callable[[Any], Ints], ...]) -> Ints:
    """Read a column whole if it can be; else halve it until the unreadable rows stand alone.

    So one bad row costs a logarithm, and the answer does not depend on how the file was cut into blocks.
    """
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = np.zeros(len(column), np.int64)
    waiting = [(0, len(column))] if len(column) else []
    while waiting:
        start, stop = waiting.pop()
        part = column.slice(start, stop - start)
        read = _first_way(part, ways)
        if read is None and stop - start == 1:
            text = (part[0].as_py() or "").strip()
            read = _first_way(pa.array([text]), ways)
            if read is None:
                reason = "not_a_number" if text.lower() in _NO_NUMBER else "bad_row"
                reasons[start] = reasons[start] or code(reason)
                continue
        if read is None:
            middle = (start + stop) // 2
            waiting += [(start, middle), (middle, stop)]
            continue
        values[start:stop] = read
    return values


def _first_way(part: Any, ways: tuple[Callable[[Any], Ints], ...]) -> Ints | None:
    for way in ways:
        try:
            return way(part)
        except (pa.ArrowException, TypeError, ValueError, InvalidOperation):
            continue
    return None


def _numpy(array: Any) -> Ints:
    if array.null_count:
        raise ValueError("null")
    values: Ints = array.to_numpy(zero_copy_only=False)
    return values


def _whole(part: Any) -> Ints:
    return _numpy(pc.cast(part, pa.int64()))


def _whole_float(part: Any) -> Ints:
    numbers = pc.cast(part, pa.float64()).to_numpy(zero_copy_only=False)
    if not np.all(np.abs(numbers) < _EXACT) or not np.all(numbers == np.floor(numbers)):
        raise ValueError("not whole")
    whole: Ints = numbers.astype(np.int64)
    return whole


def _fixed_point(part: Any, digits: int) -> Ints:
    """Read decimal text as integers of 10^-digits; raises where the text says more digits or too much."""
    array = pc.cast(part, pa.decimal128(19, digits))
    if array.null_count:
        raise ValueError("null")
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset :][: 2 * len(array)]
    low: Ints = words[0::2].copy()
    if not np.array_equal(low >> 63, words[1::2]):
        raise ValueError("more than 63 bits")
    return low


def _cut_decimal(text: str, digits: int) -> int:
    number = Decimal(text)
    if not number.is_finite() or abs(number) >= Decimal(2**62).scaleb(-digits):
        raise ValueError("out of range")
    return int(number.scaleb(digits))
