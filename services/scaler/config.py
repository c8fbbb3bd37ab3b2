"""Settings of a scaler: one flat table, from a TOML file and the command line."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from schedulers.errors import InputError
from services.config import table
from services.secret import secret

DRIVERS = ("processes", "docker")


@dataclass(frozen=True)
class ScalerConfig:
    """Whom it obeys, what runs workers, and the limits that it keeps whatever the dispatcher wants.

    ``project`` and ``service`` are compose's labels of the workers; "" for the project is that of the scaler's own
    container. TLS of the dispatcher is checked against ``ca``; ``tls_cert`` and ``tls_key`` are shown if it asks.
    """

    dispatcher: str = "http://127.0.0.1:8000"
    key: str = ""
    driver: str = "processes"
    folder: str = ""  # of processes: the testbed's
    module: str = "services.worker"  # that is a worker
    python: str = ""  # that runs it, if not ours
    project: str = ""
    service: str = "worker"
    http: str = "127.0.0.1:0"  # health and metrics
    advertise: str = ""  # host under which Prometheus reaches it, if not the one that it listens on
    ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    most: int = 8
    period_s: float = 0.5
    grace_s: float = 35.0  # of a worker that is to end; it gives what it holds 30
    orphan_s: float = 120.0


def read_config(path: Path | None, **given: Any) -> ScalerConfig:
    """Return the settings of a file, overridden by what was given (None: not given); raises InputError."""
    config = table(ScalerConfig, path) if path is not None else ScalerConfig()
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    config = replace(config, key=config.key or secret("WINDTUNNEL_SCALER_KEY"))
    where = str(path or "")
    if not config.key:
        fix = "set key, WINDTUNNEL_SCALER_KEY or WINDTUNNEL_SCALER_KEY_FILE, as the dispatcher's keys.scaler"
        raise InputError("a scaler needs the key that it shares with the dispatcher", where=where, fix=fix)
    if config.driver not in DRIVERS:
        raise InputError(f"there is no driver {config.driver!r}", where=where, fix=" or ".join(DRIVERS))
    if config.driver == "processes" and not config.folder:
        raise InputError("processes need the folder of a testbed", where=where, fix="set folder")
    if urlsplit(config.dispatcher).scheme not in ("http", "https") or not urlsplit(config.dispatcher).netloc:
        raise InputError("dispatcher: http://HOST:PORT or https://HOST:PORT", where=where)
    if bool(config.tls_cert) != bool(config.tls_key):
        raise InputError("certificate and key go together", where=f"{where}: tls_cert")
    limits = (config.most, config.period_s, config.grace_s, config.orphan_s)
    if not all(limit > 0 for limit in limits):
        raise InputError("most, period_s, grace_s and orphan_s must be above 0", where=where)
    return config
