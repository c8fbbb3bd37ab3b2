"""`windtunnel doctor`: what is missing or misconfigured on this machine, and the remedy."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.up import AsJson

GOOD, MISSING, WARN = "good", "missing", "warn"
PATIENCE_S = 10.0
PORTS = {
    "DISPATCHER_HTTP_PORT": 8000, "DISPATCHER_GRPC_PORT": 50051, "ANALYSIS_PORT": 8300, "PROMETHEUS_PORT": 9090,
    "GRAFANA_PORT": 3000,
}  # fmt: skip
"""Ports that the containers publish on loopback, by the variable that moves each."""

LEAST_FILES = 4096
"""Open files that a dispatcher under load needs: a socket a stream."""

LEAST_FREE = 2 << 30
"""Bytes that images or a study's results need."""

LEAST_MEMORY = 4 << 30
EARLIEST_S = 1_735_689_600
"""The start of 2025: a clock before it is wrong, and certificates fail."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``required``: the simulator and the local testbed can't do without it."""

    name: str
    state: str  # GOOD, MISSING or WARN
    says: str
    fix: str = ""
    required: bool = False


def doctor(
    model: Annotated[
        Path | None, typer.Option("--model", help="Folder of a model's files that engines will load.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is missing or misconfigured here, with the remedy; exits 1 if something required is missing.

    Required is what the simulator, `windtunnel up` and reports need. Containers, a GPU, Redis, Prometheus and a
    browser are told as warnings: other parts go without them.

    Example: windtunnel doctor --json
    """
    checks: list[Callable[[], Finding]] = [
        python, packages, memory, disk, open_files, clock, loopback, engine, compose, ports, gpu, redis, prometheus,
        chromium,
    ]  # fmt: skip
    found = [check() for check in checks]
    if model is not None:
        found.append(model_files(model))
    lacking = [one for one in found if one.required and one.state == MISSING]
    if as_json:
        typer.echo(json.dumps({"good": not lacking, "findings": [asdict(one) for one in found]}))
    else:
        show(found)
    if lacking:
        raise typer.Exit(1)


def show(found: list[Finding]) -> None:
    """Print findings, a line each, remedies below."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    looks = {GOOD: "[green]good   [/green]", WARN: "[yellow]warning[/yellow]", MISSING: "[red]missing[/red]"}
    for one in found:
        console.print(f"{looks[one.state]} {one.name:<12} {escape(one.says)}")
        if one.fix and one.state != GOOD:
            console.print(f"        {'':<12} [dim]{escape(one.fix)}[/dim]")


def python() -> Finding:
    """The interpreter's version."""
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 14)
    fix = "make PYTHON=/path/to/python3.11 setup"
    return Finding("python", GOOD if good else MISSING, version, fix, required=True)


def packages() -> Finding:
    """Whether what the package depends on is installed."""
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        told = [need.replace('"', "'") for need in requires("windtunnel") or ()]
    except PackageNotFoundError:
        return Finding("packages", MISSING, "windtunnel is not installed", "make setup", required=True)
    needs = [need for need in told if "extra ==" not in need or "extra == 'live'" in need]
    absent = []
    for need in needs:
        name = need.split(";")[0].split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip()
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    says = f"not installed: {', '.join(absent)}" if absent else f"{len(needs)} installed"
    return Finding("packages", MISSING if absent else GOOD, says, "make setup", required=True)


def memory() -> Finding:
    """Memory of the machine."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    says = f"{total / (1 << 30):.1f} GiB"
    return Finding(
        "memory", GOOD if total >= LEAST_MEMORY else WARN, says, "use --jobs 1, and smaller studies"
    )


def disk() -> Finding:
    """Room where one stands, and whether one may write."""
    here = Path.cwd()
    room = shutil.disk_usage(here).free
    if not os.access(here, os.W_OK):
        return Finding("disk", MISSING, "this folder can't be written", "go to another folder", required=True)
    says = f"{room / (1 << 30):.1f} GiB free here"
    return Finding("disk", GOOD if room >= LEAST_FREE else WARN, says, "free some space before a study")


def open_files() -> Finding:
    """The limit on open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    says = f"{soft} open files (at most {hard})"
    good = soft >= LEAST_FILES or soft == resource.RLIM_INFINITY
    return Finding("open files", GOOD if good else WARN, says, f"ulimit -n {LEAST_FILES}")


def clock() -> Finding:
    """Whether the clock is plausible, and kept in time as far as the system says."""
    import time

    if time.time() < EARLIEST_S:
        return Finding(
            "clock", MISSING, "the clock is in the past", "set it: certificates fail", required=True
        )
    told = answer("timedatectl", "show", "-p", "NTPSynchronized", "--value")
    if told == "no":
        return Finding("clock", WARN, "not kept in time", "start an NTP service: logs of machines must agree")
    return Finding("clock", GOOD, "kept in time" if told == "yes" else "plausible; nobody says who keeps it")


def loopback() -> Finding:
    """Whether services of this machine can reach each other."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2.0),
        ):
            return Finding("loopback", GOOD, "127.0.0.1 answers", required=True)
    except OSError as error:
        return Finding("loopback", MISSING, str(error), "allow connections on 127.0.0.1", required=True)


def engine() -> Finding:
    """The container engine."""
    if not shutil.which("docker"):
        fix = "install Docker Engine; `windtunnel up` needs none"
        return Finding("containers", WARN, "no docker command", fix)
    version = answer("docker", "version", "--format", "{{.Server.Version}}")
    if not version:
        fix = "start the daemon, and join the docker group"
        return Finding("containers", WARN, "docker is there, but its daemon does not answer", fix)
    return Finding("containers", GOOD, f"docker {version}")


def compose() -> Finding:
    """Docker Compose, version 2 or later."""
    version = answer("docker", "compose", "version", "--short") if shutil.which("docker") else ""
    major = version.removeprefix("v").partition(".")[0]
    if not major.isdigit() or int(major) < 2:
        says = f"compose {version} is too old" if version else "no docker compose"
        return Finding("compose", WARN, says, "install the Compose plugin, version 2 or later")
    return Finding("compose", GOOD, f"compose {version}")


def ports() -> Finding:
    """Ports that the containers publish."""
    wanted = {name: int(os.environ.get(name) or port) for name, port in PORTS.items()}
    taken = [f"{port} ({name})" for name, port in wanted.items() if not free(port)]
    if taken:
        fix = "stop what listens there, or set the variable; `windtunnel up` takes free ones"
        return Finding("ports", WARN, f"taken: {', '.join(taken)}", fix)
    return Finding("ports", GOOD, f"{', '.join(map(str, wanted.values()))} are free")


def free(port: int) -> bool:
    """Whether nobody listens at a port of loopback."""
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) != 0


def gpu() -> Finding:
    """NVIDIA GPUs, and whether containers can have them."""
    names = answer("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    if not names:
        return Finding("gpu", WARN, "none found", "real engines on a GPU need one; simulated workers do not")
    if shutil.which("docker") and not shutil.which("nvidia-ctk"):
        fix = "install the NVIDIA Container Toolkit for the gpu profile"
        return Finding("gpu", WARN, f"{', '.join(names)}; containers can't have it", fix)
    return Finding("gpu", GOOD, ", ".join(names))


def redis() -> Finding:
    """A Redis server to be the journal."""
    return program("redis-server", "redis", "apt-get install redis-server; the journal is a file without it")


def prometheus() -> Finding:
    """Prometheus, for live numbers."""
    return program("prometheus", "prometheus", "apt-get install prometheus; finished runs need none")


def chromium() -> Finding:
    """A browser, for the tests of pages."""
    named = os.environ.get("WINDTUNNEL_CHROMIUM", "")
    found = next(filter(shutil.which, [named, "chromium", "chromium-browser", "google-chrome"]), "")
    if not found:
        return Finding("browser", WARN, "none found", "apt-get install chromium; only tests of pages need it")
    return Finding("browser", GOOD, str(shutil.which(found)))


def program(command: str, name: str, fix: str) -> Finding:
    """Whether a program is on the path, and its version."""
    if not shutil.which(command):
        return Finding(name, WARN, f"no {command}", fix)
    return Finding(name, GOOD, answer(command, "--version").partition("\n")[0][:60] or command)


def model_files(folder: Path) -> Finding:
    """Whether a folder holds a model that an engine can load: configuration, weights, tokenizer."""
    lacking = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        lacking.append("weights (*.safetensors)")
    if lacking:
        says = f"{folder} lacks {', '.join(lacking)}"
        return Finding("model", MISSING, says, "fetch the model anew, or make a small one: windtunnel model --help",
                       required=True)  # fmt: skip
    return Finding("model", GOOD, str(folder), required=True)


def answer(*command: str) -> str:
    """Return what a program prints; "" if there is none, if it fails, or if it does not answer in time."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
