"""The waiting queue of a real scheduler in the order of a policy, one candidate at a time."""

from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue

from services.worker.engine import Key
from services.worker.vllm.shadow import Shadow


class PolicyQueue(RequestQueue):  # type: ignore[misc]
    """Looks like vLLM's queue; while a step is formed it is empty unless the policy lets somebody in.

    ``now_s`` is the moment of the step that is being formed, None in between.
    """

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self.held: dict[Key, Any] = {}
        self.now_s: float | None = None
        self.head: Any = None
        self.chunk = 0  # what the real scheduler allocated last for a waiting request

    def add_request(self, request: Any) -> None:
        """Hold a request; its place is the shadow's to know."""
        self.held[request.request_id] = request

    def prepend_request(self, request: Any) -> None:
        """Hold a request that lost its place."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Hold requests."""
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Any:
        """Return who is next."""
        if self.head is None:
            raise IndexError("the policy lets nobody in")
        return self.head

    def pop_request(self) -> Any:
        """Let go of who is next: it joined the batch, unless it is waiting for something of its own."""
        request, self.head = self.peek_request(), None
        del self.held[request.request_id]
        if self.chunk > 0 and self.now_s is not None:
            self.shadow.take(request.request_id, self.chunk, self.now_s)
            self.chunk = 0
        return request

    def remove_request(self, request: Any) -> None:
        """Let go of a request that ended."""
        del self.held[request.request_id]

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Let go of requests that ended, those of them that are here."""
        for request in requests:
            self.held.pop(request.request_id, None)

    def __bool__(self) -> bool:
        """True if somebody waits; while a step is formed, if somebody may join it."""
        if self.now_s is None:
            return bool(self.held)
        key = self.shadow.candidate(self.now_s)
        self.head = None if key is None else self.held[key]
        return key is not None

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Any]:
        """Yield all that wait, in the policy's order."""
        view = self.shadow.rig.known
        order = [self.shadow.key_of[row] for row in view.waiting[0, : view.engines.waiting[0]].tolist()]
        return iter([self.held[key] for key in order if key in self.held])
