"""A real engine as the worker sees it: the tables of the simulated one, kept by what the engine reports."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan
from time import monotonic
from typing import Any

from loadgen.result import FAILED, FINISHED, REJECTED
from schedulers.load import load
from schedulers.view import RUNNING
from services.worker.answers import Real
from services.worker.engine import Key, Parcel, Progress
from services.worker.rows import Ask
from services.worker.vllm.settings import NAME
from services.worker.vllm.shadow import Shadow
from services.worker.vllm.wire import Order, Record, Told
from sim.run import Setup

WAIT_S = 0.5
"""How long the first token of a request waits for the report of its step, which comes by another way."""


@dataclass
class Said:
    """A request as the model gets it, and what the model has said."""

    prompt: list[int]
    sampling: dict[str, Any]
    wants_text: bool
    real: Real
    begun: int = 0  # tokens made elsewhere, recomputed here with the prompt
    told: int = 0  # tokens of ``real`` that were passed on
    before: int = 0  # tokens of ``real`` that an earlier try here made: part of the prompt of this one


class Front(Shadow):
    """The worker's side of an engine; ``changed`` is called whenever there is something to ``act`` on."""

    def __init__(self, llm: Any, setup: Setup) -> None:
        super().__init__(load("fcfs-chunked"), setup)  # decides nothing: the engine's own process does
        self.llm = llm
        self.modelled_s = 0.0
        self.changed: Callable[[], None] = lambda: None
        self.order: Callable[[Order], None] = lambda _: None  # to the engine's process
        self.said: dict[Key, Said] = {}
        self.stopped: set[Key] = set()  # ended by the model's own word
        self.objections: dict[Key, str] = {}  # what the engine has against a request
        self.landed: set[Key] = set()  # came with their KV; their first step here has not been told
        self.fault: BaseException | None = None
        self._gained: list[Progress] = []
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._started: dict[Key, float] = {}
        self._evicted: dict[Key, int] = {}
        self._number = 0

    # what the worker asks

    def prepare(self, key: Key, said: Said) -> None:
        """Tell what a request that is about to be added says."""
        self.said[key] = said

    def add(self, key: Key, ask: Ask, now_s: float) -> Progress | None:
        """Send a request to the engine; returns its end if it can never fit."""
        end = super().add(key, ask, now_s)
        if end is not None:
            self._let_go(key)
            return end
        self._submit(key, ask)
        return None

    def act(self, now_s: float, *, before: bool = False) -> list[Progress] | None:
        """Return what requests gained since; None if nothing. Raises what the engine died of."""
        if self.fault is not None:
            raise self.fault
        gained, self._gained = self._gained, []
        return gained or None

    def next_s(self, now_s: float) -> float:
        """Nothing is due by the clock: the engine says when something is."""
        return inf

    def cancel(self, key: Key, now_s: float, *, outcome: int = FAILED) -> Progress | None:
        """Abort a request in the engine."""
        self._let_go(key)
        return super().cancel(key, now_s, outcome=outcome)

    def freeze(self, key: Key) -> Parcel | None:
        """Stop a decoding request; it is computed again wherever it goes on."""
        parcel = super().freeze(key)
        if parcel is not None:
            self._tasks.pop(key).cancel()
            said = self.said[key]
            del said.real.tokens[said.told :], said.real.pieces[said.told :]
        return parcel

    def thaw(self, key: Key) -> None:
        """Go on here after all, computing anew what was aborted."""
        said = self.said[key]
        ask = self.parcel(key).ask._replace(generated_tokens=said.begun + len(said.real.tokens))
        super().cancel(key, monotonic())
        self.add(key, ask, monotonic())

    def pace(self, factor: float) -> None:
        """A real engine can't be slowed down from here; "none" (factor 1) asks for nothing."""

    # what the engine reports

    def hear(self, told: Told) -> None:
        """The engine says something."""
        if isinstance(told, Record):
            self.took(told)

    def took(self, record: Record) -> None:
        """Bring the tables up to date with a step."""
        for key in record.evicted:
            if self.runs(key) and self.row_of[key] not in self.frozen:
                self.evict(key, record.start_s)
                self._evicted[key] = self._evicted.get(key, 0) + 1
        self.begin(record.start_s)
        for key, chunk in record.took.items():
            if key in self.row_of and self.waits(key):
                self.take(key, chunk, record.start_s)
                self._started.setdefault(key, float(self.rig.plant.started_s[self.row_of[key]]))
        for key, chunk in record.gave.items():
            if key in self.landed and key in self.row_of:
                self._enter(key, chunk, record.start_s)
            elif self.runs(key) and self.row_of[key] not in self.frozen:
                self.give(key, chunk)
        self.rig.known.engines.blocks_free[0] = record.free - sum(self.reserved.values())
        if self.close(record.start_s):
            self.finish_step(record.end_s, [*record.ended])
            self.modelled_s = (self.modelled_s or 0.0) + record.lasts_s
        for key in record.refused:
            super().cancel(key, record.end_s, outcome=REJECTED)
        self.rig.known.engines.blocks_free[0] = record.free - sum(self.reserved.values())

    def _enter(self, key: Key, chunk: int, now_s: float) -> None:
        """One that came with its KV runs: what its former engine had computed needs no step."""
        row, table = self.row_of[key], self.rig.known.requests
        self.landed.discard(key)
        self.enter(key, int(table.prefill_tokens[row]) - 1, chunk, now_s)
        self._started[key] = now_s

    def started_s(self, key: Key) -> float:
        """When a request's first step started; NaN if the report has not come."""
        return self._started.get(key, float("nan"))

    # the engine's tokens

    def _submit(self, key: Key, ask: Ask) -> None:
        """Send a request to the engine's process; its answer is as long as the tables say."""
        self._send(key, ask._replace(output_tokens=int(self.rig.plant.output_tokens[self.row_of[key]])))

    def _send(self, key: Key, ask: Ask, handover: dict[str, Any] | None = None) -> None:
        self._number += 1
        task = asyncio.create_task(self._follow(key, ask, f"w{self._number}", handover))
        self._tasks[key] = task

    async def _follow(self, key: Key, ask: Ask, name: str, handover: dict[str, Any] | None) -> None:
        """Pass a request's tokens on as they come; ``handover`` says where its KV can be fetched, if it can."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind

        said = self.said[key]
        made = ask.generated_tokens
        said.before = made - said.begun
        prompt = [*said.prompt, *said.real.tokens[: said.before]] if said.before else said.prompt
        extra = {
            name: getattr(ask, name)
            for name in (
                "arrival_s",
                "forecast_tokens",
                "tier",
                "tenant",
                "session",
                "luck",
                "generated_tokens",
            )
        } | {"key": key}
        try:
            params = SamplingParams(
                **said.sampling, max_tokens=ask.output_tokens - made, detokenize=said.wants_text,
                extra_args={NAME: extra} | ({"kv_transfer_params": handover} if handover else {}),
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            async for told in self.llm.generate({"prompt_token_ids": prompt}, params, name):
                await self._pass_on(key, told, made)
                made += len(told.outputs[0].token_ids)
        except asyncio.CancelledError:
            raise
        except VLLMClientError as error:  # the request is at fault, and the engine serves the others
            self._refuse(key, made, str(error))
        except Exception as error:
            self.fault = error
            self.changed()

    def _refuse(self, key: Key, made: int, why: str) -> None:
        """End a request that the engine does not take."""
        self.objections[key] = why
        now_s = monotonic()
        self._gained.append(
            Progress(key, offset=made, made=0, time_s=now_s, outcome=REJECTED, started_s=now_s)
        )
        self._tasks.pop(key, None)
        self._let_go(key)
        if key in self.row_of:
            super().cancel(key, now_s, outcome=REJECTED)
        self.changed()

    async def _pass_on(self, key: Key, told: Any, made: int) -> None:
        said, part = self.said[key], told.outputs[0]
        tokens = list(part.token_ids)
        said.real.tokens += tokens
        said.real.pieces += [part.text, *[""] * (len(tokens) - 1)] if tokens else []
        until_s = monotonic() + WAIT_S
        while isnan(self.started_s(key)) and tokens and monotonic() < until_s:
            await asyncio.sleep(0.001)
        outcome, reason = -1, 0
        if part.finish_reason is not None:
            outcome = FINISHED
            if part.finish_reason == "stop":
                self.stopped.add(key)
            elif part.finish_reason != "length":
                outcome, reason = REJECTED, 2
        said.told = len(said.real.tokens)
        started_s, now_s = self.started_s(key), monotonic()
        evictions = self._evicted.get(key, 0)
        self._gained.append(
            Progress(
                key, offset=made, made=len(tokens), time_s=now_s, outcome=outcome, reason=reason,
                started_s=now_s if isnan(started_s) else started_s, evictions=evictions,
            )
        )  # fmt: skip
        if outcome >= 0:
            self._tasks.pop(key, None)
            self._let_go(key)
            if key in self.row_of:  # the report of its last step is still on its way
                super().cancel(key, now_s, outcome=outcome)
        self.changed()

    def _let_go(self, key: Key) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        for table in (self.said, self._started, self._evicted):
            table.pop(key, None)

    @property
    def decoding(self) -> list[Key]:
        """Requests that run."""
        table = self.rig.known.requests
        return [key for key, row in self.row_of.items() if table.state[row] == RUNNING]
