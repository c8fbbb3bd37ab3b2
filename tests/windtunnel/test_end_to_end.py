"""The main job, as a user does it: windows in, runs, a ranking and a report out."""

import hashlib
import json
import os
from pathlib import Path

from loadgen.result import read_requests, read_runs, verify

RUNS = 4 * 2 * 3
"""Windows x regions x schedulers of the small plan."""

POLICY = '''"""Shortest prompt first."""

from schedulers.policy import EnginePolicy


def order(view, request, now_s):
    return float(view.requests.prompt_tokens[request])


POLICY = EnginePolicy(name="shortest-prompt", order=order)
'''


def shards(folder: Path) -> dict[str, str]:
    """Digest of each shard."""
    found = sorted((folder / "runs").glob("*.parquet"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_a_sweep_is_whole(swept):
    runs = read_runs(swept)
    assert len(runs) == RUNS
    assert verify(swept) == []
    assert set(runs["source"]) == {"azure_surrogate", "burstgpt_surrogate"}
    assert set(runs["label"]) == {"surrogate"}
    assert set(runs.loc[runs["control"], "scheduler"]) == {"random"}
    assert len(dict(read_requests(swept))) == RUNS


def test_pandas_duckdb_and_polars_read_the_dataset_as_it_lies(swept):
    """A folder of shards of one schema: no reader needs to be told anything but where it is."""
    import duckdb
    import pandas as pd
    import polars as pl

    ours = read_runs(swept).sort_values("run_id")
    wanted = list(zip(ours["run_id"], ours["attainment_tier"], ours["ttft_sketch"].str[50], strict=True))
    frame = pd.read_parquet(swept / "runs").sort_values("run_id")
    assert (
        list(zip(frame["run_id"], frame["attainment_tier"], frame["ttft_sketch"].str[50], strict=True))
        == wanted
    )
    asked = "select run_id, attainment_tier, ttft_sketch[51] from read_parquet($1) order by run_id"
    with duckdb.connect() as base:
        assert base.execute(asked, [f"{swept}/runs/*.parquet"]).fetchall() == wanted
    columns = [pl.col("run_id"), pl.col("attainment_tier"), pl.col("ttft_sketch").list.get(50)]
    assert pl.scan_parquet(swept / "runs").select(columns).sort("run_id").collect().rows() == wanted
    facts = pl.scan_parquet(swept / "requests").group_by("run_id").len().collect()
    assert set(facts["len"]) == {200}


def test_every_row_carries_the_digest_of_its_plan(swept):
    digest = json.loads((swept / "plan.json").read_text())["digest"]
    assert set(read_runs(swept)["plan_sha256"]) == {digest}


def test_pressure_is_what_was_aimed_at(swept):
    """Offered requests over measured capacity give rho, and the scored part's own pressure is told."""
    runs = read_runs(swept)
    lines = [json.loads(line) for line in (swept / "calibration.jsonl").read_text().splitlines()]
    span_s = runs["window_id"].map({line["window_id"]: line["span_s"] for line in lines})
    offered = 200 / (span_s * runs["stretch"] * runs["capacity_per_s"])
    assert (abs(offered / runs["rho"] - 1) < 1e-6).all()
    assert runs["rho_reached"].between(runs["rho"] * 0.3, runs["rho"] * 3).all()
    assert (runs.groupby("window_id")["capacity_per_s"].nunique() == 1).all()
    far = (runs["stretch"] < 0.25) | (runs["stretch"] > 4)
    assert (runs["stretch_far"].astype(bool) == far).all()


def test_every_run_of_a_window_meets_the_same_arrivals(swept):
    runs = read_runs(swept).set_index("run_id")
    facts = dict(read_requests(swept))
    for _, group in runs.groupby(["window_id", "region"]):
        first, *others = (facts[run_id] for run_id in group.index)
        assert all((other.arrival_s == first.arrival_s).all() for other in others)
        assert all((other.tier == first.tier).all() for other in others)


def test_rank_and_report_follow(swept, windtunnel, tmp_path):
    ranked = windtunnel("rank", swept, "--json")
    assert ranked.code == 0, ranked.said
    told = json.loads(ranked.out)
    names = {row["scheduler"] for ranking in told["rankings"] for row in ranking["rows"]}
    assert names == {"fcfs-chunked", "sjf-pred"}
    page = tmp_path / "report.html"
    reported = windtunnel("report", swept, "--out", page)
    assert reported.code == 0, reported.said
    text = page.read_text()
    assert "surrogate" in text
    assert "sjf-pred" in text


def test_the_same_plan_again_does_nothing(swept, windtunnel, windows):
    before = shards(swept)
    again = windtunnel("sweep", swept.parent / "plan.toml", "--windows", windows, "--out", swept, "--json")
    assert again.code == 0, again.said
    told = json.loads(again.out)
    assert (told["runs"], told["before"], told["now"], told["failures"]) == (RUNS, RUNS, 0, [])
    assert shards(swept) == before


def test_a_lost_shard_is_made_again_with_the_same_bytes(swept, windtunnel, windows, tmp_path):
    """One process instead of two, and only the runs that are missing."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(swept, copy)
    lost = sorted((copy / "runs").glob("*.parquet"))[1]
    lost.unlink()
    command = [
        "sweep",
        swept.parent / "plan.toml",
        "--windows",
        windows,
        "--out",
        copy,
        "--jobs",
        1,
        "--json",
    ]
    ran = windtunnel(*command)
    assert ran.code == 0, ran.said
    assert json.loads(ran.out)["now"] == 6
    assert shards(copy) == shards(swept)
    assert verify(copy) == []


def test_a_policy_of_ones_own_is_ranked_beside_the_others(windtunnel, windows, plan, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(POLICY)
    plan.write_text(plan.read_text().replace("[0.7, 1.1]", "[1.1]"))
    command = [
        "sweep",
        plan,
        "--windows",
        windows,
        "--out",
        tmp_path / "out",
        "--scheduler",
        f"{mine}:POLICY",
    ]
    ran = windtunnel(*command)
    assert ran.code == 0, ran.said
    runs = read_runs(tmp_path / "out")
    own = runs[runs["scheduler"] == "shortest-prompt"]
    assert len(own) == 4
    assert set(own["scheduler_version"]) != {"1.1"}
    mine.write_text(POLICY.replace("return float(", "return -float("))
    edited = windtunnel(*command)
    assert edited.code == 2
    assert "changed: policies" in edited.said


def test_calibrate_leaves_the_choice_of_schedulers_open(windtunnel, windows, plan, tmp_path):
    """Capacity is one of window and fleet; the first sweep freezes the plan, and measures nothing again."""
    plan.write_text(plan.read_text().replace("[0.7, 1.1]", "[1.1]"))
    command = [plan, "--windows", windows, "--out", tmp_path / "out", "--jobs", 1]
    assert windtunnel("calibrate", *command).code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["calibration.jsonl"]
    measured = (tmp_path / "out" / "calibration.jsonl").read_bytes()
    ran = windtunnel("sweep", *command, "--scheduler", "edf")
    assert ran.code == 0, ran.said
    assert set(read_runs(tmp_path / "out")["scheduler"]) == {"fcfs-chunked", "sjf-pred", "edf", "random"}
    assert (tmp_path / "out" / "calibration.jsonl").read_bytes() == measured
    other = windtunnel("sweep", *command)
    assert other.code == 2
    assert "another plan; changed: schedulers" in other.said
    assert windtunnel("calibrate", *command).code == 0


def test_a_frozen_plan_runs_again_as_it_lies(swept, windtunnel, windows, tmp_path):
    """It names the windows as seen from its own folder, and no path from the root."""
    text = (swept / "plan.toml").read_text()
    assert f"windows = {json.dumps(os.path.relpath(windows, swept))}" in text
    assert str(windows) not in text + (swept / "plan.json").read_text()
    again = windtunnel("sweep", swept / "plan.toml", "--out", tmp_path / "again", "--jobs", 1)
    assert again.code == 0, again.said
    assert shards(tmp_path / "again") == shards(swept)


def test_windows_on_another_root_are_left_to_the_command_line(tmp_path):
    from sim.sweep import seen_from

    assert seen_from(tmp_path / "out", "/elsewhere/windows") == ""
    assert seen_from(tmp_path / "out", str(tmp_path / "windows")) == "../windows"


def test_a_cluster_policy_by_default_is_said(windtunnel, windows, plan, tmp_path):
    spread = "cluster policy: round-robin (default)"
    assert "cluster policy" not in windtunnel("plan", "show", plan).out
    plan.write_text(
        plan.read_text().replace("budget_max", "engines = 2\nbudget_max").replace("[0.7, 1.1]", "[1.1]")
    )
    shown = windtunnel("plan", "show", plan)
    assert f"# {spread}\n" in shown.out
    ran = windtunnel("sweep", plan, "--windows", windows, "--out", tmp_path / "out", "--jobs", 1)
    assert ran.code == 0, ran.said
    assert f"{spread}\n" in ran.said
    plan.write_text(plan.read_text().replace('"sjf-pred"', '"sjf-pred+round-robin"'))
    assert f"# {spread} for fcfs-chunked, random\n" in windtunnel("plan", "show", plan).out


def test_real_azure_windows_end_to_end(windtunnel, traces_dir, plan, tmp_path):
    frozen = windtunnel(
        "windows", "freeze", "--source", "azure2023", "--from", traces_dir / "azure",
        "--count", 4, "--kind", "short", "--out", tmp_path / "windows",
    )  # fmt: skip
    assert frozen.code == 0, frozen.said
    ran = windtunnel("sweep", plan, "--windows", tmp_path / "windows", "--out", tmp_path / "out")
    assert ran.code == 0, ran.said
    runs = read_runs(tmp_path / "out")
    assert set(runs["label"]) == {"real"}
    assert len(runs) == 4 * 2 * 3
    assert verify(tmp_path / "out") == []
    ranked = windtunnel("rank", tmp_path / "out")
    assert ranked.code == 0, ranked.said
    assert "azure2023" in ranked.out
    reported = windtunnel("report", tmp_path / "out")
    assert reported.code == 0, reported.said
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
