"""The compose project without an engine: mounts exist, images are pinned, nobody has more than he needs."""

import os
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from services.config import read
from services.probe import asked
from services.secret import make
from services.worker.config import WorkerConfig, read_config
from windtunnel.up import live_plan

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = PROJECT["services"]
DOCKERFILES = sorted((ROOT / "deploy").glob("Dockerfile*"))
OPTIONAL = {"replay", "gpu", "vllm-cpu", "scaler"}
"""Profiles that somebody has to ask for."""


def mounts(service):
    for one in service.get("volumes", ()):
        if isinstance(one, dict):
            yield one["source"], one["target"], "ro" if one.get("read_only") else "rw"
        else:
            source, target, *mode = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", one).split(":")
            yield source, target, mode[0] if mode else "rw"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_only_what_it_needs(name):
    service = SERVICES[name]
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service.get("cap_add", ())) <= {"CHOWN", "SETUID", "SETGID"}
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= set(limits)
    assert "privileged" not in service
    assert service.get("network_mode") != "host"
    one_shot = service["restart"] == "no"
    assert one_shot == ("replay" in service.get("profiles", ()))
    assert one_shot or "test" in service.get("healthcheck", {})
    if not one_shot:
        assert int(service["healthcheck"]["timeout"].removesuffix("s")) >= 10, (
            "short ones fail on a busy machine"
        )


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_on_loopback(name):
    assert [port for port in SERVICES[name].get("ports", ()) if not str(port).startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", SERVICES)
def test_whatever_is_mounted_is_there_and_written_only_where_meant(name):
    for source, target, mode in mounts(SERVICES[name]):
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name} mounts {source}"
            assert mode == "ro", f"{name} could write {source}"
        elif source.startswith("/"):
            assert source == "/var/run/docker.sock"
            assert name == "scaler", "nobody else may see the engine"
        else:
            assert source in PROJECT["volumes"], f"{name}: volume {source}"
        if target.startswith("/keys"):
            assert mode == ("rw" if name == "dispatcher" else "ro")


def test_only_those_who_need_a_key_see_it():
    seen = {
        key: {name for name, one in SERVICES.items() for source, _, _ in mounts(one) if source == key}
        for key in ("admin-key", "worker-key", "scaler-key")
    }
    assert seen["admin-key"] == {"dispatcher", "replay"}
    assert seen["scaler-key"] == {"dispatcher", "scaler"}
    assert seen["worker-key"] == {"dispatcher", "worker", "worker-vllm", "worker-vllm-cpu"}


def test_images_are_pinned_and_ours_is_built_once():
    for name, service in SERVICES.items():
        image = service["image"]
        _, _, tag = image.rpartition(":")
        assert image.endswith(":local") or re.fullmatch(r"v?\d+\.\d+\.\d+(-\w+)?", tag), f"{name}: {image}"
    built = [service["image"] for service in SERVICES.values() if "build" in service]
    assert len(built) == len(set(built)), "two services would build the same image twice"
    ours = {service["image"] for service in SERVICES.values() if service["image"].endswith(":local")}
    assert ours == set(built)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_need_no_more_than_the_plain_builder(path):
    text = path.read_text()
    assert not text.startswith("# syntax")
    assert "--mount" not in text
    assert "<<" not in text
    assert [line for line in text.splitlines() if line.startswith("FROM") and ":" not in line] == []
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users, "it would run as root"
    assert users[-1].split(":")[0] != "0"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--from)(.+)", text, re.MULTILINE):
        for part in source.split()[:-1]:
            assert (ROOT / part).exists(), part
            kept = any(
                line == f"!{part}" or part.startswith(f"{line[1:]}/") for line in ignored if line[:1] == "!"
            )
            assert kept, f".dockerignore keeps {part} out"


def test_tiers_and_fleet_are_those_of_the_plan_that_a_replay_reads():
    plan = live_plan("quick", 2)
    config = read(ROOT / "deploy" / "dispatcher.toml")
    told = [(tier.name, tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in config.tiers]
    assert told == [(tier.name, tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in plan.tiers]
    fleet = asdict(read_config(ROOT / "deploy" / "worker.toml", WorkerConfig()).fleet)
    assert fleet | {"engines": 2} == asdict(plan.fleet)
    assert SERVICES["replay"]["environment"]["WINDTUNNEL_PLAN"] == "quick"


def test_nothing_set_means_simulated_workers():
    """`.env` chooses the profile; variables without a default anywhere would stop `up`."""
    given = dict(
        line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if line[:1].isupper()
    )
    assert given["COMPOSE_PROFILES"] == "sim"
    assert not [name for name in given if "KEY" in name or "PASSWORD" in name]
    on = [name for name, one in SERVICES.items() if "sim" in one.get("profiles", ["sim"])]
    assert {"dispatcher", "worker", "redis", "prometheus", "grafana"} <= set(on)
    for name in on:
        for needed in SERVICES[name].get("depends_on", ()):
            assert needed in on, f"{name} needs {needed}, which the profile leaves out"


@pytest.mark.parametrize("name", ["replay", "worker-vllm", "grafana/smoke"])
def test_scripts_can_be_run(name):
    script = ROOT / "deploy" / name
    assert os.access(script, os.X_OK)
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


@pytest.mark.skipif(
    subprocess.run(["sh", "-c", "docker compose version"], capture_output=True, check=False).returncode != 0
    or shutil.which("docker") is None,
    reason="docker compose is not installed: the project was read as YAML only",
)
@pytest.mark.parametrize("profile", ["sim", "gpu", "vllm-cpu", "replay"])
def test_compose_itself_accepts_every_profile(profile):
    command = ["docker", "compose", "--profile", profile, "config", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_health_check_believes_only_a_200():
    assert asked("127.0.0.1:1/live", 0.5) == 1


def test_keys_are_drawn_once(tmp_path):
    assert make(tmp_path, ("admin", "worker")) == ["admin", "worker"]
    first = (tmp_path / "admin").read_text()
    assert len(first) > 30
    assert first != (tmp_path / "worker").read_text()
    assert make(tmp_path, ("admin", "worker", "new")) == ["new"]
    assert (tmp_path / "admin").read_text() == first
