"""Settings of a worker with a real engine: those of a simulated one, and which model runs how."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from schedulers.errors import InputError
from schedulers.load import load
from schedulers.view import Tiers
from services.settings import MOVES, NIXL, RECOMPUTE
from services.worker.config import WorkerConfig, setup_of
from services.worker.steps import log_file
from services.worker.vllm.capability import refuse_unable
from services.worker.vllm.settings import told

DEVICES = ("cpu", "gpu")


@dataclass(frozen=True)
class EngineConfig(WorkerConfig):
    """``model`` is a folder, or on a box with the net a hub's name; ``fleet`` holds the limits of the engine.

    ``paced`` stretches every step to what the profile says, so that runs repeat; a step that takes longer than that
    stays as it is. Without it the profile is only what policies are told of costs.
    """

    model: str = ""
    device: str = "cpu"
    paced: bool = False
    dtype: str = ""  # "": float32 on a CPU, else as the model says
    eager: bool = True  # False lets vLLM compile
    memory_share: float = 0.9  # of a GPU's memory
    tensor_parallel: int = 1  # GPUs of one engine; untested
    moves: str = RECOMPUTE  # how running requests leave and come: their tokens alone, or their KV by NIXL


def check(config: EngineConfig) -> None:
    """Raise InputError for settings that no real engine can keep."""
    if not config.model:
        fix = "name a folder: windtunnel model make tiny"
        raise InputError("no model is named", where="model", fix=fix)
    if config.device not in DEVICES:
        raise InputError(f"no device {config.device!r}", where="device", fix=f"use {' or '.join(DEVICES)}")
    if config.moves not in MOVES:
        raise InputError(f"no moves {config.moves!r}", where="moves", fix=f"use {' or '.join(MOVES)}")
    if config.moves == NIXL and find_spec("nixl") is None:
        fix = f"pip install nixl==1.5.1, or moves = {RECOMPUTE!r}"
        raise InputError("NIXL is not installed", where="moves", fix=fix)
    if config.tensor_parallel < 1:
        raise InputError("tensor_parallel must be at least 1", where="tensor_parallel", fix="use 1")
    if config.speed != 1.0 and not config.paced:
        fix = "use speed 1, or a paced engine"
        raise InputError("a real engine is as fast as it is", where="speed", fix=fix)
    if config.device == "cpu" and config.fleet.block_tokens % 32:
        what = f"{config.fleet.block_tokens} tokens a block"
        raise InputError(what, where="fleet.block_tokens", fix="a CPU engine needs a multiple of 32")
    if config.fleet.prefix_cache:
        what, where = "policies are not told what vLLM's prefix cache holds", "fleet.prefix_cache"
        raise InputError(what, where=where, fix="set prefix_cache = false")
    refuse_unable(load(config.engine_policy), config.fleet.budget_max, config.fleet.model_tokens)
    if not config.fleet.blocks and config.device == "cpu":
        fix = "say how many, e.g. 512"
        raise InputError("blocks must be said on a CPU", where="fleet.blocks", fix=fix)


def engine_args(config: EngineConfig, tiers: Tiers, socket: str = "") -> dict[str, Any]:
    """Return the arguments of vLLM's engine for these settings; raises InputError."""
    check(config)
    fleet = config.fleet
    costs = setup_of(config, tiers).costs.tolist() if fleet.profile else [0.0] * 7
    log = str(log_file(config.steps, config.worker_id).resolve()) if config.steps else ""
    arguments: dict[str, Any] = {
        "model": config.model,
        "max_model_len": fleet.model_tokens,
        "max_num_seqs": fleet.sequences_max,
        "max_num_batched_tokens": fleet.budget_max,
        "block_size": fleet.block_tokens,
        "enable_prefix_caching": False,
        "enforce_eager": config.eager,
        "async_scheduling": False,
        "scheduler_cls": "services.worker.vllm.scheduler.PolicyScheduler",
        "disable_log_stats": False,
        "dtype": config.dtype or ("float32" if config.device == "cpu" else "auto"),
    }
    cores: tuple[int, ...] = ()
    if config.moves == NIXL:
        arguments["kv_transfer_config"] = connector()
        cores = tuple(os.sched_getaffinity(0))
    arguments["additional_config"] = told(
        config.engine_policy, costs, tiers, paced=config.paced, socket=socket, log=log, cores=cores
    )
    if fleet.blocks:
        arguments["num_gpu_blocks_override"] = fleet.blocks + 1  # vLLM keeps one for itself
    if config.device == "gpu":
        arguments["gpu_memory_utilization"] = config.memory_share
        arguments["tensor_parallel_size"] = config.tensor_parallel
    else:
        arguments["kv_cache_memory_bytes"] = 1 << 30  # address space; pages are touched when they are used
    return arguments


def connector() -> dict[str, Any]:
    """Return the settings of vLLM's connector: KV goes either way, and what can't be fetched is no error."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"num_threads": 1},
    }
