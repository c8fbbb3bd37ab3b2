"""Fixtures and settings shared by every test."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Set before matplotlib or numba is imported: no window opens, and compiled code stays in the repository.
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("WINDTUNNEL_CACHE", str(ROOT / ".cache" / "windtunnel"))


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Folder of real trace files: WINDTUNNEL_TRACES, else ``../shared/traces`` beside the repository."""
    named = os.environ.get("WINDTUNNEL_TRACES")
    folder = Path(named) if named else ROOT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("real trace files absent")
    return folder
