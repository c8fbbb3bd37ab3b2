"""Arms of a plan as plans of their own: what a study of tiers runs, each run once.

Cells that are one by theorem run once: at one tier whatever only reads tiers is its plain self, and a scheduler that
reads no tier does at K tiers what it does at one (reference/multitier.md section 4; tests hold both to the bit).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from loadgen.plan import Plan, shown
from loadgen.plan_cluster import OF_ATOMS, OF_CLUSTER, Atoms, Cluster, changes
from schedulers.load import load, pieces

TIER_SWITCHES = ("order", "headroom", "victim", "age_s", "gamma", "window_s")
"""Parameters that do nothing where there is one tier."""

TIERED, PLAIN = "tiered", "fcfs-chunked"
"""The policy whose switches are the factors of the study, and what it is with all of them off."""

KNOWS_TIERS = ("tier", "targets", "usage")
"""What a policy declares to read if tiers can change what it does."""


def variants(plan: Plan) -> tuple[Plan, ...]:
    """Return the plans that the arms of a plan stand for, without arms; the plan itself if it has none.

    No two of them share a run: a scheduler that two arms ask for in one setting and region is in one plan.
    """
    if not plan.arms:
        return (plan,)
    found: dict[tuple[Any, ...], dict[float, dict[str, None]]] = {}
    for arm in plan.arms:
        for change in changes(arm):
            setting = changed(plan, change)
            for rho in arm.regions or plan.regions:
                cells = found.setdefault(setting, {}).setdefault(rho, {})
                cells.update(dict.fromkeys(specs_at(setting[0], arm.schedulers or plan.schedulers)))
    made = []
    for (atoms, engines, cluster), regions in found.items():
        together: dict[tuple[str, ...], list[float]] = {}
        for rho, cells in regions.items():
            together.setdefault(tuple(cells), []).append(rho)
        for specs, rhos in together.items():
            if specs:
                fleet = replace(plan.fleet, engines=engines)
                made.append(
                    replace(
                        plan, schedulers=specs, controls=(), regions=tuple(sorted(rhos)), fleet=fleet,
                        cluster=cluster, atoms=atoms, tiers=shown(atoms), arms=(),
                    )
                )  # fmt: skip
    return tuple(made)


def changed(plan: Plan, change: Mapping[str, Any]) -> tuple[Atoms, int, Cluster | None]:
    """Return the plan's atoms, engines and wiring with these changes."""
    atoms = replace(plan.atoms or Atoms(), **{key: change[key] for key in OF_ATOMS if key in change})
    wires = {key: change[key] for key in OF_CLUSTER if key in change}
    cluster = replace(plan.cluster or Cluster(), **wires) if wires else plan.cluster
    return atoms, change.get("engines", plan.fleet.engines), cluster


def specs_at(atoms: Atoms, specs: tuple[str, ...]) -> tuple[str, ...]:
    """Return which schedulers run in this setting, under the names that they run by."""
    if atoms.tiers == 1:
        return tuple(dict.fromkeys(map(at_one_tier, specs)))
    return tuple(dict.fromkeys(plainly(spec) for spec in specs if knows_tiers(plainly(spec))))


def runs_as(spec: str, tiers: int) -> tuple[str, int]:
    """Return the scheduler and the number of tiers as which a cell runs: where to find its result."""
    if tiers == 1:
        return at_one_tier(spec), 1
    return (plainly(spec), tiers) if knows_tiers(plainly(spec)) else (at_one_tier(spec), 1)


@cache
def at_one_tier(spec: str) -> str:
    """Return the name of what a scheduler is where there is one tier."""
    first, *rest = pieces(spec)
    kept = (without(piece) if named(piece) in (TIERED, "llumnix") else piece for piece in (first, *rest))
    return plainly("+".join(kept))


@cache
def plainly(spec: str) -> str:
    """Return a scheduler's canonical name; ``tiered`` with no switch on is the plain policy."""
    first, *rest = pieces(load(spec).name)
    return "+".join((PLAIN if first == TIERED else first, *rest))


@cache
def knows_tiers(spec: str) -> bool:
    """Return whether tiers can change what a scheduler does, by what its policies declare to read."""
    scheduler = load(spec)
    read = {*scheduler.engine.reads}.union(*(part.policy.reads for part in scheduler.parts))
    return bool(read & {*KNOWS_TIERS})


def named(piece: str) -> str:
    """Return the policy's name in one piece of a scheduler's."""
    return piece.partition(":")[0]


def without(piece: str) -> str:
    """Return a piece without the parameters that do nothing at one tier."""
    name, _, values = piece.partition(":")
    kept = [
        pair for pair in values.split(",") if pair and pair.partition("=")[0].strip() not in TIER_SWITCHES
    ]
    return f"{name}:{','.join(kept)}" if kept else name
