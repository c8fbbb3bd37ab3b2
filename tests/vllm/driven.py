"""vLLM's scheduler without a model, and the engine model, driven by the same arrivals on one virtual clock."""

from math import inf

import numpy as np

from schedulers.cost import step_s
from schedulers.load import load
from schedulers.view import Tiers
from services.worker.engine import Engine
from services.worker.rows import Ask
from services.worker.steps import Step, StepReader
from services.worker.vllm.settings import NAME, told
from sim.run import Setup

COSTS = [0.0, 0.006, 6e-5, 0.0, 4e-9, 4e-5, 7.5e-8]
TIERS = Tiers(
    np.array([0.5, 2.0, inf]),
    np.array([0.03, 0.1, inf]),
    np.array([inf, inf, 60.0]),
    np.array([4.0, 2.0, 1.0]),
)
BLOCK = 32


def config_of(model, spec, setup_like, **more):
    """Settings of vLLM for an engine with these limits, and more of its arguments."""
    from vllm.engine.arg_utils import EngineArgs

    sequences, budget, length = setup_like
    args = EngineArgs(
        model=str(model), dtype="float32", enforce_eager=True, max_model_len=length, block_size=BLOCK,
        max_num_seqs=sequences, max_num_batched_tokens=budget, enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20, async_scheduling=False,
        scheduler_cls="services.worker.vllm.scheduler.PolicyScheduler",
        additional_config=told(spec, COSTS, TIERS), **more,
    )  # fmt: skip
    return args.create_engine_config()


def scheduler_of(config, blocks, kind=None):
    """vLLM's scheduler alone, with so many usable blocks."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from services.worker.vllm.scheduler import PolicyScheduler

    config.cache_config.num_gpu_blocks = blocks + 1  # one is never handed out
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    memory = KVCacheConfig(
        num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return (kind or PolicyScheduler)(
        vllm_config=config, kv_cache_config=memory, structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK, hash_block_size=BLOCK, log_stats=False,
    )  # fmt: skip


def request_of(number, ask, handover=None):
    """A request as vLLM has it, its tokens all 1; ``handover`` says where its KV can be fetched."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    extra = {
        name: getattr(ask, name)
        for name in ("arrival_s", "forecast_tokens", "tier", "tenant", "session", "luck")
    }
    params = SamplingParams(
        max_tokens=ask.output_tokens, ignore_eos=True, temperature=0.0,
        extra_args={NAME: extra} | ({"kv_transfer_params": handover} if handover else {}),
    )  # fmt: skip
    return Request(
        request_id=f"r{number}", prompt_token_ids=[1] * ask.prompt_tokens, sampling_params=params,
        pooling_params=None, arrival_time=ask.arrival_s,
    )  # fmt: skip


def traffic(count, seed, rate_per_s, prompts=(20, 400), outputs=(5, 80)):
    """Requests with Poisson arrivals, three tiers and three tenants."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1.0 / rate_per_s, count))
    return [
        Ask(
            arrival_s=float(moment), prompt_tokens=int(draw.integers(*prompts)),
            output_tokens=int(draw.integers(*outputs)), forecast_tokens=float(draw.integers(*outputs)),
            tier=int(draw.integers(0, 3)), tenant=int(draw.integers(0, 3)), luck=float(draw.random()),
        )
        for moment in arrivals
    ]  # fmt: skip


def model_steps(spec, asks, limits, blocks):
    """Steps of the engine model, and when each request ended."""
    sequences, budget, length = limits
    setup = Setup(1, sequences, budget, BLOCK, blocks, length, np.array(COSTS), TIERS)
    engine, reader, steps, ended = Engine(load(spec), setup), StepReader(), [], {}
    left, now_s = list(enumerate(asks)), 0.0
    while left or sum(engine.load) or engine.busy:
        due_s = min(engine.next_s(now_s), left[0][1].arrival_s if left else inf)
        now_s = max(now_s, due_s)
        while left and left[0][1].arrival_s <= now_s:
            if engine.busy and engine.next_s(now_s) <= left[0][1].arrival_s:
                break
            number, ask = left.pop(0)
            engine.add(f"r{number}", ask, ask.arrival_s)
        stood = not engine.busy
        gained = engine.act(now_s)
        for one in gained or ():
            if one.outcome >= 0:
                ended[one.key] = (one.outcome, one.time_s)
        if stood and engine.busy:
            steps.append(reader.read(engine))
    return steps, ended


class Driver:
    """vLLM's scheduler without a model, on a clock that moves by the modelled durations.

    ``mid_step`` tells of arrivals when they happen, as the model does; else between steps, as vLLM's core does.
    """

    def __init__(self, scheduler, asks, mid_step=True):
        self.scheduler, self.mid_step = scheduler, mid_step
        self.left, self.now_s, self.reader = list(enumerate(asks)), 0.0, StepReader()
        self.steps, self.ended = [], {}
        scheduler.clock = lambda: self.now_s

    def arrive(self, until_s, including=True):
        """Hand over the requests that have arrived by a moment."""
        while self.left and (
            self.left[0][1].arrival_s < until_s or (including and self.left[0][1].arrival_s == until_s)
        ):
            number, ask = self.left.pop(0)
            here, self.now_s = self.now_s, ask.arrival_s
            self.scheduler.add_request(request_of(number, ask))
            self.now_s = here

    def run(self):
        """Run to the end; returns the steps, and how and when each request ended."""
        while self.left or self.scheduler.get_num_unfinished_requests():
            if not self.scheduler.get_num_unfinished_requests():
                self.now_s = max(self.now_s, self.left[0][1].arrival_s)
            self.arrive(self.now_s)
            output = self.scheduler.schedule()
            if output.num_scheduled_tokens:
                step = self.reader.read(self.scheduler.shadow)
                assert step.tokens == output.num_scheduled_tokens
                self.steps.append(step)
                if self.mid_step:
                    self.arrive(step.end_s, including=False)
                self.now_s = step.end_s
            self.land(output)
            if not output.num_scheduled_tokens and self.scheduler.get_num_unfinished_requests():
                pause_s = self.scheduler.shadow.sleep_s(self.now_s)
                ahead_s = self.left[0][1].arrival_s - self.now_s if self.left else inf
                assert min(pause_s, ahead_s) < inf, "stalled"
                self.now_s += min(pause_s, ahead_s)
        return self.steps, self.ended

    def land(self, output, kv=None):
        """Give back what a model would: a token for whoever's prompt is in; ``kv`` is what a connector would say."""
        from vllm.v1.outputs import ModelRunnerOutput

        made = [
            [] if self.scheduler.requests[key].is_prefill_chunk else [7]
            for key in output.num_scheduled_tokens
        ]
        told_back = ModelRunnerOutput(
            req_ids=list(output.num_scheduled_tokens),
            req_id_to_index={key: place for place, key in enumerate(output.num_scheduled_tokens)},
            sampled_token_ids=made, kv_connector_output=kv,
        )  # fmt: skip
        for outputs in self.scheduler.update_from_output(output, told_back).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.ended[one.request_id] = (str(one.finish_reason), self.now_s)


def waited(steps: list[Step]) -> int:
    """Steps in which somebody was evicted."""
    return sum(bool(step.evicted) for step in steps)


class StockDriver(Driver):
    """The same for a scheduler of vLLM that is not ours."""

    def run(self):
        """Run to the end; returns the steps, and how and when each request ended."""
        here, self.left = self.left, []
        self.waiting_asks = here
        while self.waiting_asks or self.scheduler.get_num_unfinished_requests():
            if not self.scheduler.get_num_unfinished_requests():
                self.now_s = max(self.now_s, self.waiting_asks[0][1].arrival_s)
            while self.waiting_asks and self.waiting_asks[0][1].arrival_s <= self.now_s:
                self.scheduler.add_request(request_of(*self.waiting_asks.pop(0)))
            before = {key: one.num_preemptions for key, one in self.scheduler.requests.items()}
            output = self.scheduler.schedule()
            tokens = output.num_scheduled_tokens
            gone = [
                key for key, count in before.items() if self.scheduler.requests[key].num_preemptions > count
            ]
            end_s = self.now_s + self.lasts_s(tokens)
            self.steps.append(Step(self.now_s, end_s, dict(tokens), tuple(sorted(gone))))
            self.now_s = end_s
            self.land(output)
        return self.steps, self.ended

    def lasts_s(self, tokens):
        """What the step costs by the model; vLLM has counted its tokens as computed already."""
        load = np.zeros(4)
        for key, chunk in tokens.items():
            one = self.scheduler.requests[key]
            past = one.num_computed_tokens - chunk
            if chunk == 1 and past == one.num_tokens - 1 and one.num_output_tokens:
                load += (0, 0, 1, past + 1)
            else:
                load += (chunk, chunk * (past + chunk / 2), 0, 0)
        return step_s(np.array(COSTS), *load)
