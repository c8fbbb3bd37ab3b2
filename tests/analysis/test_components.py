"""Variance components, against sums by hand, statsmodels' MixedLM, and coverage of known truth."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from analysis.components import Design, _answer, design, features, over_columns, over_regions, shares, solve

AXES = ("source", "region")


def whole(y):
    _, s, _, w = y.shape
    return solve(features(y), np.full((1, s, w), 1 / w), w)[:, 0]


def world(rng, sizes, variances):
    """Values of a random world, and its true cell means: policy, x source, x region, x both, x window, rest."""
    p, s, r, w = sizes
    shapes = ((p, 1, 1), (p, s, 1), (p, 1, r), (p, s, r))
    mu = sum(rng.normal(0, 1, shape) * v**0.5 for shape, v in zip(shapes, variances, strict=False))
    noise = (
        rng.normal(0, 1, (p, s, 1, w)) * variances[4] ** 0.5 + rng.normal(0, 1, sizes) * variances[5] ** 0.5
    )
    return mu[..., None] + noise, mu


def test_mean_squares_by_hand():
    """Sums of squares in plain loops, and the reference's table of expectations."""
    rng = np.random.default_rng(1)
    p, s, r, w = 4, 3, 2, 5
    y = rng.normal(0, 1, (p, s, r, w)) + rng.normal(0, 5, (1, s, r, w))
    v = dict(zip(("P", "PS", "PR", "PSR", "PW", "e"), whole(y), strict=True))
    y = y - y.mean(axis=0)
    cell, ps, pr, pp = y.mean(axis=3), y.mean(axis=(2, 3)), y.mean(axis=(1, 3)), y.mean(axis=(1, 2, 3))
    ss = dict.fromkeys(v, 0.0)
    for i in range(p):
        for j in range(s):
            for k in range(r):
                for at in range(w):
                    ss["P"] += pp[i] ** 2
                    ss["PS"] += (ps[i, j] - pp[i]) ** 2
                    ss["PR"] += (pr[i, k] - pp[i]) ** 2
                    ss["PSR"] += (cell[i, j, k] - ps[i, j] - pr[i, k] + pp[i]) ** 2
                    ss["PW"] += (y[i, j, :, at].mean() - ps[i, j]) ** 2
                    ss["e"] += (y[i, j, k, at] - cell[i, j, k] - y[i, j, :, at].mean() + ps[i, j]) ** 2
    freedom = {
        "P": 1,
        "PS": s - 1,
        "PR": r - 1,
        "PSR": (s - 1) * (r - 1),
        "PW": s * (w - 1),
        "e": s * (w - 1) * (r - 1),
    }
    ms = {name: total / freedom[name] / (p - 1) for name, total in ss.items()}
    assert ms["e"] == pytest.approx(v["e"])
    assert ms["PW"] == pytest.approx(v["e"] + r * v["PW"])
    assert ms["PSR"] == pytest.approx(v["e"] + w * v["PSR"])
    assert ms["PR"] == pytest.approx(v["e"] + w * v["PSR"] + w * s * v["PR"])
    assert ms["PS"] == pytest.approx(v["e"] + r * v["PW"] + w * v["PSR"] + w * r * v["PS"])
    wanted = v["e"] + r * v["PW"] + w * v["PSR"] + w * r * v["PS"] + w * s * v["PR"] + w * s * r * v["P"]
    assert ms["P"] == pytest.approx(wanted)


def test_components_are_mixedlms():
    """Restricted likelihood with the windows' means as fixed effects gives the same, all being above 0."""
    y, _ = world(np.random.default_rng(3), (5, 3, 2, 3), (4.0, 2.0, 2.0, 1.0, 0.5, 0.3))
    found = whole(y)
    assert (found > 0.05).all()
    at = np.stack(np.meshgrid(*map(np.arange, y.shape), indexing="ij"), axis=-1).reshape(-1, 4)
    frame = pd.DataFrame(at, columns=["p", "s", "r", "w"]).assign(y=(y - y.mean(axis=0)).ravel(), one=1)
    frame["cell"] = frame[["s", "r", "w"]].astype(str).agg("-".join, axis=1)
    frame["y"] += frame["cell"].astype("category").cat.codes * 0.1
    terms = {
        name: f"0 + C({':'.join(name)})".replace(":", "):C(") for name in ("p", "ps", "pr", "psr", "psw")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its optimiser tells of every step near a boundary
        model = sm.MixedLM.from_formula(
            "y ~ C(cell)", groups="one", vc_formula=terms, re_formula="0", data=frame
        )
        fitted = model.fit(reml=True, method="lbfgs")
    by_name = dict(zip(model.exog_vc.names, fitted.vcomp, strict=True))
    told = [*(by_name[name] for name in ("p", "ps", "pr", "psr", "psw")), fitted.scale]
    assert told == pytest.approx(found, rel=0.02)


def test_a_difficulty_of_windows_drops_out():
    y, _ = world(np.random.default_rng(4), (5, 3, 4, 10), (1.0, 0.5, 0.5, 0.2, 0.3, 0.3))
    assert whole(y + np.random.default_rng(5).normal(0, 9, (1, 3, 4, 10))) == pytest.approx(whole(y))


def test_estimates_are_right_on_average():
    rng = np.random.default_rng(6)
    truth = np.array([1.0, 0.5, 0.4, 0.3, 0.6, 0.8])
    found = np.mean([whole(world(rng, (8, 4, 4, 6), truth)[0]) for _ in range(400)], axis=0)
    assert found == pytest.approx(truth, rel=0.12)


@pytest.mark.parametrize("sizes", [(6, 1, 4, 12), (6, 3, 1, 12), (6, 1, 1, 12)])
def test_what_one_source_or_region_cannot_tell_is_nought(sizes):
    y, _ = world(np.random.default_rng(7), sizes, (1.0, 0.0, 0.0, 0.0, 0.0, 0.1))
    found = whole(y)
    assert found[0] > 0.1
    if sizes[1] == 1:
        assert found[1] == pytest.approx(0, abs=1e-12)
    if sizes[2] == 1:
        assert found[2:4] == pytest.approx([0, 0], abs=1e-12)
    assert shares(found[:, None]).sum() == pytest.approx(1.0)


def coverage(condition, sizes, variances, studies):
    """Return how often the interval holds the share of the world's own means."""
    rng = np.random.default_rng(8)
    held = []
    for _ in range(studies):
        y, mu = world(rng, sizes, variances)
        cells = tuple(condition(y[:, at, 0], source=f"s{at}") for at in range(sizes[1]))
        one = _answer(AXES, "", Design(y, cells[0].schedulers, cells), tuple(map(str, range(sizes[2]))))
        exact = np.repeat(mu[..., None], 2, axis=3)
        truth = shares(solve(features(exact), np.full((1, sizes[1], 2), 0.5), 10**6))[0, 0]
        held.append(one.low - 1e-9 <= truth <= one.high + 1e-9)
    return np.mean(held)


def test_the_interval_of_the_portability_share_covers(condition):
    assert coverage(condition, (8, 3, 3, 20), (0.4, 0.2, 0.2, 0.2, 0.5, 0.5), 60) >= 0.86


@pytest.mark.slow
@pytest.mark.parametrize(
    "variances",
    [(1.0, 0.3, 0.3, 0.3, 1.0, 1.0), (1.0, 0.1, 0.1, 0.1, 3.0, 3.0), (0.1, 0.4, 0.1, 0.1, 1.0, 1.0)],
)
def test_the_interval_of_the_portability_share_covers_as_told(condition, variances):
    assert 0.915 <= coverage(condition, (13, 3, 6, 40), variances, 200) <= 0.995


def test_only_what_every_cell_ranks_is_laid_out(drawn):
    cells = {
        (s, r, "m"): drawn(np.arange(4) * 0.1, 10, 0.1, 1, source=s, region=r) for s in "st" for r in "12"
    }
    odd = cells["s", "2", "m"]
    cells["s", "2", "m"] = odd._replace(schedulers=("a", "b", "d"), values=odd.values[[0, 1, 3]])
    keys = [[(s, r, "m") for r in "12"] for s in "st"]
    found = design(cells, keys)
    assert found.schedulers == ("a", "b", "d")
    assert found.values.shape == (3, 2, 2, 10)
    assert found.values[2, 0, 1].tolist() == odd.values[3].tolist()
    cells["s", "2", "m"] = odd._replace(
        windows=odd.windows[3:], strata=odd.strata[3:], values=odd.values[:, 3:]
    )
    assert "7 common windows" in design(cells, keys)


def test_components_of_a_sweep(sweep):
    from analysis.findings import find
    from analysis.statistics import compared_regions

    same = find(sweep("same", step=0.3, noise=0.02, regions=(0.85, 1.1), windows=8))
    found = over_regions(same.study, same.cells, compared_regions(same))
    assert found.portability > 0.85
    assert (found.low, found.levels) == (pytest.approx(found.portability, abs=0.1), same.study.regions)
    truth = {"burstgpt_surrogate": (4, 3, 2, 1, 0)}
    turned = find(sweep("turned", step=0.3, noise=0.02, truth=truth, regions=(0.85, 1.1), windows=8))
    regions = compared_regions(turned)
    found = over_regions(turned.study, turned.cells, regions)
    assert found.portability < 0.3
    assert found.shares["policy x source"] > 0.6
    assert sum(found.shares.values()) == pytest.approx(1.0)
    scaled = over_columns(turned.study, turned.cells, regions, turned.study.metrics, "metric")
    assert scaled.shares["policy x source"] > 0.5
    assert "no region" in over_regions(turned.study, turned.cells, ()).why_not
    assert (
        "one metric only"
        in over_columns(turned.study, turned.cells, regions, turned.study.metrics[:1], "metric").why_not
    )
