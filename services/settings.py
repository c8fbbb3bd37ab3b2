"""Settings files of the processes of a local testbed, as TOML."""

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from schedulers.load import pieces

if TYPE_CHECKING:
    from services.local import State, Wish

MOVES = RECOMPUTE, NIXL = "recompute", "nixl"
"""How running requests move between real engines: their tokens alone, or their KV too."""

DRAIN_S = 5.0
"""How long a dispatcher that is to end waits for what runs."""


def module_of(wish: "Wish") -> str:
    """The module that is a worker."""
    return "services.worker" if wish.real is None else "services.worker.vllm"


def dispatcher_toml(wish: "Wish", state: "State") -> str:
    """The dispatcher's settings: the plan's tiers at the testbed's speed, no bound that the simulator lacks."""
    store = wish.store or f"file:{Path(state.folder) / 'journal'}"
    lines = [
        "[listen]", f"http = {json.dumps(wish.http)}", f"grpc = {json.dumps(wish.grpc)}",
        "[scheduling]", f"scheduler = {json.dumps(wish.paced)}",
        f"policy_folder = {json.dumps(wish.policy_folder)}",
        f"report_period_s = {max(0.02, 0.1 / wish.speed):.6g}",
        "[timeouts]", f"queue_s = {wish.patience_s}", f"first_token_s = {wish.patience_s}",
        f"between_tokens_s = {min(wish.patience_s, 600.0)}", f"drain_s = {DRAIN_S}",
        "[store]", f"url = {json.dumps(store)}",
        "[keys]", f"admin = {json.dumps(state.admin_key)}", f"worker = {json.dumps(state.worker_key)}",
    ]  # fmt: skip
    if wish.workers_max:
        lines += [f"scaler = {json.dumps(state.scaler_key)}", "[scaling]"]
        lines += [f"least = {wish.workers_min}", f"most = {wish.workers_max}"]
    for tier in wish.plan.tiers:
        lines += ["[[tiers]]", f"name = {json.dumps(tier.name)}", f"queue_max = {wish.queue_max}"]
        lines += [f"weight = {tier.weight!r}"]
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(tier, name)
            if isfinite(value):
                lines.append(f"{name} = {value / wish.speed!r}")
    return "\n".join(lines) + "\n"


def worker_toml(wish: "Wish", state: "State", name: str, dispatcher: str) -> str:
    """A worker's settings; without a name those of any."""
    fleet = wish.plan.fleet
    lines = [f"worker_id = {json.dumps(name)}"] if name else []
    lines += [
        f"dispatcher = {json.dumps(dispatcher)}",
        f"key = {json.dumps(state.worker_key)}", f"engine_policy = {json.dumps(pieces(wish.paced)[0])}",
        f"speed = {float(wish.speed)!r}", f"chaos = {json.dumps(wish.chaos)}",
    ]  # fmt: skip
    if wish.steps is not None:
        lines.append(f"steps = {json.dumps(str(wish.steps.resolve()))}")
    if wish.real is not None:
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in asdict(wish.real).items() if key != "python"
        ]
    lines.append("[fleet]")
    lines += [
        f"{key} = {json.dumps(value)}"
        for key, value in asdict(fleet).items()
        if key not in ("engines",) and not isinstance(value, dict)
    ]
    return "\n".join(lines) + "\n"


def scaler_toml(wish: "Wish", state: "State", http: str) -> str:
    """The scaler's settings."""
    lines = [
        f"dispatcher = {json.dumps(f'http://{http}')}", f"key = {json.dumps(state.scaler_key)}",
        'driver = "processes"', f"folder = {json.dumps(state.folder)}", f"most = {wish.workers_max}",
        f"module = {json.dumps(module_of(wish))}",
        f"python = {json.dumps(wish.real.python if wish.real else '')}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
