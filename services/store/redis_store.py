"""The journal in Redis: one stream, one entry a batch, so that a flush is one command whatever it carries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from schedulers.errors import InputError

PAGE = 500
LEASE_S = 3.0


class RedisStore:
    """A stream under ``prefix``; the dispatcher that opened it last owns it, an earlier one finds out and stops."""

    durable = True

    def __init__(self, url: str, prefix: str = "windtunnel", timeout_s: float = 1.0) -> None:
        self.url, self.timeout_s = url, timeout_s
        self.name = "redis"  # the address may carry a password
        self.stream, self.owner = f"{prefix}:journal", f"{prefix}:owner"
        self.token = uuid4().hex
        self._redis: Any = None
        self._asked_s = 0.0

    async def open(self) -> None:
        """Connect and take the stream over; raises OSError if Redis is away, InputError for a bad address."""
        from redis.asyncio import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        try:
            self._redis = Redis.from_url(
                self.url, socket_timeout=self.timeout_s, socket_connect_timeout=self.timeout_s,
                retry=Retry(NoBackoff(), 0), protocol=2,
            )  # fmt: skip
        except ValueError as error:
            fix = "redis://[[user]:password@]host:port/number"
            raise InputError(f"bad address of the store: {error}", where="store", fix=fix) from None
        await self._call(self._redis.set(self.owner, self.token))

    async def _call(self, command: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await asyncio.wait_for(command, 2.0 * self.timeout_s)
        except (RedisError, TimeoutError) as error:
            raise OSError(f"redis: {type(error).__name__}") from error

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the batches, a page at a time."""
        after = "-"
        while True:
            page = await self._call(self._redis.xrange(self.stream, min=after, max="+", count=PAGE))
            for _, fields in page:
                yield fields[b"b"]
            if len(page) < PAGE:
                return
            after = f"({page[-1][0].decode()}"

    async def write(self, batch: bytes) -> None:
        """Append one batch; raises OSError if Redis is away, full, or somebody else owns the stream now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s > LEASE_S / 3.0:
            owner = await self._call(self._redis.get(self.owner))
            if owner is None:  # Redis lost it (flushed, or restarted without its data): it is ours again
                await self._call(self._redis.set(self.owner, self.token))
            elif owner.decode() != self.token:
                raise OSError("another dispatcher owns the journal now")
            self._asked_s = now_s
        await self._call(self._redis.xadd(self.stream, {"b": batch}))

    async def replace(self, batches: list[bytes]) -> None:
        """Write a new stream and rename it over the old one: one transaction."""
        fresh = f"{self.stream}:{self.token}"
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.delete(fresh)
        for batch in batches:
            pipeline.xadd(fresh, {"b": batch})
        pipeline.rename(fresh, self.stream)
        await self._call(pipeline.execute())

    async def close(self) -> None:
        """Close the connections."""
        if self._redis is not None:
            await self._redis.aclose()
