"""A TCP proxy that can hold back or break what passes through it: a network's faults, for tests and scenarios."""

import asyncio
import threading
from contextlib import suppress
from types import TracebackType

CHUNK = 1 << 16


class Proxy:
    """Listens on a free port of this machine and passes bytes to ``target`` (HOST:PORT), in a thread of its own.

    While it is shut nothing passes either way: senders see a peer that does not answer, as in a partition, and what
    was sent meanwhile arrives afterwards.
    """

    def __init__(self, target: str) -> None:
        self.target, self.address = target, ""
        self.passed_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._lines: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()

    def shut(self) -> None:
        """Let nothing pass from now on; new connections are taken and stay silent."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def open(self) -> None:
        """Let everything pass again."""
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> None:
        """Break every connection now."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for line in self._lines:
            line.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._open, self._done = asyncio.Event(), asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._line, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._done.wait()
        server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        await self._open.wait()
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._lines |= ends
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            self._lines -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                writer.write(data)
                self.passed_bytes += len(data)
                await writer.drain()
            writer.write_eof()
