"""A server that answers every completion at once with the same stream: what a load generator is measured against."""

import asyncio
from typing import Any

EVENT = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


class Answering(asyncio.Protocol):
    """One connection: a request's body is counted, not read; the answer is bytes made beforehand."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.seen = b""

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
            self.seen = self.seen[end + 4 + length :]
            self.transport.write(self.answer)


def serve(pipe: Any, chunks: int) -> None:
    """Serve until killed; the port goes through the pipe."""
    body = EVENT * chunks + LAST
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def work() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Answering(head + body), "127.0.0.1", 0
        )
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(work())
