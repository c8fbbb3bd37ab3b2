"""Charts are valid Vega-Lite that says what was found, in colours that can be read, light and dark."""

import json
import re
from itertools import product

import altair as alt
import numpy as np
import pytest
import vl_convert

from analysis.answers import OUTCOMES
from analysis.charts import COLOURS, config, in_colours, series, still
from analysis.contents import contents
from analysis.diagrams import attribution, critical_differences
from analysis.figures import labelled
from analysis.maps import LOOKS, MEDIAN, axis_matrix, reversal_map

INK_ON = ("paper", "box", "wash", "t2", "t3", "t4", "t5", "t6", "stable", "sign", "equivalent", "undecided")
STRONG_ON = ("t1", "t7", "t8", "reversal")


@pytest.fixture(scope="module")
def figures(found, stats, attributions):
    held = contents(found, stats, attributions)
    return {one.name: one for listed in held.figures.values() for one in listed}


def rows_of(figure):
    return figure.spec["data"]["values"]


def kind(name):
    return re.split(r"[-_]", name)[0]


def test_every_kind_of_chart_is_valid_and_can_be_drawn(figures):
    kinds = {kind(name): figure for name, figure in figures.items()}
    assert set(kinds) == {
        "ranks", "matrix", "agreement", "conditions", "outcomes", "reversals", "critical", "curves", "metric",
        "detectable", "components", "attribution",
    }  # fmt: skip
    for name, figure in kinds.items():
        spec = {**figure.spec, "data": {"values": rows_of(figure)[:2]}}
        alt.Chart.from_dict(spec, validate=True)
        drawn = vl_convert.vegalite_to_svg(still(figure))
        assert drawn.startswith("<svg"), name
        assert "var(" not in drawn
        assert drawn.count("<path") > 2, name
        assert "NaN" not in drawn


def test_specifications_hold_no_colour_of_their_own_and_no_nan(figures):
    for figure in figures.values():
        text = json.dumps(figure.spec, allow_nan=False)
        assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(", text)
        assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(COLOURS)
    assert "var(" not in json.dumps(in_colours(config()))


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_colour(mode):
    pairs = [*product(["ink"], INK_ON), *product(["strong"], STRONG_ON)]
    pairs += list(product(["soft", "good", "bad", "open", "note"], ["paper", "box", "wash"]))
    low = {pair for pair in pairs if contrast(*(COLOURS[name][mode] for name in pair)) < 4.5}
    assert not low
    lines = [f"s{i}" for i in range(1, 9)]
    assert all(contrast(COLOURS[name][mode], COLOURS["box"][mode]) >= 3 for name in lines)


def test_no_two_schedulers_look_alike():
    looks = series([str(i) for i in range(32)])
    assert len(set(looks.values())) == 32


def test_a_matrix_shows_the_agreement_and_the_ceiling_of_each_condition(found, stats):
    of = next(one for one in stats.matrices if one.axis == "source" and one.fixed[2] == found.study.primary)
    figure = axis_matrix(stats.matrices, "source", labelled(found.study))
    shown = [row for row in rows_of(figure) if row["shown"] == f"rho {of.fixed[1]}"]
    values = {(row["y"], row["x"]): row["value"] for row in shown}
    a, b = of.labels
    assert values[b, a] == pytest.approx(of.cross[0, 1], abs=1e-5)
    assert values[a, a] == pytest.approx(of.ceiling[0, 0], abs=1e-5)
    assert figure.choices[0] == MEDIAN
    mine = [one for one in stats.matrices if one.axis == "source" and one.fixed[2] == found.study.primary]
    counted = [one.cross[0, 1] for one in mine if one.counted[0, 1]]
    middle = next(
        row for row in rows_of(figure) if row["shown"] == MEDIAN and row["y"] == b and row["x"] == a
    )
    assert middle["value"] == pytest.approx(np.median(counted), abs=1e-5)


def test_a_median_leaves_out_what_is_not_counted(stats, found):
    first, second = (
        one for one in stats.matrices if one.axis == "source" and one.fixed[2] == found.study.primary
    )
    pair = (first._replace(cross=np.full((2, 2), 0.9)), second._replace(cross=np.full((2, 2), 0.1)))
    pair = (pair[0]._replace(counted=np.ones((2, 2), bool)), pair[1]._replace(counted=np.zeros((2, 2), bool)))
    rows = rows_of(axis_matrix(pair, "source", {}))
    middle = next(row for row in rows if row["shown"] == MEDIAN and not row["own"])
    assert (middle["value"], middle["says"]) == (0.9, "1 of 2 conditions")
    pale = next(row for row in rows if row["shown"] == f"rho {second.fixed[1]}" and not row["own"])
    assert not pale["counted"]


def test_the_reversal_map_has_a_letter_for_every_hypothesis(found, stats):
    family = next(one for one in stats.families if one.name == "sources")
    rows = rows_of(reversal_map(family, labelled(found.study)))
    assert len(rows) == family.size
    for outcome in OUTCOMES:
        letter = LOOKS[outcome][1]
        assert sum(row["o"] == letter for row in rows) == family.counts.get(outcome, 0)


def test_a_critical_difference_diagram_puts_names_at_their_mean_ranks(found, stats):
    key, omnibus = next(iter(stats.omnibus.items()))
    figure = critical_differences(stats.omnibus, key[0], "here", [key[1]])
    stems = {
        row["scheduler"]: row["x"] for row in rows_of(figure) if row["kind"] == "stem" and not row["order"]
    }
    expected = dict(zip(omnibus.schedulers, omnibus.mean_ranks, strict=True))
    assert stems == pytest.approx(expected, abs=1e-4)
    sides = [row["x"] for row in rows_of(figure) if row["kind"] == "cd"]
    assert sides[1] - sides[0] == pytest.approx(omnibus.critical_difference, abs=1e-4)
    bars = {row["scheduler"] for row in rows_of(figure) if row["kind"] == "clique"}
    assert bars == {", ".join(clique) for clique in omnibus.cliques if len(clique) > 1}


def test_parts_of_an_attribution_are_drawn_as_they_are(attributions):
    (one,) = attributions
    bars = {row["axis"]: row["value"] for row in rows_of(attribution(one, "a to b"))}
    assert bars == {"all together": 0.41, "lengths": 0.3, "arrivals": 0.11, "slo": 0.0}


def test_a_still_picture_of_curves_names_every_scheduler(figures, found):
    figure = next(one for one in figures.values() if one.name.startswith("curves-"))
    drawn = vl_convert.vegalite_to_svg(still(figure))
    for name in found.study.schedulers:
        assert drawn.count(f">{name}</text>") == 1


def test_a_choice_of_the_menu_changes_the_still_picture(figures):
    figure = next(one for one in figures.values() if len(one.choices) > 1)
    first, other = still(figure), still(figure, figure.choices[1])
    assert first["params"] != other["params"]
    assert other["params"][0]["value"] == figure.choices[1]
