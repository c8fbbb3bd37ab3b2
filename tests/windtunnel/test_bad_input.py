"""Bad input to a sweep: a clear message with place and remedy, the right exit code, and nothing lost."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from loadgen.result import done_ids, read_runs, verify
from schedulers.errors import InputError

HEAD = "from schedulers.policy import EnginePolicy\n\n\n"
RAISES = HEAD + (
    "def order(view, request, now_s):\n"
    "    if request == 50:\n"
    "        raise ValueError('no key for this one')\n"
    "    return float(view.requests.arrival_s[request])\n\n\n"
    'POLICY = EnginePolicy(name="raises", order=order)\n'
)
NAN = HEAD + (
    "def order(view, request, now_s):\n"
    "    return float('nan') if request == 50 else float(view.requests.arrival_s[request])\n\n\n"
    'POLICY = EnginePolicy(name="nan", order=order)\n'
)
UNTYPED = HEAD + (
    "def order(view, request, now_s):\n"
    "    return {'key': view.requests.arrival_s[request]}.pop('key', None) or view.no_such_table\n\n\n"
    'POLICY = EnginePolicy(name="untyped", order=order)\n'
)


@pytest.fixture
def sweep(windtunnel, windows, plan, tmp_path):
    """Run the small plan at one pressure, with these options."""
    plan.write_text(plan.read_text().replace("[0.7, 1.1]", "[1.1]"))

    def run(*options: object, source: Path = windows, out: Path = tmp_path / "out"):
        return windtunnel("sweep", plan, "--windows", source, "--out", out, "--jobs", 1, *options)

    return run


def refused(ran, *words: str) -> None:
    assert ran.code == 2, ran
    assert ran.out == ""
    assert "Fix: " in ran.said
    for word in words:
        assert word in ran.said, ran.said


def test_missing_plan_and_windows(windtunnel, plan, sweep, tmp_path):
    refused(windtunnel("sweep", "none.toml", "--out", tmp_path / "out"), "no such plan", "none.toml", "quick")
    refused(windtunnel("sweep", plan, "--out", tmp_path / "out"), "names no windows", "--windows")
    refused(windtunnel("sweep", "qick", "--out", tmp_path / "out"), "no such plan", "did you mean quick?")
    near = plan.with_name("plam.toml")
    refused(windtunnel("sweep", near, "--out", tmp_path / "out"), f"did you mean {plan}?")
    refused(sweep(source=tmp_path / "nowhere"), "nowhere", "windows freeze")
    assert not (tmp_path / "out").exists()


def test_unknown_scheduler(sweep, tmp_path):
    refused(sweep("--scheduler", "sarahti"), "unknown policy 'sarahti'", "'sarathi'")
    refused(sweep("--scheduler", "sarathi:phi=-1"), "out of range", "sarathi:phi")
    refused(sweep("--scheduler", tmp_path / "mine.py"), "no file", "mine.py")
    refused(sweep("--scheduler", "sjf-pred:max_wait_s=inf"), "one scheduler", "once")
    assert not (tmp_path / "out").exists()


def test_unknown_profile(plan, sweep, tmp_path):
    plan.write_text(plan.read_text().replace("budget_max", 'profile = "llama-9/abacus"\nbudget_max'))
    refused(sweep(), "llama-9/abacus", "profiles list")
    assert not (tmp_path / "out").exists()


def test_broken_policies_are_named_and_the_others_finish(sweep, tmp_path):
    (tmp_path / "a.py").write_text(RAISES)
    (tmp_path / "b.py").write_text(NAN)
    added = ["--scheduler", f"{tmp_path / 'a.py'}:POLICY", "--scheduler", f"{tmp_path / 'b.py'}:POLICY"]
    ran = sweep(*added)
    assert ran.code == 1
    assert "8 runs failed; the others are stored" in ran.said
    assert "nan on azure_surrogate-published-" in ran.said
    assert "in region 1.1: scheduler nan returned NaN from order" in ran.said
    assert ran.said.count("(4 runs)") == 2
    runs = read_runs(tmp_path / "out")
    assert set(runs["scheduler"]) == {"fcfs-chunked", "sjf-pred", "random"}
    assert len(runs) == 12
    assert verify(tmp_path / "out") == []
    again = sweep(*added, "--json")
    assert again.code == 1
    told = json.loads(again.out)
    assert (told["before"], told["now"]) == (12, 0)
    assert {(one["scheduler"], one["region"]) for one in told["failures"]} == {
        ("raises", "1.1"),
        ("nan", "1.1"),
    }
    assert len({one["window"] for one in told["failures"]}) == 4
    assert any("ValueError" in one["what"] for one in told["failures"])


def test_a_policy_that_cannot_be_compiled(sweep, tmp_path):
    (tmp_path / "mine.py").write_text(UNTYPED)
    refused(sweep("--scheduler", f"{tmp_path / 'mine.py'}:POLICY"), "untyped", "python=True")


def test_a_damaged_window(sweep, windows, tmp_path):
    copy = tmp_path / "windows"
    shutil.copytree(windows, copy)
    hurt = sorted((copy / "windows").glob("*.parquet"))[0]
    payload = bytearray(hurt.read_bytes())
    payload[len(payload) // 2] ^= 0xFF
    hurt.write_bytes(bytes(payload))
    refused(sweep(source=copy), hurt.name, "windows freeze")


def test_a_half_written_result(swept, windtunnel, windows, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(swept, copy)
    hurt = sorted((copy / "runs").glob("*.parquet"))[0]
    hurt.write_bytes(hurt.read_bytes()[:200])
    command = ["sweep", swept.parent / "plan.toml", "--windows", windows, "--out", copy]
    refused(windtunnel(*command), hurt.name, "delete this shard")
    hurt.unlink()
    assert windtunnel(*command).code == 0
    assert len(done_ids(copy)) == len(done_ids(swept))


def test_a_changed_calibration(swept, windtunnel, windows, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(swept, copy)
    path = copy / "calibration.jsonl"
    path.write_text(path.read_text().replace('"served": 200', '"served": 100', 1))
    ran = windtunnel("sweep", swept.parent / "plan.toml", "--windows", windows, "--out", copy)
    refused(ran, "calibration.jsonl:1", "changed or damaged")


def test_another_plan_in_the_same_folder(swept, windtunnel, windows):
    before = sorted((swept / "runs").iterdir())
    plan = swept.parent / "plan.toml"
    ran = windtunnel("sweep", plan, "--windows", windows, "--out", swept, "--scheduler", "edf")
    refused(ran, "another plan; changed: schedulers", "new --out")
    assert sorted((swept / "runs").iterdir()) == before


def test_calibrate_refuses_what_would_change_the_results_that_are_there(swept, windtunnel, windows, tmp_path):
    """A new line in calibration.jsonl would make every stored run one of another calibration."""
    plan = tmp_path / "other.toml"
    plan.write_text((swept.parent / "plan.toml").read_text().replace("budget_max = 512", "budget_max = 256"))
    before = (swept / "calibration.jsonl").read_bytes()
    refused(
        windtunnel("calibrate", plan, "--windows", windows, "--out", swept), "another plan; changed: fleet"
    )
    assert (swept / "calibration.jsonl").read_bytes() == before


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(monkeypatch, tmp_path):
    from sim.calibrate import write_text

    path = tmp_path / "out" / "plan.json"
    write_text(path, "whole")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"disk is full.*plan\.json.*free some space"):
        write_text(path, "half")
    assert path.read_text() == "whole"
    assert [one.name for one in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.slow
def test_a_file_that_cannot_grow_during_a_sweep(begin, sweep, windows, plan, tmp_path):
    """A limit on the size of files stops the writers of results, as a full disk would."""
    sweep(out=tmp_path / "warm")  # so that nothing has to be compiled, and cached, under the limit
    out = tmp_path / "out"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))

    command = ["sweep", plan, "--windows", windows, "--out", out, "--jobs", 2]
    with begin(*command, preexec_fn=limit) as running:
        _, said = running.communicate(timeout=300)
    assert running.returncode == 2, said
    assert "can't write" in said
    assert "runs" in said
    assert not [path for path in out.rglob("*") if path.suffix in (".parquet", ".tmp")]
    assert sweep(out=out).code == 0
    assert len(done_ids(out)) == 12
