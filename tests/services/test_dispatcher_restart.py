"""kill -9 of the dispatcher's own process: accepted requests end, clients resume, no token is lost or repeated."""

import asyncio
import signal
import sys

import pytest

from loadgen.replay.tokens import faults_in
from services.client import Conversation
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from tests.services.fake_worker import FakeWorker, fleet
from tests.services.live_stage import asking, client_at, heard, process, redis_at, until


async def read(stream, seed=77):
    """(tokens, lost, repeated or false) of one stream to its end."""
    wanted = lost = bad = 0
    async for event in stream:
        if event.WhichOneof("kind") == "tokens":
            gone, again = faults_in(seed, event.tokens.offset, event.tokens.tokens, wanted)
            lost, bad = lost + gone, bad + again
            wanted = event.tokens.offset + len(event.tokens.tokens)
    return wanted, lost, bad


@pytest.fixture(params=["file", pytest.param("redis", marks=pytest.mark.slow)])
def store(request, tmp_path):
    """The address of a store that outlives the dispatcher."""
    if request.param == "file":
        yield f"file:{tmp_path / 'journal'}"
        return
    server, address = redis_at(tmp_path)
    yield address
    server.kill()
    server.wait()


async def test_requests_survive_their_dispatcher(store):
    """Twenty streams; the process is killed in the middle and another one started on the same doors and store."""
    async with process("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--store", store) as (ready, first):
        arguments = ("--http", ready["http"], "--grpc", ready["grpc"], "--store", store)
        async with (
            fleet(ready["grpc"], "w0", "w1", step_s=0.004) as workers,
            Conversation(ready["grpc"]) as talk,
        ):
            reads = [asyncio.create_task(read(talk.submit(asking(f"r{i}", 300 + i)))) for i in range(20)]
            await until(lambda: sum(len(one.jobs) for one in workers) == 20)
            await until(lambda: all(stream.next_index > 20 for stream in talk.open.values()))
            first.send_signal(signal.SIGKILL)
            await first.wait()
            async with process(*arguments) as (_, second):
                results = await asyncio.gather(*reads)
                assert results == [(300 + i, 0, 0) for i in range(20)]
                assert talk.reconnects >= 1
                assert sum(len(one.seen) for one in workers) == 20, "nothing was computed a second time"
                async with client_at(ready["grpc"]) as stub:  # an ended answer can still be fetched
                    said = await heard(
                        stub.Resume(door.ResumeRequest(request_id="r3", from_index=300)), wanted=300
                    )
                    assert (said.wanted, said.ending.output_tokens) == (303, 303)
                second.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(second.wait(), 10) == 0


@pytest.mark.slow
async def test_dispatcher_and_worker_die_together(tmp_path):
    """What the journal has is continued by another worker, from the token that was kept."""
    store = f"file:{tmp_path / 'journal'}"
    async with process("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--store", store) as (ready, first):
        arguments = ("--http", ready["http"], "--grpc", ready["grpc"], "--store", store)
        async with Conversation(ready["grpc"]) as talk:
            async with FakeWorker(ready["grpc"], "w0", step_s=0.004):
                reads = [asyncio.create_task(read(talk.submit(asking(f"r{i}", 200)))) for i in range(8)]
                await until(lambda: all(stream.next_index > 30 for stream in talk.open.values()))
                first.send_signal(signal.SIGKILL)
                await first.wait()
            async with process(*arguments), FakeWorker(ready["grpc"], "w9") as other:
                assert await asyncio.gather(*reads) == [(200, 0, 0)] * 8
                assert {asked.attempt for asked in other.seen} == {2}
                assert all(len(asked.generated) > 0 for asked in other.seen)


@pytest.mark.slow
async def test_a_second_dispatcher_may_not_take_the_journal(tmp_path):
    store = f"file:{tmp_path / 'journal'}"
    async with process("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--store", store):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.dispatcher", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            "--store", store, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, errors = await asyncio.wait_for(child.communicate(), 20)
        assert child.returncode == 2
        assert b"another process has the journal" in errors
        child._transport.close()
