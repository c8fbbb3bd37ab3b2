"""Step-time coefficients from own rows: non-negative least squares on relative error, half held out."""

import csv
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isfinite, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from schedulers.cost import ATTENTION, BASE, DECODE, FLOOR, JOINT, KV, PREFILL
from schedulers.errors import InputError
from schedulers.view import Floats
from sim.profile import FORMS, Error, Memory, Profile
from sim.roofline import split

COLUMNS = ("prefill_tokens", "attention", "decodes", "kv_tokens", "seconds")
"""Columns of a file of rows; others in it are ignored."""

ROWS_LEAST = 24
"""Fewest rows that are fitted: twelve a half, two for each coefficient of the hinge."""

SPREAD_LEAST = 0.1
"""Least spread (standard deviation over mean) of mean contexts that tells KV tokens from sequences."""

BASE_LEAST_S = 1e-6
"""A step of nothing takes at least this long on any engine; a fit below it saw no small steps."""


class Rows(NamedTuple):
    """Steps as they were timed, all float64[n].

    ``attention`` is the sum over prompt chunks of tokens x (tokens cached before + tokens / 2), ``kv_tokens``
    the context of all decoding sequences together.
    """

    prefill_tokens: Floats
    attention: Floats
    decodes: Floats
    kv_tokens: Floats
    seconds: Floats

    def take(self, places: np.ndarray) -> "Rows":
        """Some of the rows."""
        return Rows(*(column[places] for column in self))


def step_times(costs: Floats, rows: Rows) -> Floats:
    """Seconds of each row by the coefficients: ``schedulers.cost.step_s`` over arrays."""
    linear = costs[BASE] + costs[PREFILL] * rows.prefill_tokens + costs[JOINT] * rows.decodes
    added = costs[ATTENTION] * rows.attention + costs[DECODE] * rows.decodes + costs[KV] * rows.kv_tokens
    return np.asarray(np.maximum(costs[FLOOR], linear) + added)


def draw(costs: Floats, count: int, seed: int) -> Rows:
    """Rows like those of the published fits, their seconds by the coefficients.

    58 % are pure decode; up to 256 decodes, up to 2,048 prompt tokens, contexts log-normal about 900 tokens.
    """
    random = np.random.Generator(np.random.Philox(seed))
    decodes = random.integers(1, 257, count).astype(np.float64)
    prefill = np.where(random.random(count) < 0.58, 0, random.integers(1, 2049, count)).astype(np.float64)
    cached = np.where(random.random(count) < 0.5, 0.0, random.lognormal(log(900.0), 0.8, count).round())
    contexts = np.cumsum(random.lognormal(log(900.0), 0.8, int(decodes.sum())).round())
    ends = np.cumsum(decodes).astype(np.int64) - 1
    kv = np.diff(contexts[ends], prepend=0.0)
    rows = Rows(prefill, prefill * (cached + prefill / 2.0), decodes, kv, np.zeros(count))
    return rows._replace(seconds=step_times(costs, rows))


def read_rows(path: Path) -> Rows:
    """Read timed steps from a CSV file with the columns COLUMNS; InputError names file, row and remedy."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                what = f"no column {', '.join(missing)} among {', '.join(reader.fieldnames or ()) or 'none'}"
                raise InputError(what, where=f"{path}:1", fix=f"name the columns {','.join(COLUMNS)}")
            values = [_numbers(row, f"{path}:{reader.line_num}") for row in reader]
    except OSError as error:
        what = f"cannot read the rows: {error.strerror}"
        raise InputError(what, where=str(path), fix="check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a CSV file: {error}", where=str(path), fix="save it as UTF-8 CSV") from None
    rows = Rows(*np.array(values, dtype=np.float64).reshape(-1, len(COLUMNS)).T.copy())
    _enough(rows, str(path))
    _telling(rows, str(path))
    return rows


def _numbers(row: Mapping[str, str | None], where: str) -> list[float]:
    values = []
    for name in COLUMNS:
        text = row[name]
        try:
            value = float(text or "")
        except ValueError:
            what = f"{name} is {text!r}, not a number"
            raise InputError(what, where=where, fix="mend or remove the row") from None
        if not isfinite(value) or value < 0.0:
            raise InputError(f"{name} is {text}", where=where, fix="give a finite number of 0 or more")
        values.append(value)
    if values[-1] == 0.0:
        raise InputError("seconds is 0", where=where, fix="give the step's time in seconds, above 0")
    if values[0] + values[2] == 0.0:
        what = "a step without prefill tokens and decodes"
        raise InputError(what, where=where, fix="remove the row: an idle engine makes no step")
    return values


def _enough(rows: Rows, where: str) -> None:
    if len(rows.seconds) < ROWS_LEAST:
        what = f"{len(rows.seconds)} rows are too few"
        raise InputError(what, where=where, fix=f"time {ROWS_LEAST} steps or more")


def _telling(rows: Rows, where: str) -> None:
    """Refuse rows from which a coefficient can't be told."""
    for name in COLUMNS[:-1]:
        if not getattr(rows, name).any():
            what = f"{name} is 0 in every row, so what it costs can't be told"
            raise InputError(what, where=where, fix="time steps with prompts and steps with decodes")


def fit(
    rows: Rows, name: str, memory: Memory, *, form: str = "best", origin: str = "own rows", seed: int = 1
) -> Profile:
    """Fit a profile on half of the rows and measure its error on the other half.

    ``form`` is "five-term", "hinge", or "best" (the smaller error on held-out rows); ``name`` is
    MODEL/ACCELERATOR[xCARDS][@VARIANT]. InputError for rows too few or too alike.
    """
    _enough(rows, origin)
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(rows.seconds))
    half = len(order) // 2
    fitted, held_out = rows.take(order[:half]), rows.take(order[half:])
    _telling(fitted, origin)
    forms = tuple(FORMS) if form == "best" else (form,)
    costs = {one: SOLVERS[one](fitted) for one in forms}
    best = min(forms, key=lambda one: mape_percent(costs[one], held_out))
    if costs[best][BASE] + costs[best][FLOOR] < BASE_LEAST_S:
        what = "no fixed time of a step was found: no engine is that fast"
        raise InputError(what, where=origin, fix="time small steps too: few tokens, few sequences")
    model, accelerator, cards = split(name.partition("@")[0])
    error = Error(
        mape_percent=round(mape_percent(costs[best], fitted), 3),
        held_out_percent=round(mape_percent(costs[best], held_out), 3),
        r2=round(_r2(costs[best], held_out), 5),
        points=len(order),
        note=f"{half} rows fitted, {len(order) - half} held out",
    )
    return Profile(
        name=name,
        model=model,
        accelerator=accelerator,
        cards=cards,
        form=best,
        level="own rows",
        coefficients=tuple(float(value) for value in costs[best]),
        origin=origin,
        error=error,
        memory=memory,
        notes=_doubts(rows, costs[best]),
    )


def mape_percent(costs: Floats, rows: Rows) -> float:
    """Mean absolute relative error of the coefficients over the rows, percent."""
    return float(np.mean(np.abs(step_times(costs, rows) / rows.seconds - 1.0))) * 100.0


def gap_percent(profile: Profile, other: Profile) -> float:
    """How far the step times of ``other`` are off those of ``profile`` over drawn rows: MAPE, percent."""
    return mape_percent(other.costs, draw(profile.costs, 2000, 1))


def _r2(costs: Floats, rows: Rows) -> float:
    left = float(np.sum((step_times(costs, rows) - rows.seconds) ** 2))
    spread = float(np.sum((rows.seconds - rows.seconds.mean()) ** 2))
    return 1.0 - left / spread if spread > 0.0 else 0.0


def _doubts(rows: Rows, costs: Floats) -> tuple[str, ...]:
    """What the rows can't tell, in words."""
    notes = []
    decoding = rows.take(np.flatnonzero(rows.decodes > 0.0))
    contexts = decoding.kv_tokens / decoding.decodes
    spread = float(contexts.std() / contexts.mean())
    if spread < SPREAD_LEAST:
        notes.append(
            f"decodes and kv_tokens move together (the mean context varies by {100.0 * spread:.0f} % only): "
            "how time splits between them can't be told; vary the context length."
        )
    for column, what in ((PREFILL, "prompt tokens"), (ATTENTION, "prompt attention"), (KV, "KV tokens")):
        if costs[column] == 0.0:
            notes.append(f"No cost of {what} was found (0).")
    return tuple(notes)


def _solve(columns: list[Floats], seconds: Floats) -> Floats:
    """Coefficients of 0 or more that minimise the squares of the relative errors.

    Columns are scaled to length 1 first: they span eight decades.
    """
    matrix = np.column_stack(columns) / seconds[:, None]
    length = np.linalg.norm(matrix, axis=0)
    length[length == 0.0] = 1.0
    found, _ = nnls(matrix / length, np.ones(len(seconds)))
    return np.asarray(found / length, dtype=np.float64)


def five_term(rows: Rows) -> Floats:
    """Coefficients float64[7] of the five-term form."""
    ones = np.ones(len(rows.seconds))
    columns = [ones, rows.prefill_tokens, rows.attention, rows.decodes, rows.kv_tokens]
    costs = np.zeros(7)
    costs[[BASE, PREFILL, ATTENTION, DECODE, KV]] = _solve(columns, rows.seconds)
    return costs


def hinge(rows: Rows) -> Floats:
    """Coefficients float64[7] of the hinge form.

    Which rows lie on the floor is guessed by their tokens and then by the fit itself until it no longer
    changes; of all guesses the one with the least squares of relative errors wins.
    """
    tokens = rows.prefill_tokens + rows.decodes
    edges = [0.0, *np.quantile(tokens, np.linspace(0.05, 0.95, 13)), float(tokens.max()) + 1.0]
    found = [_hinge_from(rows, tokens < edge) for before, edge in pairwise([-1.0, *edges]) if edge > before]
    return min(found, key=lambda costs: _squares(costs, rows))


def _squares(costs: Floats, rows: Rows) -> float:
    return float(np.sum((step_times(costs, rows) / rows.seconds - 1.0) ** 2))


def _hinge_from(rows: Rows, flat: np.ndarray) -> Floats:
    tokens, best = rows.prefill_tokens + rows.decodes, np.zeros(7)
    best[BASE] = float(np.median(rows.seconds))
    for _ in range(50):
        floor, slope = flat.astype(np.float64), (~flat).astype(np.float64)
        columns = [floor, slope, slope * tokens, rows.attention, rows.decodes, rows.kv_tokens]
        costs = np.zeros(7)
        costs[[FLOOR, BASE, PREFILL, ATTENTION, DECODE, KV]] = _solve(columns, rows.seconds)
        costs[JOINT] = costs[PREFILL]
        if _squares(costs, rows) < _squares(best, rows):
            best = costs
        now_flat = costs[BASE] + costs[PREFILL] * tokens < costs[FLOOR]
        if bool(np.array_equal(now_flat, flat)):
            break
        flat = now_flat
    return best


SOLVERS: Mapping[str, Callable[[Rows], Floats]] = {"five-term": five_term, "hinge": hinge}
"""How each form is fitted."""
