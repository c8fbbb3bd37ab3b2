"""Fleets of several profiles, and faults, as they are written on the command line."""

import re
from typing import NamedTuple

import numpy as np

from schedulers.errors import InputError
from sim import profile
from sim.fabric import DIE, DRAIN, RETURN, Fault
from sim.profile import Profile
from sim.run import Setup

ENGINES_MAX = 1024
FAULTS = {"die": DIE, "return": RETURN, "drain": DRAIN}


class Squad(NamedTuple):
    """So many engines of one profile."""

    engines: int
    profile: Profile


def read_fleet(text: str) -> tuple[Squad, ...]:
    """Return what ``2xllama-3.1-8b/a100-80g,1xllama-3.1-8b/h100`` says; raises InputError for a bad part.

    All squads serve one model: a request's KV of one model is nothing to another.
    """
    squads = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*x\s*(\S+)\s*", part)
        if found is None or not 1 <= int(found[1]) <= ENGINES_MAX:
            raise InputError(
                f"{part.strip()!r} is no part of a fleet", where="--fleet",
                fix=f"write COUNTxPROFILE by commas, 1 to {ENGINES_MAX} each: "
                "2xllama-3.1-8b/a100-80g,1xllama-3.1-8b/h100",
            )  # fmt: skip
        squads.append(Squad(int(found[1]), profile.load(found[2])))
    models = sorted({squad.profile.model for squad in squads})
    if len(models) > 1:
        raise InputError(
            f"a fleet of {' and '.join(models)}",
            where="--fleet",
            fix="use profiles of one model in one fleet",
        )
    if sum(squad.engines for squad in squads) > ENGINES_MAX:
        raise InputError(f"more than {ENGINES_MAX} engines", where="--fleet", fix="use a smaller fleet")
    return tuple(squads)


def manned(setup: Setup, squads: tuple[Squad, ...]) -> Setup:
    """Return the setup with the engines of the squads, in their order, each with its own speed and memory."""
    counts = [squad.engines for squad in squads]
    costs = np.repeat([squad.profile.costs for squad in squads], counts, axis=0)
    blocks = np.repeat([squad.profile.blocks(setup.block_tokens) for squad in squads], counts).astype(
        np.int64
    )
    return setup._replace(engines=sum(counts), costs=costs, blocks=blocks)


def read_faults(text: str, engines: int) -> tuple[Fault, ...]:
    """Return what ``12.5:die:2,20:return:2,30:drain:0`` says: seconds, kind and engine, from 0."""
    faults = []
    for part in (one.strip() for one in text.split(",") if one.strip()):
        found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+):([a-z]+):(\d+)", part)
        if found is None or found[2] not in FAULTS:
            raise InputError(
                f"{part!r} is no fault", where="--faults",
                fix=f"write SECONDS:KIND:ENGINE, kind one of {', '.join(FAULTS)}: 12.5:die:2,20:return:2",
            )  # fmt: skip
        if int(found[3]) >= engines:
            raise InputError(
                f"there is no engine {found[3]}", where="--faults", fix=f"engines are 0 to {engines - 1}"
            )
        faults.append(Fault(float(found[1]), int(found[3]), FAULTS[found[2]]))
    return tuple(sorted(faults))
