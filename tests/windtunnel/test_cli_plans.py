"""``windtunnel plan``: what ships, what it runs, and what it declares before it runs."""

import json

import pytest

CANON = 13


@pytest.fixture(scope="module")
def listed(windtunnel):
    ran = windtunnel("plan", "list", "--json")
    assert ran.code == 0, ran.said
    return {one["name"]: one for one in json.loads(ran.out)["plans"]}


def test_the_studies_have_the_size_that_they_say(listed):
    """13 x 120 x 6 and 13 x 240 x 6, over requests of 200 and 1,250 a window."""
    published, canon = listed["published"]["counts"], listed["canon"]["counts"]
    assert (published["runs"], published["control_runs"]) == (9_360, 0)
    assert published["simulated_requests"] == 1_872_000
    assert (canon["runs"], canon["control_runs"]) == (18_720, 4_320)
    assert canon["simulated_requests"] == (18_720 + 4_320) * 1_250
    assert listed["demo"]["counts"]["windows"] == 0


def test_families_count_their_hypotheses(listed):
    """Statistics 6.5: 78 pairs x 3 source pairs x 6 regions; 12 planned pairs x 3 x 2."""
    for name in ("published", "canon"):
        told = listed[name]["hypotheses"]
        assert told["sources"] == 1_404
        assert told["planned"] == 72
        assert told["regions"] == 78 * 3 * 15
        assert told["metrics"] == 78 * 18 * 5
        assert told["slo"] == 78 * 18 * 6


def test_both_studies_ask_the_same_of_other_windows(windtunnel, listed):
    """What the published window design costs can be read off: all else is equal."""
    told = [json.loads(windtunnel("plan", "show", name, "--json").out) for name in ("published", "canon")]
    apart = {"name", "window_set", "controls", "digest", "counts"}
    published, canon = ({key: value for key, value in one.items() if key not in apart} for one in told)
    assert published == canon
    assert len(published["schedulers"]) == CANON
    assert published["primary"] == "attainment:S2"


def test_show_says_how_much_before_the_plan(windtunnel, windows, plan):
    shown = windtunnel("plan", "show", "published")
    assert (
        "# 13 schedulers x 120 windows x 6 regions = 9,360 runs; 1,872,000 requests are simulated\n"
        in shown.out
    )
    assert "# family across sources: 1,404 hypotheses\n" in shown.out
    assert "# family planned pairs across sources: 72 hypotheses\n" in shown.out
    own = windtunnel("plan", "show", plan, "--windows", windows)
    assert "# 2 schedulers x 4 windows x 2 regions = 16 runs, and 8 of 1 controls; " in own.out
    assert "# 2 schedulers and 1 controls in 2 regions\n" in windtunnel("plan", "show", plan).out


def test_the_table_names_every_plan(windtunnel, listed):
    shown = windtunnel("plan", "list").out
    assert all(name in shown and one["digest"][:12] in shown for name, one in listed.items())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('panel = ["ttft_p95"]', "ttft_p95"),
        ('panel = ["worst_group:S3"]', "add S3 to slo_sets"),
        ("[margins]\nlatencies = 0.05\n", "latencies"),
    ],
)
def test_a_declared_metric_must_exist(windtunnel, plan, line, says):
    text = plan.read_text()
    plan.write_text(text.replace('keep = "requests"', line))
    ran = windtunnel("plan", "show", plan)
    assert ran.code == 2
    assert says in ran.said
    assert f"{plan}:5" in ran.said
    plan.write_text(text)
