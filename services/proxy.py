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
        self._tasks: set[asyncio.Task[None]] = set()
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
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._done.wait()
        self._loop.remove_reader(server.sockets[0].fileno())
        await self._rounds()  # lines that have just been taken begin: a closed server would leave them open
        server.close()
        self._cut()
        self._open.set()
        await asyncio.gather(*self._tasks)  # by themselves: a cancelled one may lose a connection just made
        await self._rounds()  # sockets of broken lines close

    async def _rounds(self) -> None:
        """Let the loop do what is due, and what that makes due."""
        for _ in range(5):
            await asyncio.sleep(0)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Know of a line from its first moment, so that none is left open by an end that comes in between."""
        self._lines.add(writer)
        task = self._loop.create_task(self._line(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        ends = {writer}
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection(host, int(port))
            ends.add(back)
            self._lines.add(back)
            if self._done.is_set():
                return
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        except OSError:
            return  # nobody is there
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
