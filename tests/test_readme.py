"""README's examples are run, in order and in one folder, and their output is compared with what it shows."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Example(NamedTuple):
    """A command and what it prints, or a file (``command`` empty) and its text."""

    name: str
    command: str
    text: str


def examples() -> list[Example]:
    """What README shows, in order: ``python`` blocks that name a file, and commands of ``console`` blocks."""
    found = []
    for language, body in FENCE.findall(README):
        named = re.match(r"# file: (\S+)\n", body)
        if language == "python" and named:
            found.append(Example(named[1], "", body.removeprefix(named[0])))
        if language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                found.append(Example(command.split()[0], command, printed))
    return found


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in bash, with the commands of this environment in front."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "118",
    }
    environment.pop("WINDTUNNEL_TRACES", None)
    line = ["bash", "-c", command]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def matches(example: Example, ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, f"{example.command}\n{ran.stderr}"
    if not doctest.OutputChecker().check_output(example.text, ran.stdout, LIKE):
        raise AssertionError(f"$ {example.command}\nREADME says:\n{example.text}\nit prints:\n{ran.stdout}")


def test_first_screen_is_a_sentence_a_command_and_its_output():
    lines = README.splitlines()
    assert lines[0] == "# Windtunnel"
    assert lines.index("$ make demo") < 10
    assert len([line for line in lines[1 : lines.index("```console")] if line]) <= 2
    shown = next(example for example in examples() if example.name == "make")
    assert "rho" in shown.text
    assert "Report:" in shown.text


def test_examples_run_as_printed(tmp_path):
    for example in examples():
        if example.name == "make":
            continue  # the next test
        if example.command:
            ran = run(example.command, tmp_path)
            matches(example, ran)
            assert "CONTROLS CAME OUT WRONGLY" not in ran.stdout, f"{example.command}\n{ran.stdout}"
        else:
            (tmp_path / example.name).write_text(example.text)


@pytest.mark.slow
def test_make_demo_prints_what_the_first_screen_shows(tmp_path):
    """The recipe's own command, in another folder, so that nothing is there already."""
    shown = next(example for example in examples() if example.name == "make")
    recipe = re.search(
        r"^demo: .*\n\t(?:\S*/)?(windtunnel .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert recipe is not None
    matches(shown, run(recipe[1], tmp_path))


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_packages_in_the_table_are_there():
    named = re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE)
    assert named == ["schedulers", "loadgen", "sim", "services", "analysis", "windtunnel"]
    assert all((ROOT / name).is_dir() for name in named)
