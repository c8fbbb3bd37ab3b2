"""What tiers cost: who pays for the top's gain, how long others starve, and engine-hours at equal attainment.

Reference multitier, sections 5 and 8. The price of isolation is requests lost by the less important for each that the
top wins over one tier on the same machinery; it is undefined where the top did not gain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.metrics import jain
from analysis.ranks import LEVEL
from analysis.tiers_columns import HISTOGRAMS, MOSTS, quantile
from analysis.tiers_effects import counts, intervals
from analysis.tiers_results import BOTTOM, MARGIN, TOP, Cell, Results, Setting, aligned

Floats = npt.NDArray[np.float64]

AIM = {"top": 0.95, "U": 0.90, "bottom": 0.70}
"""What a fleet must attain (reference multitier, section 8: the declared default)."""

ADDED = (
    "moves_started", "moves_committed", "moves_aborted", "moved_bytes", "evictions", "recomputed_tokens",
)  # fmt: skip
"""Columns of a run that a board adds up."""

LEAST_NAMED = 200
"""Arrivals of an atom below which it is shown pooled with its neighbour, and marked."""

LEAST_P99 = 2000
"""Arrivals from which a 99th percentile is shown: twenty beyond it."""


class Fleets(NamedTuple):
    """Fewest engines of one scheduler that attain AIM on the windows of a source."""

    source: str
    region: str
    tiers: int
    spec: str
    engines: tuple[int, ...]  # fleets tried
    attained: tuple[tuple[float, float, float], ...]  # top, U, bottom of each
    least: int | None  # fewest that attain, None: none of those tried
    fraction: float  # by linear interpolation of U; NaN where it can't be had
    fraction_low: float
    fraction_high: float
    hours_per_1000: tuple[float, ...]  # engine-hours for 1,000 attained requests


def board_row(of: Results, setting: Setting, spec: str) -> dict[str, Any] | None:
    """Return one scheduler's line in one setting: the measures of reference multitier, section 5."""
    cell, base = of.cell(setting, spec), of.cell(setting.untiered, spec)
    if cell is None:
        return None
    told: dict[str, Any] = {"scheduler": spec, **setting._asdict(), "windows": len(cell.windows)}
    for metric in ("U", "top", "bottom", "attainment"):
        values = cell.values(metric)
        mean, low, high = intervals(values[~np.isnan(values)][None])[0]
        told |= {metric: mean, f"{metric}_low": low, f"{metric}_high": high}
    sums = {
        name: cell.total(name).sum(axis=0) for name in ("arrivals", "met", "inverted", "starved", "preempted")
    }
    arrived = np.maximum(sums["arrivals"], 1.0)
    share = sums["met"] / arrived
    told |= {
        "price": price(cell, base), "inverted": float(sums["inverted"].sum() / arrived.sum()),
        "starved": float(sums["starved"].sum() / arrived.sum()),
        "wait_most_s": float(cell.mosts[MOSTS.index("wait_most_s")].max()),
        "idle_most_s": float(cell.mosts[MOSTS.index("idle_most_s")].max()),
        "jain": jain(share), "worst_atom": float(share.min()), "preempted": float(sums["preempted"].sum()),
        "rejected": float(cell.total("rejected").sum()),
        "engine_h_per_1000": hours_per_1000(cell), "goodput": float(np.sum(cell.total("met"))
            / np.sum(cell.scalar("scored_s"))),
    }  # fmt: skip
    for name in ADDED:
        told[name] = float(cell.scalar(name).sum())
    moved = max(told["moves_committed"], 1.0)
    told["downtime_ms"] = (
        float(cell.scalar("downtime_s").sum()) / moved * 1e3 if told["moves_committed"] else None
    )
    told["moving_share"] = float(cell.scalar("moving_s").sum() / cell.scalar("engine_s").sum())
    told |= {
        "kv_peak": float(cell.scalar("kv_peak").max()),
        "batch_most": float(cell.scalar("batch_most").max()),
    }
    told["rho_reached"] = float(cell.scalar("rho_reached").mean())
    told["steady"] = float(np.mean(steady(cell)))
    for group, atoms in (("top", slice(0, TOP)), ("bottom", slice(BOTTOM, None))):
        for name in ("ttft", "tpot", "e2e"):
            counted = cell.histograms[HISTOGRAMS.index(name), atoms].sum(axis=0)
            told |= {
                f"{group}_{name}_p50": quantile(counted, 0.5),
                f"{group}_{name}_p95": quantile(counted, 0.95),
            }
            told[f"{group}_{name}_p99"] = quantile(counted, 0.99) if counted.sum() >= LEAST_P99 else None
    return told


def steady(cell: Cell) -> npt.NDArray[np.bool_]:
    """Return in which windows about as many requests were inside at the score's end as at its start.

    About: to a tenth of all that are scored.

    Where not, the queue grows (beyond capacity it must) or the window is short beside its requests.
    """
    grown = cell.scalar("inside_last") - cell.scalar("inside_first")
    return np.asarray(np.abs(grown) <= 0.1 * cell.total("arrivals").sum(axis=1))


def price(cell: Cell, base: Cell | None) -> float | None:
    """Return requests lost by atoms 2 to 9 for each that atoms 0 and 1 win over one tier; None where undefined."""
    if base is None or base.windows != cell.windows:
        return None
    gained = cell.total("met").sum(axis=0) - base.total("met").sum(axis=0)
    top = float(cell.total("arrivals")[:, :TOP].sum())
    won = float(gained[:TOP].sum())
    if won < MARGIN * top:
        return None
    return max(0.0, -float(gained[TOP:].sum())) / won


def hours_per_1000(cell: Cell) -> float | None:
    """Return engine-hours for 1,000 attained requests; engines are billed for the whole run, requests are scored."""
    met, arrived = float(cell.total("met").sum()), float(cell.total("arrivals").sum())
    whole = float(cell.scalar("arrivals").sum())
    return float(cell.scalar("engine_s").sum()) / 3600 / (met / arrived * whole) * 1000 if met else None


def atom_rows(of: Results, setting: Setting, spec: str) -> list[dict[str, Any]]:
    """Return one line an atom of a scheduler in a setting: arrivals, attainment with interval, percentiles.

    Atoms of fewer than LEAST_NAMED arrivals are pooled with the next one, and marked by their range.
    """
    cell = of.cell(setting, spec)
    if cell is None:
        return []
    arrived = cell.total("arrivals")
    rows = []
    for atoms in pools(arrived.sum(axis=0)):
        count, met = arrived[:, atoms].sum(axis=1), cell.total("met")[:, atoms].sum(axis=1)
        drawn = counts(len(count))
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = np.nanquantile((drawn @ met) / (drawn @ count), [LEVEL / 2, 1 - LEVEL / 2])
        row: dict[str, Any] = {
            "scheduler": spec, "tiers": setting.tiers, "source": setting.source, "region": setting.region,
            "atom": f"{atoms[0]}" if len(atoms) == 1 else f"{atoms[0]}-{atoms[-1]}", "arrivals": float(count.sum()),
            "attainment": float(met.sum() / max(count.sum(), 1)), "low": float(low), "high": float(high),
            "rejected": float(cell.total("rejected")[:, atoms].sum()),
            "preempted": float(cell.total("preempted")[:, atoms].sum()),
            "migrated": float(cell.total("migrated")[:, atoms].sum()),
            "inverted": float(cell.total("inverted")[:, atoms].sum() / max(count.sum(), 1)),
        }  # fmt: skip
        for place, name in enumerate(HISTOGRAMS):
            counted = cell.histograms[place, atoms].sum(axis=0)
            row |= {f"{name}_p50": quantile(counted, 0.5), f"{name}_p95": quantile(counted, 0.95)}
            row[f"{name}_p99"] = quantile(counted, 0.99) if counted.sum() >= LEAST_P99 else None
        rows.append(row)
    return rows


def pools(arrived: Floats) -> list[list[int]]:
    """Return the atoms one by one, those with too few arrivals together with the next."""
    found: list[list[int]] = []
    pending: list[int] = []
    for atom, count in enumerate(arrived):
        pending.append(atom)
        if sum(arrived[one] for one in pending) >= LEAST_NAMED or not count:
            found.append(pending)
            pending = []
    if pending:
        found = [*found[:-1], [*(found[-1] if found else []), *pending]]
    return found


def fleets(of: Results) -> list[Fleets]:
    """Return the fewest engines of each scheduler that ran on several fleets."""
    home = of.home
    keys = {(at.source, at.region, at.tiers, spec) for at, spec in of.cells if at.engines != home.engines
            and at.start == home.start}  # fmt: skip
    found = []
    for source, region, tiers, spec in sorted(keys):
        at = of.at(source, region, tiers=tiers)
        tried = sorted({one.engines for one, name in of.cells if name == spec and one.tiers == tiers
                        and one._replace(engines=0) == at._replace(engines=0)})  # fmt: skip
        cells = [of.cells[at._replace(engines=n), spec] for n in tried]
        found.append(_fleets(at, spec, tried, cells))
    return found


def _fleets(at: Setting, spec: str, tried: Sequence[int], cells: Sequence[Cell]) -> Fleets:
    matrices = [aligned(cells, metric)[1] for metric in AIM]
    means = np.stack([values.mean(axis=1) for values in matrices], axis=1)
    enough = [n for n, row in zip(tried, means, strict=True) if all(row >= np.array([*AIM.values()]) - 1e-12)]
    windows = matrices[1].shape[1]
    drawn = counts(windows) @ matrices[1].T / windows
    fractions = np.array([interpolated(tried, row) for row in drawn])
    known = fractions[~np.isnan(fractions)]
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2]) if len(known) else (np.nan, np.nan)
    return Fleets(
        at.source, at.region, at.tiers, spec, tuple(tried),
        tuple((float(a), float(b), float(c)) for a, b, c in means), min(enough, default=None),
        interpolated(tried, means[:, 1]), float(low), float(high),
        tuple(hours_per_1000(cell) or float("nan") for cell in cells),
    )  # fmt: skip


def interpolated(engines: Sequence[int], attained: Floats) -> float:
    """Return the fractional number of engines at which U reaches its aim; NaN where no fleet tried brackets it."""
    for place in range(1, len(engines)):
        below, above = attained[place - 1], attained[place]
        if below < AIM["U"] <= above:
            return float(engines[place - 1] + (AIM["U"] - below) / (above - below)
                         * (engines[place] - engines[place - 1]))  # fmt: skip
    return float("nan")


def scaling(of: Results) -> list[dict[str, Any]]:
    """Return what autoscaling cost and attained, beside the fixed fleets of the same scheduler without it."""
    rows = []
    for at, spec in sorted(of.cells, key=lambda key: (key[0].source, float(key[0].region), key[1], key[0])):
        if at.start == of.home.start and at.engines == of.home.engines:
            continue
        if "scale-" not in spec:
            continue
        row = board_row(of, at, spec)
        if row is not None:
            cell = of.cells[at, spec]
            hours = float(cell.scalar("engine_s").sum()) / 3600
            more = {"engine_h": hours, "boots": float(cell.scalar("boots").sum()),
                    "drains": float(cell.scalar("drains").sum())}  # fmt: skip
            rows.append({**row, **more})
    return rows
