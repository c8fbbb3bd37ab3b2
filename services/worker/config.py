"""Settings of a simulated worker: one flat table, from a TOML file and the command line."""

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from loadgen.plan import Fleet
from schedulers.errors import InputError
from schedulers.view import Tiers
from services.secret import secret
from sim import profile
from sim.run import Setup


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker is and whom it serves; addresses are HOST:PORT, port 0 is any free one.

    With ``speed`` s every step and every transfer takes 1/s of its time: the caller scales arrivals, targets
    and parameters in seconds alike. ``link_gb_per_s`` is the bandwidth at which blocks travel.
    """

    worker_id: str = "worker-0"
    dispatcher: str = "127.0.0.1:50051"
    key: str = ""
    grpc: str = "127.0.0.1:0"
    http: str = "127.0.0.1:0"
    advertise: str = ""  # host under which others reach it, if not the one that it listens on
    engine_policy: str = "fcfs-chunked"
    fleet: Fleet = field(default_factory=Fleet)
    speed: float = 1.0
    link_gb_per_s: float = 12.5
    ca: str = ""  # certificate that the dispatcher's must be signed by; "" for a link without TLS
    chaos: bool = False  # takes orders to fail
    steps: str = ""  # folder for a log of its steps, WORKER_ID.jsonl; "" for none


Config = TypeVar("Config", bound=WorkerConfig)


def read_config(path: Path | None, default: Config, **given: Any) -> Config:
    """Return the settings of a file over a default, overridden by what was given (None: not given).

    Raises InputError naming the file and the key.
    """
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"can't read it: {error}", where=str(path), fix="name a TOML file") from None
    config: Config = _filled(default, table, str(path))
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    config = replace(config, key=config.key or secret("WINDTUNNEL_WORKER_KEY"))
    if not config.speed > 0.0 or not config.link_gb_per_s > 0.0:
        raise InputError("speed and link_gb_per_s must be above 0", where=str(path or ""), fix="mend them")
    return config


def _filled(default: Any, table: dict[str, Any], where: str) -> Any:
    known = {field.name: getattr(default, field.name) for field in fields(default)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"unknown key {key!r}", where=where, fix=f"known keys: {', '.join(known)}")
        was = known[key]
        if isinstance(was, Fleet) and isinstance(value, dict):
            values[key] = _filled(was, value, where)
        elif isinstance(was, float) and isinstance(value, int) and not isinstance(value, bool):
            values[key] = float(value)
        elif type(value) is type(was):
            values[key] = value
        else:
            raise InputError(f"{key} is {value!r}", where=where, fix=f"write a {type(was).__name__}")
    return replace(default, **values)


def setup_of(config: WorkerConfig, tiers: Tiers) -> Setup:
    """Return the one engine of a worker, its step times divided by the speed; raises InputError."""
    fleet, known = config.fleet, profile.load(config.fleet.profile)
    return Setup(
        engines=1,
        sequences_max=fleet.sequences_max,
        budget_max=fleet.budget_max,
        block_tokens=fleet.block_tokens,
        blocks=fleet.blocks or known.blocks(fleet.block_tokens),
        model_tokens=fleet.model_tokens,
        costs=known.costs / config.speed,
        tiers=tiers,
    )


def block_bytes(config: WorkerConfig) -> int:
    """Return the size of one KV block as it travels."""
    return profile.load(config.fleet.profile).memory.kv_bytes_per_token * config.fleet.block_tokens
