"""Presets for one GPU, as far as they can be tried without one; and targets that suit an engine's steps."""

from dataclasses import replace

import pytest

from loadgen.plan import Fleet, TierSpec, read_plan, toml
from schedulers.errors import InputError
from services.local import RealWorkers
from services.worker.process import UNTOLD
from services.worker.vllm.config import EngineConfig, engine_args
from sim.profile import load, save
from windtunnel.engines import real_fleet, real_tiers
from windtunnel.gpus import PRESETS, plan_of, preset_of

MEMORY = 40 * 2**30 * 0.9
"""What a card of 40 GB gives an engine."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_plan_that_the_worker_accepts(name, tmp_path):
    """Settings resolve, the profile is there, weights and blocks fit a card of 40 GB, targets can be met."""
    plan, (preset, _) = plan_of(name), preset_of(name)
    (tmp_path / "plan.toml").write_text(toml(replace(plan, windows="none")))
    assert read_plan(str(tmp_path / "plan.toml")).fleet == plan.fleet
    told = engine_args(EngineConfig(model=preset.model, device="gpu", fleet=plan.fleet), UNTOLD)
    assert told["num_gpu_blocks_override"] == preset.blocks + 1
    assert told["max_num_seqs"] == preset.slots
    known = load(plan.fleet.profile)
    held = preset.blocks * 16 * known.memory.kv_bytes_per_token + known.memory.weights_gib * 2**30
    assert held < MEMORY
    step_s = known.step_s(0.0, 0.0, preset.slots, preset.slots * 1000.0)
    assert all(tier.tpot_s > step_s for tier in plan.tiers)


def test_a_card_is_named_behind_the_preset_and_a_profile_may_be_ones_own():
    assert preset_of("qwen2.5-0.5b/l40s")[1] == "qwen2.5-0.5b/l40s"
    assert plan_of("llama-3.1-8b/a100-80g").fleet.profile == "llama-3.1-8b/a100-80g"
    assert plan_of("llama-3.1-8b", "llama-3.1-8b/h200").fleet.profile == "llama-3.1-8b/h200"
    with pytest.raises(InputError, match="no preset 'gpt-9'"):
        preset_of("gpt-9")
    with pytest.raises(InputError):
        preset_of("qwen2.5-0.5b/abacus")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("profile", "--gpu", "qwen2.5-0.5b", "--model", "m", "--out", "p.toml"), "--gpu names the model"),
        (("profile", "--gpu", "gpt-9", "--out", "p.toml"), "no preset"),
        (("profile", "--out", "p.toml"), "no model is named"),
        (("validate", "w", "--out", "o", "--profile", "p.toml"), "the testbed has its own profile"),
        (("validate", "w", "--out", "o", "--gpu", "gpt-9"), "no preset"),
    ],
)
def test_flags_that_contradict_are_refused(windtunnel, arguments, said):
    ran = windtunnel(*arguments)
    assert ran.code == 2
    assert said in ran.said


def test_help_says_that_it_is_untested(windtunnel):
    for command in ("profile", "validate"):
        text = " ".join(windtunnel(command, "--help").out.split())
        assert "--gpu" in text
        assert "untested" in text


def test_targets_are_as_much_longer_as_the_engine_is_slower(tmp_path):
    """Ten times slower steps, ten times longer targets; what is no target stays none."""
    meant = Fleet(profile="llama-3.1-8b/a100-80g", sequences_max=16)
    known = load(meant.profile)
    slow = tmp_path / "slow.toml"
    save(replace(known, coefficients=tuple(10.0 * value for value in known.coefficients)), slow)
    tiers = (TierSpec("fast", 0.5, 0.03, 0.5), TierSpec("slow", 2.0, 0.1, 0.5))
    told = real_tiers(tiers, meant, replace(meant, profile=str(slow)))
    assert [(tier.ttft_s, tier.tpot_s) for tier in told] == [(5.0, 0.3), (20.0, 1.0)]
    assert {tier.e2e_s for tier in told} == {float("inf")}
    assert [tier.name for tier in told] == ["fast", "slow"]


def test_a_small_engine_runs_few_at_once_so_that_order_matters(tmp_path):
    (tmp_path / "windtunnel.json").write_text('{"kind": "tiny"}')
    fleet = real_fleet(Fleet(engines=2), RealWorkers("python", str(tmp_path), "cpu", paced=True), own=False)
    assert (fleet.sequences_max, fleet.engines) == (8, 2)
    assert load(fleet.profile).name == "tiny/cpu-paced"


def test_a_profile_of_ones_own_stands_for_the_models(tmp_path):
    (tmp_path / "windtunnel.json").write_text('{"kind": "tiny"}')
    own = tmp_path / "mine.toml"
    save(load("llama-3.1-8b/a100-80g"), own)
    real = RealWorkers("python", str(tmp_path), "cpu")
    assert real_fleet(Fleet(), real, own=False, profile=str(own)).profile == str(own.resolve())
    assert real_fleet(Fleet(engines=3), real, own=True, profile=str(own)) == Fleet(str(own.resolve()), 3)
    with pytest.raises(InputError):
        real_fleet(Fleet(), real, own=False, profile="gpt-9/abacus")
