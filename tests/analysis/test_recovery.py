"""Recovery curves, against draws in plain loops and on orders that are clear, hopeless, and in between."""

import zlib

import numpy as np
import pytest
from scipy import stats

from analysis.ranks import holm, rank
from analysis.recovery import SIZES, plateau_of, recovery_of, top_sets


def test_a_clear_order_is_known_from_few_windows_and_noise_never(drawn):
    clear = recovery_of(drawn(np.arange(6) * 0.5, 80, 0.1, 1))
    assert clear.enough == clear.sizes[0] == 5
    assert clear.tau == pytest.approx(np.ones(len(clear.sizes)))
    noise = recovery_of(drawn(np.zeros(6), 80, 0.5, 2))
    assert (np.abs(noise.tau) < 0.2).all()
    assert noise.enough == 0
    middle = recovery_of(drawn(np.arange(6) * 0.1, 160, 0.4, 3))
    assert middle.sizes == tuple(m for m in SIZES if m <= 80)
    assert middle.tau[-1] > middle.tau[2] > middle.tau[0]
    assert middle.enough != 5
    assert 0.7 < middle.plateau <= 1.0


def test_sets_are_disjoint_so_that_half_of_the_windows_is_no_certainty(drawn):
    """Against a set that contains the draw, tau would be near 1 at half of the windows."""
    found = recovery_of(drawn(np.arange(8) * 0.02, 20, 0.5, 4))
    assert found.sizes[-1] == 10
    assert found.tau[-1] < 0.5


def loops(cell, m, rng, draws):
    """Mean tau, Jaccard and how often the best is kept, one draw after another."""
    told = []
    for order in np.argsort(rng.random((draws, len(cell.windows))), axis=1):
        sides = [cell.values[:, order[:m]], cell.values[:, order[m : 2 * m]]]
        best = [int(np.argmax(side.mean(axis=1))) for side in sides]
        tops = []
        for side, first in zip(sides, best, strict=True):
            rivals = [at for at in range(len(side)) if at != first]
            p = [
                stats.ttest_rel(side[first] - cell.margin, side[at], alternative="greater").pvalue
                for at in rivals
            ]
            tops.append({first, *(at for at, q in zip(rivals, holm(np.array(p)), strict=True) if q > 0.05)})
        tau = stats.kendalltau(*(side.mean(axis=1) for side in sides)).statistic
        kept = ((best[0] in tops[1]) + (best[1] in tops[0])) / 2
        told.append((tau, len(tops[0] & tops[1]) / len(tops[0] | tops[1]), kept))
    return np.mean(told, axis=0)


def test_curves_are_those_of_plain_loops(drawn, monkeypatch):
    monkeypatch.setattr("analysis.recovery.DRAWS", 60)
    cell = drawn([0.2, 0.19, 0.1, 0.05], 21, 0.08, 7)
    found = recovery_of(cell)
    rng = np.random.default_rng(zlib.crc32("|".join((cell.source, *cell.windows)).encode()))
    for at, m in enumerate(found.sizes):
        wanted = loops(cell, m, rng, 60)
        assert (found.tau[at], found.jaccard[at], found.best_kept[at]) == pytest.approx(
            tuple(wanted), abs=1e-6
        )


def test_top_sets_are_those_of_the_ranking(drawn):
    for seed in range(8):
        cell = drawn([0.2, 0.19, 0.16, 0.15, 0.1], 40, 0.05, seed)
        best = int(np.argmax(cell.means))
        spread = (cell.values[best] - cell.values).std(axis=1, ddof=1)
        inside = top_sets(cell.means[None], spread[None], 40, cell.margin)[0]
        wanted = {row.scheduler for row in rank(cell).rows if row.in_top}
        assert {name for name, kept in zip(cell.schedulers, inside, strict=True) if kept} == wanted


def test_the_best_is_kept_and_overlap_is_that_of_sets(condition):
    """Two schedulers a hair apart and one far behind: whoever leads, both are in every top set."""
    rng = np.random.default_rng(5)
    found = recovery_of(condition(np.array([[0.5], [0.499], [0.1]]) + rng.normal(0, 0.01, (3, 40))))
    assert found.best_kept == pytest.approx(np.ones(len(found.sizes)))
    assert found.jaccard == pytest.approx(np.ones(len(found.sizes)))
    assert (found.tau < 0.999).all()


def test_a_best_that_changes_is_not_kept(condition):
    """Half of the windows are won by a, half by b, by far: small sets don't agree on who is best."""
    values = np.zeros((2, 40))
    values[0, ::2], values[1, 1::2] = 1.0, 1.0
    found = recovery_of(condition(values))
    assert found.enough == 0
    assert found.tau[0] < 0.2


def test_plateau_of_a_known_curve():
    sizes = np.array([5.0, 10, 20, 40])
    assert plateau_of(sizes, 0.9 * (1 - 0.8 / np.sqrt(sizes))) == pytest.approx(0.9)
    assert plateau_of(sizes, 1.2 - 0.5 / np.sqrt(sizes)) == 1.0
    assert plateau_of(sizes, np.array([0.5, 0.5, 0.4, 0.4])) == pytest.approx(0.45)
    assert np.isnan(plateau_of(sizes, np.full(4, np.nan)))


def test_few_windows_or_one_scheduler_have_no_curve(drawn):
    assert recovery_of(drawn([0.1, 0.2], 9, 0.1, 1)).sizes == ()
    assert recovery_of(drawn([0.1], 40, 0.1, 1)).enough == 0
