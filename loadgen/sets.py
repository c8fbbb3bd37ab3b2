"""Window sets: the windows that a study is made of, under one name, frozen by a recipe with a digest.

A set of real traffic is frozen by its recipe, which pins the official files: whoever has them gets the same
windows. The same set of surrogates ships as a manifest, since generated traffic needs no files.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.candidate import Recipe, rules
from loadgen.catalogue import ENTRIES
from loadgen.manifest import MANIFEST, read_manifest, write_whole
from loadgen.window import ManifestLine
from schedulers.errors import InputError

SURROGATE = "-surrogate"
"""Ends the name of a set whose traffic is generated."""

FILE = "set.json"
"""Lies beside the manifest and says which set the folder holds, by which recipe, from which sources."""


@dataclass(frozen=True)
class WindowSet:
    """A set: ``recipe.count`` windows of each of its sources, and why it is built so."""

    name: str
    sources: tuple[str, ...]
    recipe: Recipe
    words: str

    @property
    def told(self) -> dict[str, Any]:
        """Everything that decides which windows the set holds, as JSON can hold it."""
        return {
            "set": self.name,
            "sources": list(self.sources),
            "recipe": asdict(self.recipe),
            "rules": {source: asdict(rules(source)) for source in self.sources},
            "files": {source: pinned(source) for source in self.sources},
        }

    @property
    def digest(self) -> str:
        """SHA-256 over ``told``."""
        return hashlib.sha256(json.dumps(self.told, sort_keys=True).encode()).hexdigest()


def _pair(name: str, sources: tuple[str, ...], recipe: Recipe, words: str) -> dict[str, WindowSet]:
    """Return a set of real traffic and its twin of surrogates."""
    twins = tuple(f"{source.removesuffix('2024')}_surrogate" for source in sources)
    return {
        name: WindowSet(name, sources, recipe, words),
        f"{name}{SURROGATE}": WindowSet(
            f"{name}{SURROGATE}", twins, recipe, f"{words} Traffic is generated."
        ),
    }


SOURCES = ("azure2024", "burstgpt", "bailian")

SETS: Mapping[str, WindowSet] = MappingProxyType(
    _pair(
        "published-120",
        SOURCES,
        Recipe("published", 40, strata="terciles"),
        "The window design of the published portability study: 40 a source of 200 requests, all scored, half of "
        "them from the first third of each file (early/middle/late 60/30/30).",
    )
    | _pair(
        "windtunnel-240",
        SOURCES,
        Recipe("main", 80),
        "80 a source of 1,250 requests, the middle 1,000 scored; strata of work rate x burstiness; the first 60 % "
        "of each file in time is for development, the rest for tests.",
    )
)
"""Sets by name (reference/published-studies.md A.1; reference/traces.md 7; statistics.md section 7)."""


def find_set(name: str) -> WindowSet:
    """Return the set of that name. Raises InputError naming those that there are."""
    if name not in SETS:
        raise InputError(f"no window set {name!r}", where="--set", fix=f"use one of {', '.join(SETS)}")
    return SETS[name]


def pinned(source: str) -> dict[str, str]:
    """Return the official files of a source with the digest of each; {} for a surrogate or a user's source."""
    return {one.name: one.sha256 for one in ENTRIES if one.origin.family == source}


def shipped_folder(name: str) -> Path:
    """Return where the manifest of a set lies, if it ships."""
    return Path(str(files("loadgen") / "manifests" / name))


def shipped_lines(name: str) -> tuple[ManifestLine, ...]:
    """Return the manifest that ships with a set of surrogates; () where none can (a set of real traffic)."""
    folder = shipped_folder(name)
    return read_manifest(folder) if (folder / MANIFEST).is_file() else ()


def as_shipped(of: WindowSet, lines: Sequence[ManifestLine]) -> tuple[int, int]:
    """Return how many of these windows of the set ship with the same content, and how many ship at all.

    Content, not bytes of files: another version of the parquet writer freezes the same window.
    """
    shipped = {line.id: line.content_sha256 for line in shipped_lines(of.name)}
    return sum(shipped.get(line.id) == line.content_sha256 for line in lines), len(shipped)


def write_set(folder: Path, of: WindowSet, lines: Sequence[ManifestLine], manifest_sha256: str) -> None:
    """Write FILE: the set, its recipe and digest, and the sources that its windows really come from."""
    taken = {
        line.source: {"label": line.label, "windows": sum(one.source == line.source for one in lines)}
        for line in sorted(lines, key=lambda line: line.source)
    }
    told = of.told | {"recipe_sha256": of.digest, "taken": taken, "manifest_sha256": manifest_sha256}
    write_whole(folder / FILE, (json.dumps(told, indent=2, sort_keys=True) + "\n").encode())


def read_set(folder: Path) -> dict[str, Any]:
    """Return what FILE of a folder of windows says, {} where there is none. Raises InputError if damaged."""
    path = folder / FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict):
        fix = "delete it, then freeze the set again with the same options and folder"
        raise InputError("the note on the window set is damaged", where=str(path), fix=fix)
    return told


def of_size(of: WindowSet, count: int) -> WindowSet:
    """Return the set with the first ``count`` windows of each source: a longer choice begins with it."""
    return replace(of, recipe=replace(of.recipe, count=min(count, of.recipe.count)))
