"""Sockets and servers that the services open on this machine."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from schedulers.errors import InputError


class QuietServer(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def opened(address: str, where: str, backlog: int = 256, send_bytes: int = 0) -> socket.socket:
    """Return a socket that listens at HOST:PORT (port 0 is any); its connections inherit the send buffer.

    Raises InputError naming ``where`` for an address that is none, or is taken.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_bytes:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        door.bind((host.strip("[]") or "127.0.0.1", int(port)))
        door.listen(backlog)
    except (OSError, ValueError, OverflowError) as error:
        door.close()
        why = f"can't listen at {address}: {error}"
        raise InputError(why, where=where, fix="name a free HOST:PORT; port 0 is any") from None
    return door


def free_port() -> int:
    """A port that nobody listens on."""
    with opened("127.0.0.1:0", "") as door:
        return int(door.getsockname()[1])
