"""Methods: the text that a paper needs about a sweep, with every parameter, made from what was run."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import bayes, compare, portability, ranks, topsets
from analysis.answers import Statistics
from analysis.controls import LEAST_RHO
from analysis.findings import Findings
from analysis.flags import PRESSURE_LIMIT
from analysis.headline import CORRECTIONS
from analysis.metrics import METRICS, split_column
from analysis.page import environment
from analysis.words import SLO_WORDS, margin_words, metric_words, parameter_words


def methods(of: Findings, stats: Statistics | None, attributions: Sequence[Mapping[str, Any]]) -> str:
    """Return paragraphs ready to paste, a blank line between two; each says only what this sweep did."""
    runs = of.study.runs
    slos = sorted({split_column(column)[1] for column in of.study.metrics} - {""})
    system = {
        name: _all(runs, name)
        for name in ("driver", "profile", "fleet", "tiers", "forecast", "seed", "git_rev")
    }
    text = environment(html=False).get_template("methods.txt.j2").render(
        study=of.study,
        runs=len(runs),
        schedulers=_schedulers(runs, of.study.schedulers),
        traffic=_traffic(of),
        scored=_spread(runs["scored"]) if "scored" in runs else "",
        digests={name: _short(runs, f"{name}_sha256") for name in ("manifest", "calibration")},
        system=system,
        metrics=[_metric(of, column) for column in of.study.metrics],
        slos=[SLO_WORDS[slo] for slo in slos],
        stats=stats,
        corrections=CORRECTIONS,
        attributions=attributions,
        least_rho=LEAST_RHO,
        pressure=PRESSURE_LIMIT,
        ranks=ranks,
        compare=compare,
        portability=portability,
        topsets=topsets,
        bayes=bayes,
    )  # fmt: skip
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(part for part in paragraphs if part)


def _schedulers(runs: pd.DataFrame, names: Sequence[str]) -> list[str]:
    found = []
    for row in runs.drop_duplicates("scheduler").sort_values("scheduler").to_dict("records"):
        if row["scheduler"] in names:
            told = parameter_words(str(row["params"])) or "no parameters"
            found.append(f"{row['scheduler']} ({row['scheduler_version']}; {told})")
    return found


def _traffic(of: Findings) -> list[str]:
    found = []
    for source, rows in of.study.runs.groupby("source"):
        windows = rows.drop_duplicates("window_id")
        label, many = of.study.labels[str(source)], _spread(windows["arrivals"])
        found.append(f"{source} ({label}): {len(windows)} windows of {many} requests")
    return found


def _metric(of: Findings, column: str) -> str:
    scale = "as it is" if METRICS[split_column(column)[0]].kind == "rate" else "as a logarithm"
    return f"{column} ({metric_words(column)}; compared {scale}; margin {margin_words(of.study, column)})"


def _spread(values: "pd.Series[Any]") -> str:
    """Return "1,000" or "800 to 1,000"."""
    known = sorted({int(value) for value in values.dropna()})
    if not known:
        return ""
    return f"{known[0]:,}" if known[0] == known[-1] else f"{known[0]:,} to {known[-1]:,}"


def _all(runs: pd.DataFrame, column: str) -> str:
    return " | ".join(sorted({str(value) for value in runs[column]}))


def _short(runs: pd.DataFrame, column: str) -> str:
    return " | ".join(sorted({str(value)[:12] for value in runs[column]}))
