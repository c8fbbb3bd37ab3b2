"""The four Bailian services, drawn: chat, API, coder and thinking, with turns and prefix ids of 16 tokens.

Fitted to reference/traces.md 5.4 (counts and quantiles published by third parties from the full files).
"""

from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from loadgen.surrogate.assembly import Drawn, Source, assemble
from loadgen.surrogate.prefix import Groups, Layout, kinds_of, lay_out, prefix_ids, templates
from loadgen.surrogate.sampling import (
    Floats,
    Integers,
    Knots,
    Quantiles,
    Stream,
    Tokens,
    autoregressive,
    gamma_gaps,
    nanoseconds,
    ticks,
    tokens,
    warp,
)
from loadgen.surrogate.sessions import (
    Growth,
    Ranking,
    Turns,
    keep,
    latent,
    parents,
    ranking,
    sizes_from_turns,
    summed_within,
    unfold,
)
from loadgen.trace import Trace

SOURCE = Source(
    family="bailian_surrogate",
    licence="Apache-2.0 (of the data whose statistics were fitted)",
    citation=(
        'fitted to statistics of: Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing '
        'KVCache Cache at a Large Cloud Provider", USENIX ATC 2025; clients of part b: Xiang et al., '
        '"ServeGen", arXiv 2505.09999'
    ),
)

BLOCK_TOKENS = 16
GAP_MIN_S = 0.1
WHOLE_PARENT_SHARE = 0.06  # of children that share the parent's last block too
ROOT_SHAPE = 0.90

P50, P80, P95, P99 = 0.0, 0.8416212, 1.6448536, 2.3263479


class Part(NamedTuple):
    """One service. ``turn_rows``: published rows at turns 1, 2, 3-5, 6-10, above 10.

    Gaps between turns were published from files of two hours, which lose the longest of them: for chat and
    coder the law here is some 5 % wider, so that a long trace and one of two hours lie on either side. First
    turns come ``preroll_s`` before the trace does, so that it starts with follow-ups.
    """

    roots_per_s: float
    prompt: Knots
    output: Knots
    turn_rows: tuple[int, int, int, int, int]
    gap_p50_s: float
    gap_sigma: float
    growth: Growth
    kinds: tuple[Groups, ...]
    clients: int = 0  # 0: one renewal process
    preroll_s: float = 7_200.0


# Growth and templates are tuned to the published hits of 5.4 (ideal, same session, five sizes of LRU cache).
PARTS: MappingProxyType[str, Part] = MappingProxyType(
    {
        "bailian_surrogate-a": Part(
            roots_per_s=3.21,
            prompt=Knots((P50, P80, P95, P99), (1_046, 3_680, 8_808, 14_359), 30_000),
            output=Knots((P50, P80, P99), (375, 597, 1_641), 8_192),
            turn_rows=(23_101, 9_012, 8_413, 2_052, 480),
            gap_p50_s=116.1,
            gap_sigma=1.50,
            growth=Growth(follow=-0.57, step=0.18),
            kinds=(
                Groups("text", 0.74, 1_878, 1.09, 0.432),
                Groups("search", 0.19, 482, 1.09, 0.432),
                Groups("image", 0.04, 102, 1.09, 0.432),
                Groups("file", 0.03, 76, 1.09, 0.432),
            ),
        ),
        "bailian_surrogate-b": Part(
            roots_per_s=24.0,
            prompt=Knots((P50, P80, P95, P99), (574, 1_206, 2_491, 6_294), 30_000),
            output=Knots((P50, P80, P99), (39, 79, 1_006), 8_192),
            turn_rows=(172_800, 0, 0, 0, 0),
            gap_p50_s=1.0,
            gap_sigma=1.0,
            growth=Growth(follow=0.0, step=0.35),
            kinds=(
                Groups("api", 0.87, 1_100, 1.5, 0.57),
                Groups("text", 0.13, 245, 1.1, 0.57),
            ),
            clients=40,
            preroll_s=900.0,
        ),
        "bailian_surrogate-coder": Part(
            roots_per_s=3.67,
            prompt=Knots((P50, P80, P95, P99), (4_540, 10_323, 13_406, 14_406), 16_384),
            output=Knots((P50, P80, P99), (469, 1_015, 5_835), 16_384),
            turn_rows=(26_406, 6_693, 6_906, 2_236, 770),
            gap_p50_s=122.4,
            gap_sigma=1.65,
            growth=Growth(follow=-1.35, step=0.27),
            kinds=(Groups("coder", 1.0, 4_754, 1.27, 0.651),),
        ),
        "bailian_surrogate-thinking": Part(
            roots_per_s=1.33,
            prompt=Knots((P50, P80, P95, P99), (3_680, 5_401, 16_221, 24_962), 32_768),
            output=Knots((P50, P80, P99), (1_665, 4_628, 34_529), 38_912),
            turn_rows=(9_612, 509, 503, 159, 29),
            gap_p50_s=28.6,
            gap_sigma=1.71,
            growth=Growth(follow=-0.35, step=0.23),
            kinds=(Groups("thinking", 1.0, 2_533, 1.65, 0.426),),
        ),
    }
)

TURNS_MAX = 120


def geometric(first: float, total: float, turns: int) -> float:
    """Return the ratio r with first x (r + r^2 + ... + r^turns) = total, by bisection."""
    low, high = 0.0, 0.999
    for _ in range(60):
        middle = (low + high) / 2.0
        reached = first * sum(middle**k for k in range(1, turns + 1))
        low, high = (middle, high) if reached < total else (low, middle)
    return low


def rows_by_turn(published: tuple[int, int, int, int, int]) -> Floats:
    """Return expected rows at turn 1, 2, ..., shape (TURNS_MAX,): geometric inside the published classes."""
    rows = [float(published[0]), float(published[1])]
    for total, turns in zip(published[2:], (3, 5, TURNS_MAX - 10), strict=True):
        ratio, last = geometric(rows[-1], total, turns), rows[-1]
        rows += [last * ratio**k for k in range(1, turns + 1)]
    return np.array(rows)


# --- arrivals of first turns -------------------------------------------------------------------------------

CLIENT_SHARES = (0.160, 0.072, 0.066, 0.066, 0.063, 0.054, 0.054, 0.044, 0.026, 0.026, 0.023, 0.022)
CLIENTS_CARRY = 0.905
CLIENT_TAIL = 1.1
CLIENT_CV = Quantiles((0, 0.1, 0.5, 0.9, 1), (0.5, 0.70, 1.17, 4.3, 6.0))
CLIENT_GAMMA_SHARE = 0.79
SERVICE_DRIFT_SD, SERVICE_DRIFT_RHO, SERVICE_DRIFT_S = 0.39, 0.88, 600.0


def client_shares(clients: int) -> Floats:
    """Return each client's share of the requests, largest first, shape (clients,); they add up to 1."""
    known = np.array(CLIENT_SHARES)
    tail = np.arange(len(known) + 1, clients + 1, dtype=np.float64) ** -CLIENT_TAIL
    shares = np.concatenate([known, tail * (CLIENTS_CARRY - known.sum()) / tail.sum()])
    return np.asarray(shares / shares.sum(), np.float64)


def weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution whose sd/mean is ``cv``."""
    shapes = np.exp(np.linspace(np.log(0.2), np.log(5.0), 500))
    squares = np.exp(gammaln(1.0 + 2.0 / shapes) - 2.0 * gammaln(1.0 + 1.0 / shapes)) - 1.0
    return float(np.interp(-np.log(cv), -0.5 * np.log(squares), shapes))


def client_gaps(stream: Stream, client: int, cv: float, gaps: int) -> Floats:
    """Return gaps of mean 1 of one client, shape (gaps,): Gamma or Weibull, by the client's own draw."""
    uniforms = stream.uniforms(f"gap of client {client}", gaps)
    if stream.uniforms("client law", client + 1)[client] < CLIENT_GAMMA_SHARE:
        return gamma_gaps(uniforms, 1.0 / cv**2)
    shape = weibull_shape(cv)
    drawn: Floats = (-np.log(uniforms)) ** (1.0 / shape) / np.exp(gammaln(1.0 + 1.0 / shape))
    return drawn


def client_roots(stream: Stream, part: Part, roots: int) -> Floats:
    """Return arrival times of all clients together, in seconds from the start of the pre-roll, sorted.

    They are complete up to the last one.
    """

    def rates(bins: int) -> Floats:
        drift = autoregressive(stream.normals("drift", bins), SERVICE_DRIFT_SD, SERVICE_DRIFT_RHO)
        return np.asarray(part.roots_per_s * np.exp(drift - SERVICE_DRIFT_SD**2 / 2.0), np.float64)

    cvs = CLIENT_CV.at(stream.uniforms("client cv", part.clients))
    operational = []
    for client, share in enumerate(client_shares(part.clients)):
        gaps = partial(client_gaps, stream, client, float(cvs[client]))
        operational.append(ticks(gaps, roots * share) / share)
    return warp(np.sort(np.concatenate(operational)), rates, SERVICE_DRIFT_S)


def renewal_roots(stream: Stream, part: Part, roots: int) -> Floats:
    """Return ``roots`` arrival times of one Gamma renewal process, in seconds from the pre-roll's start."""
    gaps = gamma_gaps(stream.uniforms("gap", roots), ROOT_SHAPE)
    return np.asarray(np.cumsum(gaps) / part.roots_per_s, np.float64)


# --- rows --------------------------------------------------------------------------------------------------


def draw(name: str, rows: int, seed: int) -> Trace:
    """Draw ``rows`` requests of the part ``name`` (a key of PARTS), with sessions and prefix ids."""
    stream, part = Stream(name, seed), PARTS[name]
    turn_rows = rows_by_turn(part.turn_rows)
    per_root = float(turn_rows.sum() / turn_rows[0])
    roots = int(1.02 * rows / per_root + 2.0 * part.preroll_s * part.roots_per_s) + 256
    while True:
        turns, times_ns, order = schedule(stream, part, roots)
        before = int(np.searchsorted(times_ns[order], 0))
        if len(order) >= before + rows:
            break
        roots = roots * 3 // 2
    prompt = prompts(stream, name, turns)
    layout, kind = prefixes(stream, part, turns, order, prompt)
    kept = keep(order, slice(before, before + rows), turns.session, parents(turns))
    offsets, ids = prefix_ids(kept.rows, turns, layout)
    output = tokens(part.output.at(stream.normals("output", len(prompt))))
    drawn = Drawn(
        arrival_ns=times_ns[kept.rows],
        prompt_tokens=prompt[kept.rows],
        output_tokens=output[kept.rows],
        session=kept.session,
        parent=kept.parent,
        kind=kind[turns.session[kept.rows]],
        kinds=tuple(group.name for group in part.kinds),
        flags=kept.flags,
        block_tokens=BLOCK_TOKENS,
        hash_offsets=offsets,
        hash_ids=ids,
    )
    return assemble(drawn, stream, SOURCE)


def schedule(stream: Stream, part: Part, roots: int) -> tuple[Turns, Integers, Integers]:
    """Return turns, their times in ns from the trace's start, and the rows in time order as far as complete.

    Times before 0 are the pre-roll's. Nothing after the last first turn is complete.
    """
    starts_s = (client_roots if part.clients else renewal_roots)(stream, part, roots) - part.preroll_s
    turns = unfold(sizes_from_turns(stream.uniforms("size", len(starts_s)), rows_by_turn(part.turn_rows)))
    scores = stream.normals("think", len(turns.turn))
    gaps_s = np.maximum(part.gap_p50_s * np.exp(part.gap_sigma * scores), GAP_MIN_S)
    times_ns = nanoseconds(starts_s[turns.session] + summed_within(gaps_s, turns))
    order = np.argsort(times_ns, kind="stable")
    complete = int(np.searchsorted(times_ns[order], nanoseconds(starts_s[-1:])[0], side="right"))
    return turns, times_ns, order[:complete]


@cache
def ranks_of(name: str, part: Part) -> Ranking:
    """Return the ranking of the part ``name``, the same for every seed."""
    return ranking(name, rows_by_turn(part.turn_rows), part.growth)


def prompts(stream: Stream, name: str, turns: Turns) -> Tokens:
    """Return prompt tokens of each row in session order, shape (rows,): they never fall within a session."""
    part = PARTS[name]
    if part.clients:
        return tokens(part.prompt.at(stream.normals("prompt level", len(turns.turn))))
    return tokens(part.prompt.at(ranks_of(name, part).at(latent(stream, turns, part.growth))))


def prefixes(
    stream: Stream, part: Part, turns: Turns, order: Integers, prompt: Tokens
) -> tuple[Layout, npt.NDArray[np.int8]]:
    """Return where each row's ids come from, and each session's kind; new ids are numbered in time order."""
    kind = kinds_of(stream, part.kinds, len(turns.first))
    number, cover = templates(stream, part.kinds, kind)
    blocks = -(-prompt.astype(np.int64) // BLOCK_TOKENS)
    whole = stream.uniforms("whole parent", len(blocks)) < WHOLE_PARENT_SHARE
    shared = lay_out(blocks, cover, whole, turns)
    longest = -(-int(part.prompt.cap) // BLOCK_TOKENS)
    fresh = np.zeros(len(blocks), np.int64)
    new = (blocks - shared)[order]
    reserved = longest * sum(group.groups for group in part.kinds)
    fresh[order] = reserved + np.cumsum(new) - new
    return Layout(blocks, shared, (number * longest)[turns.session], fresh), kind
