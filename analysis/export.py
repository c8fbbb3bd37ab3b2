"""Export: the figures of a report as SVG and PDF, its tables as CSV and LaTeX, its methods as text; no browser."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.answers import Statistics
from analysis.attribution import read_attributions
from analysis.charts import Figure, still
from analysis.contents import contents, every_hypothesis
from analysis.findings import Findings
from analysis.tables import Table, matrix_table, pair_table
from loadgen.result import InputError

LONGTABLE = 40
"""A table of more rows breaks over pages."""

_ESCAPED = re.compile(r"[&%$#_{}]")
"""What LaTeX reads as a command in a caption, which pandas leaves as it is."""

TEX = {"−": "$-$", "–": "--", "≥": "$\\geq$", "≤": "$\\leq$", "→": "$\\to$", "±": "$\\pm$", "·": "$\\cdot$"}


def write_figures(
    folder: Path,
    out: Path,
    findings: Findings,
    stats: Statistics,
    fidelity: Mapping[str, Any] | None = None,
) -> tuple[Path, ...]:
    """Write every figure (one file a choice of its menu) and table of a sweep into ``out``; return their paths.

    Raises InputError for a path that can't be written.
    """
    from analysis.methods import methods

    attributions = read_attributions(folder)
    held = contents(findings, stats, attributions, fidelity)
    tables = {one.name: one for listed in held.tables.values() for one in listed}
    more = (matrix_table(stats), pair_table(findings, stats), *every_hypothesis(stats))
    tables |= {one.name: one for one in more if one.rows}
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for listed in held.figures.values():
            for one in listed:
                written += list(_figure(one, out))
        for table in tables.values():
            written += [
                write_file(out / f"{table.name}.csv", table.frame().to_csv(index=False)),
                write_file(out / f"{table.name}.tex", latex(table)),
            ]
        written.append(write_file(out / "methods.txt", methods(findings, stats, attributions) + "\n"))
    except OSError as error:
        raise InputError(
            f"can't write figures: {error.strerror}", where=str(out), fix="name another folder with --figures"
        ) from error
    return tuple(written)


def latex(table: Table) -> str:
    """Return a table as LaTeX for the booktabs package (longtable if it is long), numbers as people read them."""
    frame = table.frame()
    for place, name in enumerate(table.columns):
        frame[name] = [row[place] for row in table.shown()]
    sides = "".join("l" if kind in ("text", "prose") else "r" for kind in table.kinds)
    caption = _ESCAPED.sub(r"\\\g<0>", table.title)
    text = frame.to_latex(
        index=False, escape=True, caption=caption, label=f"tab:{table.name}", column_format=sides,
        longtable=len(table.rows) > LONGTABLE,
    )  # fmt: skip
    for sign, command in TEX.items():
        text = text.replace(sign, command)
    return text


def _figure(figure: Figure, out: Path) -> Iterator[Path]:
    import vl_convert

    forms: dict[str, Callable[[dict[str, object]], str | bytes]] = {
        "svg": vl_convert.vegalite_to_svg,
        "pdf": vl_convert.vegalite_to_pdf,
    }
    for place, chosen in enumerate(figure.choices or ("",)):
        spec = still(figure, chosen)
        name = figure.name if not place else f"{figure.name}--{_slug(chosen)}"
        for ending, form in forms.items():
            yield write_file(out / f"{name}.{ending}", form(spec))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def write_file(path: Path, data: str | bytes) -> Path:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
