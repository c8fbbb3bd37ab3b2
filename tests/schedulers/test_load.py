"""Loading by name, file and module; what is wrong is said with where and how to mend it."""

import ast
import shutil
import sys
from pathlib import Path

import pytest

import schedulers.cluster
import schedulers.engine
from schedulers.errors import InputError
from schedulers.load import cluster_names, engine_names, find, load

MINE = '''"""Newest first."""

from schedulers.policy import EnginePolicy, Param
from schedulers.view import View


def order(view: View, request: int, now_s: float) -> float:
    """Return minus the arrival."""
    return -float(view.requests.arrival_s[request])


POLICY = EnginePolicy(name="mine", order=order, params=(Param("x", 1.0, 0.0, 2.0, "s", "nothing"),))
OTHER = 3
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(
    ("spec", "name", "engine", "cluster"),
    [
        ("edf", "edf", (), "round-robin"),
        ("edf+round-robin", "edf", (), "round-robin"),
        ("edf+least-requests", "edf+least-requests", (), "least-requests"),
        ("sarathi:phi=0.80", "sarathi:phi=0.8", (0.8, 256.0, 0.0), "round-robin"),
        ("sarathi:phi=0.9", "sarathi", (0.9, 256.0, 0.0), "round-robin"),
        ("sarathi:min_budget=512,phi=1", "sarathi:phi=1,min_budget=512", (1.0, 512.0, 0.0), "round-robin"),
        ("sjf-pred:max_wait_s=1e+3", "sjf-pred:max_wait_s=1000", (1000.0,), "round-robin"),
        ("sjf-pred:max_wait_s=1e+3+least-requests", "sjf-pred:max_wait_s=1000+least-requests", (1000.0,),
         "least-requests"),
        ("sjf-pred:max_wait_s=inf", "sjf-pred", (float("inf"),), "round-robin"),
        ("schedulers.engine.edf:POLICY", "edf", (), "round-robin"),
        (" edf + least-requests ", "edf+least-requests", (), "least-requests"),
    ],
)  # fmt: skip
def test_specs_and_their_canonical_names(spec, name, engine, cluster):
    scheduler = load(spec)
    assert scheduler.name == name
    assert scheduler.engine_params == engine
    assert scheduler.cluster.name == cluster
    assert load(name) == scheduler  # the name can be read back


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("edg", ["unknown policy 'edg'", "did you mean 'edf'", "fcfs-chunked", "least-requests"]),
        ("edf+round-robbin", ["unknown policy 'round-robbin'", "did you mean 'round-robin'"]),
        ("least-requests", ["'least-requests' is a cluster policy", "fcfs-chunked+least-requests"]),
        ("edf+sarathi", ["'sarathi' is an engine policy", "round-robin"]),
        ("edf+", ["does not name a scheduler"]),
        ("", ["does not name a scheduler"]),
        ("edf+round-robin+edf", ["'edf' is an engine policy"]),
        ("edf+round-robin+llumnix", ["both have the hook 'dispatch'", "different questions"]),
        (
            "sarathi:phii=1",
            ["unknown parameter 'phii'", "sarathi:phii", "did you mean 'phi'", "phi (0.05..10 share)"],
        ),
        ("edf:x=1", ["unknown parameter 'x'", "parameters of edf: none"]),
        ("sarathi:phi=11", ["11 is out of range", "at sarathi:phi", "0.05..10"]),
        ("sarathi:phi=nan", ["out of range", "0.05..10"]),
        ("sarathi:phi=fast", ["'fast' is not a number", "sarathi:phi"]),
        ("sarathi:phi=1,phi=2", ["set twice"]),
        ("no_such_file.py:POLICY", ["there is no file 'no_such_file.py'"]),
        ("no_such_package.part:POLICY", ["there is no module 'no_such_package.part'"]),
        ("schedulers.view:View", ["not a policy"]),
        ("schedulers.engine.edf:POLICE", ["no 'POLICE'", "it defines POLICY"]),
    ],
)
def test_what_is_wrong_with_a_spec_is_said(spec, says):
    with pytest.raises(InputError) as caught:
        load(spec)
    for part in says:
        assert part in str(caught.value)
    assert caught.value.fix


def test_a_file_of_ones_own(mine):
    scheduler = load(f"{mine}:POLICY:x=0.5+least-requests")
    assert scheduler.name == "mine:x=0.5+least-requests"
    assert scheduler.engine_params == (0.5,)
    assert scheduler.cluster.name == "least-requests"
    assert load(str(mine)).name == "mine"  # POLICY is the usual name


def test_a_file_is_a_real_module_imported_once(mine):
    order = load(f"{mine}:POLICY").engine.order
    assert sys.modules[order.__module__].__file__ == str(mine.resolve())
    assert order.__code__.co_filename == str(mine.resolve())
    assert load(f"{mine}:POLICY").engine.order is order


def test_an_edited_file_is_read_again(mine):
    assert load(f"{mine}:POLICY").engine.version == 1
    mine.write_text(MINE.replace("order=order,", "order=order, version=2,"))
    assert load(f"{mine}:POLICY").engine.version == 2


def test_two_files_of_one_name_are_two_modules(mine, tmp_path):
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / "mine.py"
    twin.write_text(MINE)
    assert find(f"{mine}:POLICY").module is not find(f"{twin}:POLICY").module


def test_a_path_may_contain_a_plus(tmp_path):
    path = tmp_path / "a+b" / "my+policy.py"
    path.parent.mkdir()
    path.write_text(MINE)
    assert load(f"{path}:POLICY+least-requests").name == "mine+least-requests"
    assert load(f"{path}:POLICY").name == "mine"


def test_a_module_in_the_current_folder(mine, monkeypatch):
    (mine.parent / "mine_as_module.py").write_text(MINE)
    monkeypatch.chdir(mine.parent)
    path = list(sys.path)
    assert load("mine_as_module:POLICY").name == "mine"
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_thing\n", ["ModuleNotFoundError", "no_such_thing", "mine.py:1"]),
        ("x = 1\ny = 1 / 0\n", ["ZeroDivisionError", "mine.py:2 (y = 1 / 0)"]),
        ("def broken(:\n", ["SyntaxError", "mine.py:1"]),
        ("raise SystemExit(3)\n", ["SystemExit", "mine.py:1"]),
        ("x = 1\n", ["no 'POLICY'", "define POLICY = EnginePolicy"]),
        (MINE.replace("POLICY =", "MINE ="), ["no 'POLICY'", "it defines MINE"]),
        ("POLICY = 3\n", ["of type int, not a policy"]),
        (MINE.replace('"mine"', '"edf"'), ["may not be called 'edf'"]),
        (MINE.replace('"mine"', '"a:b"'), ["'a:b' is no name"]),
        (MINE.replace("0.0, 2.0", "5.0, 9.0"), ["parameter 'x' needs", "low <= default <= high"]),
        (MINE.replace(", now_s: float", ""), ["order(view: schedulers.view.View, request: int)", "now_s)"]),
    ],
)
def test_a_file_that_cannot_be_used_says_why(mine, text, says):
    mine.write_text(text)
    with pytest.raises(InputError) as caught:
        load(f"{mine}:POLICY")
    for part in says:
        assert part in str(caught.value)
    assert str(mine) in str(caught.value)


def test_a_failed_import_leaves_no_module_behind(mine):
    mine.write_text("y = 1 / 0\n")
    for _ in range(2):  # the second time it fails for the same reason
        with pytest.raises(InputError, match="ZeroDivisionError"):
            load(f"{mine}:POLICY")
    assert str(mine) not in [getattr(module, "__file__", "") for module in sys.modules.values()]


def test_a_near_file_name_is_suggested(mine):
    with pytest.raises(InputError) as caught:
        load(f"{mine.parent / 'mone.py'}:POLICY")
    assert str(mine) in caught.value.fix


def test_policies_import_no_policy():
    for package in (schedulers.engine, schedulers.cluster):
        for path in Path(package.__path__[0]).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    assert not str(node.module).startswith(("schedulers.engine", "schedulers.cluster")), path
                    assert str(node.module).split(".")[0] in ("schedulers", "math"), path
                assert not isinstance(node, ast.Import), path


@pytest.mark.parametrize("package", [schedulers.engine, schedulers.cluster], ids=["engine", "cluster"])
def test_removing_any_file_breaks_nothing_else(package, tmp_path, monkeypatch):
    names = engine_names if package is schedulers.engine else cluster_names
    everything = names()
    for gone in everything:
        folder = tmp_path / gone
        shutil.copytree(package.__path__[0], folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / f"{gone.replace('-', '_')}.py").unlink()
        with monkeypatch.context() as patch:
            patch.setattr(package, "__path__", [str(folder)])
            for module in [name for name in sys.modules if name.startswith(package.__name__ + ".")]:
                patch.delitem(sys.modules, module)
            assert names() == tuple(name for name in everything if name != gone)
            assert [find(name).policy.name for name in names()] == list(names())
            assert all(Path(str(find(name).module.__file__)).parent == folder for name in names())
            with pytest.raises(InputError, match="unknown policy"):
                find(gone)


def test_adding_a_file_adds_a_scheduler(tmp_path, monkeypatch):
    folder = tmp_path / "engine"
    shutil.copytree(schedulers.engine.__path__[0], folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "brand_new.py").write_text(MINE.replace('"mine"', '"brand-new"'))
    (folder / "broken.py").write_text("import nothing_at_all\n")
    monkeypatch.setattr(schedulers.engine, "__path__", [str(folder)])
    monkeypatch.delitem(sys.modules, "schedulers.engine.brand_new", raising=False)
    assert load("brand-new").engine.name == "brand-new"
    with pytest.raises(InputError, match="nothing_at_all"):
        load("broken")
    monkeypatch.delitem(sys.modules, "schedulers.engine.brand_new")
