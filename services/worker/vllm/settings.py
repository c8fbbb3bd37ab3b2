"""What our scheduler inside vLLM is told: by its configuration once, and by each request's ``extra_args``."""

from math import inf
from typing import Any, NamedTuple

import numpy as np

from schedulers.errors import InputError
from schedulers.view import Tiers
from services.worker.answers import LENGTH_MEAN
from services.worker.rows import Ask
from sim.run import Setup

NAME = "windtunnel"
"""Key of our settings in ``additional_config``, and of a request's in ``extra_args``."""


class Settings(NamedTuple):
    """One engine: its policy, its true limits, its step costs, and whether its steps are stretched to them."""

    policy: str
    setup: Setup
    paced: bool = False
    socket: str = ""  # where steps are reported and orders come from; "" for nowhere
    log: str = ""  # file to which steps are added; "" for none
    cores: tuple[int, ...] = ()  # that the engine's own thread may use; () for as it is


def told(
    policy: str, costs: list[float], tiers: Tiers, *, paced: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the settings as they travel: plain JSON, absent targets as null; more are those of ``Settings``."""
    rows = [[None if value == inf else float(value) for value in row] for row in zip(*tiers, strict=True)]
    here = {"paced": paced, "socket": "", "log": "", "cores": ()} | more
    return {NAME: {"policy": policy, "costs": costs, "tiers": rows, **here}}


def tiers_from(rows: list[list[float | None]]) -> Tiers:
    """Return tiers as they travelled."""
    full = [[inf if value is None else value for value in row] for row in rows]
    return Tiers(*(np.array(column, np.float64) for column in zip(*full, strict=True)))


def settings_of(config: Any, usable_blocks: int) -> Settings:
    """Return the settings in a ``VllmConfig``, with the limits that this engine really has.

    Raises InputError if the engine was not started by us.
    """
    given = (config.additional_config or {}).get(NAME)
    if given is None:
        fix = f"start it by `windtunnel up --worker vllm-cpu`, or pass additional_config with the key {NAME}"
        raise InputError("the scheduler was not told its policy", where="additional_config", fix=fix)
    setup = Setup(
        engines=1,
        sequences_max=config.scheduler_config.max_num_seqs,
        budget_max=config.scheduler_config.max_num_batched_tokens,
        block_tokens=config.cache_config.block_size,
        blocks=usable_blocks,
        model_tokens=config.model_config.max_model_len,
        costs=np.array(given["costs"], np.float64),
        tiers=tiers_from(given["tiers"]),
    )
    cores = tuple(given["cores"])
    return Settings(given["policy"], setup, bool(given["paced"]), given["socket"], given["log"], cores)


def ask_of(request: Any, now_s: float) -> Ask:
    """Return a request of vLLM as the tables have it; one that did not come from us has tier 0 and arrives now."""
    given = ((request.sampling_params.extra_args or {}) if request.sampling_params else {}).get(NAME, {})
    begun = int(given.get("generated_tokens", 0))  # made elsewhere before, part of the prompt that vLLM sees
    return Ask(
        arrival_s=float(given.get("arrival_s", now_s)),
        prompt_tokens=request.num_prompt_tokens - begun,
        output_tokens=request.max_tokens + begun,
        forecast_tokens=float(given.get("forecast_tokens", LENGTH_MEAN)),
        tier=int(given.get("tier", 0)),
        tenant=int(given.get("tenant", 0)),
        session=int(given.get("session", -1)),
        luck=float(given.get("luck", 0.0)),
        generated_tokens=begun,
    )
