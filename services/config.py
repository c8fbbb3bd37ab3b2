"""The dispatcher's configuration: one flat frozen dataclass a thing, read from TOML, every limit with its name."""

import tomllib
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from schedulers.decisions import Bounds
from schedulers.errors import InputError
from schedulers.view import Tiers


@dataclass(frozen=True)
class Listen:
    """Where the doors are; loopback unless told otherwise. Port 0 takes a free one."""

    http: str = "127.0.0.1:8000"
    grpc: str = "127.0.0.1:50051"
    tls_cert: str = ""
    tls_key: str = ""
    client_ca: str = ""  # with it both doors ask for a client's certificate


@dataclass(frozen=True)
class Scheduling:
    """Who decides, and how workers report."""

    scheduler: str = "fcfs-chunked+least-requests"
    policy_folder: str = ""  # whose files the operator may name as policies over the network; "": none
    default_tier: int = 0
    report_period_s: float = 0.1
    report_each_step: bool = False
    tick_s: float = 0.002  # tokens of several requests that come within it travel together
    merge_s: float = 0.005  # the same for tokens that are neither an answer's first nor its last
    heartbeat_s: float = 1.0
    busy_reports: float = 3.0  # an engine whose report is older than so many periods takes nothing new
    migration: bool = True


@dataclass(frozen=True)
class TierConfig:
    """A service class: targets (infinite: none), weight, and how many requests may wait for a first token."""

    name: str = ""
    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf
    weight: float = 1.0
    queue_max: int = 1000


@dataclass(frozen=True)
class Limits:
    """What one client, request or process may use."""

    body_bytes: int = 4 << 20
    message_bytes: int = 16 << 20
    open_requests: int = 65_536
    output_tokens: int = 131_072
    window_tokens: int = 4096  # a worker may be so far ahead of a slow client
    client_bytes: int = 256 << 10  # written to a client and not taken yet
    connections: int = 20_000
    attempts: int = 3
    streams_per_conversation: int = 20_000


@dataclass(frozen=True)
class Timeouts:
    """Seconds, each named in the error that it causes."""

    queue_s: float = 300.0
    first_token_s: float = 120.0
    between_tokens_s: float = 30.0
    engine_grace_s: float = 1.0  # a cut link may come back
    silence_s: float = 5.0  # a link without a word is cut
    resume_s: float = 30.0  # a client that was cut off may come back
    keep_s: float = 60.0  # a finished answer can still be fetched
    drain_s: float = 30.0
    migration_s: float = 30.0
    idle_connection_s: float = 60.0


@dataclass(frozen=True)
class StoreConfig:
    """Where the journal is, and what happens while it is away: "refuse" or "degrade"."""

    url: str = "none"
    when_away: str = "refuse"
    flush_s: float = 0.02
    sync: str = "second"
    compact_bytes: int = 64 << 20


@dataclass(frozen=True)
class Scaling:
    """How far a policy's wishes for more or fewer workers are carried out; ``most`` 0: not at all."""

    least: int = 1
    most: int = 0
    boot_s: float = 600.0  # an order that nobody fulfilled is given up
    settle_s: float = 5.0  # after the start, while workers come back, nothing is ordered or drained


@dataclass(frozen=True)
class UserKey:
    """A client's key; ``tier_cap`` is the most important tier that it may use, ``rate_per_s`` 0: no limit."""

    key: str
    tenant: str
    tier_cap: int = 0
    rate_per_s: float = 0.0
    burst: float = 0.0


@dataclass(frozen=True)
class Keys:
    """Secrets. Without user keys clients need none; without an admin key there is no admin door."""

    admin: str = ""
    worker: str = ""
    user: tuple[UserKey, ...] = ()
    scaler: str = ""  # shared with the one service that may start and stop workers


@dataclass(frozen=True)
class Config:
    """All of it."""

    listen: Listen = field(default_factory=Listen)
    scheduling: Scheduling = field(default_factory=Scheduling)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    store: StoreConfig = field(default_factory=StoreConfig)
    scaling: Scaling = field(default_factory=Scaling)
    keys: Keys = field(default_factory=Keys)
    tiers: tuple[TierConfig, ...] = (TierConfig(name="default"),)

    @property
    def targets(self) -> Tiers:
        """The tiers as policies see them."""
        columns = ("ttft_s", "tpot_s", "e2e_s", "weight")
        return Tiers(*(np.array([float(getattr(tier, name)) for tier in self.tiers]) for name in columns))

    @property
    def queue_max(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Requests without a token that may wait, by tier."""
        return np.array([float(tier.queue_max) for tier in self.tiers])

    @property
    def bounds(self) -> Bounds:
        """The limits as the desk sees them."""
        limits, timeouts, scaling = self.limits, self.timeouts, self.scaling
        return Bounds(
            self.queue_max, limits.open_requests, timeouts.queue_s, timeouts.first_token_s,
            timeouts.between_tokens_s, limits.attempts,
            self.scheduling.busy_reports * self.scheduling.report_period_s,
            least=scaling.least, most=scaling.most, boot_s=scaling.boot_s, settle_s=scaling.settle_s,
        )  # fmt: skip


def read(path: Path) -> Config:
    """Read a TOML file; raises InputError that names the section and field."""
    return checked(table(Config, path), str(path))


Made = TypeVar("Made")


def table(kind: type[Made], path: Path) -> Made:
    """Read a TOML file as one frozen dataclass, tables as those of its fields; raises InputError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read the configuration: {error}", where=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", where=str(path)) from None
    return _made(kind, document, str(path))


def _made(kind: type[Made], document: Any, where: str) -> Made:
    if not isinstance(document, dict):
        raise InputError("a table was expected", where=where)
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    foreign = sorted(set(document) - known)
    if foreign:
        fix = f"one of {', '.join(sorted(known))}"
        raise InputError(f"unknown field {foreign[0]!r}", where=where, fix=fix)
    hints = get_type_hints(kind)
    values = {name: _value(hints[name], value, f"{where}: {name}") for name, value in document.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(str(error).replace("__init__() ", ""), where=where) from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InputError("a list of tables was expected", where=where)
        return tuple(_made(get_args(hint)[0], one, f"{where}[{at}]") for at, one in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (float, int, str, bool):
        if type(value) is not hint:
            raise InputError(f"{hint.__name__} expected, not {value!r}", where=where)
        return value
    return _made(hint, value, where)


def checked(config: Config, where: str = "config") -> Config:
    """Return the configuration if its values make sense together; raises InputError."""
    if not config.tiers:
        raise InputError("there must be a tier", where=f"{where}: tiers")
    if not 0 <= config.scheduling.default_tier < len(config.tiers):
        fix = f"0..{len(config.tiers) - 1}"
        raise InputError("there is no such tier", where=f"{where}: scheduling.default_tier", fix=fix)
    for section in (config.limits, config.timeouts):
        for one in fields(section):
            if not getattr(section, one.name) > 0:
                raise InputError("must be above 0", where=f"{where}: {one.name}")
    if config.store.when_away not in ("refuse", "degrade"):
        raise InputError("is not a mode", where=f"{where}: store.when_away", fix="refuse or degrade")
    if config.store.sync not in ("always", "second", "never"):
        raise InputError("is not a mode", where=f"{where}: store.sync", fix="always, second or never")
    if bool(config.listen.tls_cert) != bool(config.listen.tls_key):
        raise InputError("certificate and key go together", where=f"{where}: listen.tls_cert")
    if config.listen.client_ca and not config.listen.tls_cert:
        raise InputError("asks for client certificates without TLS", where=f"{where}: listen.client_ca")
    _check_scaling(config, where)
    secrets = [
        config.keys.admin,
        config.keys.worker,
        config.keys.scaler,
        *(user.key for user in config.keys.user),
    ]
    given = [secret for secret in secrets if secret]
    if len(set(given)) != len(given) or any(not user.key for user in config.keys.user):
        fix = "give user, worker and admin keys of their own"
        raise InputError("two keys are the same, or one is empty", where=f"{where}: keys", fix=fix)
    return config


def _check_scaling(config: Config, where: str) -> None:
    scaling = config.scaling
    if scaling.most and not 1 <= scaling.least <= scaling.most:
        raise InputError(
            "1 <= least <= most", where=f"{where}: scaling", fix="most = 0 leaves the fleet alone"
        )
    if scaling.most < 0 or not scaling.boot_s > 0.0 or not scaling.settle_s >= 0.0:
        raise InputError("most and settle_s: at least 0; boot_s: above 0", where=f"{where}: scaling")


def listening(config: Config, http: str = "", grpc: str = "") -> Config:
    """The configuration with other addresses; '' leaves one as it is."""
    listen = config.listen
    return replace(config, listen=replace(listen, http=http or listen.http, grpc=grpc or listen.grpc))
