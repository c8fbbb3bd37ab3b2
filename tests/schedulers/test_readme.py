"""The README of the schedulers: its example runs and its table is current."""

import re
from pathlib import Path

from schedulers.checks import check
from schedulers.load import find, load
from windtunnel.schedulers import table

README = Path(__file__).resolve().parents[2] / "schedulers" / "README.md"


def test_the_example_is_fifteen_lines_and_keeps_the_contract(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    path = tmp_path / "short_first.py"
    path.write_text(example)
    assert load(f"{path}:POLICY:rate=50+least-requests").name == "short-first:rate=50+least-requests"
    found = find(f"{path}:POLICY")
    assert check(found.policy, idea=found.module.__doc__) == []


def test_the_table_is_current():
    (shown,) = re.findall(r"<!-- table -->\n(.*?)<!-- /table -->", README.read_text(), re.DOTALL)
    assert shown == table()
