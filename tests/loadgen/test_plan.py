"""Plans: strict keys, errors that name file, line and remedy, a digest that says when two plans differ."""

import json
from dataclasses import fields, replace
from math import inf
from pathlib import Path

import pytest

from loadgen.plan import LIMITS, Fleet, plain, read_plan, shipped, toml, whereabouts
from schedulers.errors import InputError

PLAN = """\
name = "mine"
windows = "frozen"
schedulers = ["edf"]
controls = ["random"]
regions = [0.5, 1]

[fleet]
engines = 2

[[tiers]]
name = "gold"
ttft_s = 0.5
tpot_s = 0.03
share = 0.25

[[tiers]]
name = "rest"
ttft_s = 2
tpot_s = 0.1
share = 0.75
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(text)
        return path

    return write


def test_reads_what_is_written_and_defaults_the_rest(written):
    plan = read_plan(str(written(PLAN)))
    assert (plan.name, plan.schedulers, plan.regions) == ("mine", ("edf",), (0.5, 1.0))
    assert plan.fleet == Fleet(engines=2)
    assert [(tier.name, tier.ttft_s, tier.e2e_s) for tier in plan.tiers] == [
        ("gold", 0.5, inf),
        ("rest", 2.0, inf),
    ]
    assert plan.forecast == "lognormal:0.2"
    assert plan.specs == ("edf", "random")


def test_a_relative_folder_is_relative_to_the_plan(written):
    path = written(PLAN)
    assert Path(read_plan(str(path)).windows) == path.parent / "frozen"
    assert read_plan(str(path), windows=Path("elsewhere")).windows == "elsewhere"


def test_schedulers_are_added_once(written):
    plan = read_plan(str(written(PLAN)), schedulers=["edf", "sarathi:phi=0.8", "sarathi:phi=0.8", "random"])
    assert plan.schedulers == ("edf", "sarathi:phi=0.8")


@pytest.mark.parametrize("name", shipped())
def test_shipped_plans_read(name):
    assert read_plan(name).name == name


def test_written_plan_reads_back_equal(written, tmp_path):
    plan = read_plan(str(written(PLAN)))
    again = tmp_path / "again.toml"
    again.write_text(toml(replace(plan, windows="frozen")))
    assert read_plan(str(again)) == plan
    assert read_plan(str(again)).digest == plan.digest
    assert plain(plan)["tiers"][0]["e2e_s"] is None


def test_a_plan_without_targets_reads_back_equal(written, tmp_path):
    """Any target may be infinite: TOML has a word for it, JSON has none and gets null."""
    plan = read_plan(str(written(PLAN.replace("ttft_s = 2", "ttft_s = inf").replace("0.1", "inf"))))
    assert [(tier.ttft_s, tier.tpot_s, tier.e2e_s) for tier in plan.tiers] == [(0.5, 0.03, inf), (inf,) * 3]
    again = tmp_path / "again.toml"
    again.write_text(toml(replace(plan, windows="frozen")))
    assert read_plan(str(again)) == plan
    told = json.loads(json.dumps(plain(plan), allow_nan=False))
    assert [told["tiers"][1][name] for name in ("ttft_s", "tpot_s", "e2e_s")] == [None, None, None]


def test_a_name_of_any_letters_reads_back(written, tmp_path):
    plan = read_plan(str(written(PLAN.replace('"mine"', '"für \U0001f680"'))))
    again = tmp_path / "again.toml"
    again.write_text(toml(plan), encoding="utf-8")
    assert read_plan(str(again)).name == "für \U0001f680"


@pytest.mark.parametrize("key", [field.name for field in fields(Fleet) if field.name != "profile"])
def test_a_fleet_has_limits(written, key):
    """What no fleet has is refused at its line, before memory is asked for; the limit itself is allowed."""
    least, most = LIMITS[key]
    for value in (least, most):
        plan = read_plan(str(written(PLAN.replace("engines = 2", f"{key} = {value}"))))
        assert getattr(plan.fleet, key) == value
    for value in (least - 1, most + 1, 10**30):
        path = written(PLAN.replace("engines = 2", f"{key} = {value}"))
        with pytest.raises(InputError, match=rf"{key} is not in {least}.*plan\.toml:8.*{most:,}"):
            read_plan(str(path))


def test_where_a_key_stands(written):
    path = written(PLAN)
    assert whereabouts(str(path), "regions") == f"{path}:5"
    assert whereabouts(str(path), "primary") == str(path)
    assert whereabouts("quick", "schedulers").startswith("shipped plan quick:")


def test_digest_sees_all_but_the_place_of_the_windows(written):
    plan = read_plan(str(written(PLAN)))
    assert replace(plan, windows="moved").digest == plan.digest
    for change in (
        {"seed": 2},
        {"regions": (0.5,)},
        {"fleet": Fleet()},
        {"forecast": "oracle"},
        {"keep": "requests"},
    ):
        assert replace(plan, **change).digest != plan.digest


BAD = [
    ('seed = "x"\n' + PLAN, ":1", 'seed is "x"', "whole number"),
    (PLAN.replace("engines = 2", "engine = 2"), ":8", "unknown key 'engine'", "engines"),
    (PLAN.replace("regions", "region"), ":5", "unknown key 'region'", "regions"),
    (PLAN.replace('name = "mine"\n', ""), "plan.toml", "lacks name", "add name"),
    (PLAN.replace("share = 0.75", ""), ":16", "lacks share", "add share"),
    (PLAN.replace("share = 0.75", "share = 0.7"), ":14", "sum to 0.95", "sum to 1"),
    (PLAN.replace("ttft_s = 2", "ttft_s = -2"), ":18", "ttft_s of tier rest", "above 0"),
    (PLAN.replace("ttft_s = 2", "ttft_s = nan"), ":18", "ttft_s", "number"),
    (PLAN.replace('"rest"', '"gold"'), ":1", "one name", "differently"),
    (PLAN.replace("[0.5, 1]", "[0.5, 0]"), ":5", "pressure", "0.85"),
    (PLAN.replace("[0.5, 1]", "[0.5, 0.5]"), ":5", "none twice", "regions"),
    (PLAN.replace('["edf"]', "[]"), ":3", "at least one", "schedulers"),
    (PLAN.replace('["edf"]', '["edf", "random"]'), ":4", "both", "once"),
    (PLAN.replace("engines = 2", "engines = 0"), ":8", "engines is not in 1", "1,024"),
    ('keep = "all"\n' + PLAN, ":1", "keep", "sketch"),
    ('forecast = "guess"\n' + PLAN, ":1", "unknown forecast", "lognormal:0.2"),
    ("name = \n" + PLAN, "plan.toml", "line 1", "line"),
    (PLAN.split("[[tiers]]")[0], "plan.toml", "needs tiers", "[[tiers]]"),
    (PLAN.replace("[fleet]\nengines = 2", 'fleet = "big"'), ":7", "not a table", "[fleet]"),
    ("seed = 99999999999999999999999\n" + PLAN, ":1", "seed is not in 0", "9,223,372,036,854,775,807"),
    (f"seed = {'9' * 5000}\n" + PLAN, "plan.toml", "not a TOML file", "mend"),
    ("seed = -1\n" + PLAN, ":1", "seed is not in 0", "9,223,372,036,854,775,807"),
    (PLAN.replace("[0.5, 1]", "[0.95, 0.9500000001]"), ":5", "two regions are called 0.95", "6 digits"),
    (PLAN.replace("[0.5, 1]", "[1e-300]"), ":5", "pressure", "0.85"),
    (PLAN.replace("[0.5, 1]", f"[1{'0' * 400}]"), ":5", "too large", "smaller"),
    (PLAN.replace("ttft_s = 2", f"ttft_s = 2{'0' * 400}"), ":18", "ttft_s is too large", "smaller"),
    (PLAN.replace("share = 0.75", "share = 0.75\nweight = inf"), ":21", "weight of tier rest", "finite"),
    (PLAN.replace("share = 0.75", "share = 0.75\nweight = -1"), ":21", "weight of tier rest", "above 0"),
]


@pytest.mark.parametrize(("text", "where", "what", "fix"), BAD)
def test_errors_name_place_and_remedy(written, text, where, what, fix):
    with pytest.raises(InputError) as caught:
        read_plan(str(written(text)))
    assert caught.value.where.endswith(where)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_missing_plan_names_the_shipped_ones():
    with pytest.raises(InputError, match=r"no such plan.*nowhere\.toml.*demo, quick"):
        read_plan("nowhere.toml")


def test_a_plan_that_is_not_text(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_plan(str(path))
