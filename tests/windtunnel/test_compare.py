"""`compare`: errors of each request and ranks, on runs whose difference is known."""

import json
import shutil

import numpy as np
import pytest

from analysis.fidelity import pooled, rank_agreement
from loadgen.result import read_requests, read_runs, write_shard
from windtunnel.compare import words


def stretched(folder, out, factor):
    """The same results with every latency so many times as long, as if measured live."""
    (out / "runs").mkdir(parents=True)
    shutil.copy(folder / "plan.json", out / "plan.json")
    runs = read_runs(folder)
    facts = dict(read_requests(folder))
    rows, kept = [], []
    for row in runs.to_dict("records"):
        was = facts[row["run_id"]]
        times = {
            name: was.arrival_s + (getattr(was, name) - was.arrival_s) * factor
            for name in ("dispatched_s", "started_s", "first_token_s", "finished_s")
        }
        rows.append({name: value for name, value in row.items() if not isinstance(value, np.ndarray)})
        rows[-1] |= {name: row[name] for name in row if isinstance(row[name], np.ndarray)}
        kept.append((row["run_id"], was._replace(**times)))
    write_shard(out, "all", rows, kept)


def test_a_run_agrees_with_itself(windtunnel, swept):
    """No error, and the same order by every metric."""
    told = json.loads(windtunnel("compare", swept, swept, "--json").out)
    assert told["pairs"] == len(read_runs(swept))
    assert all(part == 0.0 for error in told["pooled"].values() for part in error.values())
    assert {one["tau_b"] for one in told["ranks"]} <= {1.0, None}
    assert all(one["same_first"] for one in told["ranks"])


def test_errors_have_size_and_sign(windtunnel, swept, tmp_path):
    """A quarter longer everywhere is +25 % everywhere."""
    stretched(swept, tmp_path / "live", 1.25)
    told = json.loads(windtunnel("compare", swept, tmp_path / "live", "--json").out)
    for name in ("ttft", "tpot", "e2e"):
        assert told["pooled"][name]["signed_p50"] == pytest.approx(0.25)
        assert told["pooled"][name]["p90"] == pytest.approx(0.25)
    shown = windtunnel("compare", swept, tmp_path / "live")
    assert "25% (+25%) 25%" in shown.out


def test_folders_without_a_common_run_are_refused(windtunnel, swept, tmp_path):
    """With what to do about it."""
    (tmp_path / "runs").mkdir()
    assert windtunnel("compare", swept, tmp_path).code == 2


def test_words():
    assert words(None) == "-"
    assert pooled([{"ttft": {"signed_p50": -0.1, "p50": 0.1, "p90": 0.2}}]) == {
        "ttft": {"signed_p50": -0.1, "p50": 0.1, "p90": 0.2}
    }


def test_a_mean_of_nothing_met_is_a_value():
    """A scheduler that meets no target is last, not unknown."""
    column = "attainment_S2"
    pairs = [
        {
            "source": "s",
            "region": "1.1",
            "window_id": "s-short-0",
            "scheduler": name,
            "sim": (row,),
            "live": (row,),
        }
        for name, row in {"a": {column: 0.0}, "b": {column: 0.5}, "c": {column: None}}.items()
    ]
    (told,) = rank_agreement(pairs, ["attainment:S2"])
    assert told["schedulers"] == 2
    assert told["simulated"] == ["b", "a"]
    assert told["tau_b"] == pytest.approx(1.0)
