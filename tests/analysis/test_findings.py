"""A sweep's findings: what is left out, merged, flagged, and not compared."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.findings import as_json, find
from analysis.portability import DIFFERS, HELD, corrected
from analysis.report import render
from analysis.scores import scores, study
from analysis.words import BAD, GOOD, OPEN, summary
from loadgen.result import InputError

TWO = ("azure_surrogate", "burstgpt_surrogate")
SMALL = {"sources": TWO, "regions": (0.85, 0.95), "windows": 10}


def edit(folder, change, name="azure_surrogate-0.95"):
    """Rewrite one shard through pandas."""
    path = folder / "runs" / f"{name}.parquet"
    schema = pq.read_schema(path)
    frame = pq.read_table(path).to_pandas()
    change(frame)
    import pyarrow as pa

    pq.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False), path)
    return folder


def kinds(found):
    return {flag.kind for flag in found.flags}


def test_one_truth_in_both_sources_is_held(sweep):
    found = find(sweep(step=0.2, **SMALL))
    primary = [one for one in found.across_sources if one.a[2] == "attainment_tier"]
    assert {one.verdict for one in primary} == {HELD}
    [first, *_] = summary(found)
    assert (first.about, first.stands) == ("Other traffic", GOOD)


def test_a_truth_reversed_in_one_source_is_found(sweep):
    found = find(sweep(step=0.2, truth={"burstgpt_surrogate": (4, 3, 2, 1, 0)}, **SMALL))
    primary = [one for one in found.across_sources if one.a[2] == "attainment_tier"]
    assert {one.verdict for one in primary} == {DIFFERS}
    sentences = {one.about: one for one in summary(found)}
    assert sentences["Other traffic"].stands == BAD
    assert "differs in 2" in sentences["Other traffic"].text
    assert sentences["First place"].stands == BAD
    assert "in 2 of these the best of one side" in sentences["First place"].text


def test_nothing_is_claimed_where_pressure_was_uneven(sweep):
    found = find(sweep(truth={"burstgpt_surrogate": (4, 3, 2, 1, 0)}, busy={"azure_surrogate": 0.7}, **SMALL))
    assert "uneven pressure" in kinds(found)
    [first, *_] = summary(found)
    assert first.stands == OPEN
    assert "None of 2 comparisons" in first.text


def test_uneven_pressure_begins_above_ten_percent(sweep):
    assert "uneven pressure" not in kinds(find(sweep(busy={"azure_surrogate": 0.82}, **SMALL)))


def test_a_cell_without_differences_ranks_nobody(sweep):
    found = find(sweep(step=0.0, noise=0.001, **SMALL))
    assert "not informative" in kinds(found)
    assert not any(found.comparable(one) for one in found.across_sources if one.a[2] == "attainment_tier")
    assert {one.stands for one in summary(found)[:4]} == {OPEN}


def test_undefined_is_left_out_and_counted_never_imputed(sweep):
    def forget(frame):
        rows = frame.index[frame["scheduler"] == "edf"][:2]
        frame.loc[rows, "ttft_p95_s"] = np.nan

    folder = edit(sweep(**SMALL), forget)
    cell = scores(study(folder), "azure_surrogate", "0.95", "ttft_p95_s")
    assert "edf" not in cell.schedulers
    assert cell.left_out == {"edf": 2}
    assert len(cell.windows) == 10
    found = find(folder)
    assert [flag.says for flag in found.flags if flag.kind == "left out"] == [
        "undefined, so not ranked here: edf (2 windows)"
    ]


def test_a_window_that_some_scheduler_has_not_run_is_dropped(sweep):
    folder = sweep(**SMALL)
    path = folder / "runs" / "azure_surrogate-0.95.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    cell = scores(study(folder), "azure_surrogate", "0.95", "attainment_tier")
    assert (len(cell.windows), cell.windows_lost) == (9, 1)
    assert len(cell.schedulers) == 5


def test_exact_duplicates_are_merged_and_named(sweep):
    folder = sweep(**SMALL)
    for source in TWO:
        for region in ("0.85", "0.95"):

            def copy(frame):
                made = [name for name in frame.columns if frame[name].dtype.kind == "f" and name != "rho"]
                rows = frame["scheduler"] == "edf"
                frame.loc[frame["scheduler"] == "sarathi", made] = frame.loc[rows, made].to_numpy()

            edit(folder, copy, f"{source}-{region}")
    of = study(folder)
    assert of.twins == {"edf": ("sarathi",)}
    assert "sarathi" not in of.schedulers
    assert "edf = sarathi" in " ".join(one.text for one in summary(find(folder)))


def test_stretched_windows_and_labels_are_flagged(sweep):
    def stretch(frame):
        frame["stretch"] = np.where(frame["window_id"].str.endswith("-3"), 5.0, 1.0)

    found = find(edit(sweep(**SMALL), stretch))
    [flag] = [flag for flag in found.flags if flag.kind == "stretched"]
    assert "1 windows were scaled by 5 to 5" in flag.says
    assert [flag.where for flag in found.flags if flag.kind == "surrogate"] == list(TWO)
    assert "few windows" in kinds(found)


def test_two_plans_in_one_folder_are_refused(sweep):
    folder = sweep(**SMALL)
    path = folder / "runs" / "azure_surrogate-0.95.parquet"
    (folder / "runs" / "again.parquet").write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="share scheduler, window and region"):
        find(folder)


def test_metrics_are_chosen_by_name(usual):
    assert study(usual, "ttft_p95_s").primary == "ttft_p95_s"
    assert study(usual, "attainment:S2").primary == "attainment_S2"
    assert study(usual, "attainment").primary == "attainment_tier"
    with pytest.raises(InputError, match="no metric is called 'speed'"):
        study(usual, "speed")
    with pytest.raises(InputError, match="have no metric 'attainment_S3'"):
        study(usual, "attainment:S3")


def test_json_is_json(usual):
    answer = json.loads(json.dumps(as_json(find(usual)), allow_nan=False))
    assert len(answer["rankings"]) == 2 * 2 * 7
    assert answer["rankings"][0]["rows"][0]["rank"] == 1
    assert {one["verdict"] for one in answer["agreement"]["sources"]} <= {
        "order held",
        "order differs",
        "undecided",
    }


def test_one_source_says_nothing_about_other_traffic(sweep):
    found = find(sweep(sources=("azure_surrogate",), regions=(0.95,), windows=8))
    assert summary(found)[0].stands == OPEN
    assert "one source" in kinds(found)


def test_windows_too_few_to_show_anything_are_said(sweep):
    found = find(sweep(sources=("azure_surrogate",), regions=(0.95,), windows=6, step=0.3))
    assert any("no scheduler can be shown worse" in flag.says for flag in found.flags)
    best = {one.about: one for one in summary(found)}["Best scheduler"]
    assert best.stands == OPEN
    assert "best mean in 1 of 1 cells" in best.text
    untold = {one.about: one for one in summary(found)}["Resolution"]
    assert untold.stands == OPEN
    assert "With 6 windows nothing can be shown worse; at least 7 are needed" in untold.text


def plan_for(folder, windows):
    """Give a made-up sweep of two regions a plan and calibration for so many windows, 8 schedulers in all."""
    plan = {"name": "made", "primary": "attainment:tier", "regions": [0.85, 0.95]}
    plan |= {"schedulers": ["a", "b", "c", "d", "e"], "controls": ["x", "y", "z"]}
    (folder / "plan.json").write_text(json.dumps(plan))
    lines = [json.dumps({"window_id": f"w-{number}"}) for number in range(windows)]
    (folder / "calibration.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_an_incomplete_sweep_holds_nothing(sweep):
    folder = sweep(step=0.2, **SMALL)
    assert GOOD in {one.stands for one in summary(find(plan_for(folder, 20)))}
    found = find(plan_for(folder, 21))
    assert found.study.incomplete == "320 of 336 runs: incomplete"
    assert GOOD not in {one.stands for one in summary(found)}
    assert as_json(found)["runs"] == {"stored": 320, "expected": 336}
    assert "320 of 336 runs: incomplete" in render(found, folder)


def test_a_difference_needs_interval_margin_and_corrected_p(usual):
    seen = find(usual).across_sources[0]._replace(verdict=DIFFERS)
    assert corrected(seen, 0.05).verdict == DIFFERS
    assert corrected(seen, 0.051).verdict == "undecided"
    assert corrected(seen, float("nan")).verdict == "undecided"


def test_ties_in_first_places_are_broken_by_mean_rank(sweep):
    """edf and sarathi never come first; sarathi is in fewer top sets or as many, edf's mean rank is better."""
    truth = dict.fromkeys(TWO, (0, 1, 3, 4, 9))
    found = find(sweep(step=0.2, truth=truth, **SMALL))
    best = {one.about: one for one in summary(found)}["Best scheduler"]
    assert "Next is edf: best mean in 0, mean rank 2.0" in best.text


def test_findings_claim_no_difference_that_correction_takes_back(sweep, monkeypatch):
    monkeypatch.setattr("analysis.findings.holm", np.ones_like)
    found = find(sweep(step=0.2, truth={"burstgpt_surrogate": (4, 3, 2, 1, 0)}, **SMALL))
    assert DIFFERS not in {one.verdict for one in found.across_sources}
