"""Surrogates: traces drawn from published statistics, for where the real files are absent.

They are labelled ``surrogate`` everywhere and never carry the plain name of what they stand for.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from loadgen.surrogate import azure, bailian, burstgpt
from loadgen.surrogate.sampling import GENERATOR
from loadgen.trace import Trace
from schedulers.errors import InputError

__all__ = ["GENERATOR", "PARTS", "ROWS_MAX", "generate", "regenerate"]

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "azure_surrogate": tuple(azure.SERVICES),
        "burstgpt_surrogate": ("burstgpt_surrogate",),
        "bailian_surrogate": tuple(bailian.PARTS),
    }
)
"""The parts of each source: what ``generate`` draws one trace each of."""

DRAWS: Mapping[str, Callable[[str, int, int], Trace]] = MappingProxyType(
    {
        "azure_surrogate": azure.draw,
        "burstgpt_surrogate": burstgpt.draw,
        "bailian_surrogate": bailian.draw,
    }
)

ROWS_MAX: Mapping[str, int] = MappingProxyType(
    {"azure_surrogate": 20_000_000, "burstgpt_surrogate": 20_000_000, "bailian_surrogate": 2_000_000}
)
"""Most rows of one trace; Bailian's prefix ids take about 400 a row."""


def generate(name: str, *, rows: int, seed: int) -> Trace:
    """Draw ``rows`` requests of the part ``name``; the first n rows are the same for any ``rows`` >= n.

    Raises InputError for a name that is no part (a source of several parts is none) and for rows outside
    [1, ROWS_MAX[source]]. Models and their origin: reference/traces.md section 6.
    """
    source = next((source for source, parts in PARTS.items() if name in parts), None)
    if source is None:
        parts = PARTS.get(name, tuple(part for parts in PARTS.values() for part in parts))
        what = f"{name!r} has several parts" if name in PARTS else f"unknown surrogate {name!r}"
        raise InputError(what, where="name of the surrogate", fix=f"use one of {', '.join(parts)}")
    if not 1 <= rows <= ROWS_MAX[source]:
        raise InputError(f"{rows} rows of {name}", where="rows", fix=f"ask for 1 to {ROWS_MAX[source]} rows")
    return DRAWS[source](name, rows, seed)


def regenerate(generator: str) -> Trace:
    """Draw again the trace whose ``TraceInfo.generator`` is given.

    Raises InputError if another version of the generators drew it, or if it is not such a text.
    """
    try:
        version, name, rows, seed = generator.split(" ")
        asked = int(rows.removeprefix("rows=")), int(seed.removeprefix("seed="))
    except ValueError:
        raise InputError(
            f"{generator!r} names no generator of surrogates",
            where="generator",
            fix=f"give a text like '{GENERATOR} azure_surrogate-code rows=1000 seed=1'",
        ) from None
    if version != GENERATOR:
        raise InputError(
            f"generator {version} drew this trace, and this is {GENERATOR}",
            where="generator",
            fix="freeze the windows again, or use the version of windtunnel that froze them",
        )
    return generate(name, rows=asked[0], seed=asked[1])
