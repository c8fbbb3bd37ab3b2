"""What a policy's code is made of: the functions it reaches, the values they name, and a digest over both.

Compiled code freezes module values at compile time, and stored results belong to the code that made them; so a digest
must see an edit of a helper in another file, and a constant whose file holds no function at all.
"""

import hashlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Function = Callable[..., Any]

OURS = Path(__file__).resolve().parent.parent
"""Where our packages lie, which is among the libraries once they are installed."""

PACKAGES = ("schedulers", "loadgen", "sim", "services", "analysis", "windtunnel")


def names_in(code: types.CodeType) -> set[str]:
    """Global and attribute names that a piece of code mentions, its inner functions included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found


def named(function: Function) -> Iterator[tuple[str, Any]]:
    """Yield what a function's names stand for: its module's globals, and members of modules among them."""
    names = sorted(names_in(function.__code__))
    for name in names:
        if name not in function.__globals__:
            continue
        found = function.__globals__[name]
        yield name, found
        if isinstance(found, types.ModuleType):
            yield from (
                (f"{name}.{member}", getattr(found, member)) for member in names if hasattr(found, member)
            )
    for place, cell in enumerate(function.__closure__ or ()):
        yield f"cell {place}", cell.cell_contents


def reachable(function: Function) -> list[Function]:
    """A function and all plain functions it can reach, in a fixed order, libraries left out."""
    seen: list[Function] = []
    todo = [function]
    while todo:
        here = todo.pop()
        if here not in seen and not foreign(here):
            seen.append(here)
            todo.extend(found for _, found in named(here) if isinstance(found, types.FunctionType))
    return seen


def foreign(function: Function) -> bool:
    """True for a library's function: its version is in the lock file, not in our digests."""
    file = Path(function.__code__.co_filename)
    if file.is_relative_to(OURS) and file.relative_to(OURS).parts[0] in PACKAGES:
        return False
    return "site-packages" in file.parts or not file.is_file()


def value_text(value: Any) -> str | None:
    """A value as text that changes when it does; None for what is code, not data."""
    if isinstance(value, np.ndarray):
        return (
            f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
        )
    if isinstance(value, tuple | list | frozenset):
        return repr([value_text(item) for item in value])
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic) or value is None:
        return f"{type(value).__name__} {value!r}"
    return None


def seal(functions: list[Function]) -> str:
    """Sixteen hex digits over the files of these functions and over every value that they name."""
    digest = hashlib.sha256()
    for file in sorted({function.__code__.co_filename for function in functions}):
        digest.update(Path(file).read_bytes())
    for function in sorted(functions, key=lambda one: (one.__module__, one.__qualname__)):
        digest.update(f"{function.__module__}.{function.__qualname__} {function.__defaults__!r}\n".encode())
        for name, value in named(function):
            text = value_text(value)
            if text is not None:
                digest.update(f"{name} = {text}\n".encode())
    return digest.hexdigest()[:16]
