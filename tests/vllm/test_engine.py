"""The whole engine in this process, model and all, on a clock that moves by the modelled durations."""

import pytest

from services.worker.steps import Step, StepReader, differences
from services.worker.vllm.settings import NAME, told
from tests.vllm.driven import COSTS, TIERS, model_steps, traffic, waited

LIMITS, BLOCKS = (8, 256, 512), 24


@pytest.fixture(scope="module")
def engine(tiny):
    """One engine whose memory is short."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    sequences, budget, length = LIMITS
    args = EngineArgs(
        model=str(tiny), dtype="float32", enforce_eager=True, max_model_len=length, block_size=32,
        max_num_seqs=sequences, max_num_batched_tokens=budget, enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20, num_gpu_blocks_override=BLOCKS + 1, async_scheduling=False,
        scheduler_cls="services.worker.vllm.scheduler.PolicyScheduler",
        additional_config=told("fcfs-chunked", COSTS, TIERS),
    )  # fmt: skip
    return LLMEngine.from_engine_args(args)


def bare(key):
    """A request's name without what the engine adds to it."""
    return key.rpartition("-")[0]


def run(engine, asks, spec):
    """Steps of the engine and the tokens of each request, under a policy."""
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    now, reader, steps, tokens = [0.0], StepReader(), [], {}
    scheduler.clock = lambda: now[0]
    scheduler.shadow.rig.plant.clock_s[0] = 0.0
    scheduler.change_policy(spec)
    form = type(scheduler).schedule

    def schedule(*args, **kwargs):
        output = form(scheduler, *args, **kwargs)
        if output.num_scheduled_tokens:
            step = reader.read(scheduler.shadow)
            shared = {bare(key): count for key, count in step.tokens.items()}
            steps.append(Step(step.start_s, step.end_s, shared, tuple(sorted(map(bare, step.evicted)))))
            now[0] = step.end_s
        return output

    scheduler.schedule = schedule
    left = list(enumerate(asks))
    while left or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now[0] = max(now[0], left[0][1].arrival_s)
        while left and left[0][1].arrival_s <= now[0]:
            number, ask = left.pop(0)
            names = ("arrival_s", "forecast_tokens", "tier", "tenant", "session", "luck")
            extra = {NAME: {name: getattr(ask, name) for name in names}}
            params = SamplingParams(
                max_tokens=ask.output_tokens,
                ignore_eos=True,
                temperature=0.0,
                detokenize=False,
                extra_args=extra,
            )
            prompt = [1 + (number * 31 + place) % 2000 for place in range(ask.prompt_tokens)]
            engine.add_request(f"r{number}", {"prompt_token_ids": prompt}, params)
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    del scheduler.schedule
    return steps, tokens


def test_the_whole_engine_makes_the_models_batches_and_eviction_changes_no_token(engine):
    asks = traffic(24, 5, 30.0, prompts=(20, 200), outputs=(5, 60))
    said = {}
    for spec in ("fcfs-chunked", "edf", "strict-tiers:preempt=1"):
        theirs, said[spec] = run(engine, asks, spec)
        ours, _ = model_steps(spec, asks, LIMITS, BLOCKS)
        found = differences(ours, theirs)
        assert not found, str(found[0])
        assert waited(ours) > 0
        assert {key: len(tokens) for key, tokens in said[spec].items()} == {
            f"r{number}": ask.output_tokens for number, ask in enumerate(asks)
        }
    assert said["edf"] == said["fcfs-chunked"] == said["strict-tiers:preempt=1"]
