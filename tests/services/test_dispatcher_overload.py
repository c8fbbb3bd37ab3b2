"""Ten times too much, thousands of idle connections, a flood of one tier: bounded, named, and over in seconds."""

import asyncio
import resource
from collections import Counter
from dataclasses import replace

import pytest

from services.client import Conversation
from services.config import TierConfig
from services.dispatcher.process import running
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from tests.services.fake_worker import FakeWorker, fleet
from tests.services.live_stage import ROOM, asking, changed, client_at, heard, until

pytestmark = pytest.mark.slow

BOUND = 40
CROWDED = replace(ROOM, tiers=(TierConfig("fast", queue_max=BOUND), TierConfig("slow", queue_max=BOUND)))


class OneAtATime(FakeWorker):
    """Serves four requests at a time, the most important first: the others wait in its queue."""

    def take(self, message):
        super().take(message)
        self.restrain()

    def flush(self):
        super().flush()
        self.restrain()

    def restrain(self):
        order = sorted(self.jobs.values(), key=lambda job: (job.asked.tier, job.asked.number))
        for place, job in enumerate(order):
            job.stopped = place >= 4


async def ended(stream):
    async for event in stream:
        if event.WhichOneof("kind") == "ending":
            return event.ending
    raise AssertionError("a stream without an ending")


async def test_ten_times_overload_is_shed_by_tier_and_soon_over():
    """Each arrival ends once, with an answer or a named refusal; rows stay at the bound; then it serves as before."""
    async with running(CROWDED) as parts, Conversation(parts.grpc) as talk:
        worker = OneAtATime(parts.grpc, "w0", step_s=0.02)
        async with worker:
            streams = []
            for number in range(800):
                streams.append(
                    asyncio.create_task(ended(talk.submit(asking(f"r{number}", 10, tier=number % 2))))
                )
                await asyncio.sleep(0.002)
                waiting = [parts.heart.desk.waiting(tier) for tier in (0, 1)]
                assert max(waiting) <= BOUND
            endings = await asyncio.gather(*streams)
            reasons = Counter(one.reason for one in endings)
            assert set(reasons) == {"length", "queue_full"}
            assert sum(reasons.values()) == 800
            assert reasons["queue_full"] > 400
            assert all(one.retry_after_s > 0 for one in endings if one.reason == "queue_full")
            served = Counter(number % 2 for number, one in enumerate(endings) if one.reason == "length")
            assert served[0] > served[1], "the lower tier is shed first"
            assert len(parts.heart.desk.board.number) <= 256
            after = await asyncio.gather(*(ended(talk.submit(asking(f"after{i}", 10))) for i in range(8)))
            assert {one.reason for one in after} == {"length"}
            assert parts.heart.desk.board.row_of == {}


async def test_two_thousand_streams_at_once():
    """All open together, each token once."""
    config = replace(ROOM, tiers=(TierConfig("all", queue_max=5000),))
    async with (
        running(config) as parts,
        fleet(parts.grpc, "w0", "w1", step_s=0.05),
        Conversation(parts.grpc) as talk,
    ):
        streams = [talk.submit(asking(f"r{i}", 60)) for i in range(2000)]
        tasks = [asyncio.create_task(ended(stream)) for stream in streams]
        await until(lambda: len(parts.heart.answers) == 2000, 60)
        endings = await asyncio.gather(*tasks)
        assert {one.reason for one in endings} == {"length"}
        assert {(stream.next_index, stream.repeated, stream.gaps) for stream in streams} == {(60, 0, 0)}


async def test_thousands_of_idle_connections_harm_nobody():
    """Connections that say nothing are cut in time; requests among them are served."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    count = min(5000, limit[1] // 2 - 200)
    config = changed(ROOM, timeouts={"idle_connection_s": 8.0})
    try:
        async with running(config) as parts, FakeWorker(parts.grpc), client_at(parts.grpc) as stub:
            host, port = parts.http.split(":")
            lines = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
            said = await heard(stub.Submit(asking("among", 20)))
            assert said.ending.reason == "length"
            closed = await asyncio.gather(*(asyncio.wait_for(reader.read(1), 60) for reader, _ in lines))
            assert set(closed) == {b""}
            for _, writer in lines:
                writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


async def test_a_conversation_has_a_limit_of_its_own():
    config = changed(ROOM, limits={"streams_per_conversation": 10})
    async with running(config) as parts, FakeWorker(parts.grpc, mood="silent"), client_at(parts.grpc) as stub:
        refused = []

        async def messages():
            for i in range(15):
                yield door.ClientMessage(submit=asking(f"r{i}", 3))
            await asyncio.sleep(60)

        async for batch in stub.Converse(messages()):
            refused += [event.ending.reason for event in batch.events if event.HasField("ending")]
            if len(refused) == 5:
                break
        assert refused == ["queue_full"] * 5
