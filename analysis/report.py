"""Report: one HTML file about a sweep that opens from disk, without network, scripts or fonts."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.controls import BROKEN
from analysis.figures import DASHES, curves, gaps, heat, series_of
from analysis.findings import Findings, best_changes, find, place_comparisons, top_set
from analysis.metrics import natural
from analysis.scores import scores
from analysis.words import (
    CONTROLS_TITLE,
    control_words,
    failure_lines,
    margin_words,
    metric_words,
    pair_words,
    summary,
    untestable_words,
)
from loadgen.result import InputError

TEMPLATES = Path(__file__).parent / "templates"
SAME_FIRST = (
    "A rank interval of 1-1 beside others in the top set is no contradiction: the order is stable, but the "
    "difference is not shown to exceed the margin after correction."
)
PACKAGES = ("windtunnel", "numpy", "scipy", "pandas", "pyarrow", "numba", "jinja2")


def write_report(folder: Path, out: Path, primary: str = "", findings: Findings | None = None) -> Path:
    """Write the report of the sweep in ``folder`` to ``out`` and return its path; same results, same bytes.

    Raises InputError for a folder without results, damaged shards, an unknown metric, or a path that can't be
    written.
    """
    of = findings or find(folder, primary)
    text = render(of, Path(folder))
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, out)
    except OSError as error:
        raise InputError(
            f"can't write the report: {error.strerror}", where=str(out), fix="name another file with --out"
        ) from error
    finally:
        if temporary.exists():
            temporary.unlink()
    return out


def render(of: Findings, folder: Path) -> str:
    """Return the report's HTML."""
    page = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {
        "ceiling": ceiling,
        "number": number,
        "interval": interval,
        "tau": tau,
        "tau_interval": tau_interval,
    }
    primary = [one for one in of.across_sources if one.a[2] == of.study.primary]
    changed, beyond = best_changes(of, place_comparisons(of))
    return page.get_template("report.html.j2").render(
        study=of.study,
        findings=of,
        sentences=summary(of),
        broken=[check for check in of.checks if check.status == BROKEN],
        failure_lines=failure_lines(of.study),
        metric=metric_words(of.study.primary),
        margin=margin_words(of.study.primary),
        metric_words=metric_words,
        pair_words=pair_words,
        series=series_of(of),
        dashes=DASHES,
        panels=curves(of),
        heat=heat(of),
        gaps=gaps(of, primary),
        primary_sources=primary,
        rank_tables=[_rank_table(of, source) for source in of.study.sources],
        top_set=top_set,
        compared=place_comparisons(of),
        controls_title=CONTROLS_TITLE,
        control_words=control_words(of),
        untestable_words=untestable_words,
        same_first=SAME_FIRST,
        changed=changed,
        beyond=beyond,
        control_rows=_control_rows(of),
        pressure=of.pressure.to_dict("records"),
        reproduce=_reproduce(of, folder),
        shape=_shape(of),
    )


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


def _shape(of: Findings) -> dict[str, Any]:
    runs = of.study.runs
    return {
        "runs": len(runs),
        "windows": {source: int(rows["window_id"].nunique()) for source, rows in runs.groupby("source")},
        "arrivals": int(runs["arrivals"].sum()),
    }


def _rank_table(of: Findings, source: str) -> dict[str, Any]:
    """Return one source's ranks: a row a scheduler (best mean rank first), a cell a region."""
    rankings = {region: of.rankings[source, region, of.study.primary] for region in of.study.regions}
    found: dict[str, dict[str, Any]] = {name: {} for name in of.study.schedulers}
    for region, ranking in rankings.items():
        for row in ranking.rows:
            found[row.scheduler][region] = row
    order = sorted(found, key=lambda name: (_mean_rank(found[name]), name))
    return {
        "source": source,
        "label": of.study.labels[source],
        "rows": [(name, [found[name].get(region) for region in rankings]) for name in order],
        "informative": {region: ranking.informative for region, ranking in rankings.items()},
        "rankings": rankings,
        "failed": [
            (region, one) for region in rankings for one in of.cells[source, region, of.study.primary].failed
        ],
    }


def _mean_rank(cells: Mapping[str, Any]) -> float:
    ranks = [row.rank for row in cells.values()]
    return float(np.mean(ranks)) if ranks else float("inf")


def _control_rows(of: Findings) -> list[tuple[str, list[float]]]:
    """Return a control's mean of the primary metric a region, over sources, in the metric's unit."""
    column, study = of.study.primary, of.study
    rows = []
    for name in study.controls:
        means = []
        for region in study.regions:
            cells = [scores(study, source, region, column, (name,)) for source in study.sources]
            known = [float(cell.means[0]) for cell in cells if cell.schedulers and cell.windows]
            means.append(float(natural(np.asarray(np.mean(known)), column)) if known else float("nan"))
        rows.append((name, means))
    return rows


def _reproduce(of: Findings, folder: Path) -> dict[str, Any]:
    """Return what another person needs to make the same numbers: plan, digests, versions, revision,
    commands.
    """
    runs = of.study.runs
    plan = folder / "plan.toml"
    windows = runs.drop_duplicates("window_id").sort_values("window_id")
    once = runs.drop_duplicates("scheduler").sort_values("scheduler")
    return {
        "folder": folder.name,
        "plan": plan.read_text(encoding="utf-8") if plan.is_file() else "",
        "digests": {
            "windows' manifest": _distinct(runs["manifest_sha256"]),
            "calibration": _distinct(runs["calibration_sha256"]),
            "git revision": _distinct(runs["git_rev"]),
            "driver": _distinct(runs["driver"]),
            "result schema": _distinct(runs["schema_version"]),
            "profile": _distinct(runs["profile"]),
            "fleet": _distinct(runs["fleet"]),
            "tiers": _distinct(runs["tiers"]),
            "forecast": _distinct(runs["forecast"]),
            "seed": _distinct(runs["seed"]),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "schedulers": once[["scheduler", "scheduler_version", "params", "control"]].to_dict("records"),
        "windows": windows[["window_id", "source", "label", "window_sha256"]].to_dict("records"),
    }


def _distinct(values: Any) -> list[str]:
    return sorted({str(value) for value in values})


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
