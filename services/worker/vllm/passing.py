"""Requests whose KV leaves this engine or comes to it, inside vLLM's process, beside its scheduler and connector.

vLLM's own way hands KV over when a request *ends*, and frees it when a lease runs out or the reader has said that it
is done. A move that may be called off needs more: here a request that leaves stands still, alive, with its blocks,
until the worker says that it goes on or is gone; no lease runs. One that comes is fetched at once and does not run
before the worker says that it is ours. So until the commit the source can go on within a step, and no work is lost.

Facts about the connector are of vLLM 0.32.0 (``capability.VERSIONS``).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from services.worker.rows import Ask
from services.worker.vllm.settings import ask_of
from services.worker.vllm.wire import Came, Order, Parted

if TYPE_CHECKING:
    from services.worker.vllm.scheduler import Policies


class Passing:
    """Who leaves and who comes, by vLLM's request ids; ``scheduler`` is vLLM's, with our policies."""

    def __init__(self, scheduler: "Policies") -> None:
        vllms: Any = scheduler
        self.scheduler, self.connector = vllms, vllms.connector.connector_scheduler
        config = vllms.kv_cache_config
        self.block_bytes = sum(one.size for one in config.kv_cache_tensors) // config.num_blocks
        self.block_tokens: int = vllms.block_size
        self.parting: set[str] = set()  # are to stand still as soon as they can
        self.parted: set[str] = set()  # stand still, KV on offer
        self.coming: dict[str, Ask] = {}  # are fetched; they do not run yet
        self.landed: set[str] = set()  # of those: they are ours, and may

    def heed(self, order: Order) -> None:
        """Do what the worker says about requests that move; one that has ended meanwhile is left alone."""
        if not (order.part or order.stay or order.land):
            return
        ids = {key: name for name, key in self.scheduler.names.items()}
        self.parting |= {ids[key] for key in order.part if key in ids}
        for name in (ids[key] for key in order.stay if key in ids):
            self.parting.discard(name)
            if name in self.parted:
                self._withdraw(name)
                self.scheduler.shadow.thaw(name)
        self.landed |= {ids[key] for key in order.land if key in ids and ids[key] in self.coming}

    def part(self) -> None:
        """Let those stand still who can, before a step is formed.

        Not while the tokens computed fill their blocks to the last place: the other engine sets aside room for one
        token more than there is KV of, which would be one block more than there is to fetch, and it dies of that.
        The next token is in a block of its own, so one step later it can.
        """
        for name in list(self.parting):
            request = self.scheduler.requests[name]
            ready = (
                request.status == RequestStatus.RUNNING
                and request.num_output_tokens > 0
                and request.num_computed_tokens == request.num_tokens - 1
                and request.num_computed_tokens % self.block_tokens != 0
            )
            if not ready or self.scheduler.shadow.freeze(name) is None:
                continue
            self.parting.discard(name)
            self.parted.add(name)
            request.kv_transfer_params = {"do_remote_decode": True}
            self.connector._reqs_in_batch.add(name)  # whoever reads its blocks is expected
            blocks = self._blocks(name)
            handover = self._handover(request, blocks)
            self._tell(
                Parted(self.scheduler.names[name], request.num_output_tokens, sum(map(len, blocks)), handover)
            )

    def _withdraw(self, name: str) -> None:
        """The KV of a request is on offer no more."""
        self.parted.discard(name)
        self.scheduler.requests[name].kv_transfer_params = None
        self.connector._reqs_not_processed.add(name)

    def _blocks(self, name: str) -> tuple[list[int], ...]:
        """Blocks that hold the KV of a request's computed tokens, by group of layers."""
        found: tuple[list[int], ...] = self.scheduler.kv_cache_manager.get_block_ids_for_computed_tokens(
            request_id=name, num_computed_tokens=self.scheduler.requests[name].num_computed_tokens
        )
        return found

    def _handover(self, request: Any, blocks: tuple[list[int], ...]) -> dict[str, Any]:
        """What the other engine's connector needs, as vLLM's own makes it when a request ends."""
        here, parallel = self.connector, self.scheduler.vllm_config.parallel_config
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(group) for group in here.get_exchange_clipped_blocks(blocks)],
            "remote_engine_id": here.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": here.side_channel_host,
            "remote_port": here.side_channel_port,
            "tp_size": here.transfer_tp_size,
            "dcp_size": parallel.decode_context_parallel_size,
            "pp_size": parallel.pipeline_parallel_size,
            "remote_num_tokens": request.num_computed_tokens,
            "transfer_mode": here._TRANSFER_MODE,
        }

    def brings(self, request: Any) -> bool:
        """True for a request that another engine has computed and still holds."""
        return bool((request.kv_transfer_params or {}).get("do_remote_prefill"))

    def expect(self, request: Any, now_s: float) -> None:
        """A request is added whose KV is to be fetched."""
        self.coming[request.request_id] = ask_of(request, now_s)

    def must_wait(self, request: Any) -> bool:
        """True for one that comes and may not run yet; one that is not being fetched yet may ask for blocks."""
        name = request.request_id
        fetched = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return fetched and name in self.coming and name not in self.landed

    def enter(self, request: Any, chunk: int, now_s: float) -> bool:
        """Blocks were given to one that comes: False while it is fetched, True once it runs."""
        name, shadow = request.request_id, self.scheduler.shadow
        if name not in self.landed:
            return False
        ask = self.coming.pop(name)
        self.landed.discard(name)
        shadow.arrive(name, ask, now_s)
        shadow.enter(name, int(request.num_computed_tokens), chunk, now_s)
        return True

    def finished(self, output: Any) -> None:
        """Read what the connector says about transfers, before vLLM does.

        vLLM would free the blocks of whoever was read; here the worker's word is waited for.
        """
        output.finished_sending = None
        for name in output.finished_recving or ():
            request = self.scheduler.requests.get(name)
            if name in self.coming and request is not None and not request.is_finished():
                whole = name not in self.scheduler.failed_recving_kv_req_ids
                size = sum(map(len, self._blocks(name))) * self.block_bytes if whole else 0
                self._tell(Came(self.scheduler.names[name], whole, size))

    def forget(self, names: Iterable[str]) -> None:
        """Requests have ended or are about to: none of them is fetched or on offer any more."""
        for name in names:
            if name in self.coming:
                request = self.scheduler.requests.get(name)
                if request is not None and request.kv_transfer_params:
                    request.kv_transfer_params["do_remote_prefill"] = (
                        False  # else it would knock at the source
                    )
                del self.coming[name]
            if name in self.parted:
                # its reader may say only now that it is done: were the name unknown, that would be logged as an error
                self.scheduler.requests[name].kv_transfer_params = None
            for group in (self.parting, self.parted, self.landed):
                group.discard(name)

    def _tell(self, told: Parted | Came) -> None:
        if self.scheduler.line is not None:
            self.scheduler.line.tell(told)
