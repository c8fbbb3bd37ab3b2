"""A worker whose engine is vLLM: the simulated worker's answers, link, web and metrics over a real engine."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from schedulers.errors import InputError
from schedulers.load import file_of, load
from schedulers.view import Tiers
from services.draws import draws_of
from services.rpc.windtunnel.v1.worker_pb2 import BlockChunk, Copied, Enqueue, Stopped, TransferState
from services.settings import RECOMPUTE
from services.worker.answers import Answer, Real, opened
from services.worker.config import setup_of
from services.worker.gauges import Gauges
from services.worker.moves import Incoming, MoveError, Moves
from services.worker.vllm.capability import check_version, refuse_unable
from services.worker.vllm.config import EngineConfig, check, engine_args
from services.worker.vllm.front import Front, Said
from services.worker.vllm.place import check_device, check_installed, settled
from services.worker.vllm.prompts import Vocabulary, ids_of
from services.worker.vllm.settings import NAME, told
from services.worker.vllm.wire import Order, WorkerEnd
from services.worker.worker import Worker
from sim.run import Setup

log = structlog.get_logger()


class EngineGauges(Gauges):
    """vLLM's own metrics, and of ours those that vLLM does not have."""

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        from prometheus_client import REGISTRY, generate_latest

        own = [line for line in super().text().splitlines(keepends=True) if b"vllm:" not in line]
        return bytes(generate_latest(REGISTRY)) + b"".join(own)


class EngineWorker(Worker):
    """Hands orders to vLLM and its tokens to the dispatcher."""

    driver = "vllm"
    config: EngineConfig
    engine: Front

    def __init__(
        self, config: EngineConfig, tiers: Tiers, engine: Front, line: WorkerEnd, vocabulary: Vocabulary
    ) -> None:
        super().__init__(config, tiers, engine=engine)
        self.line, self.vocabulary = line, vocabulary
        self.model = Path(config.model).name
        self.driver = "paced" if config.paced else "vllm"
        self.gauges = EngineGauges(self)
        engine.changed = self.stir

    def step_log(self) -> None:
        """None: the engine's own process writes it."""

    def start(self, answer: Answer, order: Enqueue) -> None:
        """Hand a new answer to the engine, its prompt as token ids."""
        self.engine.prepare(answer.number, self.said_of(answer, order))
        super().start(answer, order)
        if answer.number not in self.engine.row_of:  # it was over before it began
            self.engine.said.pop(answer.number, None)

    def said_of(self, answer: Answer, order: Enqueue) -> Said:
        """Return the request as the model gets it, its prompt as token ids, and give the answer its length."""
        if order.sampling.ignore_eos:
            least = {}
        else:
            answer.length, answer.ends_by = max(1, order.sampling.max_tokens, answer.first), "length"
            least = {"min_tokens": max(0, min(order.sampling.min_tokens, answer.length) - answer.first)}
        answer.real = Real()
        heat = order.sampling.temperature
        sampling = {"temperature": heat, "ignore_eos": order.sampling.ignore_eos, **least}
        if heat > 0.0 and self.config.device != "cpu":  # there vLLM dies of a seeded prompt read in parts
            sampling["seed"] = answer.seed >> 1
        sampling |= draws_of(order.sampling.passed_on)
        prompt = ids_of(order, self.vocabulary, answer.seed)
        answer.prompt_tokens = order.prompt_tokens = len(prompt)
        begun = list(order.generated)
        return Said([*prompt, *begun], sampling, order.want_text, answer.real, len(begun))

    def note(self, gained: Any) -> None:
        """Write down what requests gained; one that the model ended is as long as it is, one refused says why."""
        for one in gained:
            answer = self.answers.get(one.key)
            if (why := self.engine.objections.pop(one.key, None)) is not None and answer is not None:
                answer.end("bad_request", why)
            if one.key in self.engine.stopped:
                self.engine.stopped.discard(one.key)
                if answer is not None:
                    answer.length, answer.ends_by = answer.made + one.made, "stop"
        super().note(gained)

    def change_policy(self, named: str) -> None:
        """Change the policy inside vLLM from its next step on; one that it can't run changes nothing."""
        spec = named or self.config.engine_policy
        if spec == self.policy and file_of(spec) is None:  # whose file may have been changed
            return
        setup = self.engine.setup
        try:
            refuse_unable(load(spec), setup.budget_max, setup.model_tokens)
        except InputError as error:
            log.error("policy refused", policy=spec, why=str(error))
            return
        self.line.order(Order(policy=spec))
        self.policy = spec
        log.info("policy changed", policy=spec)

    def set_tiers(self, tiers: Tiers) -> None:
        """Work towards other targets."""
        super().set_tiers(tiers)
        self.line.order(Order(tiers=told("", [], tiers)[NAME]["tiers"]))


class Recomputes(Moves):
    """Migration of a request by its tokens alone: the source aborts it, the destination computes it again."""

    async def _stream(self, call: Any, migration: int, number: int, copy: Any) -> Stopped:
        self.faults.phase("copy")
        answer = self._leaving(number, copy.attempt)
        self.faults.phase("stop")
        if self.worker.engine.freeze(number) is None:
            raise MoveError("it is not decoding")
        self.outgoing[number].frozen = True
        self.worker.step(self.worker.now_s())  # what it had said by then counts
        await self._send_all(answer)
        made = [*self._earlier(number), *answer.tokens(answer.first, answer.made)]
        state = TransferState(generated=made, computed_tokens=0)
        await call.write(BlockChunk(ticket=copy.ticket, migration=migration, number=number, state=state))
        return Stopped(generated=answer.made, blocks=0)

    def _earlier(self, number: int) -> list[int]:
        """Tokens of an answer that were made before it came here."""
        engine = self.worker.engine
        assert isinstance(engine, Front)
        said = engine.said[number]
        return said.prompt[len(said.prompt) - said.begun :] if said.begun else []

    def _misfit(self, coming: Incoming, state: TransferState) -> str:
        return "" if coming.payload_bytes == 0 else "blocks came, and nobody asked for them"

    async def _take_in(self, coming: Incoming, state: TransferState) -> Copied:
        why = "the destination has no NIXL" if state.handover else ""
        return Copied(generated=len(state.generated), way=RECOMPUTE, why=why)

    def _adopt(self, coming: Incoming, next_index: int, credit_to: int) -> bool:
        worker, order, state = self.worker, coming.order, coming.state
        assert state is not None
        if next_index != len(state.generated):
            return False
        order.generated[:] = state.generated
        answer = opened(order, worker.now_s())
        answer.credit_to = max(answer.credit_to, credit_to)
        worker.engine.release(order.number)
        worker.start(answer, order)
        return True


@asynccontextmanager
async def engine_worker(
    config: EngineConfig, tiers: Tiers, front: type[Front] = Front
) -> AsyncIterator[EngineWorker]:
    """Start vLLM in this process (its core runs in one of its own) and yield a worker over it.

    Raises InputError for settings that it can't keep, or another version of vLLM.
    """
    check(config)
    check_installed()
    with settled(config.model) as folder:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        check_version(vllm.__version__)
        check_device(config.device, on_processor=current_platform.is_cpu())
        path = os.path.join(folder, "engine")
        early: list[Any] = []
        line = WorkerEnd(path, early.append)
        await line.listen()
        settings = AsyncEngineArgs(**engine_args(config, tiers, path)).create_engine_config()
        llm = AsyncLLM.from_vllm_config(settings)
        try:
            engine = front(llm, true_limits(config, tiers, llm))
            line.hear, engine.order = engine.hear, line.order
            tokenizer = llm.get_tokenizer()
            vocabulary = Vocabulary(settings.model_config.get_vocab_size(), tokenizer.encode)
            yield EngineWorker(config, tiers, engine, line, vocabulary)
        finally:
            await line.close()
            llm.shutdown()


def true_limits(config: EngineConfig, tiers: Tiers, llm: Any) -> Setup:
    """Return the limits that the engine has, not those that were asked for."""
    settings = llm.vllm_config
    blocks = settings.cache_config.num_gpu_blocks - 1  # one is never handed out
    return setup_of(config, tiers)._replace(
        sequences_max=settings.scheduler_config.max_num_seqs,
        budget_max=settings.scheduler_config.max_num_batched_tokens,
        block_tokens=settings.cache_config.block_size,
        blocks=blocks,
        model_tokens=settings.model_config.max_model_len,
    )
