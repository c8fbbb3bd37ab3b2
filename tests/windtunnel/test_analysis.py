"""`windtunnel analysis`, alone and beside a testbed: pages answer, and nothing is left running."""

import json
import signal
from urllib.request import urlopen

import pytest

from services.local import alive, read_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def read(address: str, path: str) -> str:
    with urlopen(f"http://{address}{path}", timeout=200) as answer:
        return answer.read().decode()


def test_pages_until_ctrl_c(begin, tmp_path):
    (tmp_path / "out").mkdir()
    process = begin("analysis", "--results", tmp_path / "out", "--http", "127.0.0.1:0", "--json")
    ready = json.loads(process.stdout.readline())
    assert "No results yet" in read(ready["http"], "/")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, "")
    assert '"event":"stopped"' in said


def test_a_folder_that_is_not_there_is_refused(windtunnel, tmp_path):
    ran = windtunnel("analysis", "--results", tmp_path / "nowhere")
    assert ran.code == 2
    assert "no such folder" in ran.said


def test_an_address_that_is_taken_is_refused(begin, tmp_path):
    (tmp_path / "out").mkdir()
    first = begin("analysis", "--results", tmp_path / "out", "--http", "127.0.0.1:0", "--json")
    address = json.loads(first.stdout.readline())["http"]
    second = begin("analysis", "--results", tmp_path / "out", "--http", address)
    _, said = second.communicate(timeout=200)
    assert second.returncode == 2
    assert "name a free HOST:PORT" in said
    first.terminate()
    first.communicate(timeout=200)


def test_a_testbed_brings_its_pages_up_and_down(windtunnel, tmp_path):
    folder = tmp_path / "testbed"
    ran = windtunnel("up", "--workers", 1, "--analysis", tmp_path / "out", "--dir", folder)
    try:
        assert ran.code == 0, ran.said
        state = read_state(folder)
        assert state is not None
        assert [one.name for one in state.processes] == ["dispatcher", "worker-0", "analysis"]
        assert [one.name for one in state.workers] == ["worker-0"]
        pages = state.processes[-1]
        assert f"http://{pages.http}/" in ran.out
        assert "No results yet" in read(pages.http, "/")
        shown = json.loads(windtunnel("status", "--dir", folder, "--json").out)
        assert shown["good"]
        assert len(shown["processes"]) == 3
    finally:
        stopped = windtunnel("down", "--dir", folder, "--json")
    assert json.loads(stopped.out) == {"stopped": 3, "killed": []}
    assert not any(map(alive, state.processes))
