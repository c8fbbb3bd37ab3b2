"""The crew: no task is lost to a dying worker, and what is done is saved when the parent stops or dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schedulers.errors import InputError
from sim.crew import TRIES, Crew, Lost


def square(task, tell, stopped):
    tell(task * task)


def die_once(task, tell, stopped):
    folder, number = task
    mark = Path(folder) / str(number)
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    tell(number)


def always_die(task, tell, stopped):
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(task)


def refuse(task, tell, stopped):
    raise InputError("the disk is full", where="runs/a.parquet", fix="free some space")


def save_when_stopped(task, tell, stopped):
    """Work until stopped, then leave a file that says so."""
    folder, number = task
    tell(number)
    while not stopped():
        time.sleep(0.01)
    (Path(folder) / f"saved-{number}").write_text("whole")


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_task_is_done_once(jobs):
    told: list[int] = []
    with Crew(jobs) as crew:
        crew.run(square, iter(range(20)), told.append)
        crew.run(square, [100], told.append)
    assert sorted(told) == [*(n * n for n in range(20)), 10_000]


def test_a_killed_worker_loses_no_task(tmp_path):
    told: list[int] = []
    with Crew(2) as crew:
        crew.run(die_once, ((str(tmp_path), number) for number in range(6)), told.append)
    assert sorted(told) == list(range(6))
    assert (tmp_path / "2").exists()


def test_a_task_that_kills_its_worker_is_reported_and_the_others_go_on():
    told: list[object] = []
    with Crew(1) as crew:
        crew.run(always_die, [0, 1, 2], told.append)
    lost = [one for one in told if isinstance(one, Lost)]
    assert lost == [Lost(1, -signal.SIGKILL)]
    assert sorted(one for one in told if not isinstance(one, Lost)) == [0, 2]
    assert TRIES == 3


def hang_on_one(task, tell, stopped):
    if task == 1:
        time.sleep(600)
    tell(task)


def test_a_task_that_hangs_is_given_up_once_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("sim.crew.SILENCE_S", 10.0)
    told: list[object] = []
    with Crew(2) as crew:
        crew.run(hang_on_one, [0, 1, 2], told.append)
    assert Lost(1, -signal.SIGKILL, hung=True) in told
    assert sorted(one for one in told if not isinstance(one, Lost)) == [0, 2]


def test_a_refusal_reaches_the_caller_whole():
    with Crew(2) as crew, pytest.raises(InputError) as caught:
        crew.run(refuse, [1, 2, 3], print)
    assert (caught.value.where, caught.value.fix) == ("runs/a.parquet", "free some space")


def test_an_interrupted_parent_lets_workers_save(tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Crew(2) as crew:
        crew.run(save_when_stopped, [(str(tmp_path), 0), (str(tmp_path), 1)], interrupt)
    assert "saved-0" in {path.name for path in tmp_path.iterdir()}


GROUP = """
import os, signal, sys
from sim.crew import Crew
from tests.sim.test_crew import save_when_stopped

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

told = []

def hear(number):  # each worker is at work: then the whole group is told to end
    told.append(number)
    if len(told) == 2:
        os.killpg(0, signal.SIGTERM)

if __name__ == "__main__":
    os.setpgrp()
    signal.signal(signal.SIGTERM, stop)
    try:
        with Crew(2) as crew:
            crew.run(save_when_stopped, [(sys.argv[1], 0), (sys.argv[1], 1)], hear)
    except Stop:
        print("stopped")
"""


def test_workers_save_when_the_whole_group_is_terminated(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(GROUP)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, cwd=root, check=False,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}


PARENT = """
import sys
from sim.crew import Crew
from tests.sim.test_crew import save_when_stopped

if __name__ == "__main__":
    with Crew(1) as crew:
        crew.run(save_when_stopped, [(sys.argv[1], 7)], lambda told: print(told, flush=True))
"""


def test_workers_save_and_end_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "7\n"
        parent.kill()
        rest = parent.stdout.read()  # ends when the worker, which holds the other end, is gone
    assert rest == ""
    assert (tmp_path / "saved-7").read_text() == "whole"
