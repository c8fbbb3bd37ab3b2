"""The proxy through which scenarios cut networks: what passes, what waits, what breaks."""

import asyncio
import contextlib
import gc

from services.dispatcher.process import running
from services.proxy import Proxy
from services.worker.config import WorkerConfig
from services.worker.process import running as working
from tests.services.desk import FLEET
from tests.services.live_stage import ROOM, asking, changed, client_at, heard, until


async def echo(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_it_passes_holds_back_and_breaks():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with Proxy(f"127.0.0.1:{port}") as proxy:
        host, _, port = proxy.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        await until(lambda: proxy.passed_bytes == 6)
        proxy.shut()
        await asyncio.sleep(0.05)
        writer.write(b"two")
        waiting = asyncio.create_task(reader.readexactly(3))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done, "nothing passes while it is shut"
        assert proxy.passed_bytes == 6
        proxy.open()
        assert await asyncio.wait_for(waiting, 5) == b"two"
        proxy.cut()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()
    server.close()


async def test_an_end_at_any_moment_leaves_no_socket_open():
    """Whether a line has just been taken, waits, or passes: unclosed ones are errors in tests."""
    there = set()

    async def take(reader, writer):
        there.add(writer)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        there.discard(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    writers = []
    for number in range(60):
        with Proxy(f"127.0.0.1:{port}") as proxy:
            if number % 3 == 0:
                proxy.shut()
            host, _, gate = proxy.address.partition(":")
            lines = [await asyncio.open_connection(host, int(gate)) for _ in range(3)]
            writers += [writer for _, writer in lines]
            await asyncio.sleep(0.001 * (number % 5))
    for writer in writers:
        writer.transport.abort()
    server.close()
    await until(lambda: not there)
    await asyncio.sleep(0.1)
    gc.collect()


async def test_a_worker_behind_a_cut_network_loses_nothing():
    """Cut for longer than the silence that a link may keep: it comes back and goes on where it stopped."""
    config = changed(ROOM, timeouts={"silence_s": 0.6, "engine_grace_s": 20.0})
    async with running(config) as parts, client_at(parts.grpc) as stub:
        with Proxy(parts.grpc) as proxy:
            place = WorkerConfig(worker_id="w0", dispatcher=proxy.address, fleet=FLEET, speed=10.0)
            async with working(place):
                await until(lambda: parts.not_ready() == "")
                asked = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 400)))) for i in range(5)]
                await until(lambda: any(len(one.tokens) > 20 for one in parts.heart.answers.values()))
                proxy.shut()
                await asyncio.sleep(1.5)
                assert not any(one.done() for one in asked)
                proxy.open()
                said = await asyncio.wait_for(asyncio.gather(*asked), 60)
        assert [(one.wanted, one.lost, one.repeated) for one in said] == [(400, 0, 0)] * 5
        assert {one.ending.attempts for one in said} == {1}
