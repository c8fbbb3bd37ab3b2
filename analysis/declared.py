"""Declared: what a plan fixed before it ran, read from the frozen plan with the usual values where it is silent.

Reference statistics, sections 5 (margins) and 6.5 (families).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from analysis.metrics import METRICS, SLO_SETS, split_column
from loadgen.result import InputError

FAMILIES = ("sources", "regions", "metrics", "slo")
"""Families of reversals that a plan may declare; each is over all pairs of ranked schedulers."""

USUAL_FAMILIES = ("sources",)

MARGIN_FACTORS = (0.4, 1.0, 2.0)
"""Everything that depends on a margin is repeated at these multiples of it (section 5)."""


class Declared(NamedTuple):
    """What a plan says about its analysis; ``margins`` holds margins by kind or by metric."""

    margins: Mapping[str, float]
    panel: tuple[str, ...]  # columns, () for the usual
    families: tuple[str, ...]
    planned_pairs: tuple[tuple[str, str], ...]
    planned_regions: tuple[str, ...]  # names of regions, () for all

    def margin(self, column: str) -> float:
        """Return the practical margin of a column on the compared scale: its own, its kind's, or the usual."""
        metric = split_column(column)[0]
        usual = METRICS[metric].margin
        return float(
            self.margins.get(column, self.margins.get(metric, self.margins.get(METRICS[metric].kind, usual)))
        )


def read_declared(plan: Mapping[str, Any]) -> Declared:
    """Return what a frozen plan declares.

    Raises InputError for a margin that isn't a number above 0, or a metric that there is none of.
    """
    margins = {str(name): value for name, value in dict(plan.get("margins") or {}).items()}
    for name, value in margins.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 10:
            raise InputError(
                f"the margin of {name} is {value!r}", where="plan.json", fix="declare a number above 0"
            )
    return Declared(
        margins={name: float(value) for name, value in margins.items()},
        panel=tuple(column for name in plan.get("panel") or () for column in columns_of(str(name), plan)),
        families=tuple(str(name) for name in plan.get("families") or USUAL_FAMILIES if name in FAMILIES),
        planned_pairs=tuple((str(a), str(b)) for a, b in plan.get("planned_pairs") or ()),
        planned_regions=tuple(f"{float(rho):g}" for rho in plan.get("planned_regions") or ()),
    )


def columns_of(named: str, plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that a declared metric stands for.

    "attainment:S2" is one; "attainment" alone stands under the SLO set of the plan's primary metric.
    """
    if named in METRICS and METRICS[named].by_slo:
        primary = str(plan.get("primary", ""))
        slo = next((one for one in reversed(SLO_SETS) if primary.endswith(one)), SLO_SETS[0])
        return (f"{named}_{slo}",)
    metric, slo = split_column(named)
    return (f"{metric}_{slo}" if slo else metric,)
