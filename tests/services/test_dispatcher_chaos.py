"""Everything dies at random, by a seed: each request ends once, and what is streamed is whole."""

import asyncio
import json
import random
import signal
from collections import Counter

import httpx
import pytest

from loadgen.replay.tokens import faults_in, text_of, tokens_at
from services.client import Conversation
from tests.services.fake_worker import FakeWorker
from tests.services.live_stage import asking, process, redis_at, until

pytestmark = pytest.mark.slow

CONFIG = """
[timeouts]
engine_grace_s = 0.4
[limits]
attempts = 50
[[tiers]]
name = "all"
queue_max = 10000
"""


class Troupe:
    """Three workers of which any may die and come back empty, or lose its link."""

    def __init__(self, address, draw):
        self.address, self.draw, self.lives = address, draw, Counter()
        self.workers = {}

    async def start(self, name):
        self.lives[name] += 1
        worker = FakeWorker(self.address, name, step_s=0.01, incarnation=self.lives[name])
        worker.task = asyncio.create_task(worker.run())
        self.workers[name] = worker

    async def strike(self):
        name = self.draw.choice(sorted(self.workers))
        if self.draw.random() < 0.5 and self.workers[name].welcomes:
            self.workers[name].cut()
        else:
            await self.workers[name].kill()
            await self.start(name)

    async def stop(self):
        for worker in self.workers.values():
            await worker.kill()


async def counted(stream, results):
    wanted = 0
    async for event in stream:
        if event.WhichOneof("kind") == "tokens":
            assert faults_in(77, event.tokens.offset, event.tokens.tokens, wanted) == (0, 0)
            wanted += len(event.tokens.tokens)
        if event.WhichOneof("kind") == "ending":
            results.append((event.ending.reason, stream.next_index, stream.repeated, stream.gaps))


@pytest.mark.parametrize(("seed", "store"), [(1, "file"), (2, "file"), (3, "redis")])
async def test_nothing_is_lost_whatever_dies(tmp_path, seed, store):
    """Sixty requests, workers struck every 150 ms, the dispatcher killed three times."""
    draw, results = random.Random(seed), []
    (tmp_path / "c.toml").write_text(CONFIG)
    server, address = redis_at(tmp_path) if store == "redis" else (None, f"file:{tmp_path / 'journal'}")
    fixed = ("--config", str(tmp_path / "c.toml"), "--store", address)
    running = process("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *fixed)
    ready, child = await running.__aenter__()
    doors = ("--http", ready["http"], "--grpc", ready["grpc"])
    troupe = Troupe(ready["grpc"], draw)
    try:
        for name in ("w0", "w1", "w2"):
            await troupe.start(name)
        await until(lambda: all(worker.welcomes for worker in troupe.workers.values()), 20)
        async with Conversation(ready["grpc"], patience_s=60.0) as talk:
            tasks = []
            for number in range(60):
                stream = talk.submit(asking(f"r{number}", 20 + 5 * (number % 20)))
                tasks.append(asyncio.create_task(counted(stream, results)))
                await asyncio.sleep(0.05)
                if number % 3 == 2:
                    await troupe.strike()
                if number in (15, 30, 45):
                    child.send_signal(signal.SIGKILL)
                    await child.wait()
                    await running.__aexit__(None, None, None)
                    running = process(*doors, *fixed)
                    _, child = await running.__aenter__()
            await asyncio.wait_for(asyncio.gather(*tasks), 120)
        reasons = Counter(reason for reason, *_ in results)
        assert sum(reasons.values()) == 60
        assert reasons["length"] + reasons["no_engine"] == 60, reasons
        assert reasons["length"] > 30
        assert all(gaps == 0 for _, _, _, gaps in results)
        whole = sorted(index for reason, index, _, _ in results if reason == "length")
        assert set(whole) <= {20 + 5 * step for step in range(20)}
    finally:
        await troupe.stop()
        await running.__aexit__(None, None, None)
        if server is not None:
            server.kill()
            server.wait()


async def test_an_http_client_resumes_after_its_dispatcher_died(tmp_path):
    """Last-Event-ID on another process's connection: the text goes on where it stopped."""
    store = f"file:{tmp_path / 'journal'}"
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 5, "stream": True}
    first = process("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--store", store)
    async with (
        first as (ready, child),
        httpx.AsyncClient(timeout=30) as client,
        FakeWorker(ready["grpc"], step_s=0.01),
    ):
        seen, last = "", "0"

        async def read_until_it_breaks():
            nonlocal seen, last
            url, headers = f"http://{ready['http']}/v1/completions", {"x-request-id": "mine"}
            headers["x-windtunnel-resumable"] = "1"
            async with client.stream("POST", url, json=body, headers=headers) as response:
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        last = line[4:]
                    elif line.startswith("data: {"):
                        seen += json.loads(line[6:])["choices"][0]["text"]
                        if int(last) > 30 and child.returncode is None:
                            child.send_signal(signal.SIGKILL)

        with pytest.raises(httpx.TransportError):
            await read_until_it_breaks()
        await child.wait()
        async with process("--http", ready["http"], "--grpc", ready["grpc"], "--store", store):
            url = f"http://{ready['http']}/v1/streams/mine"
            rest = await client.get(url, headers={"last-event-id": last})
            for line in rest.text.splitlines():
                if line.startswith("data: {"):
                    seen += json.loads(line[6:])["choices"][0]["text"]
            assert rest.text.rstrip().endswith("data: [DONE]")
            assert seen == text_of(tokens_at(5, 0, 200))
