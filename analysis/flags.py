"""Flags: where a result must not be trusted, or not be compared, each with its size."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.ranks import LEVEL, Ranking, least_p, tau_b
from analysis.scores import Scores, Study

PRESSURE_LIMIT = 0.10
JUDGED = ("utilisation", "rho_reached")
"""Measures of pressure that two sources must share to be compared."""

STRETCH_LIMITS = (0.25, 4.0)
WINDOWS_WANTED = 80
PRESSURES = ("utilisation", "rho_reached", "batch_mean", "kv_mean", "kv_peak", "queue_mean")

Cells = Mapping[tuple[str, str, str], Scores]
Rankings = Mapping[tuple[str, str, str], Ranking]


class Flag(NamedTuple):
    """One reason for caution: its kind, where it holds, and a sentence with its size."""

    kind: str
    where: str
    says: str


def pressure_table(of: Study) -> pd.DataFrame:
    """Return achieved pressure a region and source, means over ranked schedulers and windows.

    Columns region, source and those of ``PRESSURES`` that the results hold; in order of rising pressure.
    """
    rows = of.runs[~of.runs["control"]]
    known = [name for name in PRESSURES if name in rows]
    table = rows.groupby(["region", "source"])[known].mean().reset_index()
    table["order"] = table["region"].map({region: place for place, region in enumerate(of.regions)})
    return table.sort_values(["order", "source"], ignore_index=True).drop(columns="order")


def uneven_pairs(pressure: pd.DataFrame) -> set[tuple[str, str, str]]:
    """Return (region, source, source) that were not pushed alike: not comparable.

    Either the engines' utilisation or the load that scored arrivals met (``rho_reached``) differs by over
    10%.
    """
    uneven = set()
    for name in JUDGED:
        for region, rows in pressure.groupby("region") if name in pressure else ():
            reached = dict(zip(rows["source"], rows[name], strict=True))
            for a, b in combinations(sorted(reached), 2):
                if abs(reached[a] - reached[b]) > PRESSURE_LIMIT * max(reached[a], reached[b]):
                    uneven.add((str(region), str(a), str(b)))
    return uneven


def find_flags(of: Study, cells: Cells, rankings: Rankings) -> tuple[Flag, ...]:
    """Return every flag of a sweep, the gravest kinds first."""
    return (
        *_origins(of),
        *_pressures(of),
        *_stretches(of),
        *_truncations(of),
        *_uninformative(of, cells),
        *_gaps_in_data(of, cells),
        *_few_windows(of, cells, rankings),
        *_one_metric(of, cells),
    )


def _origins(of: Study) -> list[Flag]:
    words = {
        "surrogate": "generated traffic fitted to published statistics, not real requests",
        "unpinned": "a file whose digest is not the published one",
        "own": "your own file: nobody else can check it",
    }
    flags = [
        Flag(part, source, f"{source} is {part}: {words.get(part, 'of unknown origin')}")
        for source, label in of.labels.items()
        for part in label.split("+")
        if part != "real"
    ]
    if len(of.sources) == 1:
        flags.append(
            Flag("one source", of.sources[0], "with one source nothing can be said about other traffic")
        )
    return flags


def _pressures(of: Study) -> list[Flag]:
    table = pressure_table(of)
    judged = [name for name in JUDGED if name in table]
    keys = zip(table["region"], table["source"], strict=True)
    reached = dict(zip(keys, table[judged].to_numpy(np.float64).tolist(), strict=True))
    pairs: dict[tuple[str, str], list[str]] = {}
    for region, a, b in uneven_pairs(table):
        pairs.setdefault((a, b), []).append(region)
    flags = []
    for (a, b), found in sorted(pairs.items()):
        told = "; ".join(
            f"rho {at}: {_values(reached[at, a])} against {_values(reached[at, b])}"
            for at in of.regions
            if at in found
        )
        says = f"not pushed alike ({' and '.join(judged)} at {told}): left out of the summary's counts"
        flags.append(Flag("uneven pressure", f"{a} and {b}", says))
    return flags


def _values(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.2f}" for value in values)


def _stretches(of: Study) -> list[Flag]:
    if "stretch" not in of.runs:
        return []
    low, high = STRETCH_LIMITS
    runs = of.runs.drop_duplicates(["window_id", "region"])
    far = runs[(runs["stretch"] < low) | (runs["stretch"] > high)]
    return [
        Flag(
            "stretched",
            f"{source}, rho {region}",
            f"arrival times of {len(rows)} windows were scaled by {rows['stretch'].min():.2g} to "
            f"{rows['stretch'].max():.2g}, beyond {low:g} to {high:g}: few of the bursts are the trace's",
        )
        for (source, region), rows in far.groupby(["source", "region"], sort=False)
    ]


def _truncations(of: Study) -> list[Flag]:
    cut = of.runs[of.runs["truncated"] > 0]
    return [
        Flag(
            "cut short", str(name), f"{len(rows)} runs of {name} were stopped before every request had ended"
        )
        for name, rows in cut.groupby("scheduler")
    ]


def _uninformative(of: Study, cells: Cells) -> list[Flag]:
    flat = [f"{cell.source} at rho {cell.region}" for key, cell in cells.items() if _flat(of, key, cell)]
    total = len(of.sources) * len(of.regions)
    if not flat:
        return []
    says = f"in {len(flat)} of {total} cells no two schedulers differ by more than the margin: no order there"
    return [Flag("not informative", "; ".join(flat), says)]


def _flat(of: Study, key: tuple[str, str, str], cell: Scores) -> bool:
    return key[2] == of.primary and not cell.informative


def _gaps_in_data(of: Study, cells: Cells) -> list[Flag]:
    flags = []
    for (source, region, column), cell in cells.items():
        where = f"{source}, rho {region}, {column}"
        if cell.failed and column == of.primary:
            names = "; ".join(f"{one.scheduler} {one.words}" for one in cell.failed)
            flags.append(Flag("failed", f"{source}, rho {region}", f"not ranked here by any metric: {names}"))
        if cell.left_out:
            names = ", ".join(f"{name} ({count} windows)" for name, count in cell.left_out.items())
            flags.append(Flag("left out", where, f"undefined, so not ranked here: {names}"))
        if cell.windows_lost:
            says = (
                f"{cell.windows_lost} windows dropped: not every scheduler ran on them, or none has a value"
            )
            flags.append(Flag("windows dropped", where, says))
    return flags


def _few_windows(of: Study, cells: Cells, rankings: Rankings) -> list[Flag]:
    flags = []
    least = {
        source: min(len(cell.windows) for key, cell in cells.items() if key[0] == source)
        for source in of.sources
    }
    for source, count in least.items():
        if count < WINDOWS_WANTED:
            says = f"{count} windows: {WINDOWS_WANTED} or more are advised, small differences stay undecided"
            if least_p(count, len(of.schedulers) - 1) > LEVEL:
                says += "; so few that no scheduler can be shown worse than the best"
            flags.append(Flag("few windows", source, says))
    for (source, region, column), ranking in rankings.items():
        if column == of.primary and ranking.window_rank_tau < 0.9 and ranking.informative:
            says = f"order by mean and by within-window rank agree by tau {ranking.window_rank_tau:.2f} only"
            flags.append(Flag("few windows decide", f"{source}, rho {region}", says))
    return flags


def _one_metric(of: Study, cells: Cells) -> list[Flag]:
    groups: list[list[str]] = []
    for column in of.metrics:
        same = next((group for group in groups if _alike(of, cells, group[0], column)), None)
        if same is None:
            groups.append([column])
        else:
            same.append(column)
    says = "they order the schedulers alike (or opposite) in every cell: read them as one metric"
    return [Flag("one metric", " = ".join(group), says) for group in groups if len(group) > 1]


def _alike(of: Study, cells: Cells, first: str, second: str) -> bool:
    """Return whether two metrics agree by tau 1 or -1 in every cell that both order."""
    taus = []
    for source in of.sources:
        for region in of.regions:
            a, b = cells[source, region, first], cells[source, region, second]
            if a.schedulers == b.schedulers and len(a.schedulers) > 1 and a.windows and b.windows:
                taus.append(abs(float(tau_b(a.means, b.means))))
    known = [tau for tau in taus if not np.isnan(tau)]
    return bool(known) and min(known) > 1 - 1e-9
