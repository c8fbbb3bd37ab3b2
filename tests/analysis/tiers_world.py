"""Made-up studies of tiers of known truth: cells without a simulator."""

from collections.abc import Callable
from itertools import product

import numpy as np

from analysis.tiers_columns import ATOMS, EDGES_S, HISTOGRAMS, MOSTS, SCALARS, SUMS
from analysis.tiers_results import TOTALS, Cell, Results, Setting

LEVELS = (1, 2, 4, 10)
SOURCES, REGIONS = ("azure_surrogate", "burstgpt_surrogate"), ("0.95", "1.4")
ARRIVALS = 100
HOME = Setting("", "", 4, "enterprise", "top-first", "graded", 4, 0, 60.0)

Truth = Callable[[tuple[int, ...], Setting], np.ndarray]
"""Attainment of each atom, (10,), by the levels of D, Q, H and M and the setting."""


def spec_of(levels: tuple[int, ...]) -> str:
    """Return the scheduler of these levels, as the shipped plan names it."""
    d, q, h, m = levels
    switches = ",".join(name for name, on in (("order=1", q), ("headroom=1", h)) if on)
    engine = "tiered" + (f":{switches}" if switches else "")
    return f"{engine}+{'tier-freeness' if d else 'least-kv'}{'+rebalance' if m else ''}"


def cell_of(shares: np.ndarray, luck: np.ndarray, weights: np.ndarray) -> Cell:
    """Return a cell whose atoms attain ``shares``, each window moved by its ``luck``."""
    windows = len(luck)
    sums = np.zeros((windows, len(SUMS), ATOMS))
    sums[:, SUMS.index("arrivals")] = ARRIVALS
    met = np.clip(shares[None, :] + luck[:, None], 0.0, 1.0) * ARRIVALS
    for name in ("met", "met_flat"):
        sums[:, SUMS.index(name)] = met
    sums[:, SUMS.index("finished")] = ARRIVALS
    names = (*SCALARS, *TOTALS)
    scalars = np.zeros((windows, len(names)))
    for name, value in {"arrivals": 1000, "finished": 1000, "engine_s": 400, "busy_s": 300, "kv_peak": 0.9,
                        "batch_most": 90, "scored_s": 80, "rho_reached": 1.0}.items():  # fmt: skip
        scalars[:, names.index(name)] = value
    histograms = np.ones((len(HISTOGRAMS), ATOMS, len(EDGES_S) - 1))
    return Cell(
        tuple(f"w{i:02d}" for i in range(windows)),
        sums,
        weights,
        scalars,
        np.ones((len(MOSTS), ATOMS)),
        histograms,
    )


def world(truth: Truth, windows: int = 20, noise: float = 0.02, seed: int = 1) -> Results:
    """Return a whole study of this truth: common luck a window, and a little of its own a cell."""
    rng = np.random.default_rng(seed)
    weights = 8.0 ** (1 - np.arange(ATOMS) / 9)
    cells = {}
    for source in SOURCES:
        shared = rng.normal(0, noise, windows)
        for region, mix, tiers in product(REGIONS, ("enterprise", "shuffled"), LEVELS):
            at = HOME._replace(source=source, region=region, mix=mix, tiers=tiers)
            if mix == "shuffled" and tiers == 1:
                continue
            for levels in product((0, 1), repeat=4):
                own = rng.normal(0, noise / 5, windows)
                cells[at, spec_of(levels)] = cell_of(truth(levels, at), shared + own, weights)
    plan = {
        "name": "made up", "atoms": {"tiers": 4, "mix": "enterprise", "chain": "top-first", "ladder": "graded",
                                     "ratio": 8.0, "eta": 0.2, "split": "nested"},
        "fleet": {"engines": 4, "profile": "made/up", "sequences_max": 256, "budget_max": 2048, "block_tokens": 16},
        "cluster": {"period_s": 0.05, "delay_s": 0.005},
    }  # fmt: skip
    return Results(
        cells, plan, HOME, dict.fromkeys(SOURCES, "surrogate"), SOURCES, REGIONS,
        tuple(spec_of(levels) for levels in product((0, 1), repeat=4)), len(cells) * windows, (),
        lambda spec, tiers: (spec, tiers), {"git_rev": ("0",)},
    )  # fmt: skip
