"""BurstGPT's campus service, drawn: days that drift, scripts that come and go, and conversations.

Fitted to reference/traces.md 5.3 and 5.4 (part 1 for rates and classes, part 3 for sessions); how many
scripts there are and how long they run is our own choice, as nothing is published about them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, pdtr

from loadgen.surrogate.assembly import Drawn, Source, assemble
from loadgen.surrogate.sampling import (
    DAY_S,
    Floats,
    Integers,
    Knots,
    Quantiles,
    Stream,
    autoregressive,
    gamma_gaps,
    ticks,
    tokens,
    warp,
)
from loadgen.surrogate.sessions import (
    Growth,
    Turns,
    keep,
    latent,
    parents,
    ranking,
    sizes_from_turns,
    summed_within,
    unfold,
)
from loadgen.trace import DITHERED, Trace

NAME = "burstgpt_surrogate"
SOURCE = Source(
    family=NAME,
    licence="CC-BY-4.0 (of the data whose statistics were fitted)",
    citation=(
        'fitted to statistics of: Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM '
        'Serving Systems", KDD 2025'
    ),
)

RATE_PER_S = 23_438 / DAY_S
HOUR_S = 3_600.0
HOURS = (
    *(0.96, 0.91, 0.59, 0.53, 0.38, 0.35, 0.20, 0.16, 0.18, 0.43, 0.90, 1.32),
    *(1.79, 1.54, 1.84, 1.43, 1.51, 1.39, 1.21, 1.61, 1.39, 1.20, 1.16, 1.05),
)
"""Requests an hour of the day over their mean."""

# The published log counts of days have sd 1.13 and lag-1 correlation .56. Scripts add noise of their own to
# a day, so what drives them drifts a little less and remembers a little more.
DAY_SD, DAY_RHO = 0.93, 0.72
PREROLL_DAYS = 2

SCRIPT_SHARE = 0.6  # of API rows
SCRIPT_PACE_PER_S = Quantiles((0, 1), (0.5, 10.0))
SCRIPT_SPAN_S = Quantiles((0, 1), (60.0, 3_600.0))
SCRIPT_JITTER = 0.3  # of a period
SCRIPT_PROMPT_SPREAD, SCRIPT_OUTPUT_SPREAD = 0.12, 0.02
GOLDEN = (0.7548776662466927, 0.5698402909980532)  # plastic numbers: even cover of the unit square

API_SHAPE = 0.5


class Class(NamedTuple):
    """One class of rows: share, then median and sigma of log-normal prompt and output, and what caps them."""

    name: str
    share: float
    prompt: tuple[float, float]
    output: tuple[float, float]
    prompt_cap: float


CLASSES = (
    Class("chatgpt-api", 0.774, (218, 1.79), (26, 1.54), 16_384),
    Class("gpt-4-api", 0.118, (460, 0.68), (40, 0.0), 8_192),
    Class("chatgpt-conversation", 0.072, (481, 0.97), (229, 0.67), 16_384),
    Class("gpt-4-conversation", 0.036, (520, 0.99), (240, 0.65), 8_192),
)
OUTPUT_CAP = 4_096
CHAT = 2  # first class of conversations
API_SHARE = CLASSES[0].share + CLASSES[1].share
GPT4_API, GPT4_LONG_SHARE = 1, 0.2
GPT4_SHORT, GPT4_LONG = (34.1, 0.5), (1_038.0, 0.25)  # median and sigma; together p50 40, p90 1,038

TURNS = Quantiles(
    (0, 0.355, 0.3551, 0.56, 0.75, 0.9, 0.95, 0.99, 0.999, 1),
    (1, 1.99, 2, 3, 4.4, 9.2, 14, 31, 90, 437),
)
THINK_S = Knots((-1.2815516, 0.0, 1.2815516, 2.3263479), (17, 124, 2_331, 78_782), 604_800, 1.55)
GROWTH = Growth(follow=0.0, step=0.6, resend=0.6)


class Rows(NamedTuple):
    """Rows of one origin, shape (n,) each, in an order of their own; times in seconds from the pre-roll."""

    times_s: Floats
    prompt: Floats
    output: Floats
    kind: npt.NDArray[np.int8]
    session: Integers
    parent: Integers


class Scripts(NamedTuple):
    """Campaigns of one prompt template each, in the order of their days, shape (campaigns,)."""

    start_s: Floats
    pace_per_s: Floats
    rows: Integers


def day_factors(stream: Stream, days: int) -> Floats:
    """Return the rate of each day over the mean, shape (days,)."""
    drift = autoregressive(stream.normals("day", days), DAY_SD, DAY_RHO)
    return np.asarray(np.exp(drift - DAY_SD**2 / 2.0), np.float64)


def hour_rates(stream: Stream, hours: int) -> Floats:
    """Return the rate of each hour over the mean, shape (hours,)."""
    factors = day_factors(stream, hours // 24 + 1)
    curve = np.array(HOURS) / np.mean(HOURS)
    return np.asarray((factors[:, None] * curve).ravel()[:hours], np.float64)


def scripts(stream: Stream, days: int) -> Scripts:
    """Return the campaigns that start in the first ``days`` days."""
    a_day = SCRIPT_SHARE * API_SHARE * RATE_PER_S * DAY_S / script_rows()
    counts = poisson(stream.uniforms("scripts", days), a_day * day_factors(stream, days))
    number = int(counts.sum())
    day = np.repeat(np.arange(days), counts)
    curve = np.concatenate([[0.0], np.cumsum(HOURS)])
    hour = np.interp(stream.uniforms("script start", number), curve / curve[-1], np.arange(25.0))
    pace = SCRIPT_PACE_PER_S.at(stream.uniforms("script pace", number))
    rows = np.floor(pace * SCRIPT_SPAN_S.at(stream.uniforms("script span", number))).astype(np.int64)
    return Scripts(day * DAY_S + hour * HOUR_S, pace, rows)


def script_rows() -> float:
    """Return the mean number of rows of a campaign: both laws are log-uniform."""
    (slow, fast), (short, long) = SCRIPT_PACE_PER_S.values, SCRIPT_SPAN_S.values
    return float((fast - slow) / np.log(fast / slow) * (long - short) / np.log(long / short))


def poisson(uniforms: Floats, means: Floats) -> Integers:
    """Return Poisson counts by inversion, same shape."""
    counts = np.zeros(len(uniforms), np.int64)
    below = pdtr(counts, means) < uniforms
    while below.any():
        counts[below] += 1
        below = pdtr(counts, means) < uniforms
    return counts


def log_normal(scores: Floats, law: tuple[float, float], cap: float) -> Floats:
    """Return values of a log-normal law (median, sigma) at normal ``scores``, at most ``cap``, same shape."""
    return np.asarray(np.minimum(law[0] * np.exp(law[1] * scores), cap), np.float64)


def prompts_of(kind: npt.NDArray[np.int8], scores: Floats) -> Floats:
    """Return prompt tokens of rows of these classes at normal ``scores``, same shape."""
    drawn = np.empty(len(kind))
    for index, one in enumerate(CLASSES):
        inside = kind == index
        drawn[inside] = log_normal(scores[inside], one.prompt, one.prompt_cap)
    return drawn


def outputs_of(kind: npt.NDArray[np.int8], scores: Floats, long: Floats) -> Floats:
    """Return output tokens at normal ``scores``; ``long`` (uniforms) chooses GPT-4's long answers."""
    drawn = np.empty(len(kind))
    for index, one in enumerate(CLASSES):
        inside = kind == index
        drawn[inside] = log_normal(scores[inside], one.output, OUTPUT_CAP)
    for law, chosen in ((GPT4_LONG, long < GPT4_LONG_SHARE), (GPT4_SHORT, long >= GPT4_LONG_SHARE)):
        inside = (kind == GPT4_API) & chosen
        drawn[inside] = log_normal(scores[inside], law, OUTPUT_CAP)
    return drawn


def api_kinds(uniforms: Floats) -> npt.NDArray[np.int8]:
    """Return the class of API rows, same shape."""
    return (uniforms >= CLASSES[0].share / API_SHARE).astype(np.int8)


def script_templates(stream: Stream, number: int) -> tuple[npt.NDArray[np.int8], Floats, Floats]:
    """Return class, prompt and output tokens of the templates of the first campaigns, shape (number,)."""
    kind = api_kinds(stream.uniforms("script class", number))
    prompt = prompts_of(kind, even_normals(stream, 0, number))
    output = outputs_of(kind, even_normals(stream, 1, number), stream.uniforms("script long", number))
    return kind, prompt, output


def script_calls(stream: Stream, days: int) -> Rows:
    """Return the rows of all campaigns: one template each, at a steady pace."""
    found = scripts(stream, days)
    number, rows = len(found.rows), int(found.rows.sum())
    of = np.repeat(np.arange(number), found.rows)
    step = np.arange(rows) - np.repeat(np.cumsum(found.rows) - found.rows, found.rows)
    jitter = SCRIPT_JITTER * stream.uniforms("script jitter", rows)
    times_s = found.start_s[of] + (step + jitter) / found.pace_per_s[of]
    kind, prompt, output = script_templates(stream, number)
    wobble = 2.0 * stream.uniforms("script prompt", rows) - 1.0
    answer = 2.0 * stream.uniforms("script output", rows) - 1.0
    none = np.full(rows, -1, np.int64)
    return Rows(
        times_s,
        prompt[of] * (1.0 + SCRIPT_PROMPT_SPREAD * wobble),
        output[of] * (1.0 + SCRIPT_OUTPUT_SPREAD * answer),
        kind[of],
        none,
        none,
    )


def even_normals(stream: Stream, column: int, rows: int) -> Floats:
    """Return normal scores that cover their law evenly from row to row, from a drawn start, shape (rows,)."""
    start = stream.uniforms(f"script template {column}", 1)[0]
    even = np.mod(start + GOLDEN[column] * np.arange(rows), 1.0)
    return np.asarray(ndtri(np.clip(even, 1e-9, 1.0 - 1e-9)), np.float64)


def single_calls(stream: Stream, days: int) -> Rows:
    """Return API rows that are of no campaign."""
    rate = (1.0 - SCRIPT_SHARE) * API_SHARE * RATE_PER_S
    times_s = arrivals(stream, days, "call", rate, API_SHAPE)
    rows = len(times_s)
    kind = api_kinds(stream.uniforms("call class", rows))
    prompt = prompts_of(kind, stream.normals("call prompt", rows))
    output = outputs_of(kind, stream.normals("call output", rows), stream.uniforms("call long", rows))
    none = np.full(rows, -1, np.int64)
    return Rows(times_s, prompt, output, kind, none, none)


def turn_rows() -> Floats:
    """Return expected rows at turn 1, 2, ... of a conversation, per conversation."""
    turns = np.arange(1, int(TURNS.values[-1]))
    return np.asarray(1.0 - np.interp(np.log(turns), np.log(TURNS.values), TURNS.levels), np.float64)


def conversations(stream: Stream, days: int) -> Rows:
    """Return conversation rows: sessions of turns with think times, history resent in most."""
    expected = turn_rows()
    rate = (1.0 - API_SHARE) * RATE_PER_S / float(expected.sum())
    starts_s = arrivals(stream, days, "conversation", rate, 1.0)
    turns: Turns = unfold(sizes_from_turns(stream.uniforms("size", len(starts_s)), expected))
    rows = len(turns.turn)
    think_s = THINK_S.at(stream.normals("think", rows))
    times_s = starts_s[turns.session] + summed_within(think_s, turns)
    gpt4 = stream.uniforms("conversation class", len(starts_s)) >= CLASSES[CHAT].share / (1.0 - API_SHARE)
    kind = (CHAT + gpt4[turns.session]).astype(np.int8)
    scores = ranking(NAME, expected, GROWTH).at(latent(stream, turns, GROWTH))
    output = outputs_of(kind, stream.normals("output", rows), np.ones(rows))
    return Rows(times_s, prompts_of(kind, scores), output, kind, turns.session, parents(turns))


def arrivals(stream: Stream, days: int, column: str, rate_per_s: float, shape: float) -> Floats:
    """Return times of a Gamma renewal process that follows days and hours, over ``days`` days, in seconds."""
    hours = 24 * days
    until = rate_per_s * HOUR_S * float(np.cumsum(hour_rates(stream, hours))[-1])

    def gaps(number: int) -> Floats:
        return gamma_gaps(stream.uniforms(f"{column} gap", number), shape)

    operational = ticks(gaps, until)
    return warp(operational, lambda bins: rate_per_s * hour_rates(stream, bins), HOUR_S)


def expected_by_day(stream: Stream, days: int) -> Floats:
    """Return how many rows each day is to have, shape (days,): its campaigns, and the mean of all else."""
    steady = (1.0 - SCRIPT_SHARE * API_SHARE) * RATE_PER_S * DAY_S * day_factors(stream, days)
    found = scripts(stream, days)
    started = np.bincount((found.start_s // DAY_S).astype(np.int64), found.rows, days)
    return np.asarray(steady + started, np.float64)


def days_for(stream: Stream, rows: int) -> int:
    """Return after how many days, pre-roll included, about ``rows`` rows and a tenth more have come."""
    days = 64
    while True:
        come = np.cumsum(expected_by_day(stream, days)[PREROLL_DAYS:])
        enough = np.flatnonzero(come > 1.1 * rows + 1_000)
        if len(enough):
            return int(enough[0]) + PREROLL_DAYS + 1
        days *= 2


def draw(name: str, rows: int, seed: int) -> Trace:
    """Draw ``rows`` requests (``name`` is the source's only part), with sessions for conversations.

    Times are whole seconds as in the real file, ties spread as its reader spreads them (trap B2).
    """
    stream = Stream(name, seed)
    days = days_for(stream, rows)
    while True:
        drawn = together(
            [single_calls(stream, days), script_calls(stream, days), conversations(stream, days)]
        )
        order = np.argsort(drawn.times_s, kind="stable")
        first, last = np.searchsorted(drawn.times_s[order], (PREROLL_DAYS * DAY_S, days * DAY_S))
        if last - first >= rows:
            break
        days += days // 4 + 1
    part = slice(int(first), int(first) + rows)
    kept = keep(order, part, drawn.session, drawn.parent)
    times_ns = dithered(stream, drawn.times_s[order][:last])[part]
    return assemble(
        Drawn(
            arrival_ns=times_ns - round(PREROLL_DAYS * DAY_S) * 10**9,
            prompt_tokens=tokens(drawn.prompt[kept.rows]),
            output_tokens=tokens(drawn.output[kept.rows]),
            session=kept.session,
            parent=kept.parent,
            kind=drawn.kind[kept.rows],
            kinds=tuple(one.name for one in CLASSES),
            flags=(kept.flags | DITHERED).astype(np.uint8),
        ),
        stream,
        SOURCE,
    )


def together(origins: list[Rows]) -> Rows:
    """Return all rows one origin after the other; parents are moved along (only the last has any)."""
    before = sum(len(origin.times_s) for origin in origins[:-1])
    last = origins[-1]
    moved = last._replace(parent=np.where(last.parent >= 0, last.parent + before, -1))
    return Rows(*(np.concatenate(columns) for columns in zip(*origins[:-1], moved, strict=True)))


def dithered(stream: Stream, times_s: Floats) -> Integers:
    """Return sorted times floored to the second and spread: row i of k in a second at (i + u)/k, in ns.

    The last second may be cut short, so its rows are not final.
    """
    second = np.floor(times_s).astype(np.int64)
    _, first, size = np.unique(second, return_index=True, return_counts=True)
    place = np.arange(len(second)) - np.repeat(first, size)
    offset = (place + stream.uniforms("dither", len(second))) / np.repeat(size, size)
    microseconds = np.minimum(np.floor(offset * 1e6).astype(np.int64), 999_999)
    return np.asarray((second * 1_000_000 + microseconds) * 1_000, np.int64)
