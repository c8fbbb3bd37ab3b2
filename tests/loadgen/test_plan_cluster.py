"""A plan's tables on the cluster: absent they change nothing, present they are strict and reach demand and key."""

from dataclasses import replace

import numpy as np
import pytest

from loadgen.atoms import grading, shares_of, tier_of_atom
from loadgen.demand import part, prepare, targets
from loadgen.plan import plain, read_plan, toml
from loadgen.plan_arms import at_one_tier, knows_tiers, runs_as, variants
from loadgen.plan_cluster import Arm, Atoms, Cluster
from schedulers.errors import InputError
from tests.loadgen.test_demand import window as columns

DIGESTS = {
    "canon": "8563defb215299b4d5365c4d5caae01cfc6465a8227d7149989c5703debdc0d3",
    "demo": "d4f2d0b889518f4d3b30d302a81f99dd6b254527e4c57f81708f835d1b51f963",
    "published": "f12c64f8abc44f7abb71a1b1004ec8699d8038806ea1c725ed4c4caf50a32a61",
    "quick": "a9408a59aec36846aed618bfb847b735813dc8aabca9beb89c1fbe1445cd217f",
}
"""Of plans as they were before there were clusters and atoms."""

PLAN = """\
name = "tiered"
schedulers = ["strict-tiers", "fcfs-chunked"]
controls = []
regions = [0.7, 1.1]

[fleet]
engines = 4

[cluster]
period_s = 0.05
recompute = true

[atoms]
mix = "enterprise"
tiers = 3

[[arms]]
name = "levels"
tiers = [1, 2]
mix = ["uniform", "enterprise"]

[[arms]]
name = "again"
tiers = [2]
schedulers = ["strict-tiers", "edf"]
regions = [1.1]

[[arms]]
name = "fleets"
engines = [2, 3]
"""


@pytest.fixture
def read(tmp_path):
    def plan(text: str = PLAN):
        (tmp_path / "plan.toml").write_text(text)
        return read_plan(str(tmp_path / "plan.toml"))

    return plan


@pytest.mark.parametrize("name", DIGESTS)
def test_plans_without_the_tables_keep_their_digest(name):
    assert read_plan(name).digest == DIGESTS[name]
    assert not {"cluster", "atoms", "arms"} & {*plain(read_plan(name))}


def test_reads_the_tables_and_defaults_the_rest(read):
    plan = read()
    assert plan.cluster == Cluster(recompute=True)
    assert plan.atoms == Atoms(tiers=3)
    assert plan.arms[1] == Arm("again", ("strict-tiers", "edf"), (2,), regions=(1.1,))
    assert plan.specs == ("strict-tiers", "fcfs-chunked", "edf")
    assert [tier.share for tier in plan.tiers] == pytest.approx([0.1, 0.3, 0.6])
    assert [tier.ttft_s for tier in plan.tiers] == [0.5, 0.97, 3.68]


def test_written_plan_reads_back_equal(read, tmp_path):
    plan = read()
    (tmp_path / "again.toml").write_text(toml(plan))
    again = read_plan(str(tmp_path / "again.toml"))
    assert again == plan
    assert again.digest == plan.digest
    assert replace(plan, atoms=replace(plan.atoms, eta=0.1)).digest != plan.digest


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('mix = "enterprise"\ntiers', 'mix = "rich"\ntiers', r"unknown mix 'rich'.*plan\.toml:14"),
        ("tiers = 3", "tiers = 11", "11 tiers"),
        ("tiers = 3", "tiers = 3\neta = 1.5", "headroom budget"),
        ("period_s = 0.05", "period_s = -1", r"period_s is not in 0.*plan\.toml:10"),
        ("period_s = 0.05", "period_s = 1e-9", r"period_s is 1e-09.*plan\.toml:10"),
        ("period_s = 0.05", "delay_s = 51", r"1,000 reports are under way.*plan\.toml:10"),
        ("period_s = 0.05", "start = 5", "start is more than the fleet has"),
        ("period_s = 0.05", "speed = 5", "unknown key 'speed' in the cluster"),
        ("engines = [2, 3]", "engines = [2, 2]", "has one twice"),
        ('name = "again"', 'name = "levels"', "two arms have one name"),
        ("tiers = [1, 2]", "tiers = [1, 12]", "12 tiers"),
        ("tiers = [1, 2]", "tiers = [1, 2]\nratio = 3", "unknown key 'ratio' in the arm"),
        ("tiers = 3", "tiers = 3\n[[tiers]]\nname='a'", "a plan with atoms makes its tiers"),
    ],
)
def test_what_is_wrong_is_told_where(read, old, new, what):
    with pytest.raises(InputError, match=what):
        read(PLAN.replace(old, new))


def test_arms_without_atoms_are_refused(read):
    start = PLAN.index("[atoms]")
    rest = PLAN[PLAN.index("[[arms]]") :]
    tier = '[[tiers]]\nname = "a"\nttft_s = 1\ntpot_s = 1\nshare = 1\n'
    with pytest.raises(InputError, match="arms without atoms"):
        read(PLAN[:start] + rest + tier)


def test_a_request_is_scored_by_its_atom_and_shown_as_its_tier(read):
    plan = read()
    one = columns()
    one.line = type("Line", (), {"content_sha256": "0" * 64})()
    demand = prepare(one, plan, 2.0)
    assert demand.atom is not None
    assert np.bincount(demand.atom) / len(demand.atom) == pytest.approx(shares_of("enterprise"), abs=0.01)
    assert np.array_equal(demand.tier, tier_of_atom(3)[demand.atom])
    graded = grading("graded", 8.0)
    assert [row[0] for row in targets(plan)] == graded.ttft_s.tolist()
    assert [row[3] for row in targets(plan)] == graded.weight.tolist()
    some = part(demand, np.array([3, 5]))
    assert some.atom is not None
    assert some.atom.tolist() == demand.atom[[3, 5]].tolist()
    fewer = replace(plan, atoms=replace(plan.atoms, tiers=1))
    assert np.array_equal(prepare(one, fewer, 1.0).atom, demand.atom)  # the atoms know neither K nor the load
    assert not prepare(one, fewer, 1.0).tier.any()


def test_a_placebo_shows_what_scores_nobody(read):
    plan = read(PLAN.replace('mix = "enterprise"\ntiers', 'mix = "shuffled"\ntiers'))
    one = columns()
    one.line = type("Line", (), {"content_sha256": "0" * 64})()
    demand = prepare(one, plan, 1.0)
    told = np.corrcoef(demand.tier, tier_of_atom(3)[demand.atom])[0, 1]
    assert abs(told) < 0.03


def test_arms_cross_their_lists_and_run_no_cell_twice(read):
    made = variants(read())
    cells = [
        (one.atoms.mix, one.atoms.tiers, one.fleet.engines, rho, spec)
        for one in made for rho in one.regions for spec in one.specs
    ]  # fmt: skip
    assert len({*cells}) == len(cells)
    assert all(not one.arms and one.controls == () for one in made)
    of = {cell[4] for cell in cells if cell[:4] == ("enterprise", 2, 4, 1.1)}
    assert of == {"strict-tiers", "edf"}  # fcfs-chunked reads no tier: it runs at one tier alone
    assert {cell[4] for cell in cells if cell[:3] == ("uniform", 1, 4)} == {"strict-tiers", "fcfs-chunked"}
    assert {cell[4] for cell in cells if cell[2] == 3} == {"strict-tiers"}
    assert {one.tiers[0].share for one in made if one.atoms.tiers == 2} == {0.2, 0.1}


def test_cells_that_are_one_by_theorem_have_one_name():
    assert not knows_tiers("fcfs-chunked+least-kv")
    assert knows_tiers("strict-tiers")
    assert knows_tiers("edf+least-kv")
    assert runs_as("fcfs-chunked+least-kv", 4) == ("fcfs-chunked+least-kv", 1)
    assert runs_as("strict-tiers+least-kv", 4) == ("strict-tiers+least-kv", 4)
    assert at_one_tier(
        "strict-tiers+least-kv+rebalance:low=2"
    ) == "strict-tiers+least-kv+rebalance:low=2.0".replace("2.0", "2")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("engines = [0]", "0 engines"),
        ("start = [99]", "start is more than the fleet has"),
        ("boot_s = [-5.0]", "boot_s is not in"),
        ("regions = [-1.0]", "a region is a pressure"),
        ("engines = [2]\nstart = [3]", "start is more than the fleet has"),
    ],
)
def test_arms_keep_to_the_limits_of_plans(tmp_path, line, says):
    """A study of hours must not find out in its middle."""
    text = toml(read_plan("tiers-quick"))
    file = tmp_path / "plan.toml"
    file.write_text(text + f'\n[[arms]]\nname = "mine"\n{line}\n', encoding="utf-8")
    with pytest.raises(InputError, match=says):
        read_plan(str(file))
