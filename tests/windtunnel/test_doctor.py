"""`windtunnel doctor`: says what is there and what is not, and fails only for what is required."""

import json
import re
import socket
from pathlib import Path

import pytest

from windtunnel import doctor


def findings(windtunnel, *arguments):
    ran = windtunnel("doctor", "--json", *arguments)
    told = json.loads(ran.out)
    return ran.code, told["good"], {one["name"]: one for one in told["findings"]}


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with no programs on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WINDTUNNEL_CHROMIUM", raising=False)
    return tmp_path


def script(folder, name, body):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_bare_machine_is_warned_and_good(windtunnel, bare):
    code, good, found = findings(windtunnel)
    assert (code, good) == (0, True)
    for name in ("containers", "compose", "gpu", "redis", "prometheus", "browser"):
        assert found[name]["state"] == "warn"
        assert found[name]["fix"]
    for name in ("python", "packages", "loopback", "disk"):
        assert found[name]["state"] == "good"
    assert "none found" in windtunnel("doctor").out


def test_an_engine_whose_daemon_is_away_is_told_from_one_that_runs(windtunnel, bare):
    script(bare, "docker", "exit 1")
    assert "does not answer" in findings(windtunnel)[2]["containers"]["says"]
    script(bare, "docker", 'case "$1" in version) echo 27.1;; compose) echo v1.29.2;; esac')
    found = findings(windtunnel)[2]
    assert (found["containers"]["state"], found["containers"]["says"]) == ("good", "docker 27.1")
    assert "too old" in found["compose"]["says"]
    script(bare, "docker", 'case "$1" in version) echo 27.1;; compose) echo v2.29.2;; esac')
    script(bare, "nvidia-smi", "echo NVIDIA Test")
    found = findings(windtunnel)[2]
    assert found["compose"]["state"] == "good"
    assert "containers can't have it" in found["gpu"]["says"]


def test_a_port_that_is_taken_is_named(windtunnel, bare, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {"ANALYSIS_PORT": 1})
        monkeypatch.setenv("ANALYSIS_PORT", str(port))
        assert findings(windtunnel)[2]["ports"]["says"] == f"taken: {port} (ANALYSIS_PORT)"
    assert findings(windtunnel)[2]["ports"]["state"] == "good"


def test_ports_are_those_that_compose_publishes():
    text = (Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text(encoding="utf-8")
    published = re.findall(r"127\.0\.0\.1:\$\{(\w+):-(\d+)\}", text)
    assert {name: int(port) for name, port in published} == doctor.PORTS


def test_what_is_required_and_missing_fails(windtunnel, bare, tmp_path, monkeypatch):
    code, good, found = findings(windtunnel, "--model", tmp_path / "nowhere")
    assert (code, good) == (1, False)
    assert "config.json" in found["model"]["says"]
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (model / name).write_text("{}")
    assert findings(windtunnel, "--model", model)[0] == 0
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert findings(windtunnel)[2]["clock"]["state"] == "missing"
    assert findings(windtunnel)[0] == 1
