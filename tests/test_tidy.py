"""House rules (DESIGN.md section 9) as tests over the source tree."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schedulers", "loadgen", "sim", "services", "analysis", "windtunnel")

MAY_IMPORT = {
    "schedulers": (),
    "loadgen": ("schedulers",),
    "sim": ("schedulers", "loadgen"),
    "services": ("schedulers", "loadgen", "sim"),
    "services/analysis": ("schedulers", "loadgen", "analysis"),
    "analysis": ("loadgen.result",),
    "windtunnel": ("schedulers", "loadgen", "sim", "services", "analysis"),
    "tests": PACKAGES,
    "deploy": (),  # runs where nothing of ours is installed
}
BANNED_IN_SCHEDULERS = {
    "time",
    "random",
    "os",
    "asyncio",
    "datetime",
    "socket",
    "threading",
    "secrets",
    "uuid",
}
FUNCTION_LINES, PARAMETERS, FILE_LINES, FILE_BYTES = 60, 6, 400, 1 << 20
FORBIDDEN_NAMES = {"manager", "helper", "helpers", "util", "utils", "base", "common", "misc"}
UNFINISHED = re.compile("TO" + r"DO|FIX" + r"ME|XX" + r"X\b|NotImplemented" + "Error")
REGISTRIES = re.compile(
    r"pypi\." + r"org|python" + r"hosted\.org|npmjs\." + r"(com|org)|conda\.anaconda\." + "org"
)
PRIVATE_PATH = re.compile(r"(?<![\w.])/(wo" + r"rk|ro" + r"ot|Us" + r"ers)/\w")
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".lock",
    ".html",
    ".j2",
    ".css",
    ".js",
    ".json",
    ".yml",
    ".yaml",
    ".proto",
    "",
}
ROWS = {".csv", ".jsonl", ".gz", ".zst", ".zip", ".parquet", ".xz", ".bz2", ".arrow", ".feather"}


def files() -> list[Path]:
    """Every file that is or would be tracked."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


FILES = files()
MADE = "services/rpc/"
"""Stubs that protoc writes: not ours to tidy, and a test keeps them fresh."""
SOURCES = [path for path in FILES if path.suffix == ".py" and MADE not in path.as_posix()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each imported dotted name with its line; ``from a import b`` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, docstring not counted."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return len([one for one in named if one.arg not in ("self", "cls")])


def faults(check: object) -> list[str]:
    """Run ``check(path, tree)`` over every source file and collect what it yields."""
    assert callable(check)
    return [f"{relative(path)}:{fault}" for path in SOURCES for fault in check(path, parsed(path))]


def test_there_is_something_to_check():
    assert {path.parts[len(ROOT.parts)] for path in SOURCES} >= {*PACKAGES, "tests"}


def test_imports_point_one_way():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        own, *inner = relative(path).split("/")
        may = MAY_IMPORT.get(f"{own}/{inner[0]}") or MAY_IMPORT[own]
        for name, line in imports(tree):
            package = name.split(".")[0]
            if package not in (*PACKAGES, "tests") or package == own:
                continue
            if not any(name == allowed or name.startswith(allowed + ".") for allowed in may):
                yield f"{line} {own} may not import {name}"

    assert faults(check) == []


def test_numba_lives_in_one_file():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        if relative(path) == "sim/compiled.py" or relative(path).startswith("tests/"):
            return
        yield from (f"{line} imports {name}" for name, line in imports(tree) if name.split(".")[0] == "numba")

    assert faults(check) == []


def test_schedulers_know_no_clock_no_luck_no_socket():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        if not relative(path).startswith("schedulers/"):
            return
        for name, line in imports(tree):
            if name.split(".")[0] in BANNED_IN_SCHEDULERS or name.startswith("numpy.random"):
                yield f"{line} imports {name}"

    assert faults(check) == []


def test_functions_are_short():
    def check(_: Path, tree: ast.Module) -> Iterator[str]:
        for function in functions(tree):
            if length(function) > FUNCTION_LINES:
                yield f"{function.lineno} {function.name} has {length(function)} lines"

    assert faults(check) == []


def test_functions_take_few_parameters():
    """In windtunnel/ a command's parameters are its options, in tests/ they are fixtures and drawn inputs."""

    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        if relative(path).startswith(("windtunnel/", "tests/")):
            return
        for function in functions(tree):
            if parameters(function) > PARAMETERS:
                yield f"{function.lineno} {function.name} takes {parameters(function)} parameters"

    assert faults(check) == []


def test_files_are_short():
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_modules_open_with_one_sentence():
    def check(_: Path, tree: ast.Module) -> Iterator[str]:
        opening = (ast.get_docstring(tree) or "").split("\n\n")[0]
        if not opening.rstrip().endswith((".", "?", ":")):
            yield "1 the docstring does not open with a sentence"

    assert faults(check) == []


def test_no_global_and_no_shared_mutable():
    mutable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)

    def shared(value: ast.expr | None) -> bool:
        called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
        return isinstance(value, mutable) or (called and value.func.id in ("list", "dict", "set"))

    def check(_: Path, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                yield f"{node.lineno} global"
            if isinstance(node, ast.ClassDef):
                fields = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
                yield from (
                    f"{part.lineno} mutable in class {node.name}" for part in fields if shared(part.value)
                )

    assert faults(check) == []


def test_names_are_the_domains():
    def check(path: Path, tree: ast.Module) -> Iterator[str]:
        if path.stem in FORBIDDEN_NAMES:
            yield "1 the module's name says nothing"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                last = re.findall("[A-Z][a-z]*", node.name)[-1:]
                if last and last[0].lower() in FORBIDDEN_NAMES:
                    yield f"{node.lineno} the class name {node.name} says nothing"

    assert faults(check) == []


def texts() -> list[tuple[str, str]]:
    return [
        (relative(path), path.read_text())
        for path in FILES
        if path.suffix in TEXT and MADE not in path.as_posix() and path.name != "LICENSE"
    ]


@pytest.mark.parametrize(
    "pattern",
    [UNFINISHED, REGISTRIES, PRIVATE_PATH],
    ids=["unfinished work", "registry host", "private path"],
)
def test_text_does_not_contain(pattern: re.Pattern[str]):
    found = [f"{name}: {match.group()}" for name, text in texts() for match in pattern.finditer(text)]
    assert found == []


def test_no_file_is_large():
    assert [relative(path) for path in FILES if path.stat().st_size > FILE_BYTES] == []


def test_no_rows_are_tracked():
    """Rows of traffic are rebuilt on the user's machine: no table or archive belongs here.

    A manifest says where windows come from and what they must come out as; it holds no row.
    """
    rows = [relative(path) for path in FILES if path.suffix in ROWS and path.name != "manifest.jsonl"]
    assert rows == []


def test_lock_satisfies_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [Requirement(text) for text in project["dependencies"] + extras["dev"]]
    taken = [extra for need in named if need.name == project["name"] for extra in need.extras]
    wanted = [need for need in named if need.name != project["name"]]
    wanted += [Requirement(text) for extra in taken for text in extras[extra]]
    locked: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        name, _, version = line.split(";")[0].strip().partition("==")
        locked.setdefault(canonicalize_name(name), []).append(version)
    for need in wanted:
        versions = locked.get(canonicalize_name(need.name), [])
        assert versions, f"requirements.lock lacks {need.name}: run `make lock`"
        assert all(need.specifier.contains(version) for version in versions), f"{need} against {versions}"


def test_design_names_each_package():
    design = (ROOT / "DESIGN.md").read_text()
    assert [name for name in PACKAGES if f"{name}/" not in design] == []
