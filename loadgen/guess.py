"""Forecasts of output length: what a predictor of a stated quality would have told, drawn with the window.

No published trace has forecasts, so they are made from the truth, as published studies do. A forecast is a
function of the window's frozen columns alone (lengths, classes, ``forecast_luck``): no scheduler, no call and
no order of calls can change it. All are tokens, at least 1.

==================  ====================================================================================
``oracle``          the truth: an upper bound, for controls
``lognormal:SIZE``  truth x a log-normal factor of median 1 whose standard deviation is SIZE of its mean
``bucket:N``        which N-th of the window's outputs it belongs to: the mean length of that bucket
``rank:SIZE``       its place in the window alone, by lengths with the error of ``lognormal:SIZE``
``class``           the mean length of its class in the window (model, log type ..., as the trace says)
``mean``            the mean length of the window, for every request
``none``            the same column: a plan that says that its schedulers are given nothing
==================  ====================================================================================
"""

from math import log1p, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedulers.errors import InputError
from schedulers.view import Floats, Ints

Classes = npt.NDArray[np.integer]
"""Small numbers, equal for requests of one class."""

FORMS = "oracle, lognormal:0.2, bucket:4, rank:0.2, class, mean or none"
SIZE_END, BUCKETS_END = 10.0, 10_000
"""Sizes are below the one, counts of buckets up to the other."""


class Guess(NamedTuple):
    """A kind of forecast and its size: of the error, or the number of buckets; 0 where it has none."""

    kind: str
    size: float


def parse(forecast: str) -> Guess:
    """Return what the text of a plan's ``forecast`` asks for; raises InputError at the key ``forecast``.

    Texts are those of the module's table: SIZE from 0 to below 10, N a whole number from 1 to 10,000.
    """
    kind, colon, text = forecast.partition(":")
    if kind in ("oracle", "class", "mean", "none") and not colon:
        return Guess(kind, 0.0)
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if kind in ("lognormal", "rank") and 0.0 <= size < SIZE_END:
        return Guess(kind, size)
    if kind == "bucket" and 1.0 <= size <= BUCKETS_END and size == int(size):
        return Guess(kind, size)
    raise InputError(f"unknown forecast {forecast!r}", where="forecast", fix=f"use {FORMS}")


def forecasts(output_tokens: Ints, luck: Floats, classes: Classes | None, forecast: str) -> Floats:
    """Return the forecast of each output in tokens, shape (n,), at least 1.

    ``luck`` is the window's column ``forecast_luck``, standard normal; ``classes`` its column ``kind``
    (None: all are of one class). Raises InputError for a text that ``parse`` refuses.
    """
    guess, truth = parse(forecast), np.asarray(output_tokens, np.float64)
    if not len(truth):
        return truth
    if guess.kind == "oracle":
        told = truth
    elif guess.kind == "lognormal":
        told = with_error(truth, luck, guess.size)
    elif guess.kind == "bucket":
        told = means(truth, bucket_of(truth, int(guess.size)))
    elif guess.kind == "rank":
        told = by_place(with_error(truth, luck, guess.size), truth)
    elif guess.kind == "class" and classes is not None:
        told = means(truth, classes)
    else:
        told = np.full(len(truth), truth.mean())
    return np.maximum(1.0, told)


def with_error(truth: Floats, luck: Floats, size: float) -> Floats:
    """Return the truth times exp(sigma*luck), sigma = sqrt(ln(1 + size^2)).

    The factor's standard deviation is ``size`` times its mean (as published: sqrt(ln 1.04) for 0.2, see
    reference/published-studies.md), its median 1, its mean sqrt(1 + size^2), the standard deviation of its
    logarithm sigma. The mean absolute relative error is sqrt(1 + size^2)*(2*Phi(sigma) - 1): 0.160 for
    0.2, 0.406 for 0.5. The published forecasts were also rounded and cut to 4,096 tokens; these are not.
    """
    told: Floats = truth * np.exp(sqrt(log1p(size * size)) * np.asarray(luck, np.float64))
    return told


def bucket_of(truth: Floats, buckets: int) -> Ints:
    """Return the bucket of each length, from 0: edges are the window's quantiles, equals stay together.

    Each holds a ``buckets``-th of the window, but for ties and for more buckets than lengths. It is always
    the right one: the error is the spread inside a bucket.
    """
    first = np.arange(1, buckets) * len(truth) // buckets  # place of the first member of each bucket but 0
    return np.searchsorted(np.sort(truth)[first], truth, side="right").astype(np.int64)


def by_place(told: Floats, truth: Floats) -> Floats:
    """Return the places of the told lengths, shortest first, spread evenly from 0 to twice the true mean.

    The order is all that is left of them; the mean puts it in tokens, for policies that add prompt and
    output. Equal lengths share the middle of their places.
    """
    _, group, counts = np.unique(told, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2.0  # places from 0 to n, each request one wide
    return np.asarray(middle[group] / len(told) * 2.0 * truth.mean(), np.float64)


def means(truth: Floats, groups: Classes) -> Floats:
    """Return for each request the mean length of its group in the window."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(group, weights=truth) / counts)[group], np.float64)
