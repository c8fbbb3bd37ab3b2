"""Promises: service classes with targets, shares and the attainment that is owed to each, from text or TOML.

As text, ``premium:ttft=0.5,tpot=0.05,share=0.2,attain=0.95;standard:ttft=2,tpot=0.1``: the most important first. As
TOML, tables ``[[tiers]]`` with name, ttft_s, tpot_s, share, e2e_s, weight and attain.
"""

import tomllib
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.plan import TierSpec
from schedulers.errors import InputError

KEYS = {
    "ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "share": "share", "weight": "weight", "attain": "attain",
}  # fmt: skip
"""Short names, and the keys that a plan has."""

USUAL = (
    "premium:ttft=0.5,tpot=0.05,share=0.1,weight=8,attain=0.95;"
    "standard:ttft=2,tpot=0.1,share=0.3,weight=3,attain=0.9;"
    "batch:ttft=10,tpot=0.3,share=0.6,weight=1,attain=0.7"
)
"""Where nothing is said: 10, 30 and 60 % (reference/multitier.md sections 2 and 8)."""

ATTAIN = 0.9
EXAMPLE = "premium:ttft=0.5,tpot=0.05,share=0.2,attain=0.95;standard:ttft=2,tpot=0.1,share=0.8,attain=0.9"


class Promise(NamedTuple):
    """A service class, and the share of its arrivals that is to meet every target of it."""

    tier: TierSpec
    attain: float


def read_promises(text: str) -> tuple[Promise, ...]:
    """Return the promises that a text or the TOML file of that name makes.

    Shares that are left out divide what is left alike; a target that is left out is none. Raises InputError that
    names the tier and the key.
    """
    if text.endswith(".toml"):
        rows = _from_file(Path(text))
    else:
        rows = [_from_text(part) for part in text.split(";") if part.strip()]
    if not rows:
        raise _wrong("no tier is named")
    told = [row["share"] for row in rows if "share" in row]
    rest, silent = 1.0 - sum(told), len(rows) - len(told)
    if silent and rest <= 0.0:
        raise _wrong(f"the shares sum to {sum(told):g} and {silent} tiers have none")
    promises = tuple(_promise({"share": rest / max(1, silent)} | row) for row in rows)
    total = sum(promise.tier.share for promise in promises)
    if abs(total - 1.0) > 1e-6:
        raise _wrong(f"the shares sum to {total:g}, not 1")
    names = [promise.tier.name for promise in promises]
    if len({*names}) != len(names):
        raise _wrong("two tiers have one name")
    return promises


def _from_text(part: str) -> dict[str, Any]:
    name, colon, rest = part.strip().partition(":")
    if not name or not colon:
        raise _wrong(f"{part.strip()!r} is no tier")
    row: dict[str, Any] = {"name": name.strip()}
    for pair in rest.split(","):
        key, equals, value = (one.strip() for one in pair.partition("="))
        if not equals or key.removesuffix("_s") not in KEYS:
            raise _wrong(f"{pair.strip()!r} of tier {name} is none of {', '.join(KEYS)}")
        known = KEYS[key.removesuffix("_s")]
        if known in row:
            raise _wrong(f"{key} of tier {name} is given twice")
        try:
            row[known] = float(value)
        except ValueError:
            raise _wrong(f"{key} of tier {name} is {value!r}, no number") from None
    return row


def _from_file(path: Path) -> list[dict[str, Any]]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the tiers: {error.strerror}", where=str(path), fix="name a TOML file"
        ) from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise InputError(f"not a TOML file: {error}", where=str(path), fix="mend the line") from None
    listed = table.get("tiers")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InputError(
            "no tiers in the file",
            where=str(path),
            fix="write [[tiers]], and name, ttft_s, tpot_s, share below",
        )
    return [_checked(one, str(path)) for one in listed]


def _checked(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a table of a file as it is, if its keys and their kinds are known ones."""
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise InputError("a tier has no name", where=where, fix='write name = "premium"')
    for key, value in row.items():
        if key != "name" and (key not in KEYS.values() or isinstance(value, (bool, str, list, dict))):
            raise InputError(
                f"{key} of tier {name} is no number that a tier has", where=where,
                fix=f"use numbers for {', '.join(KEYS.values())}",
            )  # fmt: skip
    return {key: value if key == "name" else float(value) for key, value in row.items()}


def _promise(row: Mapping[str, Any]) -> Promise:
    values = {"ttft_s": inf, "tpot_s": inf, "e2e_s": inf, "weight": 1.0, "attain": ATTAIN} | dict(row)
    attain, name = values.pop("attain"), values["name"]
    for key in ("ttft_s", "tpot_s", "e2e_s", "weight"):
        if not values[key] > 0.0:
            raise _wrong(f"{key} of tier {name} is not above 0")
    if not isfinite(values["weight"]):
        raise _wrong(f"weight of tier {name} is infinite")
    if not 0.0 < values["share"] <= 1.0:
        raise _wrong(f"share of tier {name} is not in (0, 1]")
    if not 0.0 < attain <= 1.0:
        raise _wrong(f"attain of tier {name} is not in (0, 1]")
    return Promise(TierSpec(**values), attain)


def _wrong(what: str) -> InputError:
    return InputError(what, where="--tiers", fix=f"write e.g. '{EXAMPLE}', or name a TOML file")
