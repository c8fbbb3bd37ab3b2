"""Attribution on made-up scores of known truth: parts that sum, causes that are found, zeros that are exact."""

import json
from itertools import combinations

import numpy as np
import pytest

from analysis import attribution
from analysis.attribution import (
    Mixtures,
    as_json,
    attribute,
    centred,
    read_attributions,
    replaced,
    reversals,
    shapley,
)
from loadgen.result import InputError

AXES = ("arrivals", "lengths", "slo")


def subsets(axes=AXES):
    return [frozenset(one) for size in range(len(axes) + 1) for one in combinations(axes, size)]


def made(effects, *, k=6, n=24, noise=0.02, seed=1, same=()):
    """Scores of k schedulers a step of 0.05 apart; ``effects[axis]`` is added to their worth when it is swapped.

    Axes in ``same`` change not even the noise, as a set of SLOs that both sources share.
    """
    rng = np.random.default_rng(seed)
    worth, values = 0.05 * np.arange(k, dtype=float), {}
    for taken in subsets():
        key = taken - set(same)
        if key in values:
            values[taken] = values[key]
            continue
        level = worth + sum((np.asarray(effects.get(axis, 0.0)) for axis in taken), np.zeros(k))
        values[taken] = level[:, None] + rng.normal(0, noise, (k, n))
    names = tuple(f"p{i}" for i in range(k))
    return Mixtures(("s", "t"), AXES, names, "attainment_tier", 0.02, values)


TURN = np.array([0.25, 0.15, 0.05, -0.05, -0.15, -0.25])
"""Added to a step of 0.05 it turns the whole order round."""


def test_shapley_values_are_the_textbooks():
    """The glove game: two left gloves and a right one; a pair is worth 1 (Shapley 1953: 1/6, 1/6, 2/3)."""
    game = {one: np.array([float("R" in one and len(one) > 1)]) for one in subsets(("L1", "L2", "R"))}
    found = shapley(("L1", "L2", "R"), game)
    assert [round(float(found[one][0]), 12) for one in ("L1", "L2", "R")] == [
        round(1 / 6, 12), round(1 / 6, 12), round(2 / 3, 12)
    ]  # fmt: skip


def test_parts_sum_to_the_distance_and_swings_to_the_swing():
    of = made({"lengths": TURN, "arrivals": 0.3 * TURN})
    found = attribute(of)
    assert sum(share.part.value for share in found.shares) == pytest.approx(found.distance.value, abs=1e-12)
    assert found.reversals
    for one in found.reversals:
        swing = sum(part.part.value for part in one.swings)
        assert swing == pytest.approx(one.other.value - one.base.value, abs=1e-12)


def test_the_axis_that_turns_the_order_is_found_and_no_other():
    found = attribute(made({"lengths": TURN}))
    parts = {share.axis: share for share in found.shares}
    assert found.distance.value == pytest.approx(2 * found.within, abs=0.15)
    assert parts["lengths"].share > 0.9
    assert parts["lengths"].part.low > 0.5
    for other in ("arrivals", "slo"):
        assert abs(parts[other].part.value) < 0.1
    assert len(found.reversals) == 15
    wide = [one for one in found.reversals if one.base.value > 0.09]
    assert wide
    for one in wide:
        assert one.cause == "lengths"
        assert one.material
        assert one.sure
        swings = {part.axis: part for part in one.swings}
        assert swings["lengths"].alone_flips
        assert swings["lengths"].needed
        assert not swings["arrivals"].alone_flips
        assert not swings["arrivals"].needed


def test_an_interaction_is_shared_and_belongs_to_nobody_alone():
    """The order turns only when arrivals and lengths are swapped together: half each, nobody flips it alone."""
    of = made({}, noise=0.001)
    both = {"arrivals", "lengths"}
    turned = {t: v + TURN[:, None] * 1.0 if both <= t else v for t, v in of.values.items()}
    found = attribute(of._replace(values=turned))
    parts = {share.axis: share for share in found.shares}
    assert parts["arrivals"].share == pytest.approx(0.5, abs=0.03)
    assert parts["lengths"].share == pytest.approx(0.5, abs=0.03)
    assert abs(parts["arrivals"].alone) < 0.05
    assert parts["arrivals"].last == pytest.approx(found.distance.value, abs=0.05)
    assert not any(part.alone_flips for one in found.reversals for part in one.swings)
    assert all(one.cause == "" for one in found.reversals)


def test_the_base_is_at_zero_and_an_equal_slo_set_has_exactly_no_part():
    found = attribute(made({"lengths": TURN}, same=("slo",)))
    assert {mixture.distance for mixture in found.mixtures if mixture.taken in ((), ("slo",))} == {0.0}
    slo = next(share for share in found.shares if share.axis == "slo")
    assert (slo.part.value, slo.part.low, slo.part.high, slo.alone, slo.last) == (0.0, 0.0, 0.0, 0.0, 0.0)
    for one in found.reversals:
        part = next(part for part in one.swings if part.axis == "slo")
        assert (part.part.value, part.part.low, part.part.high) == (0.0, 0.0, 0.0)


def test_noise_alone_is_no_distance():
    """One true order, neighbours closer than noise: tau is far below 1, the distance is about 0."""
    found = [attribute(made({}, noise=0.3, seed=seed)) for seed in range(6)]
    assert np.mean([one.tau for one in found]) < 0.9
    assert abs(np.mean([one.distance.value for one in found])) < 0.1
    assert sum(one.distance.low > 0 for one in found) <= 1
    assert all(np.isnan(share.share) for one in found if one.distance.low <= 0 for share in one.shares)


def test_intervals_of_swings_cover_the_truth():
    """A pair of known parts, 24 windows, 300 studies: about 95 % of the intervals hold the truth."""
    effects = {"lengths": np.array([0.10, -0.10]), "arrivals": np.array([0.02, -0.02])}
    inside = total = 0
    for seed in range(300):
        of = made(effects, k=2, noise=0.05, seed=seed)
        counts = np.random.default_rng(seed).multinomial(24, np.full(24, 1 / 24), size=200).astype(float)
        for one in reversals(of, counts):
            for part in one.swings:
                truth = {"lengths": -0.2, "arrivals": -0.04, "slo": 0.0}[part.axis]
                inside += part.part.low <= truth <= part.part.high
                total += 1
    assert total > 800
    assert 0.90 < inside / total < 0.98


def test_an_interval_has_the_spread_of_the_draws_and_the_estimate_as_its_middle():
    drawn = np.random.default_rng(1).normal(5.0, 2.0, 4000)
    found = centred(1.0, drawn)
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2.0, rel=0.05)


def test_too_few_windows_or_schedulers_are_refused():
    with pytest.raises(InputError, match="3 pairs"):
        attribute(made({}, n=3))
    with pytest.raises(InputError, match="1 schedulers"):
        attribute(made({}, k=1))


def test_the_file_holds_one_answer_a_question(tmp_path):
    of = made({"lengths": TURN})
    answer = as_json(of, attribute(of)) | {"region": "0.95", "slo": {"mode": "absolute"}}
    json.dumps(answer, allow_nan=False)
    assert [one["from_b"] for one in answer["hybrids"]] == [sorted(one) for one in subsets()]
    assert read_attributions(tmp_path) == []
    path = tmp_path / attribution.FILE
    path.write_text(json.dumps(replaced([], answer)))
    path.write_text(json.dumps(replaced(read_attributions(tmp_path), answer | {"region": "1.1"})))
    path.write_text(json.dumps(replaced(read_attributions(tmp_path), answer | {"tau": 0.25})))
    assert [(one["region"], one["tau"]) for one in read_attributions(tmp_path)] == [
        ("0.95", 0.25), ("1.1", answer["tau"])
    ]  # fmt: skip
    path.write_text('{"schema": 1, "attributions": [')
    with pytest.raises(InputError, match="damaged"):
        read_attributions(tmp_path)
