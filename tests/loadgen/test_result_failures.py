"""Failed runs: told until they are stored."""

from pathlib import Path

import pytest

from loadgen.result import (
    GAP_BINS,
    FailedRun,
    InputError,
    RunKey,
    Totals,
    read_failures,
    read_runs,
    verify,
    write_failures,
    write_shard,
)

WHAT = "admit raised ValueError: no"


def store(folder: Path, scheduler: str, window: str) -> None:
    """Store one run without requests; only its place matters."""
    key = RunKey(
        window, "a", "b", "s", "real", "test", scheduler, "1", "{}", False, scheduler, "round-robin", "{}",
        "p", "0.95", 0.95, "[]", "oracle", 1, "sim", "g", 1, "c",
    )  # fmt: skip
    totals = Totals(1, 1.0, 1.0, 1.0, 0.1, 0.1, 0.0, 0, 0, 0, 1, 0, 1, 0, 0, [0] * GAP_BINS)
    counts = dict.fromkeys(("arrivals", "finished", "rejected", "expired", "failed"), 0)
    row = {"run_id": key.run_id, **key.__dict__, **totals._asdict(), **counts}
    write_shard(folder, f"{scheduler}-{window}", [row])


def test_failures_are_read_as_they_were_written(tmp_path):
    rows = [("edf", "w-1", "0.95", WHAT), ("edf", "w-0", "1.1", "zweite – Zeile\nund eine dritte")]
    path = write_failures(tmp_path, rows)
    assert path.name == "failures.jsonl"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert read_failures(tmp_path) == tuple(FailedRun(*row) for row in sorted(rows))
    assert [one.name for one in tmp_path.iterdir()] == ["failures.jsonl"]


def test_a_run_that_was_stored_since_has_not_failed(tmp_path):
    write_failures(tmp_path, [("edf", "w-0", "0.95", WHAT), ("edf", "w-1", "0.95", WHAT)])
    store(tmp_path, "edf", "w-0")
    assert [one.window_id for one in read_failures(tmp_path)] == ["w-1"]
    store(tmp_path, "edf", "w-1")
    assert read_failures(tmp_path) == ()
    assert not write_failures(tmp_path, []).exists()


def test_a_sweep_that_was_stopped_keeps_what_an_earlier_one_told(tmp_path):
    write_failures(tmp_path, [("edf", "w-0", "0.95", WHAT), ("edf", "w-1", "0.95", WHAT)])
    write_failures(tmp_path, [("edf", "w-0", "0.95", "another cause")])
    assert [one.what for one in read_failures(tmp_path)] == ["another cause", WHAT]


def test_a_sweep_in_which_everything_failed_is_said_with_its_cause(tmp_path):
    write_failures(tmp_path, [("edf", "w-0", "0.95", WHAT)])
    for read in (read_runs, verify):
        with pytest.raises(InputError, match="all 1 runs failed, first edf on w-0: admit raised"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"scheduler": "edf"}', "\xff"])
def test_a_damaged_list_is_named_with_its_remedy(tmp_path, text):
    store(tmp_path, "edf", "w-0")
    (tmp_path / "failures.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="list of failed runs is damaged"):
        read_failures(tmp_path)
    [problem] = verify(tmp_path)
    assert "delete it and run the same `windtunnel sweep` again" in problem


def test_no_failures_is_no_file(tmp_path):
    assert read_failures(tmp_path) == ()
    assert not write_failures(tmp_path, []).exists()
