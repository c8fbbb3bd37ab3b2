"""A study of tiers against planted truths: what is there is found, what isn't is not, and the report says so."""

import json

import numpy as np
import pytest

from analysis.tiers_answer import answer_of, plain
from analysis.tiers_cost import pools, price
from analysis.tiers_effects import FACTORS, contrasts, factorial, pooled
from analysis.tiers_levels import every_level, levels_of, placebo, travels
from analysis.tiers_report import page_text, report_text
from tests.analysis.tiers_world import HOME, REGIONS, SOURCES, spec_of, world

FLAT = np.full(10, 0.6)
AT = HOME._replace(source=SOURCES[0], region="1.4")


def nothing(levels, at):
    return FLAT


def tiers_help(levels, at):
    """Queue order lifts the top by 0.2 from two tiers on and costs the bottom 0.05; a placebo does nothing."""
    on = levels[1] and at.tiers > 1 and at.mix == "enterprise"
    return FLAT + on * np.array([0.2, 0.2, 0.1, 0.1, 0, 0, -0.05, -0.05, -0.05, -0.05])


def crossed(levels, at):
    """Headroom works only with queue order."""
    on = levels[1] and levels[2] and at.tiers > 1
    return FLAT + 0.1 * on


@pytest.fixture(scope="module")
def helped():
    return world(tiers_help)


def test_where_tiers_cannot_help_no_gain_is_shown():
    of = world(nothing)
    for one in every_level(of, "U", ["queue order", "all mechanisms"]):
        assert 1 in one.survivors
        assert one.survivors == one.levels
        assert not one.informative
        assert all(step.verdict in ("adds nothing", "undecided") for step in one.steps)
        assert all(effect.low <= 0.005 and effect.high >= -0.005 for effect in one.against_one.values())
    effects = factorial(of, AT._replace(tiers=4), "U").effects
    assert all(abs(one.mean) < 0.01 for one in effects.values())


def test_where_tiers_must_help_they_do(helped):
    one = levels_of(helped, AT, "queue order", "U")
    assert 1 not in one.survivors
    assert one.least == 2
    assert one.survivors == (2, 4, 10)
    assert one.steps[0].verdict == "gains"
    assert one.steps[1].verdict == "adds nothing"
    assert one.against_one[4].mean == pytest.approx(0.0825, abs=0.02)
    bottom = levels_of(helped, AT, "queue order", "bottom")
    assert bottom.survivors == (1,)
    assert bottom.steps[0].verdict == "loses"


def test_the_placebo_gains_nothing(helped):
    found = placebo(helped)
    assert len(found) == 2 * 2 * 3 * 16
    assert max(abs(effect.mean) for _, _, effect in found) < 0.01


def test_a_placebo_that_gains_is_found_out():
    of = world(lambda levels, at: FLAT + 0.1 * (levels[1] and at.tiers > 1))
    checked = {one["check"]: one["holds"] for one in answer_of(of).checks}
    assert checked["the placebo gains nothing"] is False


def test_a_planted_interaction_is_found():
    of = world(crossed)
    one = factorial(of, AT._replace(tiers=4), "U")
    assert one.effects["QH"].shown == "gain"
    assert one.effects["QH"].mean == pytest.approx(0.05, abs=0.005)  # half of what both add beyond each
    assert one.effects["Q"].mean == pytest.approx(0.05, abs=0.005)
    assert abs(one.effects["DM"].mean) < 0.003
    assert one.shares["QH"] == pytest.approx(1 / 3, abs=0.05)
    assert sum(one.shares.values()) == pytest.approx(1.0)
    settings = [
        AT._replace(tiers=4, source=source, region=region) for source in SOURCES for region in REGIONS
    ]
    every = pooled(of, settings, "U")
    assert every["QH"].low > 0.04
    assert every["QH"].high < 0.06


def test_dispatch_that_only_balances_is_no_tier_effect():
    of = world(lambda levels, at: FLAT + 0.1 * levels[0])
    one = factorial(of, AT._replace(tiers=4), "U")
    assert one.effects["D"].mean == pytest.approx(0.1, abs=0.01)
    assert abs(one.d_by_tier.mean) < 0.01


def test_contrasts_of_one_cell_apart():
    values = {levels: np.array([float(levels == (1, 1, 0, 0))]) for levels in np.ndindex(2, 2, 2, 2)}
    made = contrasts(values)
    assert {name: float(made[name][0]) for name in FACTORS} == {
        "D": 0.125,
        "Q": 0.125,
        "H": -0.125,
        "M": -0.125,
    }


def test_sets_that_differ_between_sources_do_not_travel():
    def truth(levels, at):
        wanted = 2 if at.source == SOURCES[0] else 10
        return FLAT + 0.15 * (levels[1] and at.tiers == wanted)

    of = world(truth)
    levels = every_level(of, "U", ["queue order"])
    source, region = (travels(of, levels, axis) for axis in ("source", "region"))
    assert source.overlap == 0.0
    assert source.ceiling == pytest.approx(1.0)
    assert source.inside == 0.0
    assert region.overlap == pytest.approx(1.0)


def test_the_price_of_isolation(helped):
    cell = helped.cell(AT._replace(tiers=4), spec_of((0, 1, 0, 0)))
    base = helped.cell(AT.untiered, spec_of((0, 1, 0, 0)))
    assert price(cell, base) == pytest.approx(0.0, abs=0.05)  # the middle wins what the bottom loses
    assert price(base, base) is None
    assert price(cell, None) is None


def test_rare_atoms_are_pooled():
    assert pools(np.array([300.0, 50, 160, 10, 500, 200, 200, 200, 200, 20])) == [
        [0], [1, 2], [3, 4], [5], [6], [7], [8, 9]
    ]  # fmt: skip


def test_answer_report_and_page_tell_the_truth(helped):
    found = answer_of(helped)
    told = json.loads(json.dumps(plain(found), allow_nan=False))
    assert {one["check"]: one["holds"] for one in told["checks"]}["every arrival ends once"] is True
    first = found.sentences[0]
    assert "With queue order" in first
    assert "is alone the best in 0" in first
    assert "2 in 4" in first  # K* is two in all four conditions
    page = report_text(found)
    assert page == report_text(found)
    assert first.replace("'", "&#39;") in page
    assert "<script src" not in page
    assert 'http-equiv="Content-Security-Policy"' in page
    text = page_text(found)
    assert first in text
    assert "| QH |" in text
