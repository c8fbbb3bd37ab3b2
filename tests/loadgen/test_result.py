"""Results on disk: whole or named, null for missing, and every law checked."""

import errno
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from loadgen.result import (
    FINISHED,
    GAP_BINS,
    GAP_EDGES_S,
    REJECTED,
    Facts,
    InputError,
    RunKey,
    Totals,
    broken_facts,
    done_ids,
    drop_factless,
    read_requests,
    read_runs,
    run_row,
    verify,
    write_shard,
)

NAN = float("nan")
KEY = RunKey(
    **{field.name: {str: "x", bool: False, int: 1, float: 0.5}[field.type] for field in fields(RunKey)}
)
TOTALS = Totals(7, 1.0, 2.0, 3.0, 0.1, 0.2, 4.0, 5, 0, 0, 10, 4, 20, 0, 0, np.arange(GAP_BINS))


def facts() -> Facts:
    """Two requests that finish and one turned away at the door."""
    return Facts(
        arrival_s=np.array([0.0, 1.0, 2.0]),
        dispatched_s=np.array([0.0, 1.0, NAN]),
        started_s=np.array([0.1, 1.1, NAN]),
        first_token_s=np.array([0.5, 1.5, NAN]),
        finished_s=np.array([1.0, 2.0, NAN]),
        prompt_tokens=np.array([10, 20, 30]),
        output_tokens=np.array([5, 6, 0]),
        tier=np.array([0, 1, 0]),
        tenant=np.array([0, 0, 0]),
        session=np.array([4, -1, -1]),
        outcome=np.array([FINISHED, FINISHED, REJECTED], np.int8),
        reason=np.array([0, 0, 1], np.int8),
        engine=np.array([0, 0, -1]),
        migrations=np.zeros(3, np.int64),
        preemptions=np.zeros(3, np.int64),
        longest_gap_s=np.array([0.2, 0.1, NAN]),
        idle_ttft_s=np.array([0.4, 0.4, NAN]),
        idle_e2e_s=np.array([0.9, 0.9, NAN]),
        cached_tokens=np.array([0, 16, -1]),
    )


def shard(folder: Path, name: str = "one", key: RunKey = KEY, kept: Facts | None = None) -> Path:
    row = run_row(
        key, kept or facts(), TOTALS, {"attainment_S2": NAN, "ttft_sketch": [1.0, 2.0], "group_by": "tier"}
    )
    return write_shard(folder, name, [row], [(key.run_id, kept or facts())])


def test_gap_edges_are_logarithmic():
    assert len(GAP_EDGES_S) == GAP_BINS + 1
    assert np.allclose([GAP_EDGES_S[0], GAP_EDGES_S[-1]], [1e-4, 1e3])
    assert np.allclose(np.diff(np.log(GAP_EDGES_S)), np.log(1e7) / GAP_BINS)


def test_identity_is_everything_but_the_revision():
    assert len(KEY.run_id) == 16
    assert replace(KEY, git_rev="other").run_id == KEY.run_id
    for field in fields(RunKey):
        if field.name != "git_rev":
            other = {str: "y", bool: True, int: 2, float: 0.75}[field.type]
            assert replace(KEY, **{field.name: other}).run_id != KEY.run_id, field.name


def test_identity_is_stable_across_releases():
    """A changed digest would make every stored result look new; this value was computed by sha256sum."""
    assert KEY.run_id == "6daecdd194460c98"


def test_round_trip_gives_back_facts_and_row(tmp_path):
    shard(tmp_path)
    [(run_id, found)] = read_requests(tmp_path)
    assert run_id == KEY.run_id
    for name, before, after in zip(Facts._fields, facts(), found, strict=True):
        assert np.array_equal(before, after, equal_nan=before.dtype.kind == "f"), name
        assert before.dtype == after.dtype, name
    [row] = read_runs(tmp_path).to_dict("records")
    assert (row["arrivals"], row["finished"], row["rejected"], row["expired"], row["failed"]) == (
        3,
        2,
        1,
        0,
        0,
    )
    assert row["gaps"].tolist() == list(range(GAP_BINS))
    assert "gaps" not in read_runs(tmp_path, sketches=False)
    assert done_ids(tmp_path) == {KEY.run_id}
    assert list(read_requests(tmp_path, {"other"})) == []


def test_missing_is_null_never_a_number(tmp_path):
    shard(tmp_path)
    requests = pq.read_table(tmp_path / "requests" / "one.parquet")
    for name in ("dispatched_s", "started_s", "first_token_s", "finished_s", "longest_gap_s", "engine"):
        assert requests[name].to_pylist()[2] is None, name
    assert requests["session"].to_pylist() == [4, None, None]
    runs = pq.read_table(tmp_path / "runs" / "one.parquet")
    assert runs["attainment_S2"].to_pylist() == [None]
    assert str(runs.schema.field("attainment_S2").type) == "double"
    assert str(runs.schema.field("ttft_sketch").type) == "list<element: float>"


def test_every_shard_has_one_schema_whatever_is_missing(tmp_path):
    """Readers of the folder as one table need it: a column of nothing keeps the type of the others."""
    told = {"attainment_S2": 0.5, "ttft_sketch": [1.0, NAN], "group_by": "tier", "stratum": "w0k0"}
    whole = write_shard(tmp_path, "whole", [run_row(KEY, facts(), TOTALS, told)])
    empty = write_shard(tmp_path, "empty", [run_row(KEY, facts(), TOTALS, dict.fromkeys(told))])
    mixed = write_shard(
        tmp_path, "mixed", [run_row(KEY, facts(), TOTALS, one) for one in (dict.fromkeys(told), told)]
    )
    assert pq.read_schema(whole).equals(pq.read_schema(empty), check_metadata=True)
    read = [pq.read_table(path).select([*told]).to_pylist() for path in (empty, mixed)]
    assert read == [[dict.fromkeys(told)], [dict.fromkeys(told), told | {"ttft_sketch": [1.0, None]}]]


def test_a_good_folder_has_no_problems(tmp_path):
    shard(tmp_path)
    assert verify(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_shard_is_named_with_its_remedy(tmp_path, damage):
    path = shard(tmp_path)
    shard(tmp_path, "two", replace(KEY, seed=2))
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[60] ^= 0xFF
    path.write_bytes({"cut": whole[: len(whole) // 2], "flipped": bytes(middle), "empty": b""}[damage])
    for read in (read_runs, done_ids):
        if damage == "flipped" and read is done_ids:
            continue  # the flipped byte may lie in a column that ids don't need
        with pytest.raises(InputError) as caught:
            read(tmp_path)
        assert caught.value.where == str(path)
        assert "delete this shard" in caught.value.fix
    [problem] = verify(tmp_path)
    assert str(path) in problem
    assert "delete this shard" in problem


def test_temporary_files_are_not_results(tmp_path):
    path = shard(tmp_path)
    (path.parent / ".two.parquet.77.tmp").write_bytes(b"half")
    (path.parent / ".three.parquet").write_bytes(b"half")
    assert done_ids(tmp_path) == {KEY.run_id}
    assert verify(tmp_path) == []


def test_a_crash_while_writing_leaves_nothing_under_the_final_name(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        shard(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert done_ids(tmp_path) == set()


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_, path, **__):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(InputError, match="the disk is full") as caught:
        shard(tmp_path)
    assert "one.parquet" in caught.value.where
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(InputError, match="can't write") as caught:
        write_shard(tmp_path, "one", [run_row(KEY, facts(), TOTALS, {})])
    assert "one.parquet" in caught.value.where


def test_no_results_is_said(tmp_path):
    for read in (read_runs, verify):
        with pytest.raises(InputError, match="no results here"):
            read(tmp_path)


def test_rows_without_their_key_are_refused(tmp_path):
    with pytest.raises(ValueError, match="lack window_id"):
        write_shard(tmp_path, "one", [{"run_id": "x"}])


def test_verify_finds_a_key_that_was_changed(tmp_path):
    row = run_row(KEY, facts(), TOTALS, {})
    write_shard(tmp_path, "one", [{**row, "seed": 2}])
    [problem] = verify(tmp_path)
    assert f"run {KEY.run_id} doesn't match its key" in problem


def test_verify_finds_a_run_stored_twice(tmp_path):
    shard(tmp_path, "one")
    shard(tmp_path, "two")
    assert [problem for problem in verify(tmp_path) if "stored 2 times" in problem]


def test_verify_finds_missing_columns(tmp_path):
    path = shard(tmp_path)
    pq.write_table(pq.read_table(path).drop_columns(["seed"]), path)
    [problem] = [problem for problem in verify(tmp_path) if "runs" in problem and "missing" in problem]
    assert "seed" in problem


def test_verify_finds_arrivals_that_never_end(tmp_path):
    row = run_row(KEY, facts(), TOTALS, {})
    write_shard(tmp_path, "one", [{**row, "finished": 1}])
    [problem] = verify(tmp_path)
    assert "3 arrivals, 2 ended" in problem


def test_verify_finds_requests_that_are_too_few(tmp_path):
    row = run_row(KEY, facts(), TOTALS, {})
    fewer = Facts._make(column[:2] for column in facts())
    write_shard(tmp_path, "one", [row], [(KEY.run_id, fewer)])
    [problem] = verify(tmp_path)
    assert "3 arrivals, 2 rows" in problem


@pytest.mark.parametrize(
    ("column", "row", "value", "law"),
    [
        ("dispatched_s", 0, -1.0, "break arrival <= dispatched"),
        ("started_s", 1, 0.9, "break arrival <= dispatched"),
        ("first_token_s", 1, 1.05, "break arrival <= dispatched"),
        ("finished_s", 0, 0.4, "break arrival <= dispatched"),
        ("finished_s", 2, 9.0, "did not finish have a finish"),
        ("first_token_s", 0, NAN, "finished requests lack a time"),
        ("output_tokens", 0, 0, "delivered no token"),
        ("outcome", 0, 7, "end in no known way"),
    ],
)
def test_verify_finds_broken_laws(tmp_path, column, row, value, law):
    broken = facts()
    getattr(broken, column)[row] = value
    assert any(law in found for found in broken_facts(broken)), broken_facts(broken)
    assert broken_facts(facts()) == []


def test_a_changed_number_is_noticed_even_where_the_file_still_reads(tmp_path):
    """One bit of a stored value flips on the disk: nothing but the page's checksum can tell."""
    path = shard(tmp_path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    [column] = [
        group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "busy_s"
    ]
    whole = bytearray(path.read_bytes())
    whole[column.data_page_offset - 3] ^= 0x10  # inside the dictionary page, which holds the value
    path.write_bytes(bytes(whole))
    with pytest.raises(InputError, match="half-written or damaged"):
        read_runs(tmp_path)


def keep_requests(folder: Path) -> Path:
    """Freeze a plan that keeps requests, and store two shards under it."""
    folder.joinpath("plan.json").write_text('{"keep": "requests"}')
    shard(folder, "two", replace(KEY, seed=2))
    return shard(folder)


def half_written(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


@pytest.mark.parametrize("damage", [Path.unlink, half_written])
def test_runs_without_their_facts_are_named_and_redone(tmp_path, damage):
    kept = keep_requests(tmp_path)
    lost = tmp_path / "requests" / "one.parquet"
    damage(lost)
    [problem] = verify(tmp_path)
    assert str(lost) in problem
    assert "runs/one.parquet" in problem.split("fix: delete ")[1]
    assert done_ids(tmp_path) == {replace(KEY, seed=2).run_id}
    assert drop_factless(tmp_path) == 1
    assert not kept.exists()
    shard(tmp_path, "another name")
    assert verify(tmp_path) == []
    assert sorted(read_runs(tmp_path)["seed"]) == [1, 2]
    assert done_ids(tmp_path) == {KEY.run_id, replace(KEY, seed=2).run_id}
    assert drop_factless(tmp_path) == 0


def test_the_remedy_for_lost_facts_holds_by_itself(tmp_path):
    """As the message says: delete both shards, and the same name is written again."""
    kept = keep_requests(tmp_path)
    (tmp_path / "requests" / "one.parquet").unlink()
    kept.unlink()
    assert done_ids(tmp_path) == {replace(KEY, seed=2).run_id}
    shard(tmp_path)
    assert verify(tmp_path) == []


def test_a_rewritten_shard_replaces_the_one_of_its_name(tmp_path):
    keep_requests(tmp_path)
    (tmp_path / "requests" / "one.parquet").unlink()
    shard(tmp_path)
    assert verify(tmp_path) == []
    assert len(read_runs(tmp_path)) == 2


def test_one_run_of_a_shard_that_lost_its_facts_goes_alone(tmp_path):
    keep_requests(tmp_path)
    other = replace(KEY, seed=3)
    rows = [run_row(key, facts(), TOTALS, {}) for key in (KEY, other)]
    write_shard(tmp_path, "one", rows, [(other.run_id, facts())])
    [problem] = verify(tmp_path)
    assert f"has no facts of run {KEY.run_id}" in problem
    assert drop_factless(tmp_path) == 1
    assert sorted(read_runs(tmp_path)["seed"]) == [2, 3]
    assert verify(tmp_path) == []


def test_facts_that_no_plan_keeps_are_not_missed(tmp_path):
    keep_requests(tmp_path)
    (tmp_path / "plan.json").write_text('{"keep": "sketch"}')
    (tmp_path / "requests" / "one.parquet").unlink()
    assert verify(tmp_path) == []
    assert len(done_ids(tmp_path)) == 2
    assert drop_factless(tmp_path) == 0


def test_verify_names_facts_left_in_a_shard_without_its_runs(tmp_path):
    """The run was stored again under another name, and its facts would be read twice."""
    keep_requests(tmp_path).unlink()
    shard(tmp_path, "another")
    [problem] = verify(tmp_path)
    assert "one.parquet" in problem
    assert "not in runs/one.parquet" in problem


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"plan": 3}', "\xff"])
def test_a_damaged_plan_is_one_problem_with_one_remedy(tmp_path, text):
    keep_requests(tmp_path)
    (tmp_path / "plan.json").write_bytes(text.encode("latin-1"))
    [problem] = verify(tmp_path)
    assert "plan.json" in problem
    assert "delete plan.json and run the same `windtunnel sweep` again" in problem
    with pytest.raises(InputError, match="the frozen plan is damaged"):
        done_ids(tmp_path)


def test_a_sweep_that_turns_requests_away_is_sound(tmp_path):
    """Rejected at the door or out of the queue: no finish, and one that has a finish is named."""
    keep_requests(tmp_path)
    queued = facts()
    queued.dispatched_s[2] = 2.0
    shard(tmp_path, "queued", replace(KEY, seed=3), queued)
    assert verify(tmp_path) == []
    queued.finished_s[2] = 2.5
    shard(tmp_path, "queued", replace(KEY, seed=3), queued)
    [problem] = verify(tmp_path)
    assert "queued.parquet: 1 requests that did not finish have a finish" in problem
