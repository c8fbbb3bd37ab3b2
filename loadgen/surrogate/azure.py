"""The two services of the Azure 2023 trace, drawn: a drifting renewal process and an on/off one.

Fitted to reference/traces.md 5.1 and 5.2; the parameters are those of sections 6 and 6.1.
"""

from bisect import bisect_right
from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from loadgen.surrogate.assembly import Drawn, Source, assemble
from loadgen.surrogate.sampling import (
    DAY_S,
    Floats,
    Integers,
    Quantiles,
    Stream,
    autoregressive,
    gamma_gaps,
    nanoseconds,
    tokens,
    warp,
)
from loadgen.trace import CAPPED, Trace

SOURCE = Source(
    family="azure_surrogate",
    licence="CC-BY-4.0 (of the data whose statistics were fitted)",
    citation=(
        'fitted to statistics of: Patel et al., "Splitwise: Efficient generative LLM inference using phase '
        'splitting", ISCA 2024 (Azure LLM inference trace 2023)'
    ),
)

CONV_RATE_PER_S = 5.53
CONV_SHAPE = 0.90
CONV_DRIFT_SD, CONV_DRIFT_RHO, CONV_DRIFT_S = 0.26, 0.91, 60.0
CONV_DAY_PEAK_TO_TROUGH = 3.6  # published for the 2024 week; 2023 shows one evening only

CODE_SIZE = Quantiles((0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (1, 2, 4, 12, 27, 78, 150, 253, 575))
CODE_SILENCE_S = Quantiles(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (1, 1.10, 1.13, 1.70, 3.13, 18.05, 49.2, 87.6, 217)
)
CODE_RATE_PER_S = 13.0
CODE_SHAPE = 0.60
CODE_DRIFT_SD, CODE_DRIFT_RHO, CODE_DRIFT_S = 0.70, 0.85, 1.0
CODE_STRETCH = 1.03  # brings the long-run rate from 2.65/s to the trace's 2.57/s

# Beside the quantiles of section 6: 3.82 % of prompts stand at the wall of 7,434 tokens (trap A5).
CODE_PROMPT = Quantiles(
    (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.96, 0.9618, 0.99, 1),
    (3, 17, 75, 147, 578, 1_469, 2_744, 5_188, 7_303, 7_430, 7_434, 7_436, 7_437),
)
CODE_OUTPUT = Quantiles(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 1),
    (6, 6, 7, 9, 13, 24, 55, 90, 145, 251, 359, 825, 1_899),
)

PROMPT_LEVELS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
OUTPUT_LEVELS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
CONV_BINS = (  # share of rows, prompt quantiles, output quantiles
    (
        0.1343,
        (2, 44, 169, 197, 209, 224, 255),
        (11, 12, 14, 52, 95, 153, 183, 217, 217, 274, 1_000),
    ),
    (
        0.3737,
        (258, 378, 393, 407, 883, 1_002, 1_024),
        (7, 18, 52, 65, 85, 99, 145, 409, 429, 551, 921),
    ),
    (
        0.2468,
        (1_025, 1_037, 1_055, 1_087, 1_124, 1_160, 1_200),
        (28, 49, 117, 375, 394, 406, 429, 498, 560, 667, 1_000),
    ),
    (
        0.1056,
        (1_201, 1_232, 1_312, 1_318, 1_587, 1_874, 2_047),
        (24, 39, 49, 56, 83, 142, 213, 405, 423, 568, 954),
    ),
    (
        0.1188,
        (2_050, 2_255, 2_584, 4_073, 4_082, 4_089, 4_096),
        (15, 27, 30, 36, 46, 68, 101, 139, 161, 238, 757),
    ),
    (
        0.0208,
        (4_097, 4_100, 4_107, 4_140, 4_803, 5_646, 14_050),
        (25, 30, 37, 40, 49, 66, 98, 132, 153, 206, 755),
    ),
)


def conv_rates(stream: Stream, bins: int) -> Floats:
    """Return requests/s of the first ``bins`` minutes, shape (bins,): a drift times a wave of 24 h."""
    drift = autoregressive(stream.normals("drift", bins), CONV_DRIFT_SD, CONV_DRIFT_RHO)
    swing = (CONV_DAY_PEAK_TO_TROUGH - 1.0) / (CONV_DAY_PEAK_TO_TROUGH + 1.0)
    hour_angle = 2.0 * np.pi * np.arange(bins) * (CONV_DRIFT_S / DAY_S)
    rates: Floats = np.exp(drift - CONV_DRIFT_SD**2 / 2.0) * (1.0 - swing * np.cos(hour_angle))
    return CONV_RATE_PER_S * rates


def conv_arrivals(stream: Stream, rows: int) -> Floats:
    """Return arrival times of the conversation service in seconds, shape (rows,)."""
    operational = np.cumsum(gamma_gaps(stream.uniforms("gap", rows), CONV_SHAPE))
    return warp(operational, lambda bins: conv_rates(stream, bins), CONV_DRIFT_S)


def conv_lengths(stream: Stream, rows: int) -> tuple[Floats, Floats]:
    """Return prompt and output tokens of the conversation service: output depends on the prompt's bin."""
    edges = np.cumsum([share for share, _, _ in CONV_BINS])
    bins = np.searchsorted(edges[:-1], stream.uniforms("bin", rows), side="right")
    prompt_luck, output_luck = stream.uniforms("prompt", rows), stream.uniforms("output", rows)
    prompt, output = np.empty(rows), np.empty(rows)
    for index, (_, prompts, outputs) in enumerate(CONV_BINS):
        inside = bins == index
        prompt[inside] = Quantiles(PROMPT_LEVELS, prompts).at(prompt_luck[inside])
        output[inside] = Quantiles(OUTPUT_LEVELS, outputs).at(output_luck[inside])
    return prompt, output


def code_clusters(stream: Stream, rows: int) -> Integers:
    """Return the first row of each cluster of the code service, shape (clusters,)."""
    clusters = rows // 20 + 2
    while True:
        sizes = np.floor(CODE_SIZE.at(stream.uniforms("size", clusters))).astype(np.int64)
        first = np.concatenate([[0], np.cumsum(sizes)])
        if first[-1] >= rows:
            return first[first < rows]
        clusters *= 2


def code_arrivals(stream: Stream, rows: int) -> Floats:
    """Return arrival times of the code service in seconds, shape (rows,).

    Inside a cluster the gaps are Gamma in operational time; the rate that drives it drifts on through the
    silences, so a cluster starts wherever the rate is by then.
    """
    first = code_clusters(stream, rows)
    work = gamma_gaps(stream.uniforms("gap", rows), CODE_SHAPE)
    work[first] = 0.0
    operational = np.cumsum(work)
    silences = CODE_SILENCE_S.at(stream.uniforms("silence", len(first)))
    silences[0] = 0.0
    last = np.append(first[1:], rows) - 1
    seconds = rows // 2 + 4_096
    while True:
        drift = autoregressive(stream.normals("drift", seconds), CODE_DRIFT_SD, CODE_DRIFT_RHO)
        rates = CODE_RATE_PER_S * np.exp(drift - CODE_DRIFT_SD**2 / 2.0)
        passed = np.concatenate([[0.0], np.cumsum(rates * CODE_DRIFT_S)])
        starts = cluster_starts(passed, operational[last] - operational[first], silences)
        if starts is not None:
            break
        seconds *= 2
    shift = np.repeat(starts - operational[first], np.diff(np.append(first, rows)))
    arrivals = np.interp(operational + shift, passed, CODE_DRIFT_S * np.arange(len(passed)))
    return np.asarray(CODE_STRETCH * arrivals, np.float64)


def cluster_starts(passed: Floats, work: Floats, silences: Floats) -> Floats | None:
    """Return the operational time at which each cluster starts, shape (clusters,); None if time runs out.

    ``passed`` is the operational time at each whole second, ``work`` what a cluster needs, ``silences`` the
    seconds before it.
    """
    integral, end = passed.tolist(), len(passed) - 1
    starts, now_s = [], 0.0
    for needed, silence_s in zip(work.tolist(), silences.tolist(), strict=True):
        now_s += silence_s
        second = int(now_s)
        if second >= end:
            return None
        start = integral[second] + (now_s - second) * (integral[second + 1] - integral[second])
        starts.append(start)
        if start + needed >= integral[end]:
            return None
        second = bisect_right(integral, start + needed, second) - 1
        now_s = second + (start + needed - integral[second]) / (integral[second + 1] - integral[second])
    return np.array(starts)


def code_lengths(stream: Stream, rows: int) -> tuple[Floats, Floats]:
    """Return prompt and output tokens of the code service, drawn independently as they are in the trace."""
    return (
        CODE_PROMPT.at(stream.uniforms("prompt", rows)),
        CODE_OUTPUT.at(stream.uniforms("output", rows)),
    )


WALLS = MappingProxyType({"azure_surrogate-conv": (4_083, 4_143), "azure_surrogate-code": (7_434, 1 << 31)})
"""Prompt tokens [low, high) that are flagged as cut by the service, as the reader of the real files does."""

Service = tuple[Callable[[Stream, int], Floats], Callable[[Stream, int], tuple[Floats, Floats]]]

SERVICES: MappingProxyType[str, Service] = MappingProxyType(
    {
        "azure_surrogate-conv": (conv_arrivals, conv_lengths),
        "azure_surrogate-code": (code_arrivals, code_lengths),
    }
)


def draw(name: str, rows: int, seed: int) -> Trace:
    """Draw ``rows`` requests of the part ``name`` (a key of SERVICES); no sessions, no prefix ids."""
    stream = Stream(name, seed)
    arrivals, lengths = SERVICES[name]
    prompt, output = (tokens(column) for column in lengths(stream, rows))
    none = np.full(rows, -1, np.int64)
    low, high = WALLS[name]
    drawn = Drawn(
        arrival_ns=nanoseconds(arrivals(stream, rows)),
        prompt_tokens=prompt,
        output_tokens=output,
        session=none,
        parent=none,
        kind=np.zeros(rows, np.int8),
        kinds=(name.rpartition("-")[2],),
        flags=np.where((prompt >= low) & (prompt < high), CAPPED, 0).astype(np.uint8),
    )
    return assemble(drawn, stream, SOURCE)
