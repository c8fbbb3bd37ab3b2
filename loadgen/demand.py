"""Demand: a window as an engine meets it, with tiers, tenants, forecasts and stretched arrivals.

Tiers, tenants and forecasts are assumptions: no published trace has them. Each comes from a column of luck
that was drawn and frozen with the window, so every scheduler meets the same request in the same tier.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadgen.atoms import importance, tier_of_atom
from loadgen.guess import forecasts
from loadgen.plan import Plan
from loadgen.plan_cluster import targets_of
from loadgen.prefixes import Prefixes, shared, some
from schedulers.view import Floats, Ints

if TYPE_CHECKING:
    from loadgen.window import Window

TENANTS = 4
"""Equal tenants, drawn a request; the requests of one conversation share the tenant of its first."""


class Demand(NamedTuple):
    """One window as the engine meets it, shape (n,) each; ``output_tokens`` is for the engine alone."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    forecast_tokens: Floats
    tier: Ints
    tenant: Ints
    session: Ints
    luck: Floats
    prefixes: Prefixes | None = None  # where the trace tells them
    atom: Ints | None = None  # by which it is scored, where that is not its tier: ``tier`` is what is shown


def part(demand: Demand, rows: Ints) -> Demand:
    """Return some requests of a demand, given by number, in that order."""
    columns = {
        name: getattr(demand, name)[rows] for name in Demand._fields if name not in ("prefixes", "atom")
    }
    atom = None if demand.atom is None else demand.atom[rows]
    return Demand(**columns, prefixes=demand.prefixes and some(demand.prefixes, rows), atom=atom)


def prepare(window: "Window", plan: Plan, factor: float) -> Demand:
    """Return the window with its arrivals multiplied by ``factor`` and everything else untouched."""
    tier, atom = classes(window, plan)
    return Demand(
        arrival_s=np.asarray(window.arrival_s, np.float64) * factor,
        prompt_tokens=np.asarray(window.prompt_tokens, np.int64),
        output_tokens=np.asarray(window.output_tokens, np.int64),
        forecast_tokens=forecasts(window.output_tokens, window.forecast_luck, window.kind, plan.forecast),
        tier=tier,
        tenant=tenants(window.tenant_luck, window.session),
        session=np.asarray(window.session, np.int64),
        luck=np.asarray(window.luck, np.float64),
        prefixes=None
        if window.hash_ids is None or window.hash_offsets is None
        else shared(window.hash_offsets, np.asarray(window.hash_ids, np.int64), window.line.block_tokens),
        atom=atom,
    )


def classes(window: "Window", plan: Plan) -> tuple[Ints, Ints | None]:
    """Return each request's tier as shown to the scheduler and, in a plan with atoms, the atom that scores it."""
    if plan.atoms is None:
        return tiers(window.tier_luck, np.array([tier.share for tier in plan.tiers])), None
    atoms = importance(
        plan.atoms.dealt,
        np.asarray(window.arrival_s, np.float64),
        np.asarray(window.tier_luck, np.float64),
        kept(window.tenant_luck, window.session),
        (plan.seed, window.line.content_sha256),
    )
    place = tier_of_atom(plan.atoms.tiers, plan.atoms.chain)
    return place[atoms.shown], atoms.scored


def targets(plan: Plan) -> list[tuple[float, float, float, float]]:
    """Return (ttft_s, tpot_s, e2e_s, weight) of each class that requests are scored by: tiers, or atoms."""
    if plan.atoms is not None:
        return targets_of(plan.atoms)
    return [(tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in plan.tiers]


def tiers(luck: Floats, shares: Floats) -> Ints:
    """Return the tier of each request: the luck, uniform in [0, 1), falls in one tier's share."""
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, luck, side="right").astype(np.int64)


def tenants(luck: Floats, session: Ints) -> Ints:
    """Return the tenant of each request, from 0; a conversation keeps the tenant of its first row."""
    drawn: Ints = (kept(luck, session) * TENANTS).astype(np.int64)
    return drawn


def kept(luck: Floats, session: Ints) -> Floats:
    """Return the luck, shape (n,), with that of its first row for all of a conversation."""
    _, first, place = np.unique(session, return_index=True, return_inverse=True)
    return np.where(np.asarray(session) >= 0, np.asarray(luck)[first][place], luck).astype(np.float64)
