"""Panel: which metrics order the schedulers alike in every cell, so that they count once.

Reference statistics, section 10: any metric whose |tau| with another is 1 in every cell is dropped, and named.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from analysis.answers import Key, Panel
from analysis.compare import in_common, pair_signs, taus
from analysis.scores import Scores

Floats = npt.NDArray[np.float64]


def panel_of(columns: Sequence[str], cells: Mapping[Key, Scores], places: Sequence[tuple[str, str]]) -> Panel:
    """Return the groups of metrics that agree, or are opposite, in every cell of ``places`` (source, region).

    A cell where one of two metrics doesn't tell any schedulers apart says nothing about the two.
    """
    each = np.stack([_cell_taus([cells[s, r, column] for column in columns]) for s, r in places])
    known = ~np.isnan(each)
    seen = known.any(axis=0)
    least = np.where(seen, np.where(known, np.abs(each), np.inf).min(axis=0), np.nan)
    median = np.full(least.shape, np.nan)
    for i, j in zip(*np.nonzero(seen), strict=True):
        median[i, j] = np.median(each[known[:, i, j], i, j])
    groups: list[list[int]] = []
    for at in range(len(columns)):
        same = next((one for one in groups if all(least[at, other] > 1 - 1e-9 for other in one)), None)
        if same is None:
            groups.append([at])
        else:
            same.append(at)
    return Panel(
        columns=tuple(columns),
        groups=tuple(tuple(columns[at] for at in one) for one in groups if len(one) > 1),
        kept=tuple(columns[one[0]] for one in groups),
        median_tau=median,
        least=least,
    )


def _cell_taus(cells: Sequence[Scores]) -> Floats:
    """Return tau-b between every two metrics of one cell, each pair over the schedulers that both rank."""
    if len({one.schedulers for one in cells}) == 1 and len(cells[0].schedulers) > 1 and cells[0].windows:
        return taus(pair_signs(np.stack([one.means for one in cells])).astype(np.float64))
    found = np.full((len(cells), len(cells)), np.nan)
    for i, first in enumerate(cells):
        for j, second in enumerate(cells):
            a, b = in_common(first, second)
            if len(a.schedulers) > 1 and a.windows and b.windows:
                signs = pair_signs(np.stack([a.means, b.means])).astype(np.float64)
                found[i, j] = taus(signs)[0, 1]
    return found
