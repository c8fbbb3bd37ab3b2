"""No store: for measurements beside the others. It says that it is not durable, and nothing survives."""

from collections.abc import AsyncIterator


class MemoryStore:
    """Keeps nothing."""

    durable = False
    name = "none"

    async def open(self) -> None:
        """Nothing to open."""

    async def read(self) -> AsyncIterator[bytes]:
        """Nothing was kept."""
        nothing: tuple[bytes, ...] = ()
        for batch in nothing:
            yield batch

    async def write(self, batch: bytes) -> None:
        """Forget the batch."""

    async def replace(self, batches: list[bytes]) -> None:
        """Forget them."""

    async def close(self) -> None:
        """Nothing to close."""
