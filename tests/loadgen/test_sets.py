"""Window sets: recipes that can't drift unseen, manifests that ship, and what a folder says of its set."""

from collections import Counter

import pytest

from loadgen.candidate import Recipe
from loadgen.choose import choose
from loadgen.manifest import EQUAL, freeze, verify
from loadgen.sets import FILE, SETS, as_shipped, find_set, of_size, pinned, read_set, shipped_lines, write_set
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made

RECIPES = {
    "published-120": "1252e8ee2fccabd8",
    "published-120-surrogate": "ee3f425ae614d99d",
    "windtunnel-240": "002f6c4230682161",
    "windtunnel-240-surrogate": "1451eb293fa34027",
}


def test_recipes_are_frozen_by_digest():
    """A change of count, seed, strata, rules or pinned files makes another set, and must have another name."""
    assert {name: of.digest[:16] for name, of in SETS.items()} == RECIPES


def test_real_sets_pin_the_official_files():
    for name in ("published-120", "windtunnel-240"):
        of = find_set(name)
        assert of.sources == ("azure2024", "burstgpt", "bailian")
        assert all(of.told["files"][source] for source in of.sources)
        assert shipped_lines(name) == ()
    assert pinned("azure_surrogate") == {}


@pytest.mark.parametrize(
    ("name", "each", "rows"), [("published-120-surrogate", 40, 200), ("windtunnel-240-surrogate", 80, 1250)]
)
def test_sets_of_surrogates_ship_whole(name, each, rows):
    lines = shipped_lines(name)
    assert Counter(line.source for line in lines) == dict.fromkeys(SETS[name].sources, each)
    assert {(line.rows, line.label) for line in lines} == {(rows, "surrogate")}
    assert len({line.content_sha256 for line in lines}) == 3 * each


def test_half_of_a_published_source_is_early():
    for source in SETS["published-120-surrogate"].sources:
        told = [line for line in shipped_lines("published-120-surrogate") if line.source == source]
        strata = Counter(line.stratum for line in told)
        assert strata["early"] == 20
        assert {*strata} == {"early", "middle", "late"}
        assert min(strata.values()) >= 8


def test_a_main_set_holds_out_the_end_of_each_file():
    """Development windows lie before those for tests, trace by trace, and both are there."""
    lines = shipped_lines("windtunnel-240-surrogate")
    for trace in {line.trace for line in lines}:
        rows = {split: [line.first_row for line in lines if (line.trace, line.split) == (trace, split)]
                for split in ("dev", "test")}  # fmt: skip
        assert max(rows["dev"]) < min(rows["test"])
    assert Counter(line.split for line in lines)["test"] > 80


def test_early_middle_and_late_are_thirds_of_each_file():
    trace = hand_made(200 * 30)
    picked = choose([trace], Recipe("published", 16, strata="terciles")).picked
    assert Counter(pick.stratum for pick in picked) == {"early": 8, "middle": 4, "late": 4}
    for pick in picked:
        assert pick.stratum == ("early", "middle", "late")[pick.candidate.first_row // 2000]
    longer = choose([trace], Recipe("published", 20, strata="terciles")).picked
    assert longer[:16] == picked


def test_strata_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="strata"):
        Recipe("published", 4, strata="quarters")


def test_a_folder_says_which_set_it_holds(tmp_path):
    of = of_size(find_set("published-120"), 3)
    frozen = freeze([hand_made(2000)], tmp_path, of.recipe)
    assert read_set(tmp_path) == {}
    write_set(tmp_path, of, frozen.lines, frozen.manifest_sha256)
    told = read_set(tmp_path)
    assert told["set"] == "published-120"
    assert told["recipe_sha256"] == of.digest != find_set("published-120").digest
    assert told["taken"] == {frozen.lines[0].source: {"label": frozen.lines[0].label, "windows": 3}}
    assert as_shipped(of, frozen.lines) == (0, 0)
    (tmp_path / FILE).write_text("[")
    with pytest.raises(InputError, match="damaged"):
        read_set(tmp_path)


def test_an_unknown_set_is_refused_with_the_names():
    with pytest.raises(InputError) as caught:
        find_set("published")
    assert "windtunnel-240-surrogate" in caught.value.fix


@pytest.mark.slow
@pytest.mark.parametrize("name", ["published-120-surrogate", "windtunnel-240-surrogate"])
def test_what_ships_comes_out_again(name):
    """Every window of the shipped manifest, drawn and cut anew."""
    from loadgen.sets import shipped_folder

    assert {verdict.answer for verdict in verify(shipped_folder(name))} == {EQUAL}
