"""The rig that runs one window: the view that policies see, and the private state that they must not."""

from collections.abc import Callable
from typing import NamedTuple

from schedulers.view import Floats, Ints, View
from sim.fabric import Fabric, Terms

Batch = Callable[[View, Ints, int, float, Floats], None]
"""A hook over many requests: ``(view, ids, count, now_s, out)`` fills ``out[:count]``."""

Search = Callable[[View, int, Ints, int, float], int]
"""``preempt`` over many: ``(view, waiting, ids, count, now_s)`` is the first place that says 1, or -1."""

Notice = Callable[[View, Ints, int, int, float], None]
"""``observe`` over many: ``(view, ids, count, event, now_s)``."""

START_S, END_S, PREFILL, DECODES, ATTENTION, KV = 0, 1, 2, 3, 4, 5
ACTIVE, EVICTED, IDLE, LEAST, SLACK = 6, 7, 8, 9, 10
"""Columns of ``Plant.flight``, the step under way: its span and load; whether it runs, evictions and idle
tries while it was formed; the fewest tokens a decode has left to make (LEAST) and free in its blocks
(SLACK)."""

BUSY_S, BATCH_AREA, KV_AREA, KV_PEAK, RECOMPUTED = 0, 1, 2, 3, 4
PREFILLED, DECODED, QUEUE_SUM, QUEUE_PEAK, ARRIVED, THROWN, CACHED = 5, 6, 7, 8, 9, 10, 11
"""Columns of ``Plant.tally``: sums over the run, a row an engine; THROWN: evictions since the last token;
CACHED: tokens found in the prefix cache."""

FINE, STALL, NOT_A_NUMBER, NO_ENGINE, BROKEN, THRASH = range(6)
"""Codes in ``Plant.error[0]``; then the hook or invariant, the request and the engine."""

ORDER, ADMIT, SERVE, BUDGET, EVICT_HOOK, PREEMPT, WAKE = 0, 1, 2, 3, 4, 5, 6
DISPATCH, CLUSTER_ADMIT, CLUSTER_ORDER, MIGRATE, PICK, SCALE = 7, 8, 9, 10, 11, 12
"""Hooks as named in ``Plant.error[1]``."""

REASON_LENGTH, REASON_POLICY, REASON_LOST = 1, 2, 6
"""Places in ``loadgen.result.REASONS``."""


class Plant(NamedTuple):
    """Private state of the engines, shape (n,) a request and (engines, k) an engine."""

    output_tokens: Ints  # the truth
    outcome: Ints  # -1 before the end, then loadgen.result's codes
    reason: Ints
    dispatched_s: Floats
    started_s: Floats
    finished_s: Floats
    longest_gap_s: Floats
    order_key: Floats
    serve_key: Floats
    evict_key: Floats
    chunk: Ints  # tokens given in the step under way
    kv_tokens: Ints  # (engines,) tokens whose KV the batch holds
    ids: Ints  # scratch
    spare: Ints  # scratch for merging
    keys: Floats  # scratch
    clock_s: Floats  # (engines,) when the engine may form its next step
    wake_s: Floats  # (engines,) when the order of the queue must be read again
    flight: Floats
    tally: Floats
    gaps: Ints  # histogram of gaps between tokens
    held: Ints  # central queue of the dispatcher: held[:held_count[0]]
    held_count: Ints  # (1,)
    error: Ints  # (4,)


class Cache(NamedTuple):
    """Prefix caches of the engines and what the dispatcher knows of them; see ``sim.prefix``.

    Blocks and names are numbers. Shapes are (engines, blocks) unless said; all are of one place where nothing
    is cached.
    """

    after: Ints  # (engines, blocks + 1) ring of free blocks, the least recently used one after the last place
    before: Ints  # (engines, blocks + 1) the same ring backwards
    holders: Ints  # requests that hold the block
    name: Ints  # what the block can be found by, -1 nothing
    twin_after: Ints  # ring of blocks of one shared name, the oldest first
    twin_before: Ints
    oldest: Ints  # (engines, shared names) one more than the first of that ring, 0: no block has the name
    first: Ints  # (n + 1,) where a request's blocks begin in ``held``
    held: Ints  # flat: blocks of each request; those that it has lost stay, until it gets others
    prefix: Ints  # (n + 1,) where a request's shared prefixes begin in ``ids``
    ids: Ints  # flat, see ``loadgen.prefixes``
    changed: Ints  # (engines,) 1 if what can be found has changed since all the waiting were looked up
    hits: Ints  # (n,) blocks found when last looked up
    live: Ints  # (n,) those of them that others hold
    found_tokens: Ints  # (n,) found when first taken, -1 before
    sent_at: Ints  # (engines, prefixes) value of ``sent_tokens`` when the prefix was last sent there; 0 never
    sent_tokens: Ints  # (engines,) prompt tokens sent so far, known ones left out
    seen: Ints  # (blocks,) scratch of the audit


class Rules(NamedTuple):
    """What the engine policy declares, as numbers: 1 if the hook is there, and its settings."""

    order: int
    admit: int
    serve: int
    budget: int
    evict: int
    preempt: int
    wake: int
    watches: int  # bit mask over events
    skip: int
    chunked: int
    rekey: int
    dynamic: int
    late_key: float  # running requests with this key or more are served after the waiting ones
    watermark: float
    jump: int
    audit: int
    dispatch: int
    cluster_admit: int
    cluster_order: int
    cluster_watches: int
    capacity_tokens: int  # longest prompt + output that one engine can hold
    trace_tokens: int  # tokens of a prefix block of the trace; 0: there is no prefix cache
    prefix: int  # the engine policy reads what is cached
    cluster_prefix: int  # the cluster policy reads what was sent


class Hooks(NamedTuple):
    """The policy's functions over batches; those that are left out are never called."""

    order: Batch
    admit: Batch
    serve: Batch
    budget: Batch
    evict: Batch
    wake: Batch
    dispatch: Batch
    cluster_admit: Batch
    cluster_order: Batch
    migrate: Batch
    pick: Batch
    scale: Batch
    preempt: Search
    observe: Notice
    cluster_observe: Notice


class Rig(NamedTuple):
    """One window on one fleet under one scheduler."""

    known: View  # what the engine policy sees ("view" is a name that numba reserves)
    board: View  # what the policy that dispatches sees: the same tables with its own memo and parameters
    gate: View  # what the one sees that admits to the cluster; often the same as ``board``, as the next three
    line: View  # ... that orders the central queue
    mover: View  # ... that migrates
    scaler: View  # ... that scales
    watcher: View  # ... that observes
    plant: Plant
    cache: Cache
    fabric: Fabric
    rules: Rules
    terms: Terms
    hooks: Hooks
