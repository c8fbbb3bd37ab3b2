"""Fixtures and settings shared by every test."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Set before matplotlib or numba is imported: no window opens, and compiled code stays in the repository.
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("WINDTUNNEL_CACHE", str(ROOT / ".cache" / "windtunnel"))

# A library that we use installs a package `tests` of its own; here, and in processes that tests start, ours is meant.
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Folder of real trace files: WINDTUNNEL_TRACES, else ``../shared/traces`` beside the repository."""
    named = os.environ.get("WINDTUNNEL_TRACES")
    folder = Path(named) if named else ROOT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("real trace files absent")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _event_loop_at_hand() -> Iterator[None]:
    """A loop that is there before the first asynchronous test: pytest-asyncio makes one else, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
