"""Stored runs: a damaged shard is told and hides no other, and one run comes back with its facts."""

from dataclasses import replace

import numpy as np
import pytest

from loadgen.result import InputError
from loadgen.stored import readable_runs, stored_facts, stored_run
from tests.loadgen.test_result import KEY, facts, half_written, shard

OTHER = replace(KEY, seed=2)


def test_rows_know_their_shard_and_lack_no_shard_for_a_missing_column(tmp_path):
    shard(tmp_path, "one")
    shard(tmp_path, "two", OTHER)
    told = readable_runs(tmp_path, ("scheduler", "attainment_S2", "nobody_has_this"))
    assert told.problems == ()
    assert dict(zip(told.runs["run_id"], told.runs["shard"], strict=True)) == {
        KEY.run_id: "one",
        OTHER.run_id: "two",
    }
    assert set(told.runs) == {"run_id", "scheduler", "attainment_S2", "shard", "stored_s"}


def test_a_damaged_shard_is_told_beside_the_others(tmp_path):
    shard(tmp_path, "one")
    half_written(shard(tmp_path, "two", OTHER))
    told = readable_runs(tmp_path, ("scheduler",))
    assert list(told.runs["run_id"]) == [KEY.run_id]
    assert [one.where for one in told.problems] == [str(tmp_path / "runs" / "two.parquet")]
    assert "delete" in told.problems[0].fix


def test_nothing_stored_is_no_row(tmp_path):
    assert len(readable_runs(tmp_path, ("scheduler",)).runs) == 0


def test_one_run_comes_back_with_its_facts(tmp_path):
    shard(tmp_path, "one")
    row = stored_run(tmp_path, "one", KEY.run_id)
    assert row is not None
    assert row["scheduler"] == KEY.scheduler
    assert "ttft_sketch" not in row
    kept = stored_facts(tmp_path, "one", KEY.run_id)
    assert kept is not None
    np.testing.assert_array_equal(kept.arrival_s, facts().arrival_s)
    assert stored_run(tmp_path, "one", "0" * 16) is stored_run(tmp_path, "../one", KEY.run_id) is None
    assert stored_facts(tmp_path, "one", "0" * 16) is stored_facts(tmp_path, "none", KEY.run_id) is None


def test_a_damaged_shard_of_one_run_is_named(tmp_path):
    half_written(shard(tmp_path, "one"))
    with pytest.raises(InputError, match="damaged"):
        stored_run(tmp_path, "one", KEY.run_id)
