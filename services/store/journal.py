"""The journal: records are flushed in batches, those that somebody waits for at once; a store may go away."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from services.store.records import Next, Record, Recovered, decode, encode, fold, unfold

NOTHING = Next(0)
"""Stands for no record at all: only who waits for it matters."""

RETRY_S = 0.1
"""How long after a failure the store is tried again."""


class StoreAwayError(Exception):
    """The store can't be written now, or what waits for it is at its bound."""


class Backend(Protocol):
    """Where batches are kept in order. Every method may raise OSError, which means: not now."""

    name: str
    durable: bool

    async def open(self) -> None:
        """Make the store ours."""

    def read(self) -> AsyncIterator[bytes]:
        """Yield all batches in order."""

    async def write(self, batch: bytes) -> None:
        """Append a batch; on return it survives the end of this process."""

    async def replace(self, batches: list[bytes]) -> None:
        """Put these in place of all batches, or fail and change nothing."""

    async def close(self) -> None:
        """Let go."""


class Waiting(NamedTuple):
    """A record that is not in the store yet, and who waits for it."""

    record: Record
    done: asyncio.Future[None] | None


class Journal:
    """Group commit over a backend. ``away`` is true while the store can't be written."""

    def __init__(self, backend: Backend, *, flush_s: float = 0.02, pending_max: int = 200_000) -> None:
        self.backend, self.flush_s, self.pending_max = backend, flush_s, pending_max
        self.away = False
        self.errors = 0
        self.written_bytes = 0
        self.append_s: Callable[[float], None] = lambda _: None
        self._pending: list[Waiting] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None  # when what waits is flushed

    async def open(self) -> Recovered:
        """Read what is there, compact it, and begin to flush; raises OSError if the store is away."""
        await self.backend.open()
        recovered = fold([record async for batch in self.backend.read() for record in decode(batch)])
        await self.backend.replace([encode(unfold(recovered))])
        self._task = asyncio.create_task(self._flush_for_ever(), name="journal")
        return recovered

    async def compact(self, state: Callable[[], Recovered]) -> None:
        """Shrink the store to what ``state`` says is open, asked once all that was noted is written."""
        async with self._turn:
            await self._flush_now()
            if not self.away:
                await self.backend.replace([encode(unfold(state()))])
                self.written_bytes = 0

    def note(self, record: Record) -> None:
        """Write a record with the next flush; nobody waits. Raises StoreAwayError at the bound."""
        if len(self._pending) >= self.pending_max:
            raise StoreAwayError(f"{len(self._pending)} records wait for the store")
        self._wait(Waiting(record, None))

    def keep(self, record: Record) -> asyncio.Future[None]:
        """Write a record: the future is done once it is in the store.

        Raises StoreAwayError, at once or from the future, and then it is not kept.
        """
        if self.away or self._closing:
            raise StoreAwayError("the store is away")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(Waiting(record, done))
        self._wake.set()
        return done

    def when_flushed(self) -> asyncio.Future[None]:
        """A future that ends when all that was noted before is in the store (however long it is away)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(Waiting(NOTHING, done))
        return done

    def _wait(self, waiting: Waiting) -> None:
        """Let a record wait for the next flush, which comes within ``flush_s``."""
        self._pending.append(waiting)
        if self._timer is None and not self.away:
            self._timer = asyncio.get_running_loop().call_later(self.flush_s, self._wake.set)

    async def close(self) -> None:
        """Flush what waits, once, and let the store go."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._flush()
        for waiting in self._pending:
            if waiting.done is not None and not waiting.done.done():
                waiting.done.cancel()
        await self.backend.close()

    async def _flush_for_ever(self) -> None:
        while True:
            if self.away:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), RETRY_S)
            else:
                await self._wake.wait()
            self._wake.clear()
            if self._pending or self.away:
                await self._flush()

    async def _flush(self) -> None:
        async with self._turn:
            await self._flush_now()

    async def _flush_now(self) -> None:
        batch, self._pending = self._pending, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records = [waiting.record for waiting in batch if waiting.record is not NOTHING]
        began_s = time.perf_counter()
        try:
            if records or self.away:
                encoded = encode(records)
                await asyncio.shield(self.backend.write(encoded))
                self.written_bytes += len(encoded)
        except OSError:
            self._failed(batch)
            return
        self.away = False
        self.append_s(time.perf_counter() - began_s)
        for waiting in batch:
            if waiting.done is not None and not waiting.done.done():
                waiting.done.set_result(None)

    def _failed(self, batch: list[Waiting]) -> None:
        """Give up what somebody waits for, keep the rest for the store's return."""
        self.away = True
        self.errors += 1
        kept: list[Waiting] = []
        for waiting in batch:
            if waiting.done is None or waiting.record is NOTHING:
                kept.append(waiting)
            elif not waiting.done.done():
                waiting.done.set_exception(StoreAwayError("the store is away"))
        self._pending = kept + self._pending
