"""Plans: what a sweep runs, read from TOML with errors that name file, key and remedy.

A plan names windows, schedulers, regions, a fleet and tiers; it holds everything that decides a result
except the windows' bytes, which their manifest pins. Tiers are an assumption: no published trace has any.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from importlib.resources import files
from math import inf, isfinite
from pathlib import Path
from typing import Any

from loadgen.guess import parse
from loadgen.region import RHOS
from schedulers.errors import InputError

KEEPS = ("sketch", "requests")
"""What a sweep keeps of a run: metrics and sketches only, or a row a request too."""


@dataclass(frozen=True)
class Fleet:
    """Engines and their limits; ``blocks`` 0 stands for what the profile's memory holds."""

    profile: str = "llama-3.1-8b/a100-80g"
    engines: int = 1
    sequences_max: int = 256
    budget_max: int = 2048
    block_tokens: int = 16
    blocks: int = 0
    model_tokens: int = 131072


@dataclass(frozen=True)
class TierSpec:
    """A service class: its targets in seconds, its weight, and the share of requests that belong to it."""

    name: str
    ttft_s: float
    tpot_s: float
    share: float
    e2e_s: float = inf
    weight: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Everything that a sweep runs. ``windows`` is a folder; "" if the command line must name it."""

    name: str
    schedulers: tuple[str, ...]
    tiers: tuple[TierSpec, ...]
    windows: str = ""
    controls: tuple[str, ...] = ("random", "lifo", "oracle-srpt")
    regions: tuple[float, ...] = RHOS
    fleet: Fleet = Fleet()
    slo_sets: tuple[str, ...] = ("tier", "S1", "S2")
    primary: str = "attainment:tier"
    forecast: str = "lognormal:0.2"
    seed: int = 1
    keep: str = "sketch"

    @property
    def specs(self) -> tuple[str, ...]:
        """Schedulers, then controls."""
        return self.schedulers + self.controls

    @property
    def digest(self) -> str:
        """SHA-256 over everything but where the windows lie."""
        return hashlib.sha256(
            json.dumps(plain(replace(self, windows="")), sort_keys=True).encode()
        ).hexdigest()


def read_plan(named: str, *, windows: Path | None = None, schedulers: Sequence[str] = ()) -> Plan:
    """Return the plan in the file ``named``, or the shipped plan of that name ("quick", "demo").

    ``windows`` overrides the plan's folder; a relative folder in a file is relative to that file.
    ``schedulers`` are added to the plan's. Raises InputError naming the file, the key and the remedy.
    """
    path, text = _text(named)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not a TOML file: {error}", where=path, fix="mend the line") from None
    plan = _plan(table, _Source(path, text))
    if windows is not None:
        plan = replace(plan, windows=str(windows))
    elif plan.windows and Path(named).is_file():
        plan = replace(plan, windows=str(Path(named).parent / plan.windows))
    extra = tuple(spec for spec in dict.fromkeys(schedulers) if spec not in plan.specs)
    return replace(plan, schedulers=plan.schedulers + extra)


def shipped() -> tuple[str, ...]:
    """Names of the plans that come with the product."""
    folder = files("loadgen") / "plans"
    return tuple(
        sorted(one.name.removesuffix(".toml") for one in folder.iterdir() if one.name.endswith(".toml"))
    )


def plain(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON can hold it: lists for tuples, null for an infinite target."""
    table = json.loads(json.dumps(asdict(plan)))
    for tier in table["tiers"]:
        tier["e2e_s"] = tier["e2e_s"] if isfinite(tier["e2e_s"]) else None
    return dict(table)


def toml(plan: Plan) -> str:
    """Return the plan as the TOML file that reads back as an equal plan."""
    table = plain(plan)
    parts = [f"{key} = {json.dumps(value)}" for key, value in table.items() if key not in ("fleet", "tiers")]
    parts += ["", "[fleet]", *(f"{key} = {json.dumps(value)}" for key, value in table["fleet"].items())]
    for tier in table["tiers"]:
        known = {key: value for key, value in tier.items() if value is not None}
        parts += ["", "[[tiers]]", *(f"{key} = {json.dumps(value)}" for key, value in known.items())]
    return "\n".join(parts) + "\n"


def _text(named: str) -> tuple[str, str]:
    path = Path(named)
    if path.is_file():
        try:
            return str(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError("not a text file", where=str(path), fix="name a plan in TOML") from None
    if named in shipped():
        return f"shipped plan {named}", (files("loadgen") / "plans" / f"{named}.toml").read_text(
            encoding="utf-8"
        )
    raise InputError(
        "no such plan", where=named, fix=f"name a TOML file, or a shipped plan: {', '.join(shipped())}"
    )


class _Source:
    """A plan's text from line ``first`` on, to say where a key stands."""

    def __init__(self, path: str, text: str, first: int = 0) -> None:
        self.path, self.text, self.first = path, text, first

    def error(self, what: str, key: str, fix: str) -> InputError:
        """Return an error at the line of ``key``, or at the file if the key is not there."""
        lines = self.lines_with(key)
        return InputError(what, where=f"{self.path}:{lines[0]}" if lines else self.path, fix=fix)

    def lines_with(self, key: str) -> list[int]:
        """Return the numbers of the lines that begin with ``key``, from 1."""
        begins = re.compile(rf"\s*\[*{re.escape(key)}\b")
        return [
            n for n, line in enumerate(self.text.splitlines(), 1) if n >= self.first and begins.match(line)
        ]

    def tier(self, number: int) -> "_Source":
        """Return the text from the tier of that number on, so that errors point into it."""
        lines = self.lines_with("tiers")
        return _Source(self.path, self.text, lines[number]) if number < len(lines) else self


def _plan(table: Mapping[str, Any], source: _Source) -> Plan:
    values = _values(table, Plan, "plan", source)
    values["fleet"] = _fleet(table.get("fleet", {}), source)
    values["tiers"] = _tiers(table.get("tiers"), source)
    plan = Plan(**values)
    for key in ("schedulers", "slo_sets", "regions"):
        listed = getattr(plan, key)
        if not listed or len(set(listed)) != len(listed):
            raise source.error(f"{key} must name at least one, and none twice", key, f"mend {key}")
    twice = sorted(set(plan.schedulers) & set(plan.controls))
    if twice:
        raise source.error(f"{', '.join(twice)} is both scheduler and control", "controls", "name it once")
    if not all(0.0 < rho <= 10.0 for rho in plan.regions):
        raise source.error("a region is a pressure between 0 and 10", "regions", f"the usual: {list(RHOS)}")
    if plan.keep not in KEEPS:
        raise source.error(f"keep is {plan.keep!r}", "keep", f"use one of {', '.join(KEEPS)}")
    if plan.seed < 0:
        raise source.error("seed is negative", "seed", "use 0 or more")
    try:
        parse(plan.forecast)
    except InputError as error:
        raise source.error(error.what, "forecast", error.fix) from None
    return plan


def _fleet(table: Any, source: _Source) -> Fleet:
    if not isinstance(table, dict):
        raise source.error("fleet is not a table", "fleet", "write [fleet] and its keys below")
    fleet = Fleet(**_values(table, Fleet, "fleet", source))
    for field in fields(Fleet)[1:]:
        least = 0 if field.name == "blocks" else 1
        if getattr(fleet, field.name) < least:
            raise source.error(f"{field.name} is below {least}", field.name, f"use {least} or more")
    return fleet


def _tiers(listed: Any, source: _Source) -> tuple[TierSpec, ...]:
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise source.error(
            "a plan needs tiers",
            "tiers",
            "write [[tiers]] with name, ttft_s, tpot_s and share for each class",
        )
    tiers = tuple(_tier(one, source.tier(number)) for number, one in enumerate(listed))
    if len({tier.name for tier in tiers}) != len(tiers):
        raise source.error("two tiers have one name", "name", "name each tier differently")
    total = sum(tier.share for tier in tiers)
    if abs(total - 1.0) > 1e-6:
        raise source.error(f"the shares of the tiers sum to {total:g}", "share", "let them sum to 1")
    return tiers


def _tier(table: Mapping[str, Any], source: _Source) -> TierSpec:
    tier = TierSpec(**_values(table, TierSpec, "tier", source))
    for name in ("ttft_s", "tpot_s", "e2e_s", "weight"):
        if not getattr(tier, name) > 0.0:
            raise source.error(f"{name} of tier {tier.name} is not above 0", name, "use a number above 0")
    if not 0.0 < tier.share <= 1.0:
        raise source.error(f"share of tier {tier.name} is not in (0, 1]", "share", "use shares that sum to 1")
    return tier


def _values(table: Mapping[str, Any], kind: Any, thing: str, source: _Source) -> dict[str, Any]:
    """Return the table's values by field, each of its type; fleet and tiers are left to the caller."""
    known = {field.name: field for field in fields(kind)}
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, 1)
            fix = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            raise source.error(f"unknown key {key!r} in the {thing}", key, fix)
    values = {}
    for name, field in known.items():
        if name in ("fleet", "tiers"):
            continue
        if name in table:
            values[name] = _value(table[name], name, field.type, source)
        elif field.default is MISSING:
            raise source.error(f"the {thing} lacks {name}", f"{thing}s", f"add {name} = ...")
    return values


def _value(value: Any, name: str, kind: Any, source: _Source) -> Any:
    """Return ``value`` as the type of its field, or raise an error that says which type it should have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is str and isinstance(value, str):
        return value
    if kind is int and isinstance(value, int) and number:
        return value
    if kind is float and number and value == value:
        return float(value)
    if isinstance(value, list) and kind == tuple[str, ...] and all(isinstance(one, str) for one in value):
        return tuple(value)
    if isinstance(value, list) and kind == tuple[float, ...]:
        return tuple(_value(one, name, float, source) for one in value)
    words = {str: "a text", int: "a whole number", float: "a number"}.get(kind, "a list")
    raise source.error(f"{name} is {json.dumps(value, default=str)}", name, f"write {words}")
