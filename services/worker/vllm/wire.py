"""The line between a worker and its engine's process: what happened comes up it, orders go down it."""

import asyncio
import ctypes
import multiprocessing
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec


class Record(msgspec.Struct, array_like=True, tag=True):
    """One step: who joined and who went on, with their tokens; who had lost its place; who ended by itself.

    ``free`` blocks are left; ``lasts_s`` is what the model says that the step takes. Keys are the worker's.
    """

    start_s: float
    end_s: float
    lasts_s: float
    free: int
    took: dict[int | str, int]
    gave: dict[int | str, int]
    evicted: list[int | str]
    refused: list[int | str]
    ended: list[int | str]


class Parted(msgspec.Struct, array_like=True, tag=True):
    """A request stands still with its KV on offer: tokens that it made in this engine's name, and where the KV lies.

    ``handover`` is what another engine needs to fetch it, ``blocks`` how many blocks that is.
    """

    key: int | str
    made: int
    blocks: int
    handover: dict[str, Any]


class Came(msgspec.Struct, array_like=True, tag=True):
    """The KV of a request on its way here has come, so many bytes, or could not be had (``whole`` is False)."""

    key: int | str
    whole: bool
    bytes: int


Told = Record | Parted | Came
"""What an engine tells its worker."""


class Order(msgspec.Struct, omit_defaults=True):
    """What the engine is to do from its next step on; what is not named stays.

    ``part`` names requests that are to stand still with their KV on offer as soon as they can, ``stay`` those of them
    that go on here after all, ``land`` those whose KV was fetched and who are ours now.
    """

    policy: str = ""
    tiers: list[list[float | None]] | None = None
    part: tuple[int | str, ...] = ()
    stay: tuple[int | str, ...] = ()
    land: tuple[int | str, ...] = ()


DEATH_SIGNAL = 1
"""Number of the call to ``prctl`` that asks for a signal when the parent dies."""

_TOLD: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
_ORDER = msgspec.msgpack.Decoder(Order)
_HEAD = struct.Struct("!I")


def framed(told: Told | Order) -> bytes:
    """Return a message with its length before it."""
    body = msgspec.msgpack.encode(told)
    return _HEAD.pack(len(body)) + body


class EngineEnd:
    """The end in the engine's process: writes block for an instant at most, reads never do."""

    def __init__(self, path: str) -> None:
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.line.connect(path)
        self.heard = b""

    def tell(self, told: Told) -> None:
        """Send a step, or what happened to a request that moves."""
        self.line.sendall(framed(told))

    def orders(self) -> list[Order]:
        """Return the orders that have come since."""
        with suppress(BlockingIOError):
            while part := self.line.recv(1 << 16, socket.MSG_DONTWAIT):
                self.heard += part
        found = []
        while len(self.heard) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self.heard)
            if len(self.heard) < _HEAD.size + size:
                break
            found.append(_ORDER.decode(self.heard[_HEAD.size : _HEAD.size + size]))
            self.heard = self.heard[_HEAD.size + size :]
        return found


class WorkerEnd:
    """The end in the worker's process; ``hear`` is called with each message."""

    def __init__(self, path: str, hear: Callable[[Told], None]) -> None:
        self.path, self.hear = path, hear
        self._server: asyncio.Server | None = None
        self._out: asyncio.StreamWriter | None = None
        self._early = b""

    async def listen(self) -> None:
        """Wait for the engine's process from now on."""
        self._server = await asyncio.start_unix_server(self._read, self.path)

    async def close(self) -> None:
        """Hang up."""
        if self._out is not None:
            self._out.close()
        if self._server is not None:
            self._server.close()

    def order(self, order: Order) -> None:
        """Send an order; one that is given before the engine is there waits for it."""
        if self._out is None:
            self._early += framed(order)
        else:
            self._out.write(framed(order))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._out = writer
        writer.write(self._early)
        with suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                (size,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                self.hear(_TOLD.decode(await reader.readexactly(size)))


def end_with_parent() -> None:
    """Let the kernel end this process when the worker that started it dies: no engine is left behind."""
    if multiprocessing.parent_process() is not None:
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def key_of(request: Any, name: str) -> int | str:
    """Return the worker's key of a request of vLLM; its own id if it did not come from a worker."""
    given = ((request.sampling_params.extra_args or {}) if request.sampling_params else {}).get(name, {})
    found: int | str = given.get("key", request.request_id)
    return found
