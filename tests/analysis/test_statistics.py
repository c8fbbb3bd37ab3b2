"""The whole of the statistics on made-up sweeps of known truth, and what a plan declares."""

import json

import numpy as np
import pytest

from analysis.answers import REVERSAL, STABLE
from analysis.findings import find
from analysis.statistics import compared_regions, statistics, statistics_json

THREE = {"regions": (0.85, 1.1), "windows": 20, "step": 0.3, "noise": 0.05}
TURNED = {"burstgpt_surrogate": (4, 3, 2, 1, 0)}


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    """One source in the opposite order, with pairs planned beforehand."""
    from tests.analysis.conftest import Made, make_sweep

    folder = make_sweep(tmp_path_factory.mktemp("turned") / "sweep", Made(truth=TURNED, **THREE))
    path = folder / "plan.json"
    plan = json.loads(path.read_text())
    plan |= {"planned_pairs": [["sjf-pred", "fcfs-prefill"], ["edf", "sarathi"]], "planned_regions": [1.1]}
    path.write_text(json.dumps(plan | {"families": ["sources", "metrics"]}))
    found = find(folder)
    return found, statistics(found)


def test_a_planted_reversal_is_found_and_only_there(turned):
    _, stats = turned
    by_name = {one.name: one for one in stats.families}
    assert list(by_name) == ["planned", "sources", "regions", "metrics", "slo"]
    assert [one.declared for one in stats.families] == [True, True, False, True, False]
    sources = by_name["sources"]
    assert (sources.size, sources.excluded, sources.adjustment) == (10 * 3 * 2, 0, "fdr_by")
    table = sources.table
    crossed = (table["source_x"] == "burstgpt_surrogate") | (table["source_y"] == "burstgpt_surrogate")
    assert crossed.sum() == 40
    assert (table["outcome"][crossed] == REVERSAL).all()
    assert (table["outcome"][~crossed] == STABLE).all()
    assert (table["winner_x"] != table["winner_y"])[crossed].all()
    assert by_name["regions"].counts[STABLE] == by_name["regions"].size == 10 * 3
    assert by_name["metrics"].counts[REVERSAL] == by_name["slo"].counts[REVERSAL] == 0


def test_a_planned_family_is_small_and_corrected_by_holm(turned):
    planned = turned[1].families[0]
    assert (planned.planned, planned.adjustment, planned.size) == (True, "holm", 2 * 3)
    assert set(planned.table["region_x"]) == {"1.1"}
    assert planned.counts[REVERSAL] == 4


def test_shares_tests_and_matrices_agree_about_a_turned_source(turned):
    _, stats = turned
    over_regions, over_metrics, over_slo = stats.components
    assert over_regions.portability < 0.3 < over_regions.shares["policy x source"]
    assert (over_metrics.axes, over_slo.axes) == (("source", "metric"), ("source", "slo"))
    [crossing] = stats.crossings
    assert (crossing.table["q_by"] < 0.05).all()
    assert len(crossing.table) == 10 * 2
    [one] = [m for m in stats.matrices if (m.axis, *m.fixed) == ("source", "", "1.1", "attainment_tier")]
    place = one.labels.index("burstgpt_surrogate")
    others = [at for at in range(3) if at != place]
    assert (one.tau[place, others] == -1).all()
    assert one.tau[others[0], others[1]] == 1.0
    assert (one.gap_low[place, others] > 1).all()
    assert one.jaccard[others[0], others[1]] == 1.0
    assert one.concordance == pytest.approx(1 / 9)
    assert one.rbo[place, others[0]] < one.rbo[others[0], others[1]] == pytest.approx(1.0)
    assert {m.axis for m in stats.matrices} == {"source", "region", "metric", "slo"}
    assert len(stats.matrices) == 7 * 2 + 3 + 6 + 6
    key = ("burstgpt_surrogate", "1.1", "attainment_tier")
    assert stats.top_sets[key].confidence_set == stats.top_sets[key].members == ("fcfs-prefill",)
    assert stats.omnibus[key].schedulers == ("fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "sjf-pred")
    assert stats.bayes[key].better[0, 4] > 0.99
    assert stats.recovery[key].enough == 5


def test_one_order_everywhere_turns_nothing(sweep):
    stats = statistics(find(sweep("same", **THREE)))
    for family in stats.families:
        assert family.counts[REVERSAL] == family.counts_bh[REVERSAL] == 0
        assert all(counts[REVERSAL] == 0 for counts in family.by_margin.values())
    assert stats.components[0].portability > 0.9
    assert not (stats.crossings[0].table["q_by"] <= 0.05).any()


def test_regions_that_were_not_reached_alike_are_left_out(sweep):
    found = find(
        sweep(
            "uneven",
            sources=("azure_surrogate", "burstgpt_surrogate"),
            regions=(0.85, 0.95),
            windows=8,
            busy={"azure_surrogate": 0.7},
        )
    )
    assert compared_regions(found) == ()
    stats = statistics(found)
    assert "sources" not in {family.name for family in stats.families}
    assert all(np.isnan(one.portability) and one.why_not for one in stats.components)
    assert stats.crossings == ()
    assert not stats.matrices[0].counted[0, 1]


@pytest.mark.parametrize("windows", [1, 3, 9])
def test_little_data_claims_nothing_and_breaks_nothing(sweep, windows):
    found = find(sweep("few", sources=("azure_surrogate",), regions=(0.95,), windows=windows))
    stats = statistics(found)
    assert all(family.counts[REVERSAL] == 0 for family in stats.families)
    assert json.loads(json.dumps(statistics_json(stats), allow_nan=False))["panel"]["columns"] == list(
        found.study.metrics
    )


def test_json_is_json_and_the_same_twice(turned):
    told = [
        json.dumps(statistics_json(one), allow_nan=False, sort_keys=True)
        for one in (turned[1], statistics(turned[0]))
    ]
    assert told[0] == told[1]
    families = json.loads(told[0])["families"]
    assert families[1]["counts"][REVERSAL] == 40
    assert len(families[1]["rows"]) == 40
    assert set(families[1]["by_margin"]) == {"0.4", "1", "2"}
