"""Small windows and sweeps for the tests of the command line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

PLAN = """\
name = "small"
schedulers = ["fcfs-chunked", "sjf-pred"]
controls = ["random"]
regions = [0.7, 1.1]
keep = "requests"

[fleet]
budget_max = 512

[[tiers]]
name = "interactive"
ttft_s = 0.5
tpot_s = 0.03
share = 0.5

[[tiers]]
name = "server"
ttft_s = 2.0
tpot_s = 0.1
share = 0.5
"""


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    said: str


@pytest.fixture(scope="session")
def windtunnel() -> Callable[..., Ran]:
    """Run the command in this process, as ``main`` does."""
    from windtunnel.cli import app

    def run(*arguments: object) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def begin() -> Callable[..., subprocess.Popen[str]]:
    """Start the command in a process group of its own, so that it can be interrupted or killed."""

    def start(*arguments: object, **settings) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "windtunnel", *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **settings
        )

    return start


@pytest.fixture(scope="session")
def windows(tmp_path_factory) -> Path:
    """Windows of 200 rows, two of each of two surrogate sources."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from windtunnel.traffic import generated

    folder = tmp_path_factory.mktemp("frozen")
    for source in ("azure_surrogate", "burstgpt_surrogate"):
        freeze(generated(source, 2, "published", 1), folder, Recipe(kind="published", count=2, seed=1))
    return folder


@pytest.fixture
def plan(tmp_path) -> Path:
    """A plan of 2 schedulers, a control and 2 regions, without windows."""
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="session")
def swept(windtunnel, windows, tmp_path_factory) -> Path:
    """The results of the small plan on the small windows; not to be changed."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "plan.toml").write_text(PLAN)
    ran = windtunnel(
        "sweep", folder / "plan.toml", "--windows", windows, "--out", folder / "out", "--jobs", 2
    )
    assert ran.code == 0, ran.said
    return folder / "out"
