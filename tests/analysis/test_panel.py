"""Metrics that say the same are found, and only those."""

import numpy as np
import pytest
from scipy import stats

from analysis.panel import panel_of

PLACES = [("s", "1"), ("t", "1")]


def test_twins_and_opposites_are_one_metric(condition):
    rng = np.random.default_rng(1)
    base = {place: rng.normal(0, 1, (5, 4)) for place in PLACES}
    columns = ("attainment_S2", "rejected_share", "ttft_p95_s", "jain_S2")
    made = {
        "attainment_S2": lambda y: y, "rejected_share": lambda y: -3 * y + 1, "jain_S2": lambda y: np.ones_like(y),
        "ttft_p95_s": lambda y: y[::-1] ** 3,
    }  # fmt: skip
    cells = {
        (*place, name): condition(made[name](y), *place, name)
        for place, y in base.items()
        for name in columns
    }
    found = panel_of(columns, cells, PLACES)
    assert found.groups == (("attainment_S2", "rejected_share"),)
    assert found.kept == ("attainment_S2", "ttft_p95_s", "jain_S2")
    assert found.median_tau[0, 1] == -1.0
    assert np.isnan(found.least[0, 3])
    taus = [
        stats.kendalltau(*(cells[(*place, name)].means for name in ("attainment_S2", "ttft_p95_s"))).statistic
        for place in PLACES
    ]
    assert found.median_tau[0, 2] == pytest.approx(np.median(taus))
    assert found.least[0, 2] == pytest.approx(np.abs(taus).min())


def test_one_cell_that_differs_is_enough_to_keep_both(condition):
    y = np.random.default_rng(2).normal(0, 1, (4, 5))
    cells = {(*place, "attainment_S2"): condition(y, *place, "attainment_S2") for place in PLACES}
    cells |= {
        ("s", "1", "ttft_p95_s"): condition(y, "s", "1"),
        ("t", "1", "ttft_p95_s"): condition(y[::-1], "t", "1"),
    }
    found = panel_of(("attainment_S2", "ttft_p95_s"), cells, PLACES)
    assert found.groups == ()
