"""Contents: every figure and table of a report by section, and why a section has none."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.answers import Family, Statistics
from analysis.charts import Figure, unchecked
from analysis.diagrams import attribution, components, critical_differences, detectable, recoveries
from analysis.fidelity_figures import figures as compared
from analysis.fidelity_words import tables as fidelity_tables
from analysis.figures import agreements, conditions, curves, labelled, metric_ranks, ranks
from analysis.findings import Findings
from analysis.maps import axis_matrix, outcome_counts, reversal_map, worst_rows
from analysis.tables import (
    Table,
    agreement_tables,
    attribution_table,
    component_table,
    condition_table,
    control_table,
    crossing_table,
    family_table,
    metric_table,
    outcome_table,
    pressure_table,
    rank_tables,
    warning_table,
)

USUAL_RHO = 0.95
"""The region shown first: just below saturation, where order matters most."""


FIGURES = (
    "ranks", "matrices", "beside", "conditions", "reversals", "families", "differences", "curves", "metrics", "panel",
    "recovery", "precision", "portable", "causes", "fidelity",
)  # fmt: skip
TABLES = (
    "ranks", "agreement", "metrics", "reversals", "crossings", "precision", "portable", "causes", "controls",
    "warnings", "pressure", "fidelity",
)  # fmt: skip


class Contents(NamedTuple):
    """What a report shows, by section; ``absent`` says why a section lacks what it is for."""

    figures: dict[str, tuple[Figure, ...]]
    tables: dict[str, tuple[Table, ...]]
    absent: dict[str, str]


def contents(
    of: Findings,
    stats: Statistics | None,
    attributions: Sequence[Mapping[str, Any]],
    fidelity: Mapping[str, Any] | None = None,
) -> Contents:
    """Return the figures and tables of a report.

    ``attributions`` are those of ``analysis.attribution.read_attributions``, ``fidelity`` is that of
    ``analysis.fidelity_study.read_study``.
    """
    with unchecked():
        figures = _figures(of, stats) | {
            "causes": tuple(attribution(one, _between(one)) for one in attributions),
            "fidelity": compared(fidelity) if fidelity else (),
        }
    tables = _tables(of, stats)
    tables["causes"] = (attribution_table(attributions),) if attributions else ()
    tables["fidelity"] = tuple(fidelity_tables(fidelity).values()) if fidelity else ()
    figures, tables = dict.fromkeys(FIGURES, ()) | figures, dict.fromkeys(TABLES, ()) | tables
    return Contents(figures, tables, _absent(of, stats, figures, tables))


def main_family(stats: Statistics | None) -> Family | None:
    """Return the family of reversals between sources, if it was tested."""
    return next((one for one in stats.families if one.name == "sources"), None) if stats else None


def _figures(of: Findings, stats: Statistics | None) -> dict[str, tuple[Figure, ...]]:
    names = labelled(of.study)
    found: dict[str, tuple[Figure | None, ...]] = {
        "ranks": (ranks(of),),
        "curves": curves(of),
        "metrics": (metric_ranks(of),),
        "beside": agreements(of),
        "conditions": (conditions(of),) if len(of.matrix_of) > 1 else (),
    }
    if stats:
        by_load = sorted(of.study.regions, key=lambda region: abs(float(region) - USUAL_RHO))
        margin = next((cell.margin for key, cell in of.cells.items() if key[2] == of.study.primary), 1.0)
        asked = [one for one in stats.families if one.name in ("planned", "sources")]
        others = [one for one in stats.families if one.name not in ("planned", "sources")]
        found |= {
            "matrices": tuple(axis_matrix(stats.matrices, axis, names) for axis in ("source", "region")),
            "panel": tuple(axis_matrix(stats.matrices, axis, names) for axis in ("metric", "slo")),
            "reversals": _families(asked, names),
            "families": _families(others, names),
            "differences": tuple(
                critical_differences(stats.omnibus, source, name, by_load) for source, name in names.items()
            ),
            "recovery": recoveries(stats.recovery, names),
            "precision": (detectable(stats.power, names, of.study.regions, margin),),
            "portable": (components(stats.components),),
        }
    return {section: tuple(one for one in listed if one) for section, listed in found.items()}


def _families(families: Sequence[Family], names: Mapping[str, str]) -> tuple[Figure | None, ...]:
    """Return the counts and the map of each family that has hypotheses."""
    tested = [one for one in families if one.size]
    return tuple(figure for one in tested for figure in (outcome_counts(one), reversal_map(one, names)))


def _tables(of: Findings, stats: Statistics | None) -> dict[str, tuple[Table, ...]]:
    found: dict[str, tuple[Table, ...]] = {
        "ranks": tuple(rank_tables(of)),
        "agreement": tuple(one for one in agreement_tables(of) if one.rows),
        "metrics": (metric_table(of),),
        "controls": (control_table(of),),
        "warnings": (warning_table(of),) if of.flags else (),
        "pressure": (pressure_table(of),),
    }
    if stats:
        found["reversals"] = (outcome_table(stats),) if stats.families else ()
        for family in stats.families:
            worst = worst_rows(family)
            if len(worst):
                title = f"Reversals in the family {family.name}, the surest first"
                found["reversals"] += (family_table(family, worst, title),)
        found["crossings"] = tuple(crossing_table(one) for one in stats.crossings if len(one.table))
        found["precision"] = (condition_table(of, stats),)
        found["portable"] = (component_table(stats),)
    return found


def every_hypothesis(stats: Statistics | None) -> tuple[Table, ...]:
    """Return whole families as tables, too long for a page: for files."""
    return tuple(
        family_table(one, one.table, f"Every hypothesis of the family {one.name}")._replace(
            name=f"family-{one.name}"
        )
        for one in (stats.families if stats else ())
        if len(one.table)
    )


def _absent(
    of: Findings,
    stats: Statistics | None,
    figures: Mapping[str, Sequence[Figure]],
    tables: Mapping[str, Sequence[Table]],
) -> dict[str, str]:
    """Return why sections are empty, in words that say what would fill them."""
    uncounted = "not computed for this report"
    one_source = "one source only: nothing can be said about other traffic"
    few = "too few windows in every condition"
    family = main_family(stats)
    reasons = {
        "matrices": uncounted if not stats else "one source and one region: nothing to compare",
        "panel": uncounted if not stats else "one metric and one SLO set: nothing to compare",
        "beside": one_source if len(of.study.sources) < 2 else few,
        "reversals": uncounted if not stats else one_source if len(of.study.sources) < 2 else (
            f"no hypothesis could be tested, {family.excluded} left out (not pushed alike, or undefined)"
            if family else "no family declared"),
        "differences": uncounted if not stats else few,
        "recovery": uncounted if not stats else few,
        "precision": uncounted if not stats else few,
        "portable": uncounted if not stats else "; ".join(
            dict.fromkeys(one.why_not for one in stats.components if one.why_not)) or "no balanced design",
        "metrics": "one metric only: nothing to compare",
        "fidelity": "nobody held this against live runs; windtunnel validate WINDOWS --out DIR does, "
        "and report --fidelity DIR shows it",
        "causes": "nobody asked; windtunnel attribute DIR --sources A B --region 0.95 finds out, then report again",
    }  # fmt: skip
    return {
        section: why for section, why in reasons.items() if not figures.get(section) and not (
            section == "causes" and tables.get(section))
    }  # fmt: skip


def _between(one: Mapping[str, Any]) -> str:
    a, b = one["sources"]
    told = {name: f"{name} ({label})" if label not in name else name for name, label in one["labels"].items()}
    return f"{told.get(a, a)} to {told.get(b, b)}, rho {one['region']}"
