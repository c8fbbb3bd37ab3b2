"""The policies as published: their names, their switches, the contract, and the study's own formulas."""

import numpy as np
import pytest

from schedulers.checks import check, defaults
from schedulers.errors import InputError
from schedulers.load import cluster_names, engine_names, find, load, published_names, shipped_names
from schedulers.published._formulas import due_s, est_steps, latest_s, told_tokens
from schedulers.samples import SHAPES, draw

STUDY = [
    "fifo",
    "edf",
    "least_laxity_first",
    "estimated_service_time_first",
    "weighted_fair_share",
    "kv_constrained_online",
    "admission_control",
    "vllm_faithful",
    "vllm_chunked_prefill_faithful",
    "sarathi_faithful",
    "slai_faithful",
    "vllm_style_token_budget",
    "scorpio_style_slo_guard",
]


def test_the_set_is_the_studys_thirteen_and_apart_from_all_others():
    assert sorted(published_names()) == sorted(f"{name}@published" for name in STUDY)
    assert not any(name.endswith("@published") for name in engine_names() + cluster_names())
    assert len(set(shipped_names())) == len(engine_names()) + len(cluster_names()) + 13


@pytest.mark.parametrize("name", published_names())
def test_a_name_leads_to_its_policy_and_back(name):
    scheduler = load(name)
    assert scheduler.name == scheduler.engine.name == name
    assert load(name.replace("_", "-")) == scheduler  # a hyphen does as well
    assert load(str(find(name).module.__file__)) == scheduler
    assert not scheduler.control


@pytest.mark.parametrize("name", published_names())
def test_the_contract_suite_finds_nothing(name):
    found = find(name)
    assert check(found.policy, idea=found.module.__doc__) == []


@pytest.mark.parametrize("name", published_names())
def test_each_switch_stands_on_published_and_has_two_positions(name):
    switches = [param for param in find(name).policy.params if param.unit == "switch"]
    assert switches
    assert {(param.default, param.low, param.high) for param in switches} == {(1, 0, 1)}
    assert all("1: " in param.meaning and "; 0: " in param.meaning for param in switches)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("vllm_faithful@published:stall=off", "vllm_faithful@published:stall=off"),
        ("vllm-faithful@published:stall=0", "vllm_faithful@published:stall=off"),
        ("vllm_faithful@published:stall=on", "vllm_faithful@published"),
        ("edf@published:growth=off,slack=10+p2c", "edf@published:slack=10,growth=off+p2c"),
    ],
)
def test_switches_are_said_in_words_or_numbers(spec, name):
    assert load(spec).name == name
    assert load(name) == load(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("vllm_faithful@published:stall=0.5", ["0.5 is out of range", "on (1) or off (0)"]),
        ("vllm_faithful@published:stall=no", ["'no' is not a number", "on (1) or off (0)"]),
        ("sarathi:phi=on", ["'on' is not a number", "0.05..10"]),
        ("fifoo@published", ["unknown policy", "did you mean 'fifo@published'", "as published:"]),
        ("edf@publishedd", ["does not name a scheduler"]),
        ("sarathi@published", ["unknown policy 'sarathi@published'"]),
    ],
)
def test_what_is_wrong_is_said(spec, says):
    with pytest.raises(InputError) as caught:
        load(spec)
    for part in says:
        assert part in str(caught.value)


def test_a_policy_of_ones_own_may_not_take_a_published_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        '"""An idea."""\n\nfrom schedulers.policy import EnginePolicy\n\n'
        'POLICY = EnginePolicy(name="fifo@published")\n'
    )
    with pytest.raises(InputError, match="may not be called"):
        load(str(path))


def view_of(**values):
    """One waiting request with 1,000 prompt tokens, forecast 99.6, arrived at 7 s, as edf@published sees it."""
    policy = find("edf@published").policy
    params = tuple(values.get(p.name, d) for p, d in zip(policy.params, defaults(policy), strict=True))
    view = draw(SHAPES[2], policy, params, np.random.default_rng(0))
    view.requests.arrival_s[0], view.requests.prompt_tokens[0] = 7.0, 1000
    view.requests.forecast_tokens[0], view.requests.tier[0] = 99.6, 0
    view.requests.generated_tokens[0] = 0
    return view


def test_deadline_and_estimate_are_the_studys():
    """Forecast 99.6 is told as 100; 20 * (0.0004 * 1000 + 0.02 * 100) = 48 s; 500 + 100 steps of 1 ms."""
    assert due_s(view_of(), 0) == pytest.approx(7.0 + 48.0)
    assert due_s(view_of(slack=10.0), 0) == pytest.approx(7.0 + 24.0)
    assert est_steps(view_of(), 0) == 600.0
    assert latest_s(view_of(), 0) == pytest.approx(7.0 + 48.0 - 0.6)


@pytest.mark.parametrize(("forecast", "told"), [(0.2, 1), (1.4, 1), (1.6, 2), (4096.4, 4096), (9000.0, 4096)])
def test_forecasts_are_whole_and_cut(forecast, told):
    view = view_of()
    view.requests.forecast_tokens[0] = forecast
    assert told_tokens(view, 0) == told


def test_the_repaired_deadline_reads_no_forecast():
    """The tier's end-to-end target, without it the first token's, without any after all others."""
    view = view_of(forecast_deadline=0)
    view.tiers.e2e_s[0], view.tiers.ttft_s[0], view.tiers.tpot_s[0] = 30.0, 2.0, 0.1
    assert due_s(view, 0) == 37.0
    view.tiers.e2e_s[0] = np.inf
    assert due_s(view, 0) == 9.0
    view.tiers.ttft_s[0] = np.inf
    assert 1e6 <= due_s(view, 0) < np.inf
