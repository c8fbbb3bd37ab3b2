"""The scene of one cluster run: which traffic, in which classes, at which rate, on which engines."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from schedulers.errors import InputError

if TYPE_CHECKING:
    from loadgen.demand import Demand
    from loadgen.plan import Plan
    from loadgen.region import Region
    from loadgen.window import Window
    from sim.calibrate import Capacity
    from sim.run import Setup

ROWS = 1_250
"""Requests of a window that is cut on the spot: those of a main window."""

SURROGATES = {
    "azure2023": "azure_surrogate-conv",
    "azure_surrogate": "azure_surrogate-conv",
    "burstgpt": "burstgpt_surrogate",
    "bailian": "bailian_surrogate-a",
    "bailian_surrogate": "bailian_surrogate-a",
}
"""The surrogate that stands for a source where a part isn't named."""

TRUE_RATE = "true"

MOMENTS_MOST = 20_000_000
"""Most ticks of a run: a compiled loop can't be stopped between two looks, and this is minutes of it."""

TICK_S = 0.5
"""Between two ticks where there are no reports: policies that move and scale are asked so often."""


class Traffic(NamedTuple):
    """Where requests come from, as asked for: a file, a surrogate, or a folder of frozen windows."""

    file: Path | None = None
    source: str = ""
    windows: Path | None = None
    window: str = ""  # id, or the beginning of one
    first_row: int = 0
    rows: int = ROWS
    seed: int = 0
    columns: str = ""
    unpinned: bool = False


class Place(NamedTuple):
    """Engines, wiring and classes, as asked for."""

    fleet: str = ""  # COUNTxPROFILE by commas; "": engines of one profile
    profile: str = "llama-3.1-8b/a100-80g"
    engines: int = 4
    tiers: str = ""  # promises; "" and no mix: the usual ones
    mix: str = ""  # atoms by this mix, shown in so many tiers
    levels: int = 4
    faults: str = ""
    wiring: str = ""  # keys of a plan's table [cluster], as KEY=VALUE by commas
    limits: str = ""  # keys of a plan's table [fleet], likewise


class Scene(NamedTuple):
    """One run, ready to play."""

    window: "Window"
    plan: "Plan"
    setup: "Setup"
    demand: "Demand"
    region: "Region"
    capacity: "Capacity"
    engines: tuple[str, ...]  # their names


def plan_of(scheduler: str, place: Place) -> "Plan":
    """Return the plan of one run; raises InputError for tiers, a mix or wiring that can't be."""
    from loadgen.plan import Fleet, Plan, shown
    from loadgen.plan_cluster import Atoms, check, read_cluster
    from loadgen.plan_text import Source
    from loadgen.promises import USUAL, read_promises
    from sim.mixed import read_fleet

    if place.mix and place.tiers:
        raise InputError("tiers are named in two ways", where="--tiers, --mix", fix="name one of them")
    squads = read_fleet(place.fleet) if place.fleet else ()
    count = sum(squad.engines for squad in squads) or place.engines
    profile = squads[0].profile.name if squads else place.profile
    fleet = Fleet(**limits_of(place.limits) | {"profile": profile, "engines": count})
    atoms = None
    if place.mix:
        atoms = Atoms(mix=place.mix, tiers=place.levels)
        check(atoms)
    tiers = shown(atoms) if atoms else tuple(one.tier for one in read_promises(place.tiers or USUAL))
    wiring = read_cluster(pairs(place.wiring, "--wiring"), Source("--wiring", place.wiring), count)
    return Plan("cluster run", (scheduler,), tiers, fleet=fleet, cluster=wiring, atoms=atoms, controls=())


def limits_of(text: str) -> dict[str, Any]:
    """Return engines' limits from KEY=VALUE by commas; raises InputError for an unknown key or a bad number."""
    from loadgen.plan import LIMITS, Fleet
    from loadgen.plan_text import Source, read_values

    table = pairs(text, "--limits")
    for key in ("profile", "engines"):
        if key in table:
            raise InputError(f"{key} has an option of its own", where="--limits", fix=f"use --{key}")
    values = read_values(table, Fleet, "fleet", Source("--limits", text))
    for key, value in values.items():
        least, most = LIMITS.get(key, (0, 1))
        if not least <= value <= most:
            raise InputError(
                f"{key} is not in {least} to {most:,}", where="--limits", fix="use another number"
            )
    return values


def pairs(text: str, option: str) -> dict[str, Any]:
    """Read KEY=VALUE by commas; values are as in TOML."""
    import tomllib

    try:
        return tomllib.loads("\n".join(text.split(",")))
    except tomllib.TOMLDecodeError:
        raise InputError(
            f"{text!r} is no list of KEY=VALUE", where=option, fix="write e.g. blocks=3500"
        ) from None


def staged(plan: "Plan", place: Place) -> "Setup":
    """Return the plan's engines and wiring, of several profiles where the place says so, and with its faults."""
    import numpy as np

    from loadgen.plan_cluster import reserve_of
    from sim.calibrate import setup_of
    from sim.mixed import manned, read_faults, read_fleet

    setup = setup_of(plan)
    if place.fleet:
        setup = manned(setup, read_fleet(place.fleet))
        if plan.fleet.blocks:
            setup = setup._replace(blocks=plan.fleet.blocks)
        if plan.atoms is not None:
            blocks = np.broadcast_to(setup.blocks, setup.engines)
            reserve = np.array([reserve_of(plan.atoms, int(held)) for held in blocks])
            setup = setup._replace(reserve=reserve)
    faults = read_faults(place.faults, setup.engines)
    return setup._replace(wiring=setup.wiring._replace(faults=faults))


def names(place: Place, count: int) -> tuple[str, ...]:
    """Return the engines' names: numbers, with the accelerator where there are several kinds."""
    from sim.mixed import read_fleet

    squads = read_fleet(place.fleet) if place.fleet else ()
    kinds = [squad.profile.accelerator for squad in squads for _ in range(squad.engines)]
    if len({*kinds}) < 2:
        return tuple(f"engine {engine}" for engine in range(count))
    return tuple(f"{engine} {kind}" for engine, kind in enumerate(kinds))


def scene_of(asked: Traffic, place: Place, scheduler: str, pressure: tuple[float, str]) -> Scene:
    """Return the scene of a run; ``pressure`` = (rho, rate), the rate rules where there is one."""
    from loadgen.demand import prepare
    from sim.calibrate import measure

    plan = plan_of(scheduler, place)
    setup, window = staged(plan, place), window_of(asked)
    capacity = measure(window, plan, setup)
    region = region_of(window, capacity, *pressure)
    demand = prepare(window, plan, region.factor)
    check_length(float(demand.arrival_s[-1]), setup)
    return Scene(window, plan, setup, demand, region, capacity, names(place, setup.engines))


def check_length(span_s: float, setup: "Setup") -> None:
    """Refuse a run whose clock would tick for hours: at an absurd rate, or waiting for a fault too far away."""
    last_s = max((fault.at_s for fault in setup.wiring.faults), default=0.0)
    end_s, period_s = max(span_s, last_s), setup.wiring.period_s or TICK_S
    if end_s > MOMENTS_MOST * period_s:
        raise InputError(
            f"the run would last {end_s:.3g} s" + (", until its last fault" if last_s > span_s else ""),
            where="--faults" if last_s > span_s else "--rate",
            fix=f"stay below {MOMENTS_MOST * period_s:.3g} s, or report more seldom: --wiring period_s=1",
        )


def window_of(asked: Traffic) -> "Window":
    """Return the window that is asked for; raises InputError if there is none, or if two ways are named."""
    if sum(map(bool, (asked.file, asked.source, asked.windows))) > 1:
        raise InputError(
            "traffic is named in two ways", where="FILE, --source, --windows", fix="name one of them"
        )
    if asked.window and asked.windows is None:
        raise InputError("a window of which folder?", where="--window", fix="name the folder with --windows")
    if asked.windows is not None:
        return frozen(asked.windows, asked.window)
    if asked.file is not None:
        return from_file(asked)
    return generated(asked)


def frozen(folder: Path, name: str) -> "Window":
    """Return one window of a folder, the first one if no id is given."""
    from loadgen.manifest import read_manifest
    from loadgen.window import read_window

    lines = read_manifest(folder)
    fitting = [line for line in lines if line.id.startswith(name)]
    if name and len(fitting) != 1:
        what = f"{len(fitting)} windows begin with {name!r}" if fitting else f"no window {name!r}"
        near = ", ".join(line.id for line in (fitting or lines)[:4])
        raise InputError(what, where=str(folder), fix=f"name one, e.g. {near}")
    return read_window(folder, fitting[0])


def from_file(asked: Traffic) -> "Window":
    """Cut a window out of a traffic file, whatever family it is of; fewer rows than asked for are all there are."""
    from loadgen.trace import parse_columns, read
    from loadgen.window import cut

    assert asked.file is not None
    trace = read(asked.file, unpinned=asked.unpinned, columns=parse_columns(asked.columns) or None)
    rows = min(asked.rows, len(trace.arrival_ns) - asked.first_row)
    if rows < 2:
        raise InputError(
            f"{max(0, rows)} of the file's {len(trace.arrival_ns):,} requests are left from row "
            f"{asked.first_row} on, and a run needs two",
            where=str(asked.file), fix="use a smaller --first-row" if asked.first_row else "use a longer file",
        )  # fmt: skip
    return cut(trace, asked.first_row, rows, "main", asked.seed)


def generated(asked: Traffic) -> "Window":
    """Draw a window of a surrogate."""
    from loadgen.surrogate import PARTS, generate
    from loadgen.window import cut

    parts = [part for listed in PARTS.values() for part in listed]
    part = SURROGATES.get(asked.source or "azure2023", asked.source)
    if part not in parts:
        raise InputError(
            f"no surrogate for {asked.source!r}", where="--source",
            fix=f"use one of {', '.join((*SURROGATES, *parts))}, or name a traffic file",
        )  # fmt: skip
    trace = generate(part, rows=asked.first_row + asked.rows, seed=asked.seed)
    return cut(trace, asked.first_row, asked.rows, "main", asked.seed)


def region_of(window: "Window", capacity: "Capacity", rho: float, rate: str) -> "Region":
    """Return how arrivals are stretched: to a pressure, to a rate in requests a second, or not at all ("true")."""
    from loadgen.plan import REGION_LIMITS
    from loadgen.region import FACTORS, Region, place

    rows = len(window.arrival_s)
    if not rate:
        least, most = REGION_LIMITS
        if not least <= rho <= most:
            raise InputError(
                f"rho is {rho:g}", where="--rho", fix=f"use a pressure from {least:g} to {most:g}"
            )
        return place(rho, requests=rows, span_s=capacity.span_s, capacity_per_s=capacity.capacity_per_s)
    own_per_s = rows / capacity.span_s
    wanted = own_per_s if rate == TRUE_RATE else positive(rate, "--rate")
    factor = own_per_s / wanted
    name = "true rate" if rate == TRUE_RATE else f"{wanted:g}/s"
    far = not FACTORS[0] <= factor <= FACTORS[1]
    return Region(name, wanted / capacity.capacity_per_s, factor, far)


def positive(text: str, option: str) -> float:
    """Return a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (value > 0.0 and isfinite(value)):
        raise InputError(f"{text!r} is no rate", where=option, fix="use a number above 0, or true")
    return value
