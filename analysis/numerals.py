"""Numerals: numbers as people read them, in tables, figures and sentences."""

from typing import Any

import numpy as np


def number(value: Any, digits: int = 3) -> str:
    """Return a number for people: a dash where undefined, so many significant digits elsewhere."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    text = f"{value:#.{digits}g}" if 1e-4 <= abs(value) < 10**digits else f"{value:,.0f}"
    if 0 < abs(value) < 1e-4:
        text = f"{value:.0e}"
    return text.removesuffix(".").replace("-", "−")


def tau(value: float) -> str:
    """Return an agreement with two decimals, a dash where undefined."""
    return "–" if not np.isfinite(value) else f"{value + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")


def ceiling(value: float) -> str:
    """Return a noise ceiling, a dash where there is none: an order that doesn't hold against itself."""
    return tau(value if value > 0 else float("nan"))


def interval(low: float, high: float) -> str:
    """Return "low to high", a dash where undefined, one value where they are equal as shown."""
    ends = (number(low), number(high))
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def tau_interval(low: float, high: float) -> str:
    """Return an interval of agreements, a dash where undefined."""
    return f"{tau(low)} to {tau(high)}" if np.isfinite(low) else "–"


def share(value: float) -> str:
    """Return a share as a percentage without decimals, a dash where undefined."""
    return "–" if not np.isfinite(value) else f"{value:.0%}"


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: NaN and infinities become null, numpy scalars plain."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
