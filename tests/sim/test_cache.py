"""Compiled hooks kept on disk: the right code comes back, and an edit makes it stale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sim import compiled, store

RUN = """
import sys
import numpy
from tests.sim.stage import setup, same, traffic
from schedulers.load import load
from sim.run import simulate
for spec in sys.argv[1:]:
    demand, place = traffic(40, 12.0, seed=3), setup(blocks=90, sequences=6, budget=128)
    fast = simulate(demand, load(spec), place, "stepped")
    assert same(fast, simulate(demand, load(spec), place, "interpreted")) == [], spec
    print(f"{numpy.nansum(fast.facts.finished_s):.6f}")
"""


@pytest.fixture
def cache(tmp_path):
    """A cache that holds the kernel and no hooks."""
    compiled.kernel()
    kernel = store.digest(list(store.kernel_sources()))
    shutil.copytree(store.cache_root() / kernel, tmp_path / "numba" / kernel)
    return tmp_path


def play(cache: Path, *specs: str) -> list[str]:
    """Run these schedulers in a new process over this cache; each must equal the interpreter."""
    env = {**os.environ, "WINDTUNNEL_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *specs], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.slow
def test_hooks_compiled_by_different_processes_do_not_mix(cache):
    """Machine code is linked by name: one policy's hook from the cache must not answer for another's."""
    play(cache, "edf")
    play(cache, "sjf-pred")
    play(cache, "sjf-pred", "lifo", "edf")  # lifo is compiled anew between two from the cache
    play(cache, "edf", "random", "lifo", "sjf-pred")


POLICY = '''"""Mine."""
from schedulers.policy import EnginePolicy
{imports}
def order(view, request, now_s):
    return {key}
POLICY = EnginePolicy("mine", order=order)
'''


@pytest.mark.slow
def test_an_edit_of_a_policy_or_of_what_it_calls_is_seen(cache, tmp_path):
    """A second run after an edit uses the edited rule; numba alone would miss the one in the other file."""
    mine, rule = tmp_path / "mine.py", tmp_path / "tunnel_rule.py"
    plain = play(cache, "fcfs-chunked")
    mine.write_text(POLICY.format(imports="", key="view.requests.arrival_s[request]"))
    assert play(cache, f"{mine}:POLICY") == plain
    mine.write_text(POLICY.format(imports="", key="-view.requests.arrival_s[request]"))
    newest_first = play(cache, f"{mine}:POLICY")
    assert newest_first != plain
    text = '"""Rule."""\n\ndef key(view, request):\n    return {}view.requests.arrival_s[request]\n'
    mine.write_text(
        POLICY.format(
            imports=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom tunnel_rule import key",
            key="key(view, request)",
        )
    )
    rule.write_text(text.format(""))
    assert play(cache, f"{mine}:POLICY") == plain
    rule.write_text(text.format("-"))
    assert play(cache, f"{mine}:POLICY") == newest_first


@pytest.mark.slow
def test_a_constant_from_a_file_without_functions_is_seen(cache, tmp_path):
    """Compiled code freezes constants; a file that supplies only those is part of what it is made of."""
    mine, weights = tmp_path / "mine.py", tmp_path / "tunnel_weights.py"
    imports = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom tunnel_weights import W"
    mine.write_text(POLICY.format(imports=imports, key="W * view.requests.arrival_s[request]"))
    told = []
    for weight in ("1.0", "-1.0"):
        weights.write_text(f'"""Weights."""\n\nW = {weight}\n')
        told.append(play(cache, f"{mine}:POLICY"))
    assert told[0] != told[1]
