"""A researcher's own policy, in a file, on the running testbed: the same file as in the simulator, and no other."""

import json

import pytest

from services.local import ask, read_state, stop

pytestmark = pytest.mark.timeout(240)

MINE = """
import os
from pathlib import Path

from schedulers.policy import EnginePolicy

with (Path(__file__).parent / "loads").open("a") as told:
    told.write(f"{{os.getpid()}} {sign}\\n")

def order(view, request, now_s):
    return float({sign}view.requests.prompt_tokens[request])

POLICY = EnginePolicy(name="mine", order=order)
"""

SLOWLY = ("--region", "1.5", "--lag-p50-ms", 2000, "--lag-p99-ms", 20_000, "--progress", "none", "--json")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a policy and a window, in which the user is."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from windtunnel.traffic import generated

    here = tmp_path / "my.pyx + work"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "mine.py").write_text(MINE.format(sign=""))
    freeze(generated("azure_surrogate", 2, "brief", 1), here / "w", Recipe(kind="brief", count=1, seed=1))
    yield here
    stop(here / "live", grace_s=5.0)


def test_a_policy_in_a_file_decides_on_the_testbed(windtunnel, place):
    """Named by `up` or by a replay, from wherever; a change of the file counts from the next run on."""
    up = windtunnel("up", "--workers", 1, "--speed", 10, "--scheduler", "mine.py:POLICY", "--dir", "live")
    assert up.code == 0, up.said
    state = read_state(place / "live")

    def policy():
        return ask(state.workers[0].http, "/totals")[1]["policy"]

    own = f"{place.resolve()}/mine.py:POLICY"
    assert policy() == own
    versions = []
    for out, *named in (("a",), ("b", "--scheduler", "edf"), ("c", "--scheduler", "mine.py+round-robin")):
        if out == "c":
            (place / "mine.py").write_text(MINE.format(sign="-"))
        ran = windtunnel("replay", "w", "--dir", "live", "--out", out, *named, *SLOWLY)
        assert ran.code == 0, ran.said
        (run,) = json.loads(ran.out)["runs"]
        versions.append(run["scheduler"])
        assert policy() == {"a": own, "b": "edf", "c": own.removesuffix(":POLICY")}[out]
    assert [one.split("+")[0] for one in versions] == ["mine", "edf", "mine"]
    loads = [line.split(" ") for line in (place / "loads").read_text().splitlines()]
    assert [sign for pid, sign in loads if int(pid) == state.workers[0].pid] == ["", "-"]


def test_a_file_elsewhere_is_refused_and_told_why(windtunnel, place, tmp_path):
    """The operator's key opens the folder in which `up` was started, no other."""
    up = windtunnel("up", "--workers", 1, "--speed", 10, "--dir", "live")
    assert up.code == 0, up.said
    (tmp_path / "other.py").write_text(MINE.format(sign=""))
    (place / "link.py").symlink_to(tmp_path / "other.py")
    for number, path in enumerate(("../other.py", "link.py", str(tmp_path / "other.py"))):
        ran = windtunnel(
            "replay", "w", "--dir", "live", "--out", f"o{number}", "--scheduler", f"{path}:POLICY", *SLOWLY
        )
        assert ran.code == 2, ran.said
        assert "over the network" in ran.said
