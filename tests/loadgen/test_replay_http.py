"""Replay by HTTP against a stub of an OpenAI-compatible server: streams, counts, refusals, broken connections."""

import asyncio
import json

import numpy as np
import orjson
import pytest
from aiohttp import web

from loadgen.facts import FAILED, FINISHED, REJECTED
from loadgen.replay.health import Pulse
from loadgen.replay.http_sender import HttpSender
from loadgen.replay.run import Replay, ReplayRules
from loadgen.replay.tokens import piece_of, tokens_at
from schedulers.errors import InputError
from tests.loadgen.replay_stage import schedule

pytestmark = pytest.mark.timeout(60)

RULES = ReplayRules(drain_s=10.0)


def chunk(text="", reason=None, **more):
    choices = [{"index": 0, "text": text, "finish_reason": reason}]
    return b"data: " + orjson.dumps({"choices": choices} | more) + b"\n\n"


async def say(response, body, cuts=(0, 1, 3)):
    """Stream an answer of the seed in a few chunks that carry token offsets, then usage and [DONE]."""
    tokens = tokens_at(body["seed"], 0, body["max_tokens"])
    stops = [*cuts[1:], len(tokens)]
    for low, high in zip(cuts, stops, strict=True):
        if high > low:
            text = "".join(map(piece_of, tokens[low:high]))
            await response.write(b"id: %d\n" % high + chunk(text))
    await response.write(chunk("", "length"))
    await response.write(
        b"data: " + orjson.dumps({"choices": [], "usage": {"completion_tokens": len(tokens)}}) + b"\n\n"
    )


async def stub(answer):
    """Start a server whose completions are what ``answer(request, body)`` makes; return (url, bodies, runner)."""
    bodies = []

    async def completions(request):
        body = json.loads(await request.read())
        bodies.append((body, request.headers.copy()))
        made = await answer(request, body)
        if made is not None:
            return made
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await say(response, body)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(_):
        return web.json_response({"data": [{"id": "stub-model"}]})

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/v1/completions", completions), web.get("/v1/models", models)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", bodies, runner


async def play(answer, asked=None, checked=True):
    asked = asked or schedule(12, gap_s=0.01, output=9)
    url, bodies, runner = await stub(answer)
    try:
        async with HttpSender(url, asked) as sender:
            rules = ReplayRules(drain_s=10.0, checked=checked)
            told = await Replay(asked, sender, rules, ((np.inf,) * 3, (np.inf,) * 3)).run()
    finally:
        await runner.cleanup()
    return told.trails, bodies


async def nothing(request, body):
    return None


async def test_a_stream_is_read_token_by_token():
    """Prompts are token ids of the window, lengths are forced, tier and id travel in headers."""
    trails, bodies = await play(nothing)
    assert (trails.outcome == FINISHED).all()
    assert (trails.tokens == 9).all()
    assert not trails.lost.any()
    assert not trails.repeated.any()
    assert not trails.miscounted.any()
    by_id = {headers["X-Request-Id"]: (body, headers) for body, headers in bodies}
    body, headers = by_id[trails.schedule.asked(5).request_id]
    assert body["prompt"] == trails.schedule.prompt_ids(5)
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (9, 9, True)
    assert body["model"] == "stub-model"
    assert headers["X-Windtunnel-Tier"] == "1"


async def test_what_a_server_gets_wrong_is_counted():
    """A false word, a wrong usage, a repeated chunk."""

    async def answer(request, body):
        response = web.StreamResponse()
        await response.prepare(request)
        if len(wrong) == 0:
            await response.write(b"id: 2\n" + chunk(" something else"))
        elif len(wrong) == 1:
            await response.write(b"id: 9\n" + chunk("".join(map(piece_of, tokens_at(body["seed"], 0, 9)))))
            await response.write(
                b"data: " + orjson.dumps({"choices": [], "usage": {"completion_tokens": 8}}) + b"\n\n"
            )
        else:
            return None
        wrong.append(1)
        await response.write(chunk("", "length") + b"data: [DONE]\n\n")
        return response

    wrong = []
    trails, _ = await play(answer, schedule(3, gap_s=0.1, output=9))
    assert trails.repeated.tolist() == [2, 0, 0]
    assert trails.miscounted.tolist() == [False, True, False]


async def test_refusals_and_breaks_end_with_their_reason():
    """A status with a reason, an error inside a stream, a connection that is cut, one that says nothing more."""
    turn = []

    async def answer(request, body):
        turn.append(1)
        if len(turn) == 1:
            return web.json_response({"error": {"code": "queue_full"}}, status=429)
        if len(turn) == 2:
            return web.Response(status=503)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"id: 1\n" + chunk(piece_of(tokens_at(body["seed"], 0, 1)[0])))
        if len(turn) == 3:
            await response.write(b"data: " + orjson.dumps({"error": {"code": "engine_lost"}}) + b"\n\n")
        elif len(turn) == 4:
            request.transport.abort()
        return response

    trails, _ = await play(answer, schedule(5, gap_s=0.1, output=9))
    assert trails.outcome.tolist() == [REJECTED, REJECTED, FAILED, FAILED, FAILED]
    assert trails.reasons == ["queue_full", "no_engine", "engine_lost", "engine_lost", "unfinished"]


async def test_a_server_that_tells_no_offsets_is_counted_by_chunks_and_usage():
    """As other people's servers: a chunk is a token until the usage says otherwise."""

    async def answer(request, body):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(9):
            await response.write(chunk(" word"))
        await response.write(chunk("", "length", usage={"completion_tokens": 9}) + b"data: [DONE]\n\n")
        return response

    trails, _ = await play(answer, checked=False)
    assert (trails.outcome == FINISHED).all()
    assert (trails.tokens == 9).all()
    assert not trails.miscounted.any()


async def test_a_large_chunk_arrives_whole():
    """One event of a megabyte."""

    async def answer(request, body):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(chunk("x" * (1 << 20)) + chunk("", "stop") + b"data: [DONE]\n\n")
        return response

    trails, _ = await play(answer, schedule(1), checked=False)
    assert trails.outcome.tolist() == [FINISHED]


async def test_nobody_there_is_said():
    """Before the replay, with the remedy."""
    with pytest.raises(InputError, match="no OpenAI-compatible server"):
        async with HttpSender("http://127.0.0.1:1", schedule(1)):
            pass
    with pytest.raises(InputError, match="not an address"):
        HttpSender("127.0.0.1:1", schedule(1))
    gone = HttpSender("http://127.0.0.1:1", schedule(2, gap_s=0.01), model="m")
    async with gone:
        told = await Replay(gone.schedule, gone, RULES, ()).run()
    assert told.trails.reasons == ["unreachable", "unreachable"]
    await asyncio.sleep(0)


async def test_the_loop_of_a_busy_client_is_told():
    """A busy loop injected: the health says so."""
    pulse = Pulse()
    task = asyncio.create_task(pulse.run())
    await asyncio.sleep(0.06)
    end_s = asyncio.get_running_loop().time() + 0.3
    while asyncio.get_running_loop().time() < end_s:
        pass
    await asyncio.sleep(0.06)
    task.cancel()
    told = pulse.health()
    assert told.loop_max_s > 0.1
    assert any("loop" in words for words in told.warnings)
