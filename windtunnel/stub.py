"""A server that answers every completion at once with the same stream: what a load generator is measured against."""

import asyncio
from typing import Any

from services.http_requests import HttpRequests

EVENT = b'data: {"choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


class Answering(HttpRequests):
    """One connection: a request's body is counted, not read; the answer is bytes made beforehand."""

    def __init__(self, made: bytes) -> None:
        super().__init__()
        self.made = made

    def answer(self, head: bytes, body: bytes) -> None:
        """Answer with the same bytes."""
        self.transport.write(self.made)


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
