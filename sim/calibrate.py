"""Capacity: what a fleet completes a second when a window's requests all wait at its door.

The saturated run uses the neutral policy ``fcfs-chunked``; C is taken over the middle 80 % of completions, so
that neither the ramp nor the tail counts. One line a (window, fleet) is frozen with a digest and never
measured again: every scheduler meets the same arrivals (reference traces, section 9; statistics, section 12).
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.demand import Demand, prepare
from loadgen.plan import Plan
from loadgen.plan_cluster import Cluster, reserve_of
from loadgen.window import Window
from schedulers.errors import InputError
from schedulers.load import load
from schedulers.view import Floats, Tiers
from sim import profile
from sim.fabric import LIVE, RECOMPUTE, Moving, Wiring
from sim.run import Setup, simulate

NEUTRAL = "fcfs-chunked"
MIDDLE = (0.1, 0.9)
"""Share of completions over which capacity is measured."""

FILE = "calibration.jsonl"


@dataclass(frozen=True)
class Capacity:
    """One line of calibration.jsonl."""

    window_id: str
    window_sha256: str
    fleet: str  # canonical JSON of the fleet with its coefficients
    policy: str
    rows: int
    served: int  # requests that fit the fleet
    span_s: float  # of the window as recorded
    capacity_per_s: float

    @property
    def sha256(self) -> str:
        """Digest over the other fields."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def setup_of(plan: Plan) -> Setup:
    """Return the plan's fleet with coefficients, memory, wiring and reserve; raises InputError for a bad profile."""
    fleet, known = plan.fleet, profile.load(plan.fleet.profile)
    tiers = Tiers(*(np.array([getattr(tier, name) for tier in plan.tiers]) for name in Tiers._fields))
    blocks = fleet.blocks or known.blocks(fleet.block_tokens)
    return Setup(
        engines=fleet.engines,
        sequences_max=fleet.sequences_max,
        budget_max=fleet.budget_max,
        block_tokens=fleet.block_tokens,
        blocks=blocks,
        model_tokens=fleet.model_tokens,
        costs=known.costs,
        tiers=tiers,
        prefix_cache=fleet.prefix_cache,
        wiring=wiring_of(plan.cluster, known.memory.kv_bytes_per_token),
        reserve=None if plan.atoms is None else reserve_of(plan.atoms, blocks),
    )


def wiring_of(cluster: Cluster | None, token_bytes: float) -> Wiring:
    """Return how a plan ties its engines together; ``token_bytes`` are the profile's KV bytes a token."""
    if cluster is None:
        return Wiring()
    moving = Moving(
        bandwidth_gbps=cluster.bandwidth_gbps,
        token_bytes=float(cluster.token_bytes or token_bytes),
        slowdown=cluster.slowdown,
        shared=cluster.shared,
        mode=RECOMPUTE if cluster.recompute else LIVE,
    )
    times = {name: getattr(cluster, name) for name in ("period_s", "delay_s", "link_s", "detect_s", "boot_s")}
    return Wiring(**times, start=cluster.start, least=cluster.least, moving=moving)


def fleet_json(plan: Plan, setup: Setup) -> str:
    """Return the fleet as canonical JSON, with the resolved blocks, step-time coefficients and wiring."""
    told = asdict(plan.fleet) | {
        "blocks": np.asarray(setup.blocks).tolist(),  # a list where engines differ
        "costs": np.asarray(setup.costs, float).tolist(),
    }
    if plan.cluster is not None:
        told["cluster"] = asdict(plan.cluster) | {"token_bytes": setup.wiring.moving.token_bytes}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def saturate(demand: Demand) -> Demand:
    """Return the demand with every request present at time 0, in the window's order."""
    return demand._replace(arrival_s=np.zeros_like(demand.arrival_s))


def completions_per_s(finished_s: Floats) -> float:
    """Return completions a second over the middle 80 % of completions; 0 where there are too few."""
    ends = np.sort(finished_s[~np.isnan(finished_s)])
    if len(ends) < 2:
        return 0.0
    low = int(MIDDLE[0] * (len(ends) - 1))
    high = max(low + 1, int(MIDDLE[1] * (len(ends) - 1)))
    took_s = float(ends[high] - ends[low])
    return (high - low) / took_s if took_s > 0.0 else 0.0


def measure(window: Window, plan: Plan, setup: Setup) -> Capacity:
    """Return the capacity of the plan's fleet on this window; nothing is cached (reference traces, section 9).

    Raises InputError naming the window if none of its requests fits the fleet or all arrive at one time.
    """
    bare = setup._replace(prefix_cache=False, wiring=Wiring(), reserve=None)  # capacity is the engines' alone
    outcome = simulate(saturate(prepare(window, plan, 1.0)), load(NEUTRAL), bare)
    capacity = Capacity(
        window_id=window.line.id,
        window_sha256=window.line.content_sha256,
        fleet=fleet_json(plan, setup),
        policy=NEUTRAL,
        rows=len(window.arrival_s),
        served=int(np.sum(~np.isnan(outcome.facts.finished_s))),
        span_s=float(window.arrival_s[-1] - window.arrival_s[0]),
        capacity_per_s=completions_per_s(outcome.facts.finished_s),
    )
    if not (capacity.capacity_per_s > 0.0 and capacity.span_s > 0.0):
        raise InputError(
            f"window {capacity.window_id} can't be calibrated: {capacity.served} of {capacity.rows} requests "
            f"fit the fleet, arrivals span {capacity.span_s:g} s",
            where=window.line.id,
            fix=remedy(capacity),
        )
    return capacity


def remedy(capacity: Capacity) -> str:
    """Say what would let a window be calibrated."""
    if capacity.served < capacity.rows and capacity.served < 2:
        return "use a fleet with more memory or a longer model_tokens"
    if capacity.span_s == 0.0:
        return "use windows whose requests arrive at different times"
    return "use windows with more requests, or longer ones: all of these end in one step"


def write_calibration(folder: Path, capacities: Iterable[Capacity]) -> str:
    """Write calibration.jsonl atomically, in window order; return its sha256. Raises InputError."""
    ordered = sorted(capacities, key=lambda capacity: (capacity.window_id, capacity.fleet))
    text = "".join(json.dumps(asdict(one) | {"sha256": one.sha256}, sort_keys=True) + "\n" for one in ordered)
    write_text(Path(folder) / FILE, text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_calibration(folder: Path) -> tuple[dict[tuple[str, str], Capacity], str]:
    """Return (window sha256, fleet) -> capacity and the file's sha256; empty and "" if there is no file.

    Raises InputError naming the line whose digest does not match.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return {}, ""
    text = path.read_text(encoding="utf-8")
    found: dict[tuple[str, str], Capacity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            table: dict[str, Any] = json.loads(line)
            told = table.pop("sha256")
            capacity = Capacity(**table)
        except (ValueError, TypeError, KeyError, AttributeError):
            told, capacity = "", None
        if capacity is None or capacity.sha256 != told:
            raise InputError(
                "a calibration line was changed or damaged",
                where=f"{path}:{number}",
                fix="restore the file, or delete it and use a new --out: runs belong to one calibration",
            )
        found[capacity.window_sha256, capacity.fleet] = capacity
    return found, hashlib.sha256(text.encode()).hexdigest()


def missing(lines: Sequence[Any], fleet: str, known: dict[tuple[str, str], Capacity]) -> list[Any]:
    """Return the manifest lines whose capacity on this fleet is not known yet."""
    return [line for line in lines if (line.content_sha256, fleet) not in known]


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically; raises InputError naming it if the disk is full or the folder closed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        raise InputError(
            "the disk is full" if full else f"can't write: {error.strerror or error}",
            where=str(path),
            fix="free some space and run the same command again"
            if full
            else "name a folder that you may write to",
        ) from error
    finally:
        with suppress(OSError):  # what could not be made need not be removed
            temporary.unlink(missing_ok=True)
