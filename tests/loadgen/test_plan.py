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


@pytest.mark.parametrize("key", [field.name for field in fields(Fleet) if field.type is int])
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


def test_the_prefix_cache_is_on_unless_the_plan_says_no(written, tmp_path):
    plain_plan = read_plan(str(written(PLAN)))
    plan = read_plan(str(written(PLAN.replace("engines = 2", "engines = 2\nprefix_cache = false"))))
    assert (plain_plan.fleet.prefix_cache, plan.fleet.prefix_cache) == (True, False)
    assert plan.digest != plain_plan.digest
    again = tmp_path / "again.toml"
    again.write_text(toml(plan))
    assert read_plan(str(again)) == plan
    with pytest.raises(InputError, match=r'prefix_cache is "yes".*:9.*write true or false'):
        read_plan(str(written(PLAN.replace("engines = 2", 'engines = 2\nprefix_cache = "yes"'))))


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
    with pytest.raises(InputError, match=r"no such plan.*nowhere\.toml.*canon, demo, published, quick"):
        read_plan("nowhere.toml")


def test_a_plan_that_is_not_text(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_plan(str(path))


DECLARED = """\
window_set = "published-120"
panel = ["ttft_p95_s", "worst_group:S2"]
families = ["sources", "slo"]
planned_pairs = [["edf", "sarathi"]]
planned_regions = [0.85]

[margins]
rate = 0.02
ttft_p95_s = 0.1

"""


def declaring(tmp_path, declared=DECLARED, swap=("", "")):
    """The plan that a study of two schedulers would run."""
    path = tmp_path / "plan.toml"
    plan = 'name = "p"\nschedulers = ["edf", "sarathi"]\nslo_sets = ["tier", "S2"]\n'
    tier = '[[tiers]]\nname = "a"\nttft_s = 1\ntpot_s = 0.1\nshare = 1.0\n'
    path.write_text(plan + declared.replace(*swap) + tier)
    return read_plan(str(path))


def test_what_a_study_declares_is_read_and_written_again(tmp_path):
    plan = declaring(tmp_path)
    study = plan.study
    assert (study.window_set, study.panel) == ("published-120", ("ttft_p95_s", "worst_group:S2"))
    assert study.margins == (("rate", 0.02), ("ttft_p95_s", 0.1))
    assert study.planned_pairs == (("edf", "sarathi"),)
    assert plain(plan)["margins"] == {"rate": 0.02, "ttft_p95_s": 0.1}
    again = tmp_path / "again.toml"
    again.write_text(toml(plan))
    assert read_plan(str(again)) == plan


def test_what_a_study_declares_is_part_of_the_digest_and_silence_is_not(tmp_path):
    plan = declaring(tmp_path)
    others = [
        declaring(tmp_path, swap=("0.02", "0.03")),
        declaring(tmp_path, swap=('"slo"', '"metrics"')),
        declaring(tmp_path, swap=('"edf", "sarathi"', '"sarathi", "edf"')),
        declaring(tmp_path, swap=("[0.85]", "[1.1]")),
        declaring(tmp_path, swap=('"ttft_p95_s", ', '"itl_p95_s", ')),
        declaring(tmp_path, swap=("published-120", "windtunnel-240")),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 7
    silent = plain(declaring(tmp_path, ""))
    assert not {"study", "margins", "panel", "families", "planned_pairs", "window_set"} & {*silent}


@pytest.mark.parametrize(
    ("swap", "says", "where"),
    [
        (('"slo"', '"sloes"'), "no family 'sloes'", ":6"),
        (('"slo"', '"sources"'), "twice", ":6"),
        (('"edf", "sarathi"', '"edf", "vtc"'), "vtc is none of the schedulers", ":7"),
        (('"edf", "sarathi"', '"edf", "edf"'), "a pair of one scheduler", ":7"),
        (('["edf", "sarathi"]', '["edf"]'), "not a list of pairs", ":7"),
        (("[0.85]", "[0.8]"), "0.8 is none of the regions", ":8"),
        (("rate = 0.02", "rate = 0"), "the margin of rate", ":11"),
        (("rate = 0.02", 'rate = "2 %"'), "rate is", ":11"),
        (("[margins]", "[margin]"), "did you mean margins?", ":10"),
        (("[margins]\nrate = 0.02\nttft_p95_s = 0.1", "margins = 0.02"), "not a table", ":10"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(tmp_path, swap, says, where):
    with pytest.raises(InputError) as caught:
        declaring(tmp_path, swap=swap)
    assert says in f"{caught.value.what} {caught.value.fix}"
    assert f"{where}" in caught.value.where


def test_at_most_twenty_pairs_are_planned(tmp_path):
    names = [f"edf:x={n}" for n in range(7)]
    text = DECLARED.replace(
        '[["edf", "sarathi"]]', json.dumps([[a, b] for a in names for b in names if a < b])
    )
    with pytest.raises(InputError, match="21 planned pairs"):
        declaring(tmp_path, text)
