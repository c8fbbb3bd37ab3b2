"""What people do wrong with real engines, told in a word: before anything starts, or after it died."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.plan import Fleet
from schedulers.errors import InputError
from services import local
from services.local import NotReadyError, RealWorkers, Running, Wish, await_ready, began_of, stop_all
from services.running import scratch_of
from services.vllm_place import run_there
from services.worker.vllm import place
from windtunnel.engines import keepable, profile_of
from windtunnel.up import live_plan

FLEET = Fleet(engines=1, budget_max=512, block_tokens=32, blocks=100, model_tokens=4096, prefix_cache=False)


@pytest.mark.parametrize(
    ("policy", "speed", "said"),
    [
        ("slai", 1.0, "can't run slai: waiting_rank"),
        ("orca", 1.0, "whole prompts of up to 4096 tokens do not fit a step of 512"),
        ("edf", 2.0, "as fast as it is"),
    ],
)
def test_what_no_engine_can_keep_is_refused_before_anything_starts(tmp_path, policy, speed, said):
    wish = Wish(
        tmp_path, replace(live_plan("quick", 1), fleet=FLEET), f"{policy}+round-robin", f"{policy}+round-robin",
        speed, real=RealWorkers("python", str(tmp_path)),
    )  # fmt: skip
    with pytest.raises(InputError, match=said):
        keepable(wish)
    assert keepable(replace(wish, real=None)) is not None
    assert keepable(replace(wish, paced="edf+round-robin", speed=1.0)).real is not None


def test_a_model_that_is_not_there_or_damaged_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no costs are known of .*nosuch, which is no folder"):
        profile_of(str(tmp_path / "nosuch"), paced=False)
    for card in ("{", "[]", "{}"):
        (tmp_path / "windtunnel.json").write_text(card)
        with pytest.raises(InputError, match="the model is damaged"):
            profile_of(str(tmp_path), paced=False)


@pytest.mark.parametrize(
    "parts", [("no model", "model make", "use tiny"), ("bad", "", ""), ("bad", "", "mend it")]
)
def test_what_the_other_python_refuses_is_told_without_its_traceback(parts):
    what, where, fix = parts
    code = "from schedulers.errors import InputError; "
    code += f"raise InputError({what!r}, where={where!r}, fix={fix!r})"
    with pytest.raises(InputError) as told:
        run_there(sys.executable, ["-c", code])
    assert (told.value.what, told.value.where, told.value.fix) == parts
    with pytest.raises(InputError, match="ZeroDivisionError"):
        run_there(sys.executable, ["-c", "1 / 0"])


def test_the_device_must_be_the_one_that_was_asked_for():
    place.check_device("cpu", on_processor=True)
    place.check_device("gpu", on_processor=False)
    with pytest.raises(InputError, match="runs on the processor here"):
        place.check_device("gpu", on_processor=True)
    with pytest.raises(InputError, match="runs on a GPU here"):
        place.check_device("cpu", on_processor=False)


def test_a_python_without_vllm_says_so(monkeypatch):
    monkeypatch.setattr(place, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"vLLM is not installed; at .*python"):
        place.check_installed()


def test_the_net_is_left_alone_only_for_a_model_that_is_here(tmp_path, monkeypatch):
    for name in ("TMPDIR", *place.OFFLINE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with place.settled("Qwen/Qwen2.5-0.5B-Instruct"):
        assert not place.OFFLINE.keys() & os.environ.keys()
    usual = tempfile.gettempdir()
    with place.settled(str(tmp_path)) as folder:
        assert {name: os.environ[name] for name in place.OFFLINE} == place.OFFLINE
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == folder
        assert Path(folder).name.startswith(scratch_of(os.getpid()))
    assert "TMPDIR" not in os.environ
    assert tempfile.gettempdir() == usual
    assert not Path(folder).exists()


def test_what_a_killed_worker_left_is_removed_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    mine, others = (Path(tempfile.mkdtemp(prefix=scratch_of(pid))) for pid in (process.pid, os.getpid()))
    (mine / "socket").touch()
    stop_all([Running("worker-0", process.pid, began_of(process.pid))], grace_s=0.0)
    process.wait()
    local.sweep(Running("other", os.getpid(), 1))
    assert not mine.exists()
    assert others.exists(), "its process lives"


def test_what_a_killed_child_left_is_removed_though_nobody_has_asked_after_it(tmp_path, monkeypatch):
    """A child that has ended keeps its number until it is asked after, which a look at its state need not do."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local, "alive", lambda one: began_of(one.pid) == one.began != 0)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    left = Path(tempfile.mkdtemp(prefix=scratch_of(process.pid)))
    stop_all([Running("worker-0", process.pid, began_of(process.pid))], grace_s=0.0)
    process.wait()
    assert not left.exists()


def test_an_engine_that_is_starting_ends_with_its_worker_and_other_groups_live():
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    groups = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=alone
        )
        for alone in (True, False)
    ]
    children = [int(one.stdout.readline()) for one in groups]
    stop_all([Running("worker-0", one.pid, began_of(one.pid)) for one in groups], grace_s=0.0)
    for one in groups:
        one.wait()
        one.stdout.close()
    for _ in range(100):
        if not began_of(children[0]):
            break
        time.sleep(0.05)
    assert not began_of(children[0])
    assert began_of(children[1]), "it is in the group of these tests"
    os.kill(children[1], signal.SIGKILL)


def test_what_the_engines_own_process_died_of_is_told(tmp_path):
    (tmp_path / "worker-0.out").write_text(
        "(EngineCore pid=9) ERROR 11-30 18:20:00 [core.py:900] Traceback (most recent call last):\n"
        "(EngineCore pid=9) ERROR 11-30 18:20:00 [core.py:900] safetensors.SafetensorError: header too small\n"
        "(EngineCore pid=9) ERROR 11-30 18:20:01 [core.py:900] RuntimeError: later\n"
    )
    (tmp_path / "worker-0.log").write_text("RuntimeError: Engine core initialization failed.\n")
    with pytest.raises(NotReadyError, match=r"header too small\nRuntimeError: Engine core"):
        await_ready(tmp_path, "worker-0", [Running("worker-0", 2**22, 1)], print)
