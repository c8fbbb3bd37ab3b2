"""Figures become SVG and PDF, tables CSV and LaTeX, whole and without a browser."""

import csv
import json
import re

import numpy as np
import pytest

from analysis.contents import contents, every_hypothesis
from analysis.export import latex, write_figures
from analysis.findings import find
from analysis.statistics import statistics
from analysis.tables import matrix_table, pair_table, rank_tables, table
from loadgen.result import InputError


def test_tables_hold_what_was_found(found, stats):
    ranked = rank_tables(found)[0]
    source = found.study.sources[0]
    rows = [dict(zip(ranked.columns, row, strict=True)) for row in ranked.rows]
    for region in found.study.regions:
        for row in found.rankings[source, region, found.study.primary].rows:
            told = next(one for one in rows if (one["rho"], one["scheduler"]) == (region, row.scheduler))
            assert (told["rank"], told["mean"], told["to best"]) == (row.rank, row.mean, row.difference)
    pairs = pair_table(found, stats)
    count = len(found.study.schedulers)
    assert len(pairs.rows) == count * (count - 1) // 2 * len(found.study.sources) * len(found.study.regions)
    by_name = dict(zip(pairs.columns, pairs.rows[0], strict=True))
    assert by_name["P(A better)"] + by_name["P(equivalent)"] + by_name["P(B better)"] == pytest.approx(1)
    assert len(matrix_table(stats).rows) == sum(
        len(m.labels) * (len(m.labels) - 1) // 2 for m in stats.matrices
    )
    whole = next(one for one in every_hypothesis(stats) if one.name == "family-sources")
    assert len(whole.rows) == next(one.size for one in stats.families if one.name == "sources")


def test_every_table_can_be_shown_and_written(found, stats, attributions):
    held = contents(found, stats, attributions)
    for listed in held.tables.values():
        for one in listed:
            shown = one.shown()
            assert len(shown) == len(one.rows)
            assert all(isinstance(cell, str) for row in shown for cell in row)
            assert not any(cell in ("nan", "None") for row in shown for cell in row), one.name
            assert next(csv.reader(one.frame().to_csv(index=False).splitlines())) == list(one.columns)


def test_latex_escapes_and_rules():
    made = table("t_1", "A & B", ("name", "x|number"), [("a_b", -0.5), ("50%", np.nan)])
    text = latex(made)
    assert r"\toprule" in text
    assert r"\caption{A \& B}" in text
    assert r"a\_b & $-$0.500 \\" in text
    assert r"50\% & -- \\" in text
    assert "−" not in text
    assert r"\begin{longtable}" in latex(made._replace(rows=made.rows * 30))


def test_without_statistics_sections_say_so(found):
    held = contents(found, None, ())
    assert not held.figures["reversals"]
    assert held.absent["reversals"] == "not computed for this report"
    assert "nobody asked" in held.absent["causes"]


def test_one_source_is_said(sweep):
    of = find(sweep(sources=("azure_surrogate",), regions=(0.85, 1.1), windows=8))
    held = contents(of, statistics(of), ())
    assert "one source only" in held.absent["reversals"]
    assert "one source only" in held.absent["beside"]


def test_a_folder_that_cannot_be_made_is_said(found, stats, usual):
    with pytest.raises(InputError, match="can't write figures"):
        write_figures(usual, usual / "plan.json" / "figures", found, stats)


@pytest.mark.slow
def test_every_figure_and_table_is_written(found, stats, usual, tmp_path):
    written = write_figures(usual, tmp_path / "figures", found, stats)
    assert sorted(written) == sorted((tmp_path / "figures").iterdir())
    held = contents(found, stats, ())
    names = [one.name for listed in held.figures.values() for one in listed]
    for name in names:
        assert (tmp_path / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        text = (tmp_path / "figures" / f"{name}.svg").read_text()
        assert text.startswith("<svg")
        assert not re.search(r"var\(|https?://(?!www\.w3\.org/)", text)
    menus = [one for listed in held.figures.values() for one in listed if len(one.choices) > 1]
    for one in menus:
        files = list((tmp_path / "figures").glob(f"{one.name}--*.svg"))
        assert len(files) == len(one.choices) - 1
        assert len({file.read_text() for file in files}) > 1 or len(files) == 1
    assert (tmp_path / "figures" / "methods.txt").read_text().startswith("Design. ")


def test_plain_numbers_stay_plain_in_csv(found, tmp_path):
    text = rank_tables(found)[0].frame().to_csv(index=False)
    assert "−" not in text
    json.dumps(text.splitlines()[1].split(","))
    assert float(text.splitlines()[1].split(",")[5]) > 0
