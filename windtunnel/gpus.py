"""Presets for one GPU: a model, a fleet of one engine that any card of 40 GB holds, and how long things take.

Nothing here was run: no GPU was at hand. What a preset must get right without one (settings that the worker accepts,
a profile that exists) is tested.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from schedulers.errors import InputError

if TYPE_CHECKING:
    from loadgen.plan import Plan

CARD = "h100"
"""Whose steps a preset assumes where no card is named; a pilot run scales them to what the card does."""


class Preset(NamedTuple):
    """A model on one GPU. ``slots`` are few, so that traffic of a minute queues and order matters."""

    model: str  # the hub's name
    slots: int
    budget: int
    blocks: int  # of 16 tokens
    profile_minutes: str
    validate_minutes: str


PRESETS = {
    "qwen2.5-0.5b": Preset("Qwen/Qwen2.5-0.5B-Instruct", 16, 2048, 8192, "2 to 4", "10 to 20"),
    "llama-3.1-8b": Preset("meta-llama/Llama-3.1-8B-Instruct", 16, 2048, 4096, "3 to 6", "15 to 30"),
}
"""Untested. Minutes are what the roofline's steps and vLLM's usual start make one expect."""

Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        help=f"Preset for one GPU, or PRESET/CARD, e.g. qwen2.5-0.5b/l40s; untested. {', '.join(PRESETS)}.",
    ),
]


def preset_of(named: str) -> tuple[Preset, str]:
    """Return the preset named PRESET or PRESET/CARD, and its profile's name; raises InputError for an unknown one."""
    from sim.profile import load

    name, _, card = named.partition("/")
    if name not in PRESETS:
        raise InputError(f"no preset {name!r}", where="--gpu", fix=f"use {' or '.join(PRESETS)}")
    profile = f"{name}/{card or CARD}"
    load(profile)  # refuses a card that nobody knows
    return PRESETS[name], profile


def plan_of(named: str, profile: str = "") -> "Plan":
    """Return the plan of a preset's testbed, targets suited to its steps; ``profile`` may be a file of your own."""
    from dataclasses import replace

    from services.local import RealWorkers
    from windtunnel.engines import real_fleet, real_tiers
    from windtunnel.up import live_plan

    preset, usual = preset_of(named)
    known = live_plan("quick", 1)
    real = RealWorkers("", preset.model, "gpu")
    fleet = replace(
        real_fleet(known.fleet, real, own=False, profile=profile or usual),
        sequences_max=preset.slots,
        budget_max=preset.budget,
        block_tokens=16,
        blocks=preset.blocks,
        model_tokens=8192,
    )
    return replace(known, fleet=fleet, tiers=real_tiers(known.tiers, known.fleet, fleet))


@contextmanager
def running(named: str, folder: Path, profile: str = "") -> Iterator[Path]:
    """Start the testbed of a preset in a folder and stop it afterwards; yields the folder. Raises InputError."""
    from services.local import NotReadyError, RealWorkers, Wish, start, stop
    from services.vllm_place import interpreter

    preset, _ = preset_of(named)
    typer.echo(
        f"--gpu is untested. Expected: {preset.validate_minutes} min, the engine's start included", err=True
    )
    spec = "fcfs-chunked+least-requests"
    real = RealWorkers(interpreter(), preset.model, "gpu")
    try:
        start(
            Wish(folder, plan_of(named, profile), spec, spec, real=real),
            lambda words: typer.echo(words, err=True),
        )
    except NotReadyError as error:
        fix = "read the log; a model of the hub needs the net the first time, and some a token (HF_TOKEN)"
        raise InputError(str(error), where=str(folder), fix=fix) from None
    try:
        yield folder
    finally:
        stop(folder)
