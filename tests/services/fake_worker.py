"""A worker of a hundred lines for the dispatcher's tests: it makes tokens at a pace, and misbehaves as told."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc

from loadgen.replay.tokens import piece_of, tokens_at
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.rpc.windtunnel.v1 import worker_pb2_grpc

COSTS = [0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6]


@dataclass
class Job:
    """A request that the worker holds."""

    asked: link.Enqueue
    attempt: int
    made: int
    sent: int
    credit: int
    stopped: bool = False
    final_sent: bool = False
    first: bool = True

    @property
    def whole(self):
        return self.made >= self.asked.sampling.max_tokens


@dataclass
class FakeWorker:
    """``mood``: well, silent (accepts and says nothing), failing, twice (each run again), gappy (leaves runs out)."""

    address: str
    name: str = "w0"
    pace: int = 1
    step_s: float = 0.002
    incarnation: int = 1
    deterministic: bool = True
    migrates: bool = False
    mood: str = "well"
    key: str = ""
    blocks: int = 100_000
    model_tokens: int = 100_000
    jobs: dict = field(default_factory=dict)
    seen: list = field(default_factory=list)
    welcomes: list = field(default_factory=list)
    orders: list = field(default_factory=list)
    told: list = field(default_factory=list)
    peers: dict = field(default_factory=dict)  # fake workers by name: where a move's state goes
    task: asyncio.Task | None = None
    out: asyncio.Queue | None = None
    frozen: bool = False
    hung: bool = False  # frozen, and does not come back when its link is cut
    lie: int = 0

    async def __aenter__(self):
        self.task = asyncio.create_task(self.run())
        while not self.welcomes:
            await asyncio.sleep(0.002)
            if self.task.done():
                await self.task
        return self

    async def __aexit__(self, *_):
        await self.kill()

    async def kill(self):
        """End at once, without a word."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def cut(self):
        """Lose the link; it is opened again at once, with all that is held."""
        self.call.cancel()

    async def run(self):
        while True:
            try:
                await self.linked()
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():
                    raise
                if (
                    isinstance(error, grpc.aio.AioRpcError)
                    and error.code() == grpc.StatusCode.UNAUTHENTICATED
                ):
                    raise
            await asyncio.sleep(3600 if self.hung else 0.03)

    async def linked(self):
        self.out = asyncio.Queue()
        metadata = [("authorization", f"Bearer {self.key}")] if self.key else None
        async with grpc.aio.insecure_channel(self.address) as channel:
            self.call = worker_pb2_grpc.WorkerLinkStub(channel).Link(self.outgoing(), metadata=metadata)
            stepper = asyncio.create_task(self.step())
            try:
                async for message in self.call:
                    self.take(message)
            finally:
                stepper.cancel()
                await asyncio.gather(stepper, return_exceptions=True)
                self.call.cancel()

    def registration(self):
        held = [
            link.Held(
                number=number, attempt=job.attempt, kept_from=len(job.asked.generated), generated=job.made
            )
            for number, job in self.jobs.items()
        ]
        return link.Register(
            protocol=1, worker_id=self.name, incarnation=self.incarnation, driver="sim", costs=COSTS,
            limits=link.Limits(
                sequences_max=256, budget_max=2048, blocks_total=self.blocks, block_tokens=16,
                model_tokens=self.model_tokens,
            ),
            deterministic=self.deterministic, migrates=self.migrates, peer_address=f"fake:{self.name}",
            held=held, model="fake-model", metrics_address="127.0.0.1:9",
        )  # fmt: skip

    async def outgoing(self):
        yield link.WorkerMessage(register=self.registration())
        while True:
            yield await self.out.get()

    def say(self, **kind):
        self.out.put_nowait(link.WorkerMessage(**kind))

    def take(self, message):
        kind = message.WhichOneof("kind")
        if kind == "welcome":
            keep = {row.number: row for row in message.welcome.keep}
            self.jobs = {number: job for number, job in self.jobs.items() if number in keep}
            for number, row in keep.items():
                job = self.jobs[number]
                job.sent, job.credit, job.final_sent = row.send_from, row.credit_to, False
            self.welcomes.append(message.welcome)
        elif kind == "enqueue":
            asked = message.enqueue
            self.seen.append(asked)
            self.jobs[asked.number] = Job(
                asked, asked.attempt, len(asked.generated), len(asked.generated), asked.credit_to
            )
        elif kind == "cancel":
            job = self.jobs.get(message.cancel.number)
            if job is not None and job.attempt == message.cancel.attempt:
                del self.jobs[message.cancel.number]
                self.orders.append(("cancelled", message.cancel.number))
        elif kind == "progress":
            for row in message.progress.requests:
                self.progress(row)
        elif kind == "migration":
            self.migrate(message.migration)

    def progress(self, row):
        self.told.append((row.number, row.attempt, row.done))
        job = self.jobs.get(row.number)
        if job is None or job.attempt != row.attempt:
            return
        job.credit = max(job.credit, row.credit_to)
        if row.HasField("send_from"):
            job.sent, job.final_sent = row.send_from, False
        if row.done:
            del self.jobs[row.number]

    def migrate(self, order):
        """The worker's part in a move; blocks are worth nothing here, the state crosses by hand."""
        kind, number = order.WhichOneof("kind"), order.number
        self.orders.append((kind, number))
        step = {"migration": order.migration, "number": number}
        if self.mood == f"refuses {kind}":
            self.say(migration=link.MigrationStep(**step, failed=link.Failed(why="told to")))
        elif self.mood == f"ignores {kind}":
            pass
        elif kind == "reserve":
            self.reserved = order.reserve.request
            self.say(migration=link.MigrationStep(**step, reserved=link.Reserved(ticket=7)))
        elif kind == "copy":
            job, target = self.jobs[number], self.peers[order.copy.peer_address.removeprefix("fake:")]
            job.stopped = True
            self.flush()
            self.say(migration=link.MigrationStep(**step, stopped=link.Stopped(generated=job.made)))
            target.arrived = job.made
            target.say(
                migration=link.MigrationStep(**step, copied=link.Copied(generated=job.made + target.lie))
            )
        elif kind == "commit" and number in self.jobs:
            del self.jobs[number]
        elif kind == "commit" and self.mood == "breaks commit":
            self.say(migration=link.MigrationStep(**step, failed=link.Failed(why="told to")))
        elif kind == "commit":
            asked = self.reserved
            start = order.commit.next_index
            self.jobs[number] = Job(asked, order.commit.attempt, start, start, order.commit.credit_to)
        elif kind == "abort" and number in self.jobs:
            self.jobs[number].stopped = False

    async def step(self):
        loop, reported = asyncio.get_running_loop(), 0.0
        due = loop.time()
        while True:
            due = max(due + self.step_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if self.frozen:
                continue
            for job in self.jobs.values():
                if not job.stopped and not job.whole:
                    job.made = min(job.made + self.pace, job.asked.sampling.max_tokens)
            self.flush()
            if loop.time() - reported > 0.02 and self.welcomes:
                reported = loop.time()
                self.report()

    def report(self):
        running = list(self.jobs)
        last = max((job.asked.sequence for job in self.jobs.values()), default=0)
        self.say(
            report=link.Report(
                sequence=max(last, max((one.sequence for one in self.seen), default=0)), running=running,
                computed_tokens=[job.made for job in self.jobs.values()], blocks_free=self.blocks, steps=1,
            )
        )  # fmt: skip

    def flush(self):
        rows = []
        for number, job in self.jobs.items():
            row = self.news(number, job)
            if row is not None:
                rows.append(row)
        if rows:
            self.say(tokens=link.TokenBatch(requests=rows))
            if self.mood == "twice":
                self.say(tokens=link.TokenBatch(requests=rows))

    def news(self, number, job):
        if self.mood == "silent" or job.final_sent:
            return None
        if self.mood == "failing":
            job.final_sent = True
            return link.RequestTokens(
                number=number,
                attempt=job.attempt,
                final=link.Final(reason="engine_error", message="told to fail"),
            )
        upto = min(job.made, job.credit)
        if upto <= job.sent and not job.whole:
            return None
        tokens = tokens_at(self.seed_of(job), job.sent, upto - job.sent)
        row = link.RequestTokens(number=number, attempt=job.attempt)
        row.run.CopyFrom(wire.TokenRun(offset=job.sent, tokens=tokens))
        if job.asked.want_text:
            row.run.pieces.extend(map(piece_of, tokens))
        if job.first:
            job.first, row.started_after_s = False, 0.001
        if job.whole and upto == job.made:
            row.final.CopyFrom(link.Final(reason="length", prompt_tokens=job.asked.prompt_tokens))
            job.final_sent = True
        job.sent = upto
        if self.mood == "gappy" and (number + upto) % 3 == 0 and not getattr(job, "left_out", False):
            job.left_out = True
            return None
        return row

    def seed_of(self, job):
        """An engine that is not deterministic draws other tokens than its neighbour."""
        return job.asked.sampling.seed + (
            0 if self.deterministic else hash(self.name) % 1000 + self.incarnation
        )


@contextlib.asynccontextmanager
async def fleet(address, *names, **what):
    """Several workers at once, by name."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(FakeWorker(address, name, **what)) for name in names]
        for worker in workers:
            worker.peers = {one.name: one for one in workers}
        yield workers
