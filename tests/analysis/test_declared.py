"""What a plan declares is what is used: margins, panel, families, pairs."""

import json

import pytest

from analysis.declared import read_declared
from analysis.findings import find
from analysis.scores import scores, study
from loadgen.result import InputError


def declare(folder, **keys):
    """Add keys to a made-up sweep's plan."""
    path = folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def test_a_silent_plan_means_the_usual():
    found = read_declared({})
    assert (found.margin("attainment_S2"), found.margin("ttft_p95_s")) == (0.02, 0.05)
    assert (found.panel, found.families, found.planned_pairs, found.planned_regions) == (
        (),
        ("sources",),
        (),
        (),
    )


def test_a_columns_margin_goes_before_its_metrics_and_that_before_its_kinds():
    found = read_declared({"margins": {"rate": 0.03, "jain": 0.01, "jain_S1": 0.005, "latency": 0.1}})
    assert [found.margin(name) for name in ("attainment_S2", "jain_S2", "jain_S1", "ttft_p95_s")] == [
        0.03, 0.01, 0.005, 0.1,
    ]  # fmt: skip
    assert found.margin("throughput_tokens_per_s") == 0.05


@pytest.mark.parametrize("wrong", [0, -0.02, "much", True, None])
def test_a_margin_is_a_number_above_nought(wrong):
    with pytest.raises(InputError, match="the margin of rate"):
        read_declared({"margins": {"rate": wrong}})


def test_the_plans_margin_and_panel_are_used(sweep):
    folder = declare(
        sweep(sources=("azure_surrogate",), regions=(0.95,), windows=8, step=0.2),
        margins={"rate": 0.9}, panel=["ttft_p95_s", "attainment:S1", "worst_group"], planned_regions=[0.95],
    )  # fmt: skip
    of = study(folder)
    assert of.metrics == ("attainment_tier", "ttft_p95_s", "attainment_S1", "worst_group_tier")
    assert of.slo_columns == ("attainment_tier", "attainment_S1", "attainment_S2")
    assert of.declared.planned_regions == ("0.95",)
    cell = scores(of, "azure_surrogate", "0.95", "attainment_tier")
    assert (cell.margin, cell.informative) == (0.9, False)
    found = find(folder)
    assert found.rankings["azure_surrogate", "0.95", "attainment_tier"].margin == 0.9
    assert all(row.in_top for row in found.rankings["azure_surrogate", "0.95", "attainment_tier"].rows)
