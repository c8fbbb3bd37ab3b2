"""Find a scheduler by its name, its file or its module, and set its parameters."""

import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import schedulers.cluster
import schedulers.engine
import schedulers.published
from schedulers.answers import Policy
from schedulers.checks import declared
from schedulers.errors import InputError
from schedulers.policy import CLUSTER_HOOKS, ClusterPolicy, EnginePolicy, Param, Part, Scheduler

DEFAULT_CLUSTER = "round-robin"
PUBLISHED = "@published"
"""Ends the name of a policy as a study published it: a set of its own."""

SWITCH = {"on": 1.0, "off": 0.0}
"""Words for the positions of a parameter whose unit is "switch"."""

FORMS = (
    "NAME, NAME@published, PATH.py:POLICY or package.module:POLICY, "
    "each may end with :parameter=value,parameter=value"
)

_VALUES = r"(?::(?P<values>[^:+,=]+=[^:,=]+(?:,[^:+,=]+=[^:,=]+)*))?"
_SHIPPED = re.compile(r"(?P<where>[A-Za-z0-9_-]+(?:@published)?)" + _VALUES)
_FILE = re.compile(r"(?P<where>[^:]+\.py)(?::(?P<object>[A-Za-z_]\w*))?" + _VALUES)
_MODULE = re.compile(r"(?P<where>[A-Za-z_][\w.]*):(?P<object>[A-Za-z_]\w*)" + _VALUES)


class Found(NamedTuple):
    """A policy, the module that defines it and the values of its parameters."""

    policy: Policy
    module: ModuleType
    values: tuple[float, ...]

    @property
    def idea(self) -> str:
        """First line of the module's docstring."""
        lines = (self.module.__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""


def engine_names() -> tuple[str, ...]:
    """Return the names of the shipped engine policies: the files in schedulers/engine."""
    return _names(schedulers.engine)


def cluster_names() -> tuple[str, ...]:
    """Return the names of the shipped cluster policies: the files in schedulers/cluster."""
    return _names(schedulers.cluster)


def published_names() -> tuple[str, ...]:
    """Return the names of the policies as published, ``NAME@published``: the files in schedulers/published."""
    return tuple(name.replace("-", "_") + PUBLISHED for name in _names(schedulers.published))


def shipped_names() -> tuple[str, ...]:
    """Return the names of all policies that ship: engine, cluster, as published."""
    return engine_names() + cluster_names() + published_names()


def load(spec: str) -> Scheduler:
    """Return the scheduler that ``ENGINE[:k=v,k=v][+CLUSTER[:k=v,k=v]]...`` names.

    Several cluster policies may follow each other, if each answers other questions: ``+llumnix+rebalance``.
    Its name is the spec in canonical form: default values and the default cluster policy are left out, a
    policy from a file goes by its own name. Raises InputError with near names or the allowed range.
    """
    first, *rest = pieces(spec)
    engine, centre = find(first), [find(piece) for piece in rest or (DEFAULT_CLUSTER,)]
    if not isinstance(engine.policy, EnginePolicy):
        fix = f"write ENGINE+{engine.policy.name}, e.g. fcfs-chunked+{engine.policy.name}"
        raise InputError(
            f"{engine.policy.name!r} is a cluster policy, an engine policy comes first", where=spec, fix=fix
        )
    parts = []
    for found in centre:
        if not isinstance(found.policy, ClusterPolicy):
            fix = f"one of {', '.join(cluster_names())}"
            raise InputError(
                f"{found.policy.name!r} is an engine policy, cluster policies follow '+'", where=spec, fix=fix
            )
        parts.append(Part(found.policy, found.values))
    refuse_two_answers(parts, spec)
    names = [canonical(found) for found in centre]
    name = "+".join([canonical(engine), *(names if names != [DEFAULT_CLUSTER] else ())])
    first_part, *others = parts
    return Scheduler(name, engine.policy, first_part.policy, engine.values, first_part.params, tuple(others))


def refuse_two_answers(parts: list[Part], spec: str) -> None:
    """Raise InputError if two cluster policies answer the same question."""
    for hook in CLUSTER_HOOKS:
        named = [part.policy.name for part in parts if getattr(part.policy, hook) is not None]
        if len(named) > 1:
            what = f"{' and '.join(named)} both have the hook {hook!r}"
            raise InputError(what, where=spec, fix="name cluster policies that answer different questions")


def find(half: str, *, strict: bool = True) -> Found:
    """Return the policy that one half of a spec names, engine or cluster; raises InputError.

    Not ``strict``: a policy with faulty declarations is returned too, without values, to be checked.
    """
    half, name = half.strip(), "POLICY"
    if match := _FILE.fullmatch(half):
        module, name = _import_file(Path(match["where"])), match["object"] or name
    elif match := _MODULE.fullmatch(half):
        module, name = _import_module(match["where"], half), match["object"]
    elif match := _SHIPPED.fullmatch(half):
        module = _import_shipped(match["where"])
    else:
        raise InputError(f"{half!r} does not name a policy", fix=FORMS)
    policy = _policy_in(module, name, half)
    faults = declared(policy)
    if faults and strict:
        fix = f"mend it; `windtunnel schedulers check {half}` lists all faults"
        raise InputError(faults[0].message, where=str(module.__file__), fix=fix)
    return Found(policy, module, () if faults else values_of(policy, match["values"]))


def values_of(policy: Policy, text: str | None) -> tuple[float, ...]:
    """Return the values of a policy's parameters: defaults, changed by ``k=v,k=v``; raises InputError."""
    chosen = {param.name: float(param.default) for param in policy.params}
    ranges = {param.name: param for param in policy.params}
    seen: set[str] = set()
    for pair in text.split(",") if text else ():
        name, _, value = (part.strip() for part in pair.partition("="))
        option = f"{policy.name}:{name}"
        if name not in ranges:
            near = get_close_matches(name, ranges, 1)
            known = ", ".join(f"{p.name} ({_range(p)})" for p in policy.params) or "none"
            fix = (f"did you mean {near[0]!r}? " if near else "") + f"parameters of {policy.name}: {known}"
            raise InputError(f"unknown parameter {name!r}", where=option, fix=fix)
        if name in seen:
            raise InputError(f"parameter {name!r} is set twice", where=option, fix="set it once")
        seen.add(name)
        chosen[name] = _number(value, ranges[name], option)
    return tuple(chosen[param.name] for param in policy.params)


def canonical(found: Found) -> str:
    """Return the shortest text that names this policy with these values."""
    changed = [
        f"{param.name}={_text(param, value)}"
        for param, value in zip(found.policy.params, found.values, strict=True)
        if value != param.default
    ]
    return found.policy.name + (":" + ",".join(changed) if changed else "")


def _number(text: str, param: Param, option: str) -> float:
    switch = param.unit == "switch"
    fix = _range(param) if switch else f"a number in {_range(param)}"
    try:
        value = SWITCH[text] if switch and text in SWITCH else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where=option, fix=fix) from None
    whole = switch or param.unit == "choice"
    if not param.low <= value <= param.high or (whole and value != round(value)):
        raise InputError(f"{text} is out of range", where=option, fix=fix)
    return value


def _text(param: Param, value: float) -> str:
    return ("on" if value else "off") if param.unit == "switch" else _short(value)


def _range(param: Param) -> str:
    if param.unit == "switch":
        return "on (1) or off (0)"
    return f"{_short(param.low)}..{_short(param.high)} {param.unit}".strip()


def _short(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def _names(package: ModuleType) -> tuple[str, ...]:
    found = (info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    return tuple(sorted(name.replace("_", "-") for name in found))


def pieces(spec: str) -> tuple[str, ...]:
    """Split a spec at the '+' between its policies; raises InputError.

    That is not a '+' in a number such as 1e+3, nor one in the path of a file.
    """
    sound = list(_readings(spec))
    if not sound:
        raise InputError(
            f"{spec!r} does not name a scheduler", fix=f"ENGINE or ENGINE+CLUSTER, where each is {FORMS}"
        )
    return next((reading for reading in sound if all(map(_exists, reading))), sound[0])


def portable(spec: str) -> str:
    """Return a spec that other processes of this machine read as this one does, wherever they run; raises InputError.

    Files go by their absolute path, shipped policies without default values; modules stay as they are.
    """
    return "+".join(map(_portable, pieces(spec)))


def file_of(piece: str) -> Path | None:
    """Return the file that a piece of a spec names, absolute, links followed; None for a policy by name."""
    match = _FILE.fullmatch(piece.strip())
    return Path(match["where"]).resolve() if match else None


def is_shipped(piece: str) -> bool:
    """Return whether a piece of a spec names a policy of this package, known or not."""
    return _SHIPPED.fullmatch(piece.strip()) is not None


def _portable(piece: str) -> str:
    piece = piece.strip()
    if match := _FILE.fullmatch(piece):
        return f"{file_of(piece)}{piece[match.end('where') :]}"
    return canonical(find(piece)) if is_shipped(piece) else piece


def _readings(spec: str) -> Iterator[tuple[str, ...]]:
    """Yield the ways to cut a spec into well-formed pieces, those with the earliest cut first."""
    for at, sign in enumerate(spec):
        if sign == "+" and _well_formed(spec[:at]):
            yield from ((spec[:at], *rest) for rest in _readings(spec[at + 1 :]))
    if _well_formed(spec):
        yield (spec,)


def _well_formed(half: str) -> bool:
    return any(form.fullmatch(half.strip()) for form in (_FILE, _MODULE, _SHIPPED))


def _exists(half: str) -> bool:
    file, shipped = _FILE.fullmatch(half.strip()), _SHIPPED.fullmatch(half.strip())
    if file:
        return Path(file["where"]).is_file()
    return shipped is None or _plain(shipped["where"]) in shipped_names()


def _plain(name: str) -> str:
    """A published name has underscores, as in the study; hyphens are taken for them."""
    return name.replace("-", "_") if name.endswith(PUBLISHED) else name


def _import_shipped(name: str) -> ModuleType:
    sets = (
        (schedulers.engine, engine_names()),
        (schedulers.cluster, cluster_names()),
        (schedulers.published, published_names()),
    )
    for package, names in sets:
        if _plain(name) in names:
            stem = name.removesuffix(PUBLISHED).replace("-", "_")
            return _import_module(f"{package.__name__}.{stem}", name)
    near = get_close_matches(_plain(name), shipped_names(), 3)
    fix = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    if name.endswith(PUBLISHED):
        fix += f"as published: {', '.join(published_names())}"
    else:
        fix += f"engine policies: {', '.join(engine_names())}; cluster policies: {', '.join(cluster_names())}"
    raise InputError(f"unknown policy {name!r}", fix=fix)


def _import_module(name: str, half: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)  # the installed command does not search the current folder, `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            fix = "run where the package lies, install it, or name its file: PATH.py:POLICY"
            raise InputError(f"there is no module {name!r}", where=half, fix=fix) from None
        raise _broken(error, half) from error
    except (Exception, SystemExit) as error:
        raise _broken(error, half) from error
    finally:
        sys.path.remove(here)


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own; numba keeps its cache by the path, so the path stays."""
    if not path.is_file():
        near = get_close_matches(path.name, [p.name for p in _siblings(path)], 1)
        fix = (
            f"did you mean {str(path.parent / near[0])!r}?"
            if near
            else "name an existing file: PATH.py:POLICY"
        )
        raise InputError(f"there is no file {str(path)!r}", fix=fix)
    path = path.resolve()
    for package in (schedulers.engine, schedulers.cluster, schedulers.published):
        if str(path.parent) in map(str, package.__path__):
            return _import_module(f"{package.__name__}.{path.stem}", str(path))
    digest = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    name = f"windtunnel_policy_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    origin = importlib.util.spec_from_file_location(name, path)
    if origin is None or origin.loader is None:
        raise InputError(f"{str(path)!r} is not a Python file", fix="name a file that ends in .py")
    module = importlib.util.module_from_spec(origin)
    sys.modules[name] = module
    try:
        origin.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(error, str(path)) from error
    return module


def _siblings(path: Path) -> Iterator[Path]:
    return path.parent.glob("*.py") if path.parent.is_dir() else iter(())


def _broken(error: BaseException, source: str) -> InputError:
    """Say what failed while importing, with the file and line of the innermost frame."""
    where = source
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        own = [f for f in frames if f.filename != __file__]
        if own:
            where = f"{own[-1].filename}:{own[-1].lineno} ({own[-1].line})"
    what = f"{source} does not import: {type(error).__name__}: {error}"
    return InputError(what, where=where, fix="mend that line")


def _policy_in(module: ModuleType, name: str, half: str) -> Policy:
    source = str(getattr(module, "__file__", None) or module.__name__)
    if not hasattr(module, name):
        others = [
            key for key, value in vars(module).items() if isinstance(value, EnginePolicy | ClusterPolicy)
        ]
        fix = f"it defines {', '.join(others)}" if others else f"define {name} = EnginePolicy(name=...)"
        raise InputError(f"{source} has no {name!r}", where=half, fix=fix)
    policy = getattr(module, name)
    if not isinstance(policy, EnginePolicy | ClusterPolicy):
        what = f"{name!r} in {source} is of type {type(policy).__name__}, not a policy"
        raise InputError(
            what, where=half, fix="make it an EnginePolicy or a ClusterPolicy from schedulers.policy"
        )
    shipped = module.__name__.startswith(
        ("schedulers.engine.", "schedulers.cluster.", "schedulers.published.")
    )
    if not shipped and policy.name in shipped_names():
        what = f"a policy of your own may not be called {policy.name!r}, as a shipped one is"
        raise InputError(what, where=source, fix="give it another name: results are told apart by it")
    return policy
