"""Step-time profiles: coefficients of one model on one accelerator, with their origin, error and KV memory.

A profile is a TOML file whose keys carry their units; ``load`` finds it by name (``llama-3.1-8b/h100``,
``llama-3.1-8b/h100@five-term``, ``qwen3-32b/h100x4``), by path, or falls back to the roofline
(``sim.roofline``).
"""

import errno
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from schedulers.cost import ATTENTION, BASE, DECODE, FLOOR, JOINT, KV, PREFILL, step_s
from schedulers.errors import InputError
from schedulers.view import Floats

BLOCK_TOKENS = 16
"""Tokens of the block in which ``Memory.kv_blocks`` counts."""

TABLES = ("models.toml", "accelerators.toml")
"""Files beside the profiles that hold no profile but the roofline's tables."""

FORMS: dict[str, dict[str, tuple[tuple[int, ...], float]]] = {
    "five-term": {
        "base_ms": ((BASE,), 1e-3),
        "prefill_us": ((PREFILL,), 1e-6),
        "attention_us": ((ATTENTION,), 1e-6),
        "decode_us": ((DECODE,), 1e-6),
        "kv_us": ((KV,), 1e-6),
    },
    "hinge": {
        "floor_ms": ((FLOOR,), 1e-3),
        "base_ms": ((BASE,), 1e-3),
        "token_us": ((PREFILL, JOINT), 1e-6),
        "attention_us": ((ATTENTION,), 1e-6),
        "decode_us": ((DECODE,), 1e-6),
        "kv_us": ((KV,), 1e-6),
    },
}
"""Keys of each form: the columns of ``schedulers.cost`` that they fill, and the unit in seconds."""

LEVELS = ("kernels", "end to end", "roofline", "own rows")
"""What the coefficients were fitted on."""


@dataclass(frozen=True)
class Error:
    """How far the fit is from what it was fitted on; nan where the source does not say.

    ``mape_percent`` is the mean absolute relative error (nan for a roofline: nobody measured it),
    ``held_out_percent`` the same on rows not fitted, ``points`` how many there were, ``note`` what they were.
    """

    mape_percent: float
    note: str
    r2: float = nan
    held_out_percent: float = nan
    points: int = 0


@dataclass(frozen=True)
class Memory:
    """KV memory of one engine: GiB are a card's; bytes a token and blocks (of 16 tokens) all cards'."""

    card_gib: float
    used_share: float
    weights_gib: float
    activations_gib: float
    kv_bytes_per_token: int
    kv_blocks: int
    kv_from: str


@dataclass(frozen=True)
class Profile:
    """Step time and KV memory of one engine: ``cards`` accelerators that hold one model.

    ``coefficients`` are the columns of ``schedulers.cost``, seconds (a token, a token pair, a sequence).
    """

    name: str
    model: str
    accelerator: str
    cards: int
    form: str
    level: str
    coefficients: tuple[float, ...]
    origin: str
    error: Error
    memory: Memory
    notes: tuple[str, ...] = ()

    @property
    def costs(self) -> Floats:
        """Coefficients as a fresh float64[7], in the column order of ``schedulers.cost``."""
        return np.array(self.coefficients, dtype=np.float64)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit one engine."""
        return self.memory.kv_blocks * BLOCK_TOKENS

    def blocks(self, block_tokens: int) -> int:
        """KV blocks of so many tokens that fit one engine; InputError if not even one does."""
        if block_tokens < 1:
            raise InputError(
                f"a KV block of {block_tokens} tokens", where="block_tokens", fix="give 1 or more"
            )
        blocks = self.kv_tokens // block_tokens
        if blocks < 1:
            what = f"a block of {block_tokens} tokens exceeds the {self.kv_tokens} KV tokens of {self.name}"
            raise InputError(what, where="block_tokens", fix="use smaller blocks")
        return blocks

    def step_s(self, prefill: float, attention: float, decodes: float, kv: float) -> float:
        """Seconds of one step; arguments as in ``schedulers.cost.step_s``."""
        return step_s(self.costs, prefill, attention, decodes, kv)


def names() -> tuple[str, ...]:
    """Names of the profiles that ship, in order. Any other MODEL/ACCELERATOR of known parts is a roofline."""
    return tuple(sorted(_shipped()))


def load(name: str) -> Profile:
    """Find a profile by name or by the path of a .toml file; fall back to the roofline for MODEL/ACCELERATOR.

    A name that only one shipped profile goes on from, at a hyphen, means that one. ``@roofline`` asks for the
    roofline even where coefficients were measured. Raises InputError with near names if nothing fits, and for a
    file that lacks a key, has an unknown one, or a value that can't be.
    """
    if name.endswith(".toml"):
        return read(Path(name))
    name, shipped = re.sub(r"x1(?=@|$)", "", name), _shipped()
    if name in shipped:
        return shipped[name]
    stem, _, variant = name.partition("@")
    if stem in shipped and variant in _kinds(shipped[stem]):
        return shipped[stem]
    from sim import roofline  # here because it builds Profiles

    if variant in ("", "roofline") and roofline.known(stem):
        return roofline.load(stem)
    longer = [one for one in shipped if one.startswith(f"{stem}-") and "@" not in one and not variant]
    if len(longer) == 1:  # llama-3.1-8b/a100 can only mean the a100-80g that was measured
        return shipped[longer[0]]
    raise _unknown(name, roofline.examples())


def read(path: Path) -> Profile:
    """Read one profile file; InputError names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        fix = "name a file written by `windtunnel profiles fit`, or a profile from `windtunnel profiles list`"
        raise InputError(f"cannot read the profile: {reason}", where=str(path), fix=fix) from None
    return parse(text, str(path))


def parse(text: str, where: str) -> Profile:
    """Turn the text of a profile file into a Profile, every key checked."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", where=where, fix="mend the line that is named") from None
    table = Table(document, where)
    form, level = table.word("form", tuple(FORMS)), table.word("level", LEVELS)
    profile = Profile(
        name=table.text("name"),
        model=table.text("model"),
        accelerator=table.text("accelerator"),
        cards=table.whole("cards", least=1),
        form=form,
        level=level,
        coefficients=_coefficients(table.table("coefficients"), form),
        origin=table.text("origin"),
        error=_error(table.table("error"), measured=level != "roofline"),
        memory=_memory(table.table("memory")),
        notes=table.texts("notes"),
    )
    table.close()
    return profile


def dump(profile: Profile) -> str:
    """Text of a profile file; ``parse`` of it gives the profile back (coefficients to 12 digits)."""
    lines = [f"{key} = {_quoted(getattr(profile, key))}" for key in ("name", "model", "accelerator")]
    lines += [
        f"cards = {profile.cards}",
        f"form = {_quoted(profile.form)}",
        f"level = {_quoted(profile.level)}",
    ]
    lines += [f"origin = {_quoted(profile.origin)}"]
    lines += ["notes = [", *(f"  {_quoted(note)}," for note in profile.notes), "]", "", "[coefficients]"]
    for key, (columns, unit) in FORMS[profile.form].items():
        lines.append(f"{key} = {profile.coefficients[columns[0]] / unit:.12g}")
    for part in ("error", "memory"):
        lines += ["", f"[{part}]"]
        for key, value in vars(getattr(profile, part)).items():
            if isinstance(value, str) or isfinite(value):
                lines.append(f"{key} = {_quoted(value) if isinstance(value, str) else value}")
    return "\n".join(lines) + "\n"


def save(profile: Profile, path: Path) -> None:
    """Write a profile file whole or not at all; InputError if the disk is full or the folder isn't there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(dump(profile), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        full = error.errno == errno.ENOSPC
        fix = "free some space and run again" if full else "name a file in a folder that you may write to"
        what = f"cannot write the profile: {error.strerror}"
        raise InputError(what, where=str(path), fix=fix) from None


class Table:
    """One TOML table that is read key by key, so that what is missing, wrong or left over is named."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values, self._where, self._prefix = values, where, prefix
        self._asked: set[str] = set()

    def at(self, key: str) -> str:
        """File and key, for a message."""
        return f"{self._where}: key {self._prefix}{key}"

    def _take(self, key: str, kinds: tuple[type, ...], meant: str) -> Any:
        self._asked.add(key)
        if key not in self._values:
            raise InputError(f"{self._prefix}{key} is missing", where=self.at(key), fix=f"add it: {meant}")
        value = self._values[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{value!r} is not {meant}", where=self.at(key), fix=f"give {meant}")
        return value

    def has(self, key: str) -> bool:
        """True if the key is there."""
        return key in self._values

    def text(self, key: str) -> str:
        """A text that isn't empty."""
        value = str(self._take(key, (str,), "a text"))
        if not value.strip():
            raise InputError("an empty text", where=self.at(key), fix="say it in words")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty if the key is absent."""
        if not self.has(key):
            return ()
        values = self._take(key, (list,), "a list of texts")
        if not all(isinstance(value, str) for value in values):
            raise InputError(f"{values!r} is not a list of texts", where=self.at(key), fix="quote each one")
        return tuple(values)

    def word(self, key: str, words: tuple[str, ...]) -> str:
        """One of the words."""
        value = str(self._take(key, (str,), "one of " + ", ".join(words)))
        if value not in words:
            raise InputError(
                f"{value!r} is not known", where=self.at(key), fix=f"use one of {', '.join(words)}"
            )
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self._take(key, (bool,), "true or false")) if self.has(key) else default

    def number(
        self, key: str, *, least: float = 0.0, most: float = inf, default: float | None = None
    ) -> float:
        """A finite number within bounds."""
        if default is not None and not self.has(key):
            self._asked.add(key)
            return default
        value = float(self._take(key, (int, float), "a number"))
        if not (isfinite(value) and least <= value <= most):
            bounds = f"a number of at least {least:g}" + (f" and at most {most:g}" if most < inf else "")
            raise InputError(f"{value} is out of bounds", where=self.at(key), fix=f"give {bounds}")
        return value

    def whole(self, key: str, *, least: int, default: int | None = None) -> int:
        """A whole number that is large enough."""
        value = self.number(key, least=least, default=default)
        if value != int(value):
            raise InputError(f"{value} is not whole", where=self.at(key), fix="give a whole number")
        return int(value)

    def table(self, key: str) -> "Table":
        """A table below this one."""
        return Table(self._take(key, (dict,), "a table"), self._where, f"{self._prefix}{key}.")

    def close(self) -> None:
        """Refuse keys that nobody asked for: they are slips of the pen."""
        for key in self._values:
            if key not in self._asked:
                near = get_close_matches(key, self._asked, 1)
                fix = f"did you mean {near[0]}?" if near else "remove it"
                raise InputError(f"{self._prefix}{key} is unknown", where=self.at(key), fix=fix)


def _coefficients(table: Table, form: str) -> tuple[float, ...]:
    costs = [0.0] * 7
    for key, (columns, unit) in FORMS[form].items():
        value = table.number(key) * unit
        for column in columns:
            costs[column] = value
    table.close()
    if costs[BASE] + costs[FLOOR] <= 0.0:
        fix = "give base_ms (or floor_ms) above 0: no step takes no time"
        raise InputError("a step of nothing takes no time", where=table.at("base_ms"), fix=fix)
    return tuple(costs)


def _error(table: Table, *, measured: bool) -> Error:
    error = Error(
        mape_percent=table.number("mape_percent") if measured or table.has("mape_percent") else nan,
        note=table.text("note"),
        r2=table.number("r2", least=-inf, most=1.0) if table.has("r2") else nan,
        held_out_percent=table.number("held_out_percent") if table.has("held_out_percent") else nan,
        points=table.whole("points", least=0, default=0),
    )
    table.close()
    return error


def _memory(table: Table) -> Memory:
    memory = Memory(
        card_gib=table.number("card_gib"),
        used_share=table.number("used_share", most=1.0),
        weights_gib=table.number("weights_gib"),
        activations_gib=table.number("activations_gib"),
        kv_bytes_per_token=table.whole("kv_bytes_per_token", least=0),
        kv_blocks=table.whole("kv_blocks", least=1),
        kv_from=table.text("kv_from"),
    )
    table.close()
    return memory


@cache
def _shipped() -> Mapping[str, Profile]:
    folder = files("sim") / "profiles"
    found = [one for one in folder.iterdir() if one.name.endswith(".toml") and one.name not in TABLES]
    read_all = [parse(one.read_text(encoding="utf-8"), f"sim/profiles/{one.name}") for one in found]
    return {profile.name: profile for profile in read_all}


def _kinds(profile: Profile) -> tuple[str, ...]:
    """Variants that a name without one already is."""
    return (profile.form, "e2e") if profile.level == "end to end" else (profile.form, "kernels")


def _quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _unknown(name: str, rooflines: tuple[str, ...]) -> InputError:
    near = get_close_matches(name.lower(), sorted({*_shipped(), *rooflines}), 4, 0.5)
    what = f"no profile is named {name!r}" + (f"; near it: {', '.join(near)}" if near else "")
    fix = (
        "`windtunnel profiles list` shows all; MODEL/ACCELERATOR of a known model and accelerator "
        "(such as qwen2.5-0.5b/a100-80g or qwen3-14b/h100x2) falls back to the roofline"
    )
    return InputError(what, where="profile", fix=fix)
