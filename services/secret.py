"""Secrets come from the environment, or from the file that it names, so that none stands on a command line."""

import os
import secrets
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


def make(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Write random secrets into files of a folder that lacks them; return the names of those that are new.

    They are readable by all who see the folder: its owner decides who does. Raises InputError.
    """
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            if not path.exists():
                fresh = path.with_name(f".{name}.{os.getpid()}")
                fresh.write_text(secrets.token_urlsafe(24), encoding="utf-8")
                fresh.chmod(0o444)
                fresh.replace(path)
                made.append(name)
    except OSError as error:
        raise InputError(f"can't write a secret: {error}", where=str(folder)) from None
    return made
