"""Where compiled code is kept, under a digest of the sources that it was made from."""

import hashlib
import importlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

SOURCES = (
    "schedulers.cost", "schedulers.dispatcher", "schedulers.migration", "schedulers.policy", "schedulers.view",
    "sim.admission", "sim.audit", "sim.cluster", "sim.compiled", "sim.engine", "sim.fabric", "sim.gaps",
    "sim.hooks", "sim.kernel", "sim.life", "sim.memory", "sim.moves", "sim.prefix", "sim.queue", "sim.reports",
    "sim.rig", "sim.storage", "sim.stretch",
)  # fmt: skip
"""Modules whose edit makes all compiled code stale."""


def cache_root() -> Path:
    """Where compiled code is kept: WINDTUNNEL_CACHE or the user's cache folder."""
    root = os.environ.get("WINDTUNNEL_CACHE") or Path.home() / ".cache" / "windtunnel"
    return Path(root) / "numba"


def digest(paths: list[Path]) -> str:
    """Sixteen hex digits over the contents of these sources and numba's version."""
    seal = hashlib.sha256(version("numba").encode())
    for path in sorted(paths):
        seal.update(path.read_bytes())
    return seal.hexdigest()[:16]


@cache
def kernel_digest() -> str:
    """Digest of the kernel's sources, taken once a process and before anything is compiled.

    Taken later it could belong to files that were edited after this process had imported them.
    """
    return digest(list(kernel_sources()))


@cache
def kernel_sources() -> tuple[Path, ...]:
    """Files whose edit makes all compiled code stale."""
    return tuple(Path(str(importlib.import_module(name).__file__)) for name in SOURCES)
