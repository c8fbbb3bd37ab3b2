"""Report: one HTML file about a sweep that opens from disk, without network; its charts and scripts are inside."""

import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from analysis.answers import Statistics
from analysis.attribution import read_attributions
from analysis.cards import cards
from analysis.charts import COLOURS, Figure, series
from analysis.contents import Contents, contents, main_family
from analysis.controls import BROKEN
from analysis.fidelity_words import told_of
from analysis.figures import labelled
from analysis.findings import Findings, best_changes, find, place_comparisons, top_set
from analysis.headline import headline
from analysis.metrics import natural
from analysis.page import chart_script, environment, specs_json
from analysis.ranks import LEVEL
from analysis.scores import scores
from analysis.words import (
    CONTROLS_TITLE,
    SAME_FIRST,
    control_words,
    failure_lines,
    margin_words,
    metric_words,
    pair_words,
    summary,
)
from loadgen.result import InputError

PACKAGES = (
    "windtunnel", "numpy", "scipy", "pandas", "pyarrow", "numba", "statsmodels", "scikit-posthocs", "baycomp", "arch",
    "choix", "altair", "vl-convert-python", "jinja2",
)  # fmt: skip


def write_report(
    folder: Path,
    out: Path,
    primary: str = "",
    findings: Findings | None = None,
    stats: Statistics | None = None,
    fidelity: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of the sweep in ``folder`` to ``out`` and return its path; same results, same bytes.

    Findings and statistics that aren't given are made; ``fidelity`` is a study that held the simulator against live
    runs (``analysis.fidelity_study.read_study``). Raises InputError for a folder without results, damaged
    shards, an unknown metric, or a path that can't be written.
    """
    from analysis.statistics import statistics

    of = findings or find(folder, primary)
    with ThreadPoolExecutor(1) as aside:  # bundling takes a second or two, beside the statistics
        bundled = aside.submit(chart_script)
        stats = stats or statistics(of)
        bundled.result()
    text = render(of, Path(folder), stats, fidelity)
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


def render(
    of: Findings,
    folder: Path,
    stats: Statistics | None = None,
    fidelity: Mapping[str, Any] | None = None,
) -> str:
    """Return the report's HTML; sections that need statistics say so without them."""
    from analysis.methods import methods

    attributions = read_attributions(folder)
    held = contents(of, stats, attributions, fidelity)
    return environment().get_template("report.html.j2").render(
        held=held, attributions=attributions, methods=methods(of, stats, attributions), script=chart_script(),
        specs=specs_json(_every(held)), fidelity=told_of(fidelity), **_values(of, folder, stats),
    )  # fmt: skip


def _values(of: Findings, folder: Path, stats: Statistics | None) -> dict[str, Any]:
    """Return what the template says in words and small tables."""
    changed, beyond = best_changes(of, place_comparisons(of))
    return {
        "study": of.study,
        "findings": of,
        "stats": stats,
        "colours": COLOURS,
        "head": headline(of, stats),
        "names": labelled(of.study),
        "sentences": summary(of),
        "broken": [check for check in of.checks if check.status == BROKEN],
        "failure_lines": failure_lines(of.study),
        "metric": metric_words(of.study.primary),
        "margin": margin_words(of.study, of.study.primary),
        "pair_words": pair_words,
        "series": series(of.study.schedulers),
        "top_set": top_set,
        "family": main_family(stats),
        "cards": cards(of, stats),
        "compared": place_comparisons(of),
        "controls_title": CONTROLS_TITLE,
        "control_words": control_words(of),
        "same_first": SAME_FIRST,
        "changed": changed,
        "beyond": beyond,
        "control_rows": _control_rows(of),
        "reproduce": _reproduce(of, folder),
        "shape": _shape(of),
        "level": LEVEL,
    }


def _every(held: Contents) -> Sequence[Figure]:
    return [one for listed in held.figures.values() for one in listed]


def _shape(of: Findings) -> dict[str, Any]:
    runs = of.study.runs
    return {
        "runs": len(runs),
        "windows": {source: int(rows["window_id"].nunique()) for source, rows in runs.groupby("source")},
        "arrivals": int(runs["arrivals"].sum()),
    }


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


def _reproduce(of: Findings, folder: Path) -> Mapping[str, Any]:
    """Return what another person needs to make the same numbers: plan, digests, versions, revision, commands."""
    runs = of.study.runs
    plan = folder / "plan.toml"
    windows = runs.drop_duplicates("window_id").sort_values("window_id")
    once = runs.drop_duplicates("scheduler").sort_values("scheduler")
    named = {
        "windows' manifest": "manifest_sha256", "plan": "plan_sha256", "calibration": "calibration_sha256",
        "git revision": "git_rev", "driver": "driver", "result schema": "schema_version", "profile": "profile",
        "fleet": "fleet", "tiers": "tiers", "forecast": "forecast", "seed": "seed",
    }  # fmt: skip
    return {
        "folder": folder.name,
        "plan": plan.read_text(encoding="utf-8") if plan.is_file() else "",
        "digests": {told: _distinct(runs[column]) for told, column in named.items() if column in runs},
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
