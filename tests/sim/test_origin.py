"""What a policy's code is made of: its digest sees helpers, constants and closures, and nothing else."""

import importlib.util
import sys

import numpy as np
import pytest

from schedulers.engine import edf
from sim import origin
from sim.origin import foreign, reachable, seal

MINE = (
    "from {helper} import W, rule\n\n\ndef order(view, request, now_s):\n    return W * rule(view, request)\n"
)
HELP = "import numpy\n\nW = {weight}\nUNUSED = {unused}\n\n\ndef rule(view, request):\n    return {body}\n"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that writes a helper and a policy afresh and gives the digest of its hook."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(weight="1.0", body="2.0", unused="0"):
        for name, text in (
            ("origin_helper", HELP.format(weight=weight, body=body, unused=unused)),
            ("origin_mine", MINE.format(helper="origin_helper")),
        ):
            sys.modules.pop(name, None)
            (tmp_path / f"{name}.py").write_text(text)
            found = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module
            exec(compile(text, str(tmp_path / f"{name}.py"), "exec"), module.__dict__)
        return seal(reachable(sys.modules["origin_mine"].order))

    return make


def test_the_same_code_has_the_same_digest(made):
    assert made() == made()


@pytest.mark.parametrize("edit", [{"weight": "-1.0"}, {"body": "3.0"}])
def test_a_helper_and_its_constants_are_part_of_it(made, edit):
    assert made() != made(**edit)


def test_values_that_are_no_text_of_any_file_are_part_of_it(made):
    """A constant read at import from elsewhere: the files are the same, the value is not."""
    before = made(weight="numpy.array([1.0])")
    sys.modules["origin_mine"].W = np.array([2.0])
    assert seal(reachable(sys.modules["origin_mine"].order)) != before


def test_libraries_are_left_out():
    names = {function.__module__ for function in reachable(edf.due)}
    assert all(name.startswith("schedulers") for name in names)


def test_our_own_code_is_ours_where_it_is_installed_among_libraries(tmp_path, monkeypatch):
    """A policy that lies in site-packages beside this package is compiled; a library beside it is left out."""
    home = tmp_path / "site-packages"
    found = {}
    for package in ("schedulers", "numpy"):
        (home / package).mkdir(parents=True)
        file = home / package / "rule.py"
        file.write_text("def rule():\n    return 1\n")
        exec(compile(file.read_text(), str(file), "exec"), found.setdefault(package, {}))
    monkeypatch.setattr(origin, "OURS", home)
    assert not foreign(found["schedulers"]["rule"])
    assert foreign(found["numpy"]["rule"])
    monkeypatch.setattr(origin, "OURS", tmp_path)
    assert foreign(found["schedulers"]["rule"])
