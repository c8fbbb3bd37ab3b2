"""Search against points that are known: the foot of a plane, the near side of a ball, nothing at all."""

import numpy as np
import pytest

from sim.search import Space, farthest, fewest, mildest

SPACE = Space(("a", "b", "c", "d"), np.array([-1.0, -1.4, -0.7, -1.4]), np.array([0.6, 1.4, 0.7, 1.4]))
LINE = Space(("a",), np.array([-1.0]), np.array([0.6]))


def look(worth, space=SPACE, budget=300, seed=1, told=None):
    told = [] if told is None else told
    return mildest(worth, space, budget, seed, lambda done, of: told.append((done, of)))


@pytest.mark.parametrize("normal", [(2, 0, 0, 0), (1, 1, 1, 1), (-1, 0.5, 0, 2), (0.3, 1, -0.4, 0.2)])
@pytest.mark.parametrize("budget", [150, 300])
def test_the_foot_of_a_plane_is_found(normal, budget):
    normal = np.array(normal, float)
    truth = 0.4 * normal / np.linalg.norm(normal)
    found = look(lambda x: normal @ x / np.linalg.norm(normal) - 0.4, budget=budget).best
    assert np.linalg.norm(found) == pytest.approx(0.4, rel=0.01)
    assert found == pytest.approx(truth, abs=0.06)


def test_a_curved_edge_and_steps_are_no_obstacle():
    centre = np.array([0.4, 1.0, -0.5, -0.9])
    near = float(np.linalg.norm(centre) - 0.35)
    assert np.linalg.norm(look(lambda x: 0.35 - np.linalg.norm(x - centre)).best) == pytest.approx(
        near, rel=0.01
    )
    steps = look(lambda x: np.floor((x[0] + x[1]) * 50) / 50 - 0.5).best
    assert np.linalg.norm(steps) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_one_knob_is_halved_to_its_edge():
    told = []
    found = look(lambda x: x[0] - 0.3123, LINE, 60, told=told)
    assert found.best[0] == pytest.approx(0.3123, abs=0.001)
    assert found.best[0] > 0.3123
    assert len(found.points) == len(found.worths) == told[-1][0] < 60


def test_nothing_to_find_is_said_with_what_was_seen():
    found = look(lambda x: -0.02 - 0.1 * np.linalg.norm(x), budget=120)
    assert found.best is None
    assert found.candidates == ()
    assert 100 < len(found.points) <= 120
    assert len({point.tobytes() for point in found.points}) == len(found.points)
    assert found.worths.max() == -0.02
    assert np.all((found.points >= SPACE.low) & (found.points <= SPACE.high))


def test_a_small_hollow_off_every_knob_is_climbed_to():
    """No grid point is inside it; its slope leads there."""
    centre = np.array([-0.6, 0.8, 0.4, -0.7])
    found = look(lambda x: 0.15 - np.linalg.norm(x - centre))
    assert np.linalg.norm(found.best - centre) < 0.15


def test_what_is_so_already_needs_no_change():
    found = look(lambda x: 1.0)
    assert found.best.tolist() == [0.0] * 4
    assert len(found.points) == 1


def test_undefined_points_are_no_hits():
    found = look(lambda x: float("nan") if x[0] > 0.2 else x[0] - 0.1, LINE, 60)
    assert found.best[0] == pytest.approx(0.1, abs=0.001)


def test_the_same_seed_finds_the_same():
    def worth(x):
        return x @ np.array([0.3, 1, -0.4, 0.2]) - 0.6

    assert np.array_equal(look(worth).points, look(worth).points)
    assert not np.array_equal(look(worth).points, look(worth, seed=2).points)


def test_coverage_is_the_farthest_gap():
    square = Space(("a", "b"), np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    seen = look(lambda x: -1.0, square, 10)
    corner = seen._replace(points=np.array([[-1.0, -1.0]]))
    assert farthest(corner, square, 1) == pytest.approx(np.sqrt(8), rel=0.03)
    assert farthest(seen, square, 1) < 1.5


@pytest.mark.parametrize("needed", [{3, 77}, {5}, {10, 11, 12}, {0, 50, 99}])
def test_the_fewest_rows_are_those_that_matter(needed):
    found = fewest(100, lambda rows: needed <= set(rows.tolist()), 500, least=1)
    assert set(found[-1].tolist()) == needed
    sizes = [len(rows) for rows in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 100
    assert all(needed <= set(rows.tolist()) for rows in found)
    assert all(np.all(np.diff(rows) > 0) for rows in found)


def test_a_budget_of_subsets_is_kept():
    tried = []
    found = fewest(100, lambda rows: tried.append(1) or {3, 77} <= set(rows.tolist()), 7)
    assert len(tried) == 7
    assert {3, 77} <= set(found[-1].tolist())
