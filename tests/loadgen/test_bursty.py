"""Bursty windows: gaps vary as asked, everything else is the window's own."""

import numpy as np
import pytest

from loadgen.bursty import freeze_bursty, gamma_arrivals
from loadgen.candidate import Recipe
from loadgen.manifest import freeze, read_manifest
from loadgen.surrogate import generate
from loadgen.window import read_window
from schedulers.errors import InputError


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
def test_gaps_vary_as_asked_over_the_same_span(cv):
    before = np.linspace(3.0, 103.0, 40_000)
    after = gamma_arrivals(before, cv, "x")
    gaps = np.diff(after)
    assert (after[0], after[-1]) == pytest.approx((3.0, 103.0))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert np.all(gaps >= 0)


def test_frozen_windows_differ_in_arrivals_alone(tmp_path):
    freeze([generate("azure_surrogate-conv", rows=800, seed=1)], tmp_path / "base", Recipe("published", 2, 1))
    out = freeze_bursty(tmp_path / "base", tmp_path / "made", [1.0, 4.0])
    lines = read_manifest(out)
    assert {line.source for line in lines} == {"azure_surrogate.gamma-cv1", "azure_surrogate.gamma-cv4"}
    assert len(lines) == 4
    assert {line.label for line in lines} == {"hybrid"}
    base = {line.id: read_window(tmp_path / "base", line) for line in read_manifest(tmp_path / "base")}
    for line in lines:
        made, own = read_window(out, line), base[line.transforms["gamma"]["base"]]
        assert made.prompt_tokens.tolist() == own.prompt_tokens.tolist()
        assert made.tier_luck.tolist() == own.tier_luck.tolist()
        assert made.arrival_s.tolist() != own.arrival_s.tolist()
    assert freeze_bursty(tmp_path / "base", out, [1.0, 4.0]) == out  # goes on
    with pytest.raises(InputError, match="this folder holds"):
        freeze_bursty(tmp_path / "base", out, [2.0])
