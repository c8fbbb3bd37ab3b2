"""Plans: what a sweep runs, read from TOML with errors that name file, key and remedy.

A plan names windows, schedulers, regions, a fleet and tiers; it holds everything that decides a result
except the windows' bytes, which their manifest pins. Tiers are an assumption: no published trace has any.
What a study will ask of the results (metrics, margins, families of hypotheses) stands in it too, so that it
is declared, and part of the digest, before anything has run (reference/statistics.md sections 5 and 6.5).
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from math import inf, isfinite
from pathlib import Path
from typing import Any

from loadgen.guess import parse
from loadgen.plan_cluster import Arm, Atoms, Cluster, read_arms, read_atoms, read_cluster, tiers_of
from loadgen.plan_text import Source, read_value, read_values
from loadgen.region import RHOS
from loadgen.region import name as region_name
from schedulers.errors import InputError

KEEPS = ("sketch", "requests")
"""What a sweep keeps of a run: metrics and sketches only, or a row a request too."""

TABLES = ("margins", "fleet", "cluster", "atoms", "arms", "tiers")
"""Keys of a plan that hold tables, in the order in which a file has them, after the others."""

OPTIONAL = ("cluster", "atoms", "arms")
"""Tables that are left out of a plan that has none: its digest is what it was before there were any."""

TARGETS = ("ttft_s", "tpot_s", "e2e_s")
"""A tier's targets; each may be infinite, which is no target."""

SEED_MAX = 2**63 - 1
"""Results hold the seed as a signed integer of 64 bits."""

LIMITS = {
    "engines": (1, 1 << 10),
    "sequences_max": (1, 1 << 16),
    "budget_max": (1, 1 << 20),
    "block_tokens": (1, 1 << 16),
    "blocks": (0, 1 << 24),
    "model_tokens": (1, 1 << 24),
}
"""Least and most of a fleet's numbers: far beyond any fleet that exists, and still served from memory."""

FAMILIES = ("sources", "regions", "metrics", "slo")
"""What an order is compared across; each is a family of hypotheses, all pairs of schedulers in it."""

PLANNED_MAX = 20
"""Most pairs that count as named beforehand (reference/statistics.md 6.5)."""

REGION_LIMITS = (0.001, 10.0)
"""Least and most pressure of a region."""


@dataclass(frozen=True)
class Fleet:
    """Engines and their limits, each within LIMITS; ``blocks`` 0 stands for what the profile's memory holds.

    ``prefix_cache`` keeps KV blocks for prompts that begin alike, where the windows tell which do.
    """

    profile: str = "llama-3.1-8b/a100-80g"
    engines: int = 1
    sequences_max: int = 256
    budget_max: int = 2048
    block_tokens: int = 16
    blocks: int = 0
    model_tokens: int = 131072
    prefix_cache: bool = True


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
class Study:
    """What is asked of the results, said before there are any; an empty field leaves it to the analysis.

    ``margins`` holds (kind or metric, margin): "rate" absolute, "latency" and "throughput" on the log scale.
    """

    window_set: str = ""  # the set that the plan is made for: a name of loadgen.sets, without -surrogate
    window_count: int = 0  # so many windows a source, the first of the set; 0: all
    panel: tuple[str, ...] = ()  # metrics ranked beside the primary one
    margins: tuple[tuple[str, float], ...] = ()
    families: tuple[str, ...] = ()  # of FAMILIES
    planned_pairs: tuple[tuple[str, str], ...] = ()
    planned_regions: tuple[float, ...] = ()


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
    study: Study = Study()
    cluster: Cluster | None = None
    atoms: Atoms | None = None  # then ``tiers`` are what it shows, and requests are scored by their atoms
    arms: tuple[Arm, ...] = ()

    @property
    def specs(self) -> tuple[str, ...]:
        """Schedulers, then controls, then those that arms add."""
        return tuple(
            dict.fromkeys(
                (*self.schedulers, *self.controls, *(one for arm in self.arms for one in arm.schedulers))
            )
        )

    @property
    def digest(self) -> str:
        """SHA-256 over everything but where the windows lie."""
        return hashlib.sha256(
            json.dumps(plain(replace(self, windows="")), sort_keys=True).encode()
        ).hexdigest()


def read_plan(named: str, *, windows: Path | None = None, schedulers: Sequence[str] = ()) -> Plan:
    """Return the plan in the file ``named``, or the shipped plan of that name ("quick", "canon" ...).

    ``windows`` overrides the plan's folder; a relative folder in a file is relative to that file.
    ``schedulers`` are added to the plan's. Raises InputError naming the file, the key and the remedy.
    """
    path, text = _text(named)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, a number of 5,000 digits, deep nesting
        raise InputError(f"not a TOML file: {error}", where=path, fix="mend the line") from None
    plan = _plan(table, Source(path, text))
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
    """Return a plan as JSON can hold it: lists for tuples, null for an infinite target, the study's keys beside.

    A study's empty fields are left out: a plan that declares nothing is the plan it was before there were any.
    """
    table = json.loads(json.dumps(asdict(plan)))
    declared = table.pop("study") | {"margins": dict(plan.study.margins)}
    declared |= {key: table.pop(key) for key in OPTIONAL}
    table |= {key: value for key, value in declared.items() if value}
    for tier in table["tiers"]:
        tier |= {key: tier[key] if isfinite(tier[key]) else None for key in TARGETS}
    return dict(table)


def toml(plan: Plan) -> str:
    """Return the plan as the TOML file that reads back as an equal plan."""
    table = plain(plan)
    parts = [f"{key} = {_word(value)}" for key, value in table.items() if key not in TABLES]
    for name in TABLES[:-2]:
        if name in table:
            parts += ["", f"[{name}]", *(f"{key} = {_word(value)}" for key, value in table[name].items())]
    for arm in table.get("arms", ()):
        parts += ["", "[[arms]]", *(f"{key} = {_word(value)}" for key, value in arm.items() if value)]
    for tier in () if plan.atoms else table["tiers"]:
        if tier["e2e_s"] is None:
            del tier["e2e_s"]  # the default
        parts += ["", "[[tiers]]", *(f"{key} = {_word(value)}" for key, value in tier.items())]
    return "\n".join(parts) + "\n"


def whereabouts(named: str, key: str) -> str:
    """Return where ``key`` stands in the plan ``named``, as FILE:LINE; the file alone if it is not there."""
    return Source(*_text(named)).place(key)


def _word(value: Any) -> str:
    """Return a value of a plain plan as TOML writes it; unlike JSON, TOML takes no halves of a character."""
    return "inf" if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


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


def _plan(table: Mapping[str, Any], source: Source) -> Plan:
    declared = [field.name for field in fields(Study)]
    if "study" in table:
        raise source.error(
            "unknown key 'study' in the plan", "study", f"write its keys: {', '.join(declared)}"
        )
    values = read_values(table, Plan, "plan", source, ("study", "fleet", "tiers", *OPTIONAL, *declared))
    values["fleet"] = _fleet(table.get("fleet", {}), source)
    values |= _tables(table, source, values["fleet"].engines)
    values["study"] = _study({key: table[key] for key in declared if key in table}, source)
    plan = Plan(**values)
    _check_study(plan, source)
    if plan.study.window_count < 0:
        raise source.error("window_count is below 0", "window_count", "use 0 for all of the set")
    for key in ("schedulers", "slo_sets", "regions"):
        listed = getattr(plan, key)
        if not listed or len(set(listed)) != len(listed):
            raise source.error(f"{key} must name at least one, and none twice", key, f"mend {key}")
    twice = sorted(set(plan.schedulers) & set(plan.controls))
    if twice:
        raise source.error(f"{', '.join(twice)} is both scheduler and control", "controls", "name it once")
    for regions in (plan.regions, *(arm.regions for arm in plan.arms)):
        _check_regions(regions, source)
    if plan.keep not in KEEPS:
        raise source.error(f"keep is {plan.keep!r}", "keep", f"use one of {', '.join(KEEPS)}")
    if not 0 <= plan.seed <= SEED_MAX:
        raise source.error(f"seed is not in 0 to {SEED_MAX:,}", "seed", f"use a number up to {SEED_MAX:,}")
    try:
        parse(plan.forecast)
    except InputError as error:
        raise source.error(error.what, "forecast", error.fix) from None
    return plan


def _tables(table: Mapping[str, Any], source: Source, engines: int) -> dict[str, Any]:
    """Return tiers, and the optional tables that the plan has."""
    values: dict[str, Any] = {}
    if "cluster" in table:
        values["cluster"] = read_cluster(table["cluster"], source, engines)
    if "atoms" in table:
        if "tiers" in table:
            raise source.error("a plan with atoms makes its tiers of them", "tiers", "leave out [[tiers]]")
        values["atoms"] = read_atoms(table["atoms"], source)
        values["tiers"] = shown(values["atoms"])
    else:
        values["tiers"] = _tiers(table.get("tiers"), source)
    if "arms" in table:
        if "atoms" not in table:
            raise source.error("arms without atoms", "arms", "add [atoms]: arms change it")
        values["arms"] = read_arms(table["arms"], source, values.get("cluster"), engines)
    return values


def shown(atoms: Atoms) -> tuple[TierSpec, ...]:
    """Return the tiers that a scheduler is shown of these atoms; a mix of one's own may leave some empty."""
    tiers, shares = tiers_of(atoms)
    return tuple(
        TierSpec(
            f"tier-{place}", float(tiers.ttft_s[place]), float(tiers.tpot_s[place]), share,
            weight=float(tiers.weight[place]),
        )
        for place, share in enumerate(shares)
    )  # fmt: skip


def _study(table: Mapping[str, Any], source: Source) -> Study:
    values = read_values(table, Study, "plan", source, ("margins",))
    margins = table.get("margins", {})
    if not isinstance(margins, dict):
        raise source.error("margins is not a table", "margins", "write [margins] and rate = 0.02 below")
    values["margins"] = tuple((key, read_value(margins[key], key, float, source)) for key in sorted(margins))
    for key, margin in values["margins"]:
        if not 0.0 < margin < inf:
            raise source.error(f"the margin of {key} is not above 0", key, "use a number above 0")
    return Study(**values)


def _check_study(plan: Plan, source: Source) -> None:
    study = plan.study
    for key in ("panel", "families", "planned_pairs", "planned_regions"):
        if len({*getattr(study, key)}) != len(getattr(study, key)):
            raise source.error(f"{key} names something twice", key, "name it once")
    unknown = [name for name in study.families if name not in FAMILIES]
    if unknown:
        raise source.error(f"no family {unknown[0]!r}", "families", f"use some of {', '.join(FAMILIES)}")
    if len(study.planned_pairs) > PLANNED_MAX:
        what = f"{len(study.planned_pairs)} planned pairs"
        raise source.error(what, "planned_pairs", f"name at most {PLANNED_MAX}; the rest is exploration")
    strangers = [name for pair in study.planned_pairs for name in pair if name not in plan.schedulers]
    if strangers or any(a == b for a, b in study.planned_pairs):
        what = f"{strangers[0]} is none of the schedulers" if strangers else "a pair of one scheduler"
        raise source.error(
            what, "planned_pairs", "pair two of the plan's schedulers, as they are named there"
        )
    away = [rho for rho in study.planned_regions if rho not in plan.regions]
    if away:
        raise source.error(
            f"{away[0]:g} is none of the regions", "planned_regions", "name regions of the plan"
        )


def _check_regions(regions: Sequence[float], source: Source) -> None:
    low, high = REGION_LIMITS
    if not all(low <= rho <= high for rho in regions):
        what = f"a region is a pressure between {low:g} and {high:g}"
        raise source.error(what, "regions", f"the usual: {list(RHOS)}")
    names = [region_name(rho) for rho in regions]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise source.error(
            f"two regions are called {twice}", "regions", "name one of them; 6 digits tell regions apart"
        )


def _fleet(table: Any, source: Source) -> Fleet:
    if not isinstance(table, dict):
        raise source.error("fleet is not a table", "fleet", "write [fleet] and its keys below")
    fleet = Fleet(**read_values(table, Fleet, "fleet", source))
    for key, (least, most) in LIMITS.items():
        if not least <= getattr(fleet, key) <= most:
            raise source.error(f"{key} is not in {least} to {most:,}", key, f"use a number up to {most:,}")
    return fleet


def _tiers(listed: Any, source: Source) -> tuple[TierSpec, ...]:
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


def _tier(table: Mapping[str, Any], source: Source) -> TierSpec:
    tier = TierSpec(**read_values(table, TierSpec, "tier", source))
    for key in (*TARGETS, "weight"):
        if not getattr(tier, key) > 0.0:
            raise source.error(f"{key} of tier {tier.name} is not above 0", key, "use a number above 0")
    if not isfinite(tier.weight):
        raise source.error(f"weight of tier {tier.name} is infinite", "weight", "use a finite number")
    if not 0.0 < tier.share <= 1.0:
        raise source.error(f"share of tier {tier.name} is not in (0, 1]", "share", "use shares that sum to 1")
    return tier
