"""The fabric that ties engines into a cluster: who lives, what moves between them, what the dispatcher was told.

A run of one engine without faults needs none of it and keeps its numbers at zero. Units: seconds, bytes, KV blocks.
Sources: reference/multitier.md sections 6 and 8, arXiv 2406.03243 (Llumnix).
"""

from math import ceil, inf
from typing import NamedTuple

import numpy as np

from schedulers.lives import BOOTING as BOOTING
from schedulers.lives import DEAD as DEAD
from schedulers.lives import DRAINING as DRAINING
from schedulers.lives import OFF as OFF
from schedulers.lives import SERVING as SERVING
from schedulers.view import Floats, Ints

NONE, COPYING, STOPPING, STOPPED, POSTED = 0, 1, 2, 3, 4
"""Values of ``Fabric.phase``: no move; a stage is copied while decoding goes on; waiting for the step's end; the
last blocks are copied, nothing decodes; a request without KV is on its way to the other queue."""

DIE, RETURN, DRAIN = 0, 1, 2
"""Kinds of fault."""

LIVE, RECOMPUTE = 0, 1
"""How a running request moves: its KV is copied, or is computed again."""

(
    NEXT_ARRIVAL,
    NEXT_FAULT,
    AHEAD,
    SNAPSHOTS,
    SHOWN,
    SENT,
    MIGRATE_TICKS,
    SCALE_TICKS,
    REFUSALS,
    LOGGED,
    OVER,
) = range(11)
"""Places in ``Fabric.counter``; OVER: 1 when nothing but running out is left, 2 after that."""

NOW, PAUSE = 0, 1
"""Places in ``Fabric.moment_s``: where the loop is, and the moment up to which it plays."""

STARTED, COMMITTED, ABORTED, BOOTS, DRAINS, DEATHS = range(6)
"""Places in ``Fabric.events``."""

REPORT = ("waiting", "running", "blocks_free", "queued_blocks", "pending_tokens", "steps", "prefilled_tokens")
"""Columns of ``Engines`` that a report carries, beside ``step_s`` and the use by tier."""


class Moving(NamedTuple):
    """What a move costs (defaults: reference/multitier.md section 6)."""

    bandwidth_gbps: float = 100.0
    token_bytes: float = 131072.0  # KV bytes a token
    handshake_s: float = 0.015
    resume_s: float = 0.008
    stage_s: float = 0.005
    max_stages: int = 3
    last_blocks: int = 16
    slowdown: float = 1.01  # of steps on both engines while a copy runs
    shared: bool = False  # one link for all moves, or one for each pair
    mode: int = LIVE


class Fault(NamedTuple):
    """Something that happens to an engine at a time."""

    at_s: float
    engine: int
    kind: int  # DIE, RETURN, DRAIN


class Wiring(NamedTuple):
    """How the engines are tied together; the default is what one engine alone needs: nothing."""

    period_s: float = 0.0  # between reports; 0: the dispatcher sees engines as they are
    delay_s: float = 0.0  # a report's way to the dispatcher
    link_s: float = 0.0  # a message's way between engines
    detect_s: float = 0.0  # from a death until the dispatcher knows
    boot_s: float = 60.0
    start: int = 0  # engines that serve from the beginning; 0: all
    least: int = 1  # engines that scaling leaves
    moving: Moving = Moving()
    faults: tuple[Fault, ...] = ()

    @property
    def plain(self) -> bool:
        """True if nothing can happen but arrivals and steps, as far as the wiring goes."""
        return self.period_s == 0.0 and not self.faults and self.start == 0

    def slower(self, factor: float) -> "Wiring":
        """The same wiring where everything takes ``factor`` times as long."""
        moving = self.moving
        return self._replace(
            **{
                name: getattr(self, name) * factor
                for name in ("period_s", "delay_s", "link_s", "detect_s", "boot_s")
            },
            moving=moving._replace(
                bandwidth_gbps=moving.bandwidth_gbps / factor,
                **{name: getattr(moving, name) * factor for name in ("handshake_s", "resume_s", "stage_s")},
            ),
            faults=tuple(fault._replace(at_s=fault.at_s * factor) for fault in self.faults),
        )


class Fabric(NamedTuple):
    """Private state of a cluster, shape (engines,) unless said."""

    life: Ints  # see schedulers.lives
    due_s: Floats  # end of a boot, or when the dispatcher learns of a death
    since_s: Floats  # billed since; inf: not billed
    billed_s: Floats  # closed bills
    slots: Ints  # places in the batch kept for a request on its way in or out
    reserved: Ints  # blocks kept for the same
    pace: Floats  # factor on step times
    request: Ints  # the one that leaves this engine, -1
    target: Ints  # where to, -1
    origin: Ints  # engine whose request comes here, -1
    phase: Ints
    stage: Ints
    copied: Ints  # tokens whose KV is at the target
    seen: Ints  # evictions of the request when the move began
    left_bytes: Floats
    tail_s: Floats  # fixed seconds after the last byte
    marked_s: Floats  # when ``left_bytes`` and ``tail_s`` were true
    until_s: Floats  # end of the phase
    migrations: Ints  # (requests,)
    downtime_s: Floats  # (requests,) sum over its moves
    moved_bytes: Floats  # (1,)
    moving_s: Floats  # (1,) sum of time under move, over moves
    began_s: Floats  # of the move that leaves this engine
    fault_s: Floats  # (faults,)
    fault_engine: Ints
    fault_kind: Ints
    report_due_s: Floats  # (1,) when reports are made next
    snapshot_s: Floats  # (ring,) when each kept report was true
    snapshot: Ints  # (ring, engines, 7) columns of REPORT
    snapshot_step_s: Floats  # (ring, engines)
    snapshot_head: Ints  # (ring, engines)
    snapshot_use: Ints  # (ring, 4, engines, tiers)
    sent: Ints  # ring of requests that the dispatcher sent, and where and when
    sent_to: Ints
    sent_s: Floats
    counter: Ints
    events: Ints
    moment_s: Floats  # (2,) NOW, PAUSE
    log: Floats  # (rows, 5) see sim.log; one row where nobody asked for one


class Terms(NamedTuple):
    """The wiring and the periods of the policies as numbers, for the kernel."""

    period_s: float
    delay_s: float
    link_s: float
    detect_s: float
    boot_s: float
    bytes_per_s: float
    token_bytes: float
    downtime_s: float
    stage_s: float
    slowdown: float
    migrate_period_s: float
    scale_period_s: float
    max_stages: int
    last_blocks: int
    shared: int
    mode: int
    least: int
    migrate: int
    pick: int
    scale: int
    usage: int  # policies read the use of memory by tier


def weave(requests: int, engines: int, tiers: int, wiring: Wiring) -> Fabric:
    """Return the fabric at time zero; the engines that start serve at once, the others are off."""

    def ints(size: int, value: int = 0) -> Ints:
        return np.full(size, value, np.int64)

    def floats(size: int, value: float = 0.0) -> Floats:
        return np.full(size, value, np.float64)

    ring = ceil(wiring.delay_s / wiring.period_s) + 2 if wiring.period_s > 0 else 1
    faults = sorted(wiring.faults)
    sent = requests + 1 if wiring.period_s > 0 else 1
    on = np.arange(engines) < (wiring.start or engines)
    return Fabric(
        life=np.where(on, SERVING, OFF).astype(np.int64), due_s=floats(engines, inf),
        since_s=np.where(on, 0.0, inf), billed_s=floats(engines), slots=ints(engines), reserved=ints(engines),
        pace=floats(engines, 1.0), request=ints(engines, -1), target=ints(engines, -1), origin=ints(engines, -1),
        phase=ints(engines), stage=ints(engines), copied=ints(engines), seen=ints(engines),
        left_bytes=floats(engines), tail_s=floats(engines), marked_s=floats(engines), until_s=floats(engines, inf),
        migrations=ints(requests), downtime_s=floats(requests), moved_bytes=floats(1), moving_s=floats(1),
        began_s=floats(engines),
        fault_s=np.array([fault.at_s for fault in faults], np.float64),
        fault_engine=np.array([fault.engine for fault in faults], np.int64),
        fault_kind=np.array([fault.kind for fault in faults], np.int64),
        report_due_s=floats(1, inf), snapshot_s=floats(ring, -inf),
        snapshot=np.zeros((ring, engines, len(REPORT)), np.int64),
        snapshot_step_s=np.zeros((ring, engines)), snapshot_head=np.zeros((ring, engines), np.int64),
        snapshot_use=np.zeros((ring, 4, engines, tiers), np.int64),
        sent=ints(sent), sent_to=ints(sent), sent_s=floats(sent, -inf), counter=ints(11), events=ints(6),
        moment_s=np.array([0.0, inf]), log=np.zeros((1, 5)),
    )  # fmt: skip


def terms_of(
    wiring: Wiring, migrate_period_s: float, scale_period_s: float, asked: tuple[int, int, int, int]
) -> Terms:
    """Return the wiring as numbers; ``asked`` = whether policies have migrate, pick and scale, and read usage."""
    moving = wiring.moving
    return Terms(
        period_s=float(wiring.period_s),
        delay_s=float(wiring.delay_s),
        link_s=float(wiring.link_s),
        detect_s=float(wiring.detect_s),
        boot_s=float(wiring.boot_s),
        bytes_per_s=moving.bandwidth_gbps * 1e9 / 8.0,
        token_bytes=float(moving.token_bytes),
        downtime_s=float(moving.handshake_s + moving.resume_s),
        stage_s=float(moving.stage_s),
        slowdown=float(moving.slowdown),
        migrate_period_s=float(migrate_period_s),
        scale_period_s=float(scale_period_s),
        max_stages=moving.max_stages,
        last_blocks=moving.last_blocks,
        shared=int(moving.shared),
        mode=moving.mode,
        least=wiring.least,
        migrate=asked[0],
        pick=asked[1],
        scale=asked[2],
        usage=asked[3],
    )
