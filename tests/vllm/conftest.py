"""Tests against the real engine: collected only where vLLM is (`make test-vllm`), one engine at a time."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.local import SETTINGS
from services.worker.vllm.place import OFFLINE

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []
if find_spec("nixl") is None:
    collect_ignore_glob.append("test_moves.py")

for name, value in {**SETTINGS, **OFFLINE}.items():
    os.environ.setdefault(name, value)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def pytest_collection_modifyitems(items):
    """Warnings of vLLM and its libraries are not ours to mend; ours stay errors."""
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)


def pytest_terminal_summary(terminalreporter):
    """Say at the end what was left out, where nobody overlooks it."""
    if find_spec("vllm") is not None and find_spec("nixl") is None:
        terminalreporter.write_line(
            "WARNING: NIXL is not installed: moves with their KV were NOT tested", red=True
        )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """Folder of the tiny model."""
    from services.worker.vllm.models import make

    folder = tmp_path_factory.mktemp("models") / "tiny"
    make("tiny", folder)
    return folder
