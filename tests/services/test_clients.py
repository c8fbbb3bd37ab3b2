"""Clients that others wrote, as processes of their own: curl against the HTTP door, and a trace through it."""

import asyncio
import json

from loadgen.replay.tokens import text_of, tokens_at
from services.dispatcher.process import running
from tests.services.fake_worker import fleet
from tests.services.live_stage import ROOM, asking, client_at, heard

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def curl(parts, path, *more, body=None):
    """What curl prints; it fails on an error status."""
    command = ["curl", "-sS", "--fail", "-N", f"http://{parts.http}{path}", *more]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 0
    return said.decode()


async def test_curl_streamed_and_whole():
    asked = {"model": "m", "prompt": "once", "max_tokens": 6, "ignore_eos": True, "seed": 5}
    wanted = text_of(tokens_at(5, 0, 6))
    async with running(ROOM) as parts, fleet(parts.grpc, "w0"):
        assert json.loads(await curl(parts, "/v1/models"))["data"][0]["id"] == "fake-model"
        whole = json.loads(await curl(parts, "/v1/completions", body=asked))
        assert whole["choices"][0]["text"] == wanted
        streamed = await curl(parts, "/v1/completions", body=asked | {"stream": True})
        events = [
            block.removeprefix("data: ") for block in streamed.strip().split("\n\n")
        ]  # as vLLM's client reads
        assert events[-1] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == wanted
        turns = {"messages": [{"role": "user", "content": "hello"}]}
        chat = json.loads(await curl(parts, "/v1/chat/completions", body=asked | turns))
        assert chat["choices"][0]["message"]["content"] == wanted


async def test_a_trace_context_reaches_the_engine_and_a_broken_one_does_not():
    asked = {"model": "m", "prompt": "once", "max_tokens": 2, "ignore_eos": True}
    async with running(ROOM) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        for shown in (TRACE, TRACE.replace("4bf9", "4BF9"), TRACE.replace("00-", "ff-", 1), "00-0-0-01"):
            await curl(parts, "/v1/completions", "-H", f"traceparent: {shown}", body=asked)
        await heard(stub.Submit(asking("by-metadata", 2), metadata=(("traceparent", TRACE),)))
        await heard(stub.Submit(asking("by-field", 2, traceparent=TRACE)))
        again = await heard(stub.Submit(asking("by-field", 2, traceparent=TRACE.replace("-01", "-00"))))
    assert [one.traceparent for one in worker.seen] == [TRACE, "", "", "", TRACE, TRACE]
    assert again.ending.reason == "length", "another span of the same request attaches to it"
