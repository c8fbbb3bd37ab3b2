"""Swaps: pairs, SLO sets and pressures of mixtures, and runs that are the sweep's own where nothing is swapped."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from analysis.metrics import summarise
from loadgen.candidate import Recipe
from loadgen.demand import prepare
from loadgen.manifest import freeze, read_manifest
from loadgen.plan import Fleet, Plan, TierSpec
from loadgen.result import read_runs
from loadgen.surrogate import generate
from loadgen.window import read_window
from schedulers.errors import InputError
from schedulers.load import load
from sim.calibrate import setup_of
from sim.run import simulate
from sim.swap import (
    ABSOLUTE,
    TIGHTNESS,
    Idle,
    Swap,
    lay_out,
    pick_sides,
    run_swap,
    scaled,
    spread,
    tenants_matter,
)
from sim.sweep import open_job, sweep

SOURCES = ("azure_surrogate", "burstgpt_surrogate")
TIERS = (TierSpec("a", 0.5, 0.03, 0.5), TierSpec("b", 2.0, 0.1, 0.5, e2e_s=20.0))


class Here:
    """A crew of nobody: it does each task at once, in this process."""

    def run(self, work, todo, hear):
        for task in todo:
            work(task, hear, lambda: False)


@pytest.fixture(scope="module")
def windows(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    for name in ("azure_surrogate-conv", "burstgpt_surrogate"):
        freeze([generate(name, rows=1200, seed=1)], folder, Recipe("published", 2, 1))
    return folder


@pytest.fixture
def plan(windows) -> Plan:
    return Plan(
        "p", ("fcfs-chunked", "edf"), TIERS, str(windows), controls=(), regions=(1.1,),
        fleet=Fleet(budget_max=512), slo_sets=("tier",),
    )  # fmt: skip


@pytest.fixture
def sides(plan, windows):
    return pick_sides(plan, read_manifest(windows), SOURCES)


def ran(plan, sides, out, slo=TIGHTNESS) -> Swap:
    swap = lay_out(plan, sides, out, slo)
    done = run_swap(swap, Here(), lambda step: None, summarise, "rev")
    assert not done.failures
    return swap


def rows(cell):
    """The runs of a cell, by window in the order of pairs and by scheduler."""
    table = read_runs(cell.folder)
    table = table[table["source"] == cell.source].set_index(["window_id", "scheduler"])
    return table.loc[[(name, who) for name in cell.windows for who in ("edf", "fcfs-chunked")]]


METRICS = ["attainment_tier", "ttft_p95_s", "e2e_mean_s", "steps", "busy_s", "rho_reached"]


def test_unmixed_traffic_gives_the_sweeps_own_numbers_to_the_bit(plan, sides, tmp_path):
    job, lines = open_job(plan, tmp_path / "swept", summarise, "rev")
    sweep(job, lines, Here(), lambda step: None)
    before = read_runs(tmp_path / "swept").set_index(["window_id", "scheduler"])
    swap = ran(plan, sides, tmp_path / "swap")
    for taken in (frozenset(), frozenset(swap.axes)):
        again = rows(swap.cells[taken])
        assert len(again) == 4
        assert again[METRICS].equals(before.loc[again.index, METRICS])


def test_only_who_reads_targets_is_moved_by_the_slo_axis(plan, sides, tmp_path):
    """In its schedule: what it meets of other targets is another matter."""
    swap = ran(plan, sides, tmp_path)
    for taken in (frozenset(), frozenset({"arrivals"}), frozenset({"lengths", "arrivals"})):
        plain, swapped = rows(swap.cells[taken]), rows(swap.cells[taken | {"slo"}])
        schedule = ["ttft_p95_s", "ttft_p50_s", "e2e_mean_s", "steps", "busy_s", "batch_mean"]
        for who, moved in (("fcfs-chunked", False), ("edf", True)):
            one, two = (table.xs(who, level="scheduler")[schedule] for table in (plain, swapped))
            assert one.equals(two) is not moved, (taken, who)
        assert not plain["attainment_tier"].equals(swapped["attainment_tier"])


def test_requests_of_a_blind_scheduler_are_the_same_under_either_slo_set(plan, sides, tmp_path):
    swap = lay_out(plan, sides, tmp_path, TIGHTNESS)
    cell, other = swap.cells[frozenset({"lengths"})], swap.cells[frozenset({"lengths", "slo"})]
    line = next(
        one for one in read_manifest(Path(swap.plans[cell.folder].windows)) if one.id == cell.windows[0]
    )
    window = read_window(Path(swap.plans[cell.folder].windows), line)
    facts = {
        (who, place): simulate(
            prepare(window, swap.plans[place.folder], 0.3), load(who), setup_of(swap.plans[place.folder])
        ).facts
        for who in ("fcfs-chunked", "edf")
        for place in (cell, other)
    }
    first, second = facts["fcfs-chunked", cell], facts["fcfs-chunked", other]
    assert all(np.array_equal(one, two, equal_nan=True) for one, two in zip(first, second, strict=True))
    assert not np.array_equal(facts["edf", cell].started_s, facts["edf", other].started_s)


def test_each_mixture_is_brought_to_the_same_pressure(plan, sides, tmp_path):
    swap = ran(plan, sides, tmp_path)
    factors = set()
    for cell in swap.cells.values():
        table = rows(cell)
        spans = {line.id: line.span_s for line in read_manifest(Path(swap.plans[cell.folder].windows))}
        offered = (
            200 / (table["stretch"] * [spans[name] for name, _ in table.index]) / table["capacity_per_s"]
        )
        assert offered.to_numpy() == pytest.approx(np.full(len(table), 1.1))
        factors |= set(table["stretch"])
    assert len(factors) == 8  # two pairs, four ways to mix arrivals and lengths


def test_equal_slo_sets_are_one_run(plan, sides, tmp_path):
    swap = lay_out(plan, sides, tmp_path, ABSOLUTE)
    assert swap.same_slo
    assert len(swap.plans) == 1
    twin = lay_out(plan, sides._replace(windows=(sides.windows[0],) * 2), tmp_path / "b", TIGHTNESS)
    assert twin.same_slo
    assert not lay_out(plan, sides, tmp_path / "c", TIGHTNESS).same_slo


def test_tightness_is_kept_and_infinite_targets_stay():
    lengths, slo = Idle(0.4, 0.02, 6.0), Idle(0.1, 0.01, 2.0)
    one, two = scaled(TIERS, lengths, slo)
    assert (one.ttft_s, one.tpot_s, one.e2e_s) == pytest.approx((2.0, 0.06, inf))
    assert two.e2e_s == 20.0 * 6.0 / 2.0
    assert [tier.share for tier in (one, two)] == [0.5, 0.5]
    assert scaled(TIERS, Idle(0.1, float("nan"), 2.0), slo)[0].tpot_s == 0.03


def test_another_plans_tiers_belong_to_the_other_source(plan, sides, tmp_path):
    other = (TierSpec("c", 9.0, 9.0, 1.0),)
    swap = lay_out(plan, sides, tmp_path, "other", other)
    for taken, cell in swap.cells.items():
        assert swap.plans[cell.folder].tiers == (other if "slo" in taken else TIERS)


def test_pairs_are_of_equal_strata_and_any_few_are_spread(windows):
    lines = read_manifest(windows)
    base = next(line for line in lines if line.source == SOURCES[0])
    many = [replace(base, content_sha256=f"{i:02d}", stratum="ab"[i % 3 == 0]) for i in range(9)]
    assert [line.stratum for line in spread(many)] == ["a", "b", "a", "b", "a", "b", "a", "a", "a"]


def test_tenants_are_an_axis_only_where_somebody_asks(plan, sides):
    assert not tenants_matter(plan, sides)
    assert tenants_matter(replace(plan, schedulers=("vtc",)), sides)
    assert tenants_matter(replace(plan, tiers=TIERS[:1]), sides)
    azure = sides._replace(windows=(sides.windows[0],) * 2)
    assert not tenants_matter(replace(plan, schedulers=("vtc",)), azure)


def test_with_tenants_both_ends_are_still_the_sources(plan, sides, tmp_path):
    swap = lay_out(replace(plan, schedulers=("vtc",)), sides, tmp_path, ABSOLUTE)
    assert swap.axes == ("arrivals", "lengths", "slo", "tenants")
    assert len(swap.cells) == 16
    for taken, side in ((frozenset(), 0), (frozenset(swap.axes), 1)):
        assert swap.cells[taken].windows == tuple(window.line.id for window in sides.windows[side])


@pytest.mark.parametrize(
    ("sources", "count", "what"),
    [(("azure_surrogate", "nobody"), 0, "no windows of nobody"), (SOURCES, 3, "3 windows were asked for"),
     (("azure_surrogate",) * 2, 0, "compared with itself")],
)  # fmt: skip
def test_bad_sides_are_refused(plan, windows, sources, count, what):
    with pytest.raises(InputError, match=what):
        pick_sides(plan, read_manifest(windows), sources, count)


def test_lengths_of_the_other_keep_the_bases_tightness(plan, sides, tmp_path):
    swap = lay_out(plan, sides, tmp_path, TIGHTNESS)
    ratio = swap.idle[1].ttft / swap.idle[0].ttft
    assert ratio != pytest.approx(1.0, abs=0.05)
    for taken, factor in ((frozenset({"lengths"}), ratio), (frozenset({"slo"}), 1 / ratio)):
        tiers = swap.plans[swap.cells[taken].folder].tiers
        assert [tier.ttft_s for tier in tiers] == pytest.approx([0.5 * factor, 2.0 * factor])
