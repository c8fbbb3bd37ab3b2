"""The worker by which dispatchers are measured: its tokens are right, and come when they are said to."""

import asyncio
import contextlib

import httpx

from loadgen.replay.tokens import text_of, tokens_at
from services.dispatcher.process import running
from services.pacer import Pace, Pacer, Web
from tests.services.live_stage import ROOM, asking, client_at, heard

FAST = Pace(first_s=0.01, gap_s=0.005, tokens=4)


@contextlib.asynccontextmanager
async def paced(address):
    pacer = Pacer(FAST, "pacer")
    linked = asyncio.create_task(pacer.run(address, ""))
    await asyncio.wait_for(pacer.welcomed.wait(), 10)
    yield pacer
    linked.cancel()
    await asyncio.gather(linked, return_exceptions=True)


async def test_answers_by_the_clock_through_a_dispatcher():
    async with running(ROOM) as parts, paced(parts.grpc) as pacer, client_at(parts.grpc) as stub:
        said = await asyncio.gather(*(heard(stub.Submit(asking(f"r{i}", 10))) for i in range(20)))
        assert [(one.wanted, one.lost, one.repeated) for one in said] == [(10, 0, 0)] * 20
        assert {one.ending.reason for one in said} == {"length"}
        assert min(one.ending.ended_after_s for one in said) >= 0.02  # three chunks
        await asyncio.sleep(0.1)
        assert pacer.jobs == {}, "what is journalled is forgotten"


async def test_the_same_answers_without_a_dispatcher():
    server = await asyncio.get_running_loop().create_server(lambda: Web(FAST), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "pacer"
        answer = await client.post("/v1/completions", json={"max_tokens": 10, "seed": 5, "stream": True})
        again = await client.post("/v1/completions", json={"max_tokens": 1, "seed": 5, "stream": True})
    server.close()
    assert [line for line in answer.text.split("\n") if line.startswith("id: ")] == [
        "id: 4",
        "id: 8",
        "id: 10",
    ]
    text = "".join(part.partition('"')[0] for part in answer.text.split('"text":"')[1:])
    assert text == text_of(tokens_at(5, 0, 10))
    assert again.text.endswith("data: [DONE]\n\n")
