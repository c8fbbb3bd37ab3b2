"""A worker that makes tokens by the clock and costs next to nothing: what a dispatcher is measured against.

It speaks the worker link and, for measurements without a dispatcher or with another one, streaming completions over
HTTP. It models nothing: the first chunk of an answer comes after ``first_s``, each further one ``gap_s`` later.
"""

import asyncio
import sys
from math import inf
from typing import Any, NamedTuple

import grpc
import orjson

from loadgen.replay.tokens import piece_of, text_of, tokens_at
from services.http_requests import HttpRequests
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.rpc.windtunnel.v1.worker_pb2_grpc import WorkerLinkStub

COSTS = (0.0, 1e-3, 0.0, 0.0, 0.0, 0.0, 0.0)
MANY = 1_000_000
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
MODELS = b'{"object":"list","data":[{"id":"pacer","object":"model","created":0,"owned_by":"windtunnel"}]}'


class Pace(NamedTuple):
    """When chunks come, in seconds, and how many tokens each has."""

    first_s: float = 0.02
    gap_s: float = 0.05
    tokens: int = 8


class Job:
    """One request of the link: how far it is made and sent, ends exclusive."""

    __slots__ = ("asked", "final_sent", "made", "sent", "timer")

    def __init__(self, asked: link.Enqueue) -> None:
        self.asked = asked
        self.made = self.sent = len(asked.generated)
        self.final_sent = False
        self.timer: asyncio.TimerHandle | None = None


class Pacer:
    """The link's side: one message a tick for all requests, as a worker sends it."""

    def __init__(self, pace: Pace, name: str) -> None:
        self.pace, self.name = pace, name
        self.jobs: dict[int, Job] = {}
        self.grown: dict[int, Job] = {}
        self.sequence, self.report_s = 0, 0.1
        self.tick_s, self.merge_s = 0.002, 0.005
        self.out: asyncio.Queue[link.WorkerMessage] = asyncio.Queue()
        self.welcomed = asyncio.Event()
        self._flushing: asyncio.TimerHandle | None = None
        self._flushed_s, self._due_s = 0.0, inf

    async def run(self, address: str, key: str) -> None:
        """Hold one link until it ends."""
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        async with grpc.aio.insecure_channel(address) as channel:
            self.call = WorkerLinkStub(channel).Link(metadata=metadata)
            await self.call.write(link.WorkerMessage(register=self._registration()))
            aside = [asyncio.create_task(self._write()), asyncio.create_task(self._report())]
            try:
                async for message in self.call:
                    self._follow(message)
            finally:
                for task in aside:
                    task.cancel()

    def _registration(self) -> link.Register:
        limits = link.Limits(
            sequences_max=MANY, budget_max=MANY, blocks_total=MANY, block_tokens=16, model_tokens=MANY
        )
        return link.Register(
            protocol=1, worker_id=self.name, incarnation=1, limits=limits, costs=COSTS, driver="sim",
            deterministic=True, model="pacer",
        )  # fmt: skip

    async def _write(self) -> None:
        while True:
            await self.call.write(await self.out.get())

    async def _report(self) -> None:
        await self.welcomed.wait()
        while True:
            running = list(self.jobs)
            report = link.Report(
                sequence=self.sequence, running=running, computed_tokens=[1] * len(running),
                blocks_free=MANY, steps=1,
            )  # fmt: skip
            self.out.put_nowait(link.WorkerMessage(report=report))
            await asyncio.sleep(self.report_s)

    def _follow(self, message: link.DispatcherMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "enqueue":
            asked = message.enqueue
            self.sequence = max(self.sequence, asked.sequence)
            job = self.jobs[asked.number] = Job(asked)
            job.timer = asyncio.get_running_loop().call_later(self.pace.first_s, self._make, job)
        elif kind == "progress":
            for told in message.progress.requests:
                self._acknowledged(told)
        elif kind == "cancel":
            self._drop(message.cancel.number)
        elif kind == "welcome":
            self.tick_s, self.merge_s = message.welcome.tick_s, message.welcome.merge_s
            self.report_s = message.welcome.report_period_s
            self.welcomed.set()

    def _acknowledged(self, told: link.RequestProgress) -> None:
        job = self.jobs.get(told.number)
        if told.done:
            self._drop(told.number)
        elif job is not None and told.HasField("send_from"):
            job.sent, job.final_sent = told.send_from, False
            self._grown(job)

    def _drop(self, number: int) -> None:
        job = self.jobs.pop(number, None)
        if job is not None and job.timer is not None:
            job.timer.cancel()

    def _make(self, job: Job) -> None:
        most = job.asked.sampling.max_tokens
        job.made = min(most, job.made + self.pace.tokens)
        if job.made < most:
            job.timer = asyncio.get_running_loop().call_later(self.pace.gap_s, self._make, job)
        self._grown(job)

    def _grown(self, job: Job) -> None:
        self.grown[job.asked.number] = job
        loop = asyncio.get_running_loop()
        urgent = job.sent == len(job.asked.generated) or job.made >= job.asked.sampling.max_tokens
        due_s = self._flushed_s + (self.tick_s if urgent else self.merge_s)  # as services.worker does
        if due_s < self._due_s:
            if self._flushing is not None:
                self._flushing.cancel()
            self._due_s, self._flushing = due_s, loop.call_at(max(loop.time(), due_s), self._flush)

    def _flush(self) -> None:
        self._flushing, self._due_s = None, inf
        self._flushed_s = asyncio.get_running_loop().time()
        grown, self.grown = self.grown, {}
        news = [self._news(job) for job in grown.values() if job.asked.number in self.jobs]
        if news:
            self.out.put_nowait(link.WorkerMessage(tokens=link.TokenBatch(requests=news)))

    def _news(self, job: Job) -> link.RequestTokens:
        asked = job.asked
        tokens = tokens_at(asked.sampling.seed, job.sent, job.made - job.sent)
        pieces = map(piece_of, tokens) if asked.want_text else ()
        run = wire.TokenRun(offset=job.sent, tokens=tokens, pieces=pieces)
        news = link.RequestTokens(number=asked.number, attempt=asked.attempt, run=run)
        job.sent = job.made
        if job.made >= asked.sampling.max_tokens and not job.final_sent:
            news.final.CopyFrom(link.Final(reason="length", prompt_tokens=asked.prompt_tokens))
            job.final_sent = True
        return news


class Web(HttpRequests):
    """One HTTP connection: completions by the clock, and what routers ask before they send any."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def answer(self, head: bytes, body: bytes) -> None:
        """Begin a completion, or say what a router asks."""
        if head.startswith(b"post /v1/"):
            self._complete(orjson.loads(body))
            return
        known = MODELS if b"/v1/models" in head.split(b"\r\n", 1)[0] else b"{}"
        said = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(said % len(known) + known)

    def _complete(self, body: dict[str, Any]) -> None:
        most, seed = int(body.get("max_tokens") or 16), int(body.get("seed") or 1)
        asyncio.get_running_loop().call_later(self.pace.first_s, self._make, seed, 0, most)

    def _make(self, seed: int, made: int, most: int) -> None:
        """Write a chunk and see to the next one."""
        if self.transport.is_closing():
            return
        upto = min(most, made + self.pace.tokens)
        text = orjson.dumps(text_of(tokens_at(seed, made, upto - made)))
        event = b'id: %d\ndata: {"choices":[{"index":0,"text":%b,"finish_reason":null}]}\n\n' % (upto, text)
        if upto >= most:
            event += LAST
        else:
            asyncio.get_running_loop().call_later(self.pace.gap_s, self._make, seed, upto, most)
        ending = b"0\r\n\r\n" if upto >= most else b""
        self.transport.write(b"%b%x\r\n%b\r\n%b" % (b"" if made else SSE, len(event), event, ending))


async def serve(dispatcher: str, key: str, pace: Pace) -> None:
    """Serve until the link ends, or for ever without a dispatcher; the ready line names the HTTP port."""
    server = await asyncio.get_running_loop().create_server(lambda: Web(pace), "127.0.0.1", 0, backlog=4096)
    pacer = Pacer(pace, "pacer")
    linked = asyncio.create_task(pacer.run(dispatcher, key)) if dispatcher else None
    if linked is not None:
        waiting = asyncio.create_task(pacer.welcomed.wait())
        await asyncio.wait({linked, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if linked.done():
            await linked
    host, port = server.sockets[0].getsockname()[:2]
    ready = {"event": "ready", "http": f"{host}:{port}", "grpc": ""}
    sys.stdout.buffer.write(orjson.dumps(ready) + b"\n")
    sys.stdout.buffer.flush()
    await (linked or server.serve_forever())


def main() -> int:
    """``python -m services.pacer [DISPATCHER KEY FIRST_S GAP_S TOKENS]``."""
    import gc

    import uvloop

    address, key, first_s, gap_s, tokens = (
        sys.argv[1:] + ["", "", "0.02", "0.05", "8"][len(sys.argv) - 1 :]
    )[:5]
    gc.collect()
    gc.freeze()
    uvloop.run(serve(address, key, Pace(float(first_s), float(gap_s), int(tokens))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
