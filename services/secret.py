"""Secrets come from the environment, or from the file that it names, so that none stands on a command line."""

import os
from pathlib import Path

from schedulers.errors import InputError


def secret(name: str) -> str:
    """Return the value of NAME, else what the file named by NAME_FILE says, else ""; raises InputError."""
    if os.environ.get(name):
        return os.environ[name]
    path = os.environ.get(f"{name}_FILE", "")
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read the secret: {error}", where=f"{name}_FILE={path}") from None
