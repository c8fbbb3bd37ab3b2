"""The dispatcher's end of worker links, played by tests."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import grpc

from loadgen.plan import Fleet
from services.rpc.windtunnel.v1 import worker_pb2 as wire
from services.rpc.windtunnel.v1.request_pb2 import Sampling
from services.rpc.windtunnel.v1.worker_pb2_grpc import WorkerLinkServicer, add_WorkerLinkServicer_to_server
from services.worker.config import WorkerConfig
from services.worker.process import running

FLEET = Fleet(sequences_max=16, budget_max=512, block_tokens=16, blocks=600, model_tokens=4096)
FAST = WorkerConfig(fleet=FLEET, speed=20.0, chaos=True, link_gb_per_s=50.0)
PATIENCE_S = 10.0
PLENTY = 1 << 30


class Desk(WorkerLinkServicer):
    """The dispatcher's end of links, played by a test: what came is kept, what is to go is queued."""

    def __init__(self):
        self.registers, self.links = [], []
        self.welcome = {}
        self.joined = asyncio.Event()

    async def Link(self, request_iterator, context):
        register = (await anext(request_iterator)).register
        link = Seat(register)
        self.registers.append(register)
        self.links.append(link)
        self.joined.set()
        known = {"report_period_s": 0.05, "tick_s": 0.002, "heartbeat_s": 0.5, "silence_s": 60.0}
        yield wire.DispatcherMessage(
            welcome=wire.Welcome(epoch=1, engine=0, now_s=1000.0, **known | self.welcome)
        )
        reader = asyncio.create_task(link.read(request_iterator))
        try:
            while True:
                yield await link.out.get()
        finally:
            reader.cancel()

    async def seat(self, number=0):
        """The link of that number once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.links) <= number:
                self.joined.clear()
                await self.joined.wait()
        return self.links[number]


class Seat:
    """One link as the dispatcher sees it."""

    def __init__(self, register):
        self.register, self.out, self.changed = register, asyncio.Queue(), asyncio.Event()
        self.tokens, self.finals, self.reports, self.moves, self.started = {}, {}, [], [], {}
        self.leaving = False
        self.sequence = count(1)

    async def read(self, messages):
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "tokens":
                for one in message.tokens.requests:
                    key = one.number, one.attempt
                    self.tokens.setdefault(key, []).append(
                        (one.run.offset, [*one.run.tokens], [*one.run.pieces])
                    )
                    if one.HasField("final"):
                        self.finals[key] = one.final
                    if one.HasField("started_after_s"):
                        self.started[key] = one.started_after_s
            elif kind == "report":
                self.reports.append(message.report)
            elif kind == "migration":
                self.moves.append(message.migration)
            elif kind == "leaving":
                self.leaving = True
            self.changed.set()

    def say(self, **kind):
        self.out.put_nowait(wire.DispatcherMessage(**kind))

    def enqueue(self, number, **more):
        self.say(enqueue=order(number, sequence=next(self.sequence), **more))

    async def until(self, question):
        """Wait until the answer is true, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (answer := question()):
                self.changed.clear()
                await self.changed.wait()
        return answer

    def answer(self, number, attempt=1):
        """Tokens in the order in which they came; offsets must be contiguous."""
        made, wanted = [], None
        for offset, tokens, _ in self.tokens.get((number, attempt), []):
            assert wanted in (None, offset)
            made += tokens
            wanted = offset + len(tokens)
        return made


def order(number, *, prompt=50, length=20, attempt=1, sequence=1, credit=PLENTY, **more):
    generated = more.pop("generated", [])
    return wire.Enqueue(
        number=number,
        attempt=attempt,
        request_id=f"r{number}",
        prompt_tokens=prompt,
        sampling=Sampling(max_tokens=length, ignore_eos=True, seed=number),
        session=-1,
        arrival_s=1000.0,
        forecast_tokens=20.0,
        credit_to=credit,
        sequence=sequence,
        generated=generated,
        **more,
    )


@asynccontextmanager
async def desk():
    server, place = grpc.aio.server(), Desk()
    add_WorkerLinkServicer_to_server(place, server)
    place.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield place
    finally:
        await server.stop(0)


@asynccontextmanager
async def linked(config=FAST, **welcome):
    """A desk and one worker at it."""
    async with desk() as place:
        place.welcome = welcome
        async with running(replace(config, dispatcher=place.address)) as worker:
            yield place, await place.seat(), worker
