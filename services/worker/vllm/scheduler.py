"""vLLM's scheduler with a policy's answers: its loops, its memory and its batches, our functions asked over them.

``PolicyScheduler`` goes with synchronous scheduling (all that a CPU has), ``AsyncPolicyScheduler`` with the
asynchronous one of accelerators, which was not run. Settings come in ``additional_config["windtunnel"]``.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from schedulers.load import load
from services.worker.engine import Key
from services.worker.steps import Step, StepLog
from services.worker.vllm.capability import check_version, refuse_unable
from services.worker.vllm.leaving import for_memory, for_others
from services.worker.vllm.passing import Passing
from services.worker.vllm.queue import PolicyQueue
from services.worker.vllm.settings import NAME, Settings, ask_of, settings_of, tiers_from
from services.worker.vllm.shadow import Shadow
from services.worker.vllm.wire import EngineEnd, Record, end_with_parent, key_of

POLL_S = 0.002
"""How long an engine that lets nobody run rests before it looks again; vLLM's own loop would spin."""


SLACK_S = 0.05
"""A paced engine that is behind by more gives its clock up, and goes on from the present."""


def blank() -> Record:
    """Return the record of a step that has not begun."""
    return Record(0.0, 0.0, 0.0, 0, {}, {}, [], [], [])


class Worth:
    """Stands where vLLM has a request's priority, which it compares only to find who is evicted: the largest."""

    def __init__(self, scheduler: "Policies", key: str) -> None:
        self.scheduler, self.key = scheduler, key

    def __gt__(self, other: "Worth") -> bool:
        parted = self.scheduler.passing.parted if self.scheduler.passing else ()
        if (
            self.key in parted or other.key in parted
        ):  # whoever stands still for another engine is not evicted
            return other.key in parted and self.key not in parted
        return self.scheduler.shadow.worse(self.key, other.key, self.scheduler.now_s)

    def __lt__(self, other: "Worth") -> bool:
        return other > self


class Policies:
    """What our scheduler adds to vLLM's; goes before one of its classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(vllm.__version__)
        super().__init__(*args, **kwargs)
        this: Any = self
        self.settings: Settings = settings_of(this.vllm_config, usable_blocks=self._blocks_left())
        scheduler, setup = load(self.settings.policy), self.settings.setup
        refuse_unable(scheduler, setup.budget_max, setup.model_tokens)
        self.shadow = Shadow(scheduler, setup)
        self.clock: Callable[[], float] = time.monotonic
        self.now_s = 0.0
        self.full_budget = this.max_num_scheduled_tokens
        self.refused: list[Request] = []
        self.line = EngineEnd(self.settings.socket) if self.settings.socket else None
        if self.line is not None:
            end_with_parent()
        self.log = StepLog(Path(self.settings.log)) if self.settings.log else None
        self.names: dict[str, int | str] = {}  # the worker's key of each request
        self.record = blank()
        self.flights: dict[int, Record] = {}  # steps under way, by their output
        this.policy = SchedulingPolicy.PRIORITY  # evicts by Worth
        this.waiting = self.queue = PolicyQueue(self.shadow)
        this.scheduler_reserve_full_isl = False  # admission is the policy's; else the engine model's default
        manager = this.kv_cache_manager
        manager.watermark_blocks = 0
        self._allocate, manager.allocate_slots = manager.allocate_slots, self._allocated
        self.passing = Passing(self) if this.connector is not None else None
        if (
            self.settings.cores
        ):  # a connector on a CPU binds this thread to the last core, every engine to the same
            os.sched_setaffinity(0, self.settings.cores)

    def _blocks_left(self) -> int:
        this: Any = self
        return int(this.kv_cache_manager.block_pool.get_num_free_blocks())

    # a step

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Form the next step: vLLM's loops over queue and batch, both in the policy's order."""
        this: Any = self
        self._heed()
        self.now_s = now_s = self.starting_s()
        shadow = self.shadow
        self.record.start_s = now_s
        shadow.rig.known.engines.blocks_free[0] = self._blocks_left()
        this.max_num_scheduled_tokens = shadow.begin(now_s)
        if self.passing is not None:
            self.passing.part()
        order, held = self._sort_batch(now_s)
        leaving = for_memory(shadow, order, held, now_s)
        shadow.shut = bool(leaving)
        for key in leaving:
            self._put_out(key)
        if not leaving:
            for key in for_others(shadow, order, now_s):
                self._put_out(key)
        self.queue.now_s = now_s
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.queue.now_s = None
            this.max_num_scheduled_tokens = self.full_budget
        self._refuse()
        self.record.lasts_s = shadow.close(now_s)
        self.flights[id(output)], self.record = self.record, blank()
        if not output.num_scheduled_tokens and self.clock is time.monotonic:
            time.sleep(min(POLL_S, max(0.0, shadow.sleep_s(now_s))))  # vLLM's own loop would spin
        return output

    def starting_s(self) -> float:
        """When the step that is about to be formed starts: now, or in a paced engine when the one before it ended."""
        now_s, plant = self.clock(), self.shadow.rig.plant
        ended_s = float(plant.clock_s[0])
        goes_on = self.settings.paced and now_s - ended_s < SLACK_S and ended_s <= now_s
        return ended_s if goes_on else now_s

    def landing_s(self, record: Record) -> float:
        """When a step that the model has just run has ended; a paced engine waits for it."""
        now_s = self.clock()
        if not self.settings.paced:
            return now_s
        due_s = record.start_s + record.lasts_s
        if due_s > now_s:
            time.sleep(due_s - now_s)
        return due_s if now_s - due_s < SLACK_S else now_s

    def _heed(self) -> None:
        """Do what the worker has ordered since the last step."""
        for order in self.line.orders() if self.line else ():
            if order.tiers is not None:
                self.shadow.setup = self.shadow.setup._replace(tiers=tiers_from(order.tiers))
            if order.policy or order.tiers is not None:
                self.change_policy(order.policy or self.settings.policy)
            if self.passing is not None:
                self.passing.heed(order)

    def _sort_batch(self, now_s: float) -> tuple[list[Any], list[Any]]:
        """Bring vLLM's running requests into the policy's order; who is held back sits this step out."""
        this: Any = self
        served = self.shadow.served(now_s)
        of_id = {request.request_id: request for request in this.running}
        parted = [key for key in of_id if self.passing is not None and key in self.passing.parted]
        this.running[:] = [of_id[key] for key in (*(key for key, _ in served), *parted)]
        for key in (*(key for key, is_held in served if is_held), *parted):
            of_id[key].next_decode_eligible_step = this.current_step + 2  # this step has not been counted yet
        return [key for key, is_held in served if not is_held], [key for key, is_held in served if is_held]

    def _put_out(self, key: Key) -> None:
        """Evict a running request before the step is formed."""
        this: Any = self
        request = this.requests[key]
        this.running.remove(request)
        self._preempt_request(request, time.monotonic())

    def _allocated(self, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Let vLLM allocate, and write down who got tokens and blocks."""
        this: Any = self
        blocks = self._allocate(request, num_new_tokens, *args, **kwargs)
        if blocks is None or self.queue.now_s is None:
            return blocks
        key = request.request_id
        fetched = self.passing is not None and key in self.passing.coming
        if fetched and not self.passing.enter(request, num_new_tokens, self.now_s):  # type: ignore[union-attr]
            return blocks
        held = len(this.kv_cache_manager.get_blocks(key).blocks[0])
        self.shadow.hold_blocks(key, held, self._blocks_left())
        if fetched:
            self.record.gave[self.names[key]] = num_new_tokens
        elif request.status == RequestStatus.RUNNING:
            self.shadow.give(key, num_new_tokens)
            self.record.gave[self.names[key]] = num_new_tokens
        else:
            self.queue.chunk = num_new_tokens
            self.record.took[self.names[key]] = num_new_tokens
        return blocks

    def _preempt_request(self, request: Any, timestamp: float, *args: Any, **kwargs: Any) -> None:
        """Evict a running request, as vLLM does, and write it down."""
        super()._preempt_request(request, timestamp, *args, **kwargs)  # type: ignore[misc]
        name = self.names[request.request_id]
        self.record.evicted.append(name)
        self.record.gave.pop(name, None)
        if self.shadow.runs(request.request_id):
            self.shadow.evict(request.request_id, self.now_s)
            self.shadow.shut = self.shadow.shut or self.queue.now_s is not None
        self.shadow.rig.known.engines.blocks_free[0] = self._blocks_left()

    def _refuse(self) -> None:
        """Take those whom the policy refused off vLLM's books; their clients hear of it with the step's output."""
        this: Any = self
        for key in self.shadow.refused:
            request = this.requests[key]
            self.refused.append(request)
            if self.passing is not None:
                self.passing.forget([request.request_id])
            self.record.refused.append(self.names.pop(request.request_id))
            super().finish_requests(key, RequestStatus.FINISHED_ABORTED)  # type: ignore[misc]
        self.shadow.refused.clear()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in what the step made, and tell the policy."""
        this: Any = self
        end_s = self.landing_s(self.flights[id(scheduler_output)])
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        record = self.flights.pop(id(scheduler_output))
        if scheduler_output.num_scheduled_tokens:
            ended = [key for key in scheduler_output.num_scheduled_tokens if key not in this.requests]
            record.end_s, record.ended = end_s, [self.names[key] for key in ended if key in self.names]
            self.shadow.finish_step(end_s, ended)
            for key in ended:
                self.names.pop(key, None)
            if self.passing is not None:
                self.passing.forget(ended)
        if self.log is not None:
            gone = tuple(sorted(record.evicted, key=str))
            self.log.add(Step(record.start_s, record.end_s, {**record.took, **record.gave}, gone))
        self.shadow.rig.known.engines.blocks_free[0] = self._blocks_left()
        record.free = self._blocks_left()
        if self.line is not None and (scheduler_output.num_scheduled_tokens or record.refused):
            self.line.tell(record)
        for request in self.refused:
            told = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=FinishReason.ABORT,
                stop_reason="shed",
            )
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(told)
        self.refused.clear()
        return outputs

    # requests

    def add_request(self, request: Request) -> None:
        """A request reached the engine."""
        this: Any = self
        if request.request_id not in this.requests:
            request.priority = Worth(self, request.request_id)
            self.names[request.request_id] = key_of(request, NAME)
            if self.passing is not None and self.passing.brings(request):
                self.passing.expect(request, self.clock())
            else:
                self.shadow.arrive(request.request_id, ask_of(request, self.clock()), self.clock())
        super().add_request(request)  # type: ignore[misc]

    def _enqueue_waiting_request(self, request: Request) -> None:
        """One whose KV is fetched waits where vLLM looks first; the policy of the engine it came from took it."""
        this: Any = self
        if self.passing is not None and request.request_id in self.passing.coming:
            this.kv_holding_waiting.add_request(request)
        else:
            super()._enqueue_waiting_request(request)  # type: ignore[misc]

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """One whose KV is fetched does not run before it is ours."""
        if self.passing is not None and self.passing.must_wait(request):
            return False
        return bool(super()._handle_blocked_waiting_request(request))  # type: ignore[misc]

    def _update_from_kv_xfer_finished(self, kv_connector_output: Any) -> None:
        """KV was read or has come."""
        if self.passing is not None:
            self.passing.finished(kv_connector_output)
        super()._update_from_kv_xfer_finished(kv_connector_output)  # type: ignore[misc]

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        """Requests end by somebody's word: they leave the tables, too."""
        if self.passing is not None:
            names = [request_ids] if isinstance(request_ids, str) else request_ids
            request_ids = [*self.requests] if names is None else [*names]  # type: ignore[attr-defined]
            self.passing.forget(request_ids)
        ended = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        for request in ended:
            self.shadow.cancel(request.request_id, self.clock())
            self.names.pop(request.request_id, None)
        self.shadow.rig.known.engines.blocks_free[0] = self._blocks_left()
        return ended

    def change_policy(self, spec: str) -> None:
        """Go on under another policy; raises InputError, and nothing changes, if it can't be run here."""
        scheduler = load(spec)
        refuse_unable(scheduler, self.settings.setup.budget_max, self.settings.setup.model_tokens)
        self.shadow.switch(scheduler, self.clock())
        self.shadow.place = 0
        self.settings = self.settings._replace(policy=spec)


class PolicyScheduler(Policies, Scheduler):  # type: ignore[misc]
    """For synchronous scheduling."""


class AsyncPolicyScheduler(Policies, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling; untested, since it needs an accelerator."""
