"""The real scheduler against the engine model, step by step: who gets how many tokens, who is evicted, when."""

import pytest

from schedulers.errors import InputError
from schedulers.load import engine_names, load, published_names
from services.worker.steps import differences, read_log
from services.worker.vllm.capability import faults
from services.worker.vllm.settings import told
from services.worker.vllm.shadow import Shadow
from tests.vllm.driven import (
    COSTS,
    TIERS,
    Driver,
    StockDriver,
    config_of,
    model_steps,
    scheduler_of,
    traffic,
    waited,
)

LIMITS = (16, 512, 1024)
WIDE = (8, 2048, 1024)
AMPLE, SCARCE, SCARCER = 400, 40, 33
NAMED = ("fcfs-chunked", "sarathi", "edf", "sjf-pred", "vtc", "strict-tiers:preempt=1", "mlfq-skipjoin")


@pytest.fixture(scope="module")
def configs(tiny):
    """Settings of vLLM for each set of limits; the policy is put in by ``both``."""
    return {limits: config_of(tiny, "fcfs-chunked", limits) for limits in (LIMITS, WIDE)}


def both(configs, spec, asks, blocks, limits=LIMITS, **how):
    """Steps of the model and of vLLM's scheduler, with how each request ended in vLLM."""
    config = configs[limits]
    config.additional_config = told(spec, COSTS, TIERS)
    theirs, ended = Driver(scheduler_of(config, blocks), asks, **how).run()
    ours, model_ended = model_steps(spec, asks, limits, blocks)
    assert set(ended) == set(model_ended) == {f"r{number}" for number in range(len(asks))}
    return ours, theirs


@pytest.mark.parametrize("blocks", [AMPLE, SCARCE, SCARCER])
@pytest.mark.parametrize("spec", NAMED)
def test_the_real_scheduler_makes_the_batches_of_the_model(configs, spec, blocks):
    for seed, rate in ((1, 20.0), (2, 60.0)):
        ours, theirs = both(configs, spec, traffic(40, seed, rate), blocks)
        assert not differences(ours, theirs), str(differences(ours, theirs)[0])
        assert len(ours) > 100
        assert waited(ours) > 0 or blocks == AMPLE


@pytest.mark.parametrize("spec", engine_names() + published_names())
def test_every_policy_that_vllm_can_run_makes_the_batches_of_the_model(configs, spec):
    policy = load(spec).engine
    limits = LIMITS if policy.chunked else WIDE
    if faults(policy, *limits[1:]):
        configs[limits].additional_config = told(spec, COSTS, TIERS)
        with pytest.raises(InputError, match="waiting_rank"):
            scheduler_of(configs[limits], AMPLE)
        return
    ours, theirs = both(configs, spec, traffic(25, 3, 40.0), SCARCE, limits)
    assert not differences(ours, theirs), str(differences(ours, theirs)[0])


def test_the_log_of_a_running_engine_is_what_its_scheduler_did(configs, tmp_path):
    config, path = configs[LIMITS], tmp_path / "steps.jsonl"
    config.additional_config = told("vtc", COSTS, TIERS, log=str(path))
    scheduler = scheduler_of(config, SCARCE)
    steps, _ = Driver(scheduler, traffic(40, 1, 20.0)).run()
    scheduler.log.close()
    logged, cut = read_log(path)
    assert not differences(steps, logged)
    assert [step.end_s for step in logged] == [step.end_s for step in steps]
    assert waited(logged) > 0
    assert not cut


def test_who_leaves_is_asked_once_however_many_run(configs, monkeypatch):
    """The policy scores the batch anew only when it changed, not for each pair that vLLM compares."""
    asked = []
    score = Shadow._score
    monkeypatch.setattr(Shadow, "_score", lambda shadow, now_s: asked.append(now_s) or score(shadow, now_s))
    _, theirs = both(configs, "edf", traffic(40, 1, 20.0), SCARCE)
    evicted = sum(len(step.evicted) for step in theirs)
    assert evicted > 5
    assert 0 < len(asked) <= 3 * evicted


def test_a_difference_would_be_seen(configs):
    """One policy in the model, another one in vLLM: the comparison must tell them apart."""
    asks = traffic(40, 1, 20.0)
    configs[LIMITS].additional_config = told("edf", COSTS, TIERS)
    theirs, _ = Driver(scheduler_of(configs[LIMITS], SCARCE), asks).run()
    ours, _ = model_steps("fcfs-chunked", asks, LIMITS, SCARCE)
    assert differences(ours, theirs)


def test_vllm_alone_stops_serving_behind_a_request_that_evicts_itself(configs, monkeypatch):
    """The one thing in which vLLM's own eviction is not the model's; without our hand in it the batches differ."""
    asks = traffic(40, 1, 20.0)
    ours, theirs = both(configs, "vtc", asks, SCARCE)
    assert not differences(ours, theirs)
    monkeypatch.setattr("services.worker.vllm.scheduler.for_memory", lambda *_: [])
    ours, theirs = both(configs, "vtc", asks, SCARCE)
    first = differences(ours, theirs)[0]
    assert len(first.theirs.tokens) < len(first.ours.tokens)
    assert first.ours.evicted == first.theirs.evicted != ()


def test_arrivals_between_steps_matter_only_to_policies_that_count_at_arrivals(configs):
    """vLLM's core hears of arrivals when a step has ended, the model when they happen: after the step's tokens."""
    asks, differing = traffic(40, 1, 20.0), set()
    for spec in ("fcfs-chunked", "sarathi", "edf", "sjf-pred", "vtc", "strict-tiers:preempt=1"):
        ours, theirs = both(configs, spec, asks, SCARCE, mid_step=False)
        if differences(ours, theirs):
            differing.add(spec)
    assert differing <= {"vtc"}


def test_vllms_own_scheduler_is_fcfs_chunked_but_for_admission_when_memory_is_short(configs):
    """Unmodified: equal with ample memory; else it lets in whom the model's watermark holds back, and no one else."""
    from vllm.v1.core.sched.scheduler import Scheduler

    asks = traffic(40, 1, 20.0)
    for blocks in (AMPLE, SCARCE):
        theirs, _ = StockDriver(scheduler_of(configs[LIMITS], blocks, Scheduler), asks).run()
        ours, _ = model_steps("fcfs-chunked", asks, LIMITS, blocks)
        found = differences(ours, theirs)
        if blocks == AMPLE:
            assert not found, str(found[0])
            continue
        first = found[0]
        assert first.ours.start_s == pytest.approx(first.theirs.start_s)
        extra = set(first.theirs.tokens) - set(first.ours.tokens)
        assert extra, "the first difference is not an admission"
        assert {key: first.theirs.tokens[key] for key in first.ours.tokens} == first.ours.tokens


def test_what_the_policy_refuses_ends_with_a_word_and_the_rest_goes_on(configs):
    asks = traffic(40, 2, 200.0)
    config = configs[LIMITS]
    config.additional_config = told("slo-guard", COSTS, TIERS)
    _, ended = Driver(scheduler_of(config, SCARCE), asks).run()
    words = [word for word, _ in ended.values()]
    assert 0 < words.count("abort") < len(words)
    assert len(ended) == 40


def test_memory_is_given_back_to_the_last_block(configs):
    config = configs[LIMITS]
    config.additional_config = told("vtc", COSTS, TIERS)
    scheduler = scheduler_of(config, SCARCE)
    Driver(scheduler, traffic(40, 1, 20.0)).run()
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == SCARCE
    assert not scheduler.shadow.row_of
    assert not scheduler.queue.held
