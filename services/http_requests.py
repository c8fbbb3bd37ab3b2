"""Whole HTTP requests out of a connection: for servers that measure others and must cost little themselves."""

import asyncio
from typing import Any


class HttpRequests(asyncio.Protocol):
    """One connection: tells ``answer`` of each request as soon as all of it is there; bodies need a length."""

    def __init__(self) -> None:
        self.seen = b""

    def answer(self, head: bytes, body: bytes) -> None:
        """Answer one request; ``head`` is in lower case."""
        raise TypeError(f"{type(self).__name__} answers nothing")

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a whole request is there."""
        self.seen += data
        while (end := self.seen.find(b"\r\n\r\n")) >= 0:
            head = self.seen[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.seen) < end + 4 + length:
                return
            body, self.seen = self.seen[end + 4 : end + 4 + length], self.seen[end + 4 + length :]
            self.answer(head, body)
