"""Failed runs: who failed is not ranked where it failed, costs nobody else a window, and is named."""

import json

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from analysis.controls import UNKNOWN
from analysis.findings import as_json, find
from analysis.report import render
from analysis.scores import scores, study
from analysis.words import BAD, GOOD, summary
from loadgen.result import write_failures

SOURCE, REGION = "azure_surrogate", "0.95"
WHAT = "admit raised ValueError: no"
KEY = (SOURCE, REGION, "attainment_tier")


def fail(folder, scheduler, numbers, region=REGION):
    """Take runs out of a made-up sweep, as if the scheduler had failed in them."""
    path = folder / "runs" / f"{SOURCE}-{region}.parquet"
    windows = [f"{SOURCE}-{number}" for number in numbers]
    table = pq.read_table(path)
    lost = pc.and_(
        pc.equal(table["scheduler"], scheduler),
        pc.is_in(table["window_id"], value_set=pc.cast(windows, "string")),
    )
    pq.write_table(table.filter(pc.invert(lost)), path)
    write_failures(folder, [(scheduler, window, region, WHAT) for window in windows])
    return folder


@pytest.fixture
def made(sweep):
    return sweep(sources=(SOURCE,), regions=(0.85, 0.95), windows=8, step=0.2)


def test_who_failed_is_left_out_and_costs_nobody_a_window(made):
    before = scores(study(made), *KEY)
    found = find(fail(made, "edf", (0, 2, 3)))
    after = found.cells[KEY]
    assert after.schedulers == tuple(name for name in before.schedulers if name != "edf")
    assert after.windows == before.windows
    assert after.windows_lost == 0
    for name in after.schedulers:
        assert (
            after.values[after.schedulers.index(name)] == before.values[before.schedulers.index(name)]
        ).all()
    [lost] = after.failed
    assert (lost.scheduler, lost.words) == ("edf", "undefined: failed in 3 of 8 windows")
    other = found.cells[SOURCE, "0.85", "attainment_tier"]
    assert "edf" in other.schedulers
    assert other.failed == ()


def test_failures_are_said_in_summary_json_and_report(made):
    found = find(fail(made, "edf", (0, 2, 3)))
    sentences = {one.about: one for one in summary(found)}
    assert sentences["Failed runs"].stands == BAD
    assert (
        "edf failed in 3 of 16 runs, first on azure_surrogate-0 at rho 0.95" in sentences["Failed runs"].text
    )
    assert GOOD not in {one.stands for one in summary(found)}
    answer = as_json(found)
    assert [run["window_id"] for run in answer["failures"]] == [f"{SOURCE}-{number}" for number in (0, 2, 3)]
    [ranking] = [one for one in answer["rankings"] if (one["source"], one["region"], one["metric"]) == KEY]
    assert ranking["failed"] == {"edf": "undefined: failed in 3 of 8 windows"}
    assert any(flag.kind == "failed" and "edf" in flag.says for flag in found.flags)
    page = render(found, made)
    assert "3 runs failed and left no result" in page
    assert "failed in 3 of 8 windows" in page


def test_a_scheduler_that_failed_everywhere_is_named(made):
    write_failures(
        made, [("ghost", f"{SOURCE}-{n}", rho, WHAT) for n in range(8) for rho in ("0.85", REGION)]
    )
    found = find(made)
    assert [one.words for one in found.cells[KEY].failed] == ["undefined: failed in 8 of 8 windows"]
    assert len(found.cells[KEY].windows) == 8
    text = {one.about: one.text for one in summary(found)}["Failed runs"]
    assert "ghost failed in 16 of 16 runs" in text
    assert "not ranked anywhere" in text


def test_a_window_on_which_everybody_failed_counts(made):
    write_failures(made, [("edf", f"{SOURCE}-main-0123456789", REGION, WHAT)])
    [lost] = find(made).cells[KEY].failed
    assert lost.words == "undefined: failed in 1 of 9 windows"


def test_a_condition_in_which_all_failed_ranks_nobody(made):
    for name in study(made).schedulers:
        fail(made, name, range(8))
    found = find(made)
    assert found.rankings[KEY].rows == ()
    assert len(found.cells[KEY].failed) == 5
    assert "failed in 8 of 8 windows" in render(found, made)


def test_a_control_that_failed_is_not_judged_and_not_listed_as_ranked(made):
    found = find(fail(made, "lifo", (1,)))
    assert found.cells[KEY].failed == ()
    [check] = [check for check in found.checks if check.control == "lifo"]
    assert check.status == UNKNOWN
    assert "lifo failed in 1 of 16 runs" in {one.about: one.text for one in summary(found)}["Failed runs"]
    assert "lifo" in render(found, made)


def test_failed_runs_are_not_missing_ones(made):
    """All that is not stored has failed: another sweep would not complete this one."""
    plan = {
        "primary": "attainment:tier",
        "regions": [0.85, 0.95],
        "schedulers": list("abcde"),
        "controls": list("xyz"),
    }
    (made / "plan.json").write_text(json.dumps(plan))
    lines = [json.dumps({"window_id": f"w-{number}"}) for number in range(8)]
    (made / "calibration.jsonl").write_text("\n".join(lines))
    fail(made, "edf", (0, 2, 3))
    assert study(made).incomplete == ""
    (made / "calibration.jsonl").write_text("\n".join([*lines, '{"window_id": "w-8"}']))
    assert study(made).incomplete == "125 of 144 runs (3 more failed): incomplete"


def test_schedulers_that_fail_differently_are_not_one(made):
    path = made / "runs" / f"{SOURCE}-{REGION}.parquet"
    assert study(made).twins == {}
    for region in ("0.85", REGION):
        path = made / "runs" / f"{SOURCE}-{region}.parquet"
        frame = pq.read_table(path).to_pandas()
        same = [name for name in frame.columns if name not in ("run_id", "scheduler", "engine_policy")]
        frame.loc[frame["scheduler"] == "sarathi", same] = frame.loc[
            frame["scheduler"] == "edf", same
        ].to_numpy()
        import pyarrow as pa

        pq.write_table(pa.Table.from_pandas(frame, schema=pq.read_schema(path), preserve_index=False), path)
    assert study(made).twins == {"edf": ("sarathi",)}
    write_failures(made, [("edf", f"{SOURCE}-99", REGION, WHAT)])
    assert study(made).twins == {}
