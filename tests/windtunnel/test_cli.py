"""The command: lazy, clear about what went wrong, and the same everywhere: --json, an example, exit codes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from schedulers.errors import InputError
from windtunnel import cli
from windtunnel.stopping import Terminated

HEAVY = {
    "numpy", "pandas", "numba", "pyarrow", "scipy", "jinja2", "httpx", "altair", "vl_convert", "statsmodels", "arch",
    "grpc", "fastapi", "ray",
}  # fmt: skip
RUNNER = CliRunner()


def windtunnel(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windtunnel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def commands() -> Iterator[tuple[str, object]]:
    """Every command that does something, by the words that call it."""

    def below(words: str, command: object) -> Iterator[tuple[str, object]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
            return
        for name, one in inner.items():
            yield from below(f"{words} {name}", one)

    for name in cli.PARTS:
        yield from below(name, cli.load(name))


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from windtunnel.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert HEAVY & set(ran.stderr.split()) == set()
    for name, (_, text) in cli.PARTS.items():
        assert name in ran.stdout
        assert text.split(":")[0][:30] in ran.stdout


def test_every_command_has_json_and_an_example():
    for words, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        told = f"{command.help} {command.epilog}"
        assert "--json" in options, words
        assert "xample" in told, words
        assert f"windtunnel {words}" in told, words


def test_version_is_the_distributions():
    from importlib.metadata import version

    assert RUNNER.invoke(cli.app, ["--version"]).stdout.strip() == version("windtunnel")


def test_a_slip_of_the_pen_is_answered_with_the_near_name():
    ran = windtunnel("swep")
    assert ran.returncode == 2
    assert "sweep" in ran.stderr
    assert ran.stdout == ""


@pytest.fixture
def part(monkeypatch):
    """Give a command of one's own to the root command."""

    def install(function) -> None:
        monkeypatch.setitem(sys.modules, "a_part_of_the_test", SimpleNamespace(work=function))
        monkeypatch.setitem(cli.PARTS, "work", ("a_part_of_the_test:work", "Work."))

    return install


def refuse(as_json: bool = typer.Option(False, "--json")) -> None:
    raise InputError("negative time", where="a.csv:7", fix="sort the file")


def test_bad_input_is_told_with_place_and_remedy(part):
    part(refuse)
    ran = RUNNER.invoke(cli.app, ["work"])
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == ["Error: negative time", "Where: a.csv:7", "Fix: sort the file"]


def test_bad_input_is_an_object_with_json(part):
    part(refuse)
    ran = RUNNER.invoke(cli.app, ["work", "--json"])
    assert ran.exit_code == 2
    told = json.loads(ran.stdout)
    assert told == {"error": {"what": "negative time", "where": "a.csv:7", "fix": "sort the file"}}


USAGE = [
    (["sweep", "--json"], "windtunnel sweep", "PLAN"),
    (["sweep", "quick", "--json"], "windtunnel sweep", "--out"),
    (["sweep", "quick", "--out", "out", "--jobs", "-1", "--json"], "windtunnel sweep", "--jobs"),
    (["windows", "lst", "--json"], "windtunnel windows", "lst"),
    (["swep", "--json"], "windtunnel", "sweep"),
    (["--nonsense", "--json"], "windtunnel", "--nonsense"),
]


@pytest.mark.parametrize(("words", "where", "what"), USAGE)
def test_bad_usage_is_an_object_with_json(words, where, what):
    ran = RUNNER.invoke(cli.app, words, prog_name="windtunnel")
    assert ran.exit_code == 2
    error = json.loads(ran.stdout)["error"]
    assert what in error["what"]
    assert (error["where"], error["fix"]) == (where, f"read `{where} --help`")
    assert what in ran.stderr
    silent = RUNNER.invoke(cli.app, [word for word in words if word != "--json"], prog_name="windtunnel")
    assert (silent.exit_code, silent.stdout) == (2, "")


def test_a_termination_exits_with_143(part):
    def terminate() -> None:
        raise Terminated

    part(terminate)
    ran = RUNNER.invoke(cli.app, ["work"])
    assert ran.exit_code == 143
    assert "Terminated" in ran.stderr


def test_ctrl_c_exits_with_130(part):
    def interrupt() -> None:
        raise KeyboardInterrupt

    part(interrupt)
    ran = RUNNER.invoke(cli.app, ["work"])
    assert ran.exit_code == 130
    assert "Interrupted" in ran.stderr


def test_a_fault_of_ours_is_not_hidden(part):
    def fail() -> None:
        raise ZeroDivisionError

    part(fail)
    assert isinstance(RUNNER.invoke(cli.app, ["work"]).exception, ZeroDivisionError)


def test_a_closed_pipe_is_not_an_accident():
    command = f"{sys.executable} -m windtunnel plan show demo | head -n 1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ran.stdout.startswith("# digest")
    assert "Traceback" not in ran.stderr


def test_plan_show_prints_a_plan_that_reads_back(tmp_path):
    ran = RUNNER.invoke(cli.app, ["plan", "show", "demo", "--scheduler", "edf+least-requests"])
    path = tmp_path / "again.toml"
    path.write_text(ran.stdout)
    again = RUNNER.invoke(cli.app, ["plan", "show", str(path), "--json"])
    told = json.loads(again.stdout)
    assert told["schedulers"][-1] == "edf+least-requests"
    assert told["digest"] == ran.stdout.split()[2]


BAD_METRICS = [
    ('primary = "speed"', "primary", "no metric is called 'speed'"),
    ('primary = "attainment:S3"', "primary", "reads S3"),
    ('slo_sets = ["tier", "S9"]', "slo_sets", "no SLO set 'S9'"),
]


@pytest.mark.parametrize("command", ["plan show", "calibrate", "sweep"])
@pytest.mark.parametrize(("line", "key", "what"), BAD_METRICS)
def test_a_metric_that_does_not_exist_is_named_at_its_line(tmp_path, command, line, key, what):
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    quick = RUNNER.invoke(cli.app, ["plan", "show", "quick"]).stdout.replace(f"{key} =", "#")
    path.write_text(f"# mine\n{line}\n{quick}")
    options = [] if command == "plan show" else ["--out", str(out)]
    ran = RUNNER.invoke(cli.app, [*command.split(), str(path), *options, "--json"])
    assert ran.exit_code == 2
    error = json.loads(ran.stdout)["error"]
    assert what in error["what"]
    assert error["where"] == f"{path}:2"
    assert not out.exists()
