"""A plan's tables on the cluster: how its engines are wired, what its requests are worth, and a study's arms.

Each table may be absent, and then a plan is what it was before there were any. An arm crosses lists of values of
the other tables, so that one plan runs a study of the number of tiers (reference/multitier.md sections 2 to 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from loadgen.atoms import ATOMS, SHARES, grading, shares_of, shown_tiers, tier_of_atom
from loadgen.plan_text import Source, read_values
from schedulers.errors import InputError
from schedulers.headroom import headroom
from schedulers.view import Ints, Tiers


@dataclass(frozen=True)
class Cluster:
    """How engines are tied together (defaults: reference/multitier.md sections 6, 8 and 10); seconds, Gbit/s.

    ``start`` engines serve from the beginning (0: all), scaling leaves ``least``. ``token_bytes`` 0 stands for the
    KV bytes a token of the fleet's profile.
    """

    period_s: float = 0.05  # between reports; 0: the dispatcher sees engines as they are
    delay_s: float = 0.005
    link_s: float = 0.001
    detect_s: float = 1.0
    boot_s: float = 60.0
    start: int = 0
    least: int = 1
    bandwidth_gbps: float = 100.0
    token_bytes: float = 0.0
    slowdown: float = 1.01
    shared: bool = False  # one link for all moves
    recompute: bool = False  # a moved request computes its KV again


@dataclass(frozen=True)
class Atoms:
    """What requests are worth and how many tiers a scheduler is shown of it (reference/multitier.md 2 and 3).

    ``shares`` are ten shares of one's own, in place of a mix that ships; ``eta`` is the headroom budget, a share of
    each engine's KV blocks, which policies may use or not.
    """

    mix: str = "enterprise"
    chain: str = "top-first"
    ladder: str = "graded"
    ratio: float = 8.0
    tiers: int = 4
    eta: float = 0.2
    split: str = "nested"
    shares: tuple[float, ...] = ()

    @property
    def dealt(self) -> str | tuple[float, ...]:
        """What deals the atoms: the shares, or the mix by name."""
        return self.shares or self.mix


@dataclass(frozen=True)
class Arm:
    """A part of a study: all combinations of its lists, an empty list standing for the plan's own value.

    ``schedulers`` empty: the plan's. ``engines`` other than the plan's meet the arrivals of the plan's own fleet.
    """

    name: str
    schedulers: tuple[str, ...] = ()
    tiers: tuple[int, ...] = ()
    mix: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    ladder: tuple[str, ...] = ()
    eta: tuple[float, ...] = ()
    engines: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    boot_s: tuple[float, ...] = ()
    regions: tuple[float, ...] = ()


OF_ATOMS = ("tiers", "mix", "chain", "ladder", "eta")
"""Lists of an arm that change the plan's atoms."""

OF_CLUSTER = ("start", "boot_s")
"""Lists of an arm that change how engines are tied together."""

LEAST = {
    "period_s": 0.0, "delay_s": 0.0, "link_s": 0.0, "detect_s": 0.0, "boot_s": 0.0, "start": 0, "least": 1,
    "bandwidth_gbps": 1e-6, "token_bytes": 0.0, "slowdown": 1.0,
}  # fmt: skip
MOST = 1e9

ENGINES = 1 << 10
"""Most engines of an arm's fleet, as of a plan's."""

PERIOD_LEAST_S = 1e-4
"""Of reports that are sent at all: faster ones tell nothing new, and a run would be nothing but reports."""

REPORTS_UNDER_WAY = 1_000
"""Most reports of an engine that may be under way at once: each is kept until it arrives."""


def read_cluster(table: Any, source: Source, engines: int) -> Cluster:
    """Return the table ``[cluster]``. Raises InputError at the line of what is wrong."""
    if not isinstance(table, dict):
        raise source.error("cluster is not a table", "cluster", "write [cluster] and its keys below")
    cluster = Cluster(**read_values(table, Cluster, "cluster", source))
    check_cluster(cluster, source, engines)
    return cluster


def check_cluster(cluster: Cluster, source: Source, engines: int) -> None:
    """Raise InputError at the line of a number that a fleet of so many engines can't have."""
    for key, least in LEAST.items():
        if not least <= getattr(cluster, key) <= MOST:
            raise source.error(f"{key} is not in {least:g} to {MOST:g}", key, f"use {least:g} or more")
    if 0.0 < cluster.period_s < PERIOD_LEAST_S:
        raise source.error(
            f"period_s is {cluster.period_s:g}",
            "period_s",
            f"use 0 for no reports, or {PERIOD_LEAST_S:g} or more",
        )
    if cluster.delay_s > REPORTS_UNDER_WAY * cluster.period_s > 0.0:
        raise source.error(
            f"more than {REPORTS_UNDER_WAY:,} reports are under way at once",
            "delay_s",
            f"use a delay_s of at most {REPORTS_UNDER_WAY * cluster.period_s:g}",
        )
    for key in ("start", "least"):
        if getattr(cluster, key) > engines:
            raise source.error(f"{key} is more than the fleet has", key, f"use at most {engines}")


def read_atoms(table: Any, source: Source) -> Atoms:
    """Return the table ``[atoms]``. Raises InputError at the line of what is wrong."""
    if not isinstance(table, dict):
        raise source.error("atoms is not a table", "atoms", "write [atoms] and its keys below")
    atoms = Atoms(**read_values(table, Atoms, "atoms", source))
    if not 1.0 <= atoms.ratio <= 1e6:
        raise source.error(f"ratio is {atoms.ratio:g}", "ratio", "use 1 (all worth the same) or more")
    try:
        check(atoms)
    except InputError as error:
        raise source.error(error.what, error.where, error.fix) from None
    return atoms


def check(atoms: Atoms) -> None:
    """Raise InputError for a mix, chain, ladder, split, budget or number of tiers that does not exist."""
    shown_tiers(atoms.tiers, atoms.chain, atoms.dealt, grading(atoms.ladder, atoms.ratio))
    headroom(atoms.split, 1000, atoms.eta, tier_of_atom(atoms.tiers, atoms.chain))
    if atoms.mix not in SHARES:
        shares_of(atoms.mix)


def read_arms(listed: Any, source: Source, cluster: Cluster | None, engines: int) -> tuple[Arm, ...]:
    """Return the tables ``[[arms]]`` of a plan with this cluster and fleet.

    Raises InputError at the line of what is wrong.
    """
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise source.error("arms is not a list of tables", "arms", "write [[arms]] and its keys below")
    arms = tuple(Arm(**read_values(one, Arm, "arm", source)) for one in listed)
    if len({arm.name for arm in arms}) != len(arms):
        raise source.error("two arms have one name", "name", "name each arm differently")
    for arm in arms:
        for field in fields(Arm):
            values = getattr(arm, field.name)
            if field.name != "name" and len({*values}) != len(values):
                raise source.error(
                    f"{field.name} of arm {arm.name} has one twice", field.name, "name it once"
                )
        for change in changes(arm):
            try:
                check(replace(Atoms(), **{key: change[key] for key in OF_ATOMS if key in change}))
            except InputError as error:
                raise source.error(error.what, error.where, error.fix) from None
            fleet = change.get("engines", engines)
            if not 1 <= fleet <= ENGINES:
                raise source.error(f"{fleet} engines", "engines", f"use 1 to {ENGINES:,}")
            wired = {key: change[key] for key in OF_CLUSTER if key in change}
            check_cluster(replace(cluster or Cluster(), **wired), source, fleet)
    return arms


def changes(arm: Arm) -> tuple[Mapping[str, Any], ...]:
    """Return all combinations of an arm's lists, as what changes of atoms, fleet and wiring."""
    axes = [(key, getattr(arm, key)) for key in (*OF_ATOMS, "engines", *OF_CLUSTER) if getattr(arm, key)]
    names = [key for key, _ in axes]
    return tuple(dict(zip(names, combined, strict=True)) for combined in product(*(axis for _, axis in axes)))


def tiers_of(atoms: Atoms) -> tuple[Tiers, tuple[float, ...]]:
    """Return what a scheduler is shown of these atoms, and each tier's long-run share of requests."""
    shown = shown_tiers(atoms.tiers, atoms.chain, atoms.dealt, grading(atoms.ladder, atoms.ratio))
    place = tier_of_atom(atoms.tiers, atoms.chain)
    shares = np.bincount(place, weights=shares_of(atoms.dealt), minlength=atoms.tiers)
    return shown, tuple(float(share) for share in shares)


def targets_of(atoms: Atoms) -> list[tuple[float, float, float, float]]:
    """Return (ttft_s, tpot_s, e2e_s, weight) of each atom: what a request is scored by, whatever is shown."""
    grades = grading(atoms.ladder, atoms.ratio)
    return [
        (float(grades.ttft_s[atom]), float(grades.tpot_s[atom]), float("inf"), float(grades.weight[atom]))
        for atom in range(ATOMS)
    ]


def reserve_of(atoms: Atoms, blocks: int) -> Ints:
    """Return the blocks set aside for each tier on an engine of so many, shape (tiers,)."""
    return headroom(atoms.split, blocks, atoms.eta, tier_of_atom(atoms.tiers, atoms.chain))
