"""A sweep that is interrupted or killed loses no finished run, and goes on with the same command."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from loadgen.result import done_ids, verify

ALL = 4 * 12 * 6


@pytest.fixture
def long_plan(plan) -> Path:
    """Enough runs to be interrupted in the middle."""
    rhos = "[0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3, 1.4]"
    text = plan.read_text().replace("[0.7, 1.1]", rhos)
    plan.write_text(text.replace('"sjf-pred"', '"sjf-pred", "sarathi", "edf", "fcfs-prefill"'))
    return plan


def shards(folder: Path) -> dict[str, str]:
    found = (folder / "runs").glob("*.parquet")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def wait_for_a_shard(out: Path, running) -> None:
    for _ in range(12_000):
        if any((out / "runs").glob("*.parquet")) or running.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError("no shard was written in two minutes")


def workers_of(pid: int) -> list[int]:
    """Process ids of the children that run windows (not of the resource tracker)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            line = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if parent == pid and "spawn_main" in line:
            found.append(int(stat.parent.name))
    return found


def finish(windtunnel, plan: Path, windows: Path, out: Path) -> None:
    """Go on, and see that nothing was lost, redone or doubled."""
    stored, before = done_ids(out), shards(out)
    assert 0 < len(stored) < ALL
    again = windtunnel("sweep", plan, "--windows", windows, "--out", out, "--json")
    assert again.code == 0, again.said
    told = json.loads(again.out)
    assert (told["runs"], told["before"], told["now"]) == (ALL, len(stored), ALL - len(stored))
    after = shards(out)
    assert {name: after.get(name) for name in before} == before
    assert verify(out) == []
    assert not list(out.rglob("*.tmp"))


def to_all(running, number: int) -> None:
    """As a terminal does: the whole group."""
    os.killpg(running.pid, number)


def to_the_parent(running, number: int) -> None:
    """As a supervisor or a batch system does: the process that it started."""
    os.kill(running.pid, number)


@pytest.mark.parametrize(
    ("send", "number", "code"),
    [
        pytest.param(to_all, signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(to_the_parent, signal.SIGTERM, 143, id="terminated", marks=pytest.mark.slow),
        pytest.param(to_all, signal.SIGTERM, 143, id="group terminated", marks=pytest.mark.slow),
    ],
)
def test_a_stop_keeps_what_is_done_and_the_same_command_goes_on(
    windtunnel, begin, windows, long_plan, tmp_path, send, number, code
):
    out = tmp_path / "out"
    with begin("sweep", long_plan, "--windows", windows, "--out", out, "--jobs", 2) as running:
        wait_for_a_shard(out, running)
        send(running, number)
        _, said = running.communicate(timeout=120)
    assert running.returncode == code
    assert "runs are safe" in said
    assert "Traceback" not in said
    finish(windtunnel, long_plan, windows, out)


@pytest.mark.slow
def test_a_killed_sweep_goes_on(windtunnel, begin, windows, long_plan, tmp_path):
    out = tmp_path / "out"
    with begin("sweep", long_plan, "--windows", windows, "--out", out, "--jobs", 2) as running:
        wait_for_a_shard(out, running)
        running.kill()
        running.communicate(timeout=120)  # ends when the orphaned workers have saved and gone
    finish(windtunnel, long_plan, windows, out)


@pytest.mark.slow
def test_a_killed_worker_is_replaced(begin, windows, long_plan, tmp_path):
    out = tmp_path / "out"
    with begin("sweep", long_plan, "--windows", windows, "--out", out, "--jobs", 2) as running:
        wait_for_a_shard(out, running)
        for pid in workers_of(running.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
        _, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert len(done_ids(out)) == ALL
    assert verify(out) == []
