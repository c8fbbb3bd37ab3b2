"""Kept: answers that take seconds, made once in a thread, shared by all who ask, and forgotten when old."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class WorkingError(Exception):
    """The answer is being made; ask again."""


class Kept:
    """At most ``most`` answers by key, beside those that are being made; asked from one event loop."""

    def __init__(self, most: int, patience_s: float) -> None:
        self.most, self.patience_s = most, patience_s
        self._tasks: OrderedDict[Hashable, asyncio.Task[Any]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the answer, made by ``make`` in a thread if it is not there.

        Raises WorkingError after the patience, and what ``make`` raises; a failure is not kept.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(asyncio.to_thread(make))
            task.add_done_callback(lambda done: self._drop_failure(key, done))
        self._tasks.move_to_end(key)
        made = [other for other, one in self._tasks.items() if one.done() and other != key]
        for old in made[
            : max(0, len(self._tasks) - self.most)
        ]:  # what is being made stays, or is made again and again
            del self._tasks[old]
        done, _ = await asyncio.wait({task}, timeout=self.patience_s)
        if not done:
            raise WorkingError("this takes a while; ask again")
        return task.result()

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Wait for what is being made: a thread can't be stopped."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _drop_failure(self, key: Hashable, done: "asyncio.Task[Any]") -> None:
        if (done.cancelled() or done.exception() is not None) and self._tasks.get(key) is done:
            del self._tasks[key]
