"""A dispatcher and two real engines in this process and loop, so that a test can stop a move wherever it likes."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.plan import Fleet
from schedulers.decisions import MOVE, Decision
from services.client import Conversation
from services.dispatcher.process import Parts, running
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1.dispatcher_pb2 import SubmitRequest
from services.worker.process import UNTOLD, Place
from services.worker.process import running as working
from services.worker.vllm.config import EngineConfig
from services.worker.vllm.models import SHAPES
from services.worker.vllm.nixl import Nixl, NixlFront, surround
from services.worker.vllm.prompts import drawn
from services.worker.vllm.worker import engine_worker
from tests.services.live_stage import ROOM, changed, until
from windtunnel.engines import profile_of

FLEET = Fleet(sequences_max=8, budget_max=512, block_tokens=32, blocks=200, model_tokens=2048)
PATIENCE_S = 60.0


@dataclass
class Stage:
    """What stands on it; ``model`` is the kind of the model."""

    parts: Parts
    places: list[Place]
    model: str

    def asked(self, number, run, prompt, length):
        """A request with a prompt of its own, the same in every run."""
        ids = drawn(prompt, [], number + 1, SHAPES[self.model].vocabulary)
        return SubmitRequest(
            request_id=f"{run}-{number}", prompt=wire.Prompt(ids=wire.TokenIds(ids=ids)), tenant="t", session=-1,
            sampling=wire.Sampling(max_tokens=length, ignore_eos=True), forecast_tokens=length,
        )  # fmt: skip

    async def answers(self, run, sizes, meanwhile=None):
        """Tokens and stream of each request of these (prompt, answer) tokens, while somebody else is at work."""

        async def one(talk, number, prompt, length):
            tokens, stream = [], talk.submit(self.asked(number, run, prompt, length))
            async for event in stream:
                if event.WhichOneof("kind") == "tokens":
                    tokens += event.tokens.tokens
            return tokens, stream

        async with Conversation(self.parts.grpc) as talk, asyncio.TaskGroup() as group:
            calls = [group.create_task(one(talk, number, *size)) for number, size in enumerate(sizes)]
            if meanwhile is not None:
                await until(lambda: self.known(run, len(sizes)), PATIENCE_S)
                await meanwhile([self.answer(f"{run}-{number}") for number in range(len(sizes))])
        return [call.result() for call in calls]

    def answer(self, request_id):
        """A request as the dispatcher knows it."""
        return next(one for one in self.parts.heart.answers.values() if one.request_id == request_id)

    def known(self, run, count):
        """True once so many requests of a run have been taken."""
        ids = {one.request_id for one in self.parts.heart.answers.values()}
        return all(f"{run}-{number}" in ids for number in range(count))

    async def move(self, answer, more=2):
        """Ask for a move once a request has some more tokens; returns once it is over, committed or not.

        Nothing happens to one that has ended.
        """
        grown = len(answer.tokens) + more
        await until(lambda: len(answer.tokens) >= grown or answer.ending is not None, PATIENCE_S)
        if answer.ending is not None:
            return
        heart, source = self.parts.heart, answer.engine
        heart.desk.moving[answer.number] = source, 1 - source
        heart.act([Decision(MOVE, answer.number, 1 - source, "test", source=source)])
        await until(lambda: answer.number not in heart.desk.moving, PATIENCE_S)

    async def clean(self):
        """Wait until both engines have all their blocks again and nobody keeps a thing of a move."""
        await until(lambda: all(place.worker.idle for place in self.places), PATIENCE_S)
        for place in self.places:
            engine = place.worker.engine
            assert not place.moves.incoming
            assert not place.moves.outgoing
            assert not place.moves.fetched
            assert not any((engine.parting, engine.parted, engine.coming, engine.landed, engine.said))
        sizes = [(33, 3)] * 2  # the engines tell their free blocks at the end of a step: let each make one
        for turn in range(20):
            await self.answers(f"sweep{turn}-{len(self.parts.heart.answers)}", sizes)
            free = [int(place.worker.engine.rig.known.engines.blocks_free[0]) for place in self.places]
            if free == [FLEET.blocks] * len(free):
                return
            await asyncio.sleep(0.5)  # blocks that something may still write to come back later
        raise AssertionError(f"{free} blocks are free of {FLEET.blocks}")


@asynccontextmanager
async def stage(folder: Path, kind: str):
    """Start everything: two engines of a model in a folder, each in its process, the rest here."""
    fleet = replace(FLEET, profile=str(profile_of(str(folder), paced=False)), prefix_cache=False)
    config = changed(ROOM, scheduling={"scheduler": "fcfs-chunked+round-robin"})
    async with running(config) as parts, AsyncExitStack() as stack:
        places = []
        for number in range(2):
            config = EngineConfig(
                worker_id=f"worker-{number}",
                dispatcher=parts.grpc,
                fleet=fleet,
                model=str(folder),
                moves="nixl",
            )
            surround(config)
            worker = await stack.enter_async_context(engine_worker(config, UNTOLD, NixlFront))
            places.append(await stack.enter_async_context(working(config, worker, Nixl)))
            await until(lambda count=number + 1: len(parts.links.workers) == count, PATIENCE_S)
        yield Stage(parts, places, kind)
