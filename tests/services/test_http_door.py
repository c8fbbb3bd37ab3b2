"""The OpenAI door over a real socket: answers, streams, tiers, refusals, limits, disconnects."""

import asyncio
import json
import socket
from contextlib import suppress

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from openai import AsyncOpenAI, BadRequestError, RateLimitError

from loadgen.replay.tokens import text_of, tokens_at
from services.config import TierConfig
from services.dispatcher.process import drained, running
from tests.services.fake_worker import FakeWorker, fleet
from tests.services.live_stage import changed, until

QUICK = changed(timeouts={"engine_grace_s": 0.1, "resume_s": 0.2})


def body(tokens=6, **more):
    return {
        "model": "m",
        "prompt": "once upon a time",
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": 5,
        **more,
    }


def web(parts, **headers):
    return httpx.AsyncClient(base_url=f"http://{parts.http}", headers=headers, timeout=20)


def events(text):
    """(id, data) of a stream's events."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines.get("id"), lines["data"]))
    return found


async def test_official_client_completions_and_chat_streamed_and_whole():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0"):
        client = AsyncOpenAI(base_url=f"http://{parts.http}/v1", api_key="none", max_retries=0)
        wanted = text_of(tokens_at(5, 0, 6))
        extra = {"extra_body": {"ignore_eos": True}, "seed": 5, "max_tokens": 6, "model": "m"}
        whole = await client.completions.create(prompt="once upon", **extra)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (wanted, "length")
        assert (whole.usage.completion_tokens, whole.usage.prompt_tokens) == (6, 3)
        turns = [{"role": "user", "content": "hello"}]
        chat = await client.chat.completions.create(messages=turns, **extra)
        assert chat.choices[0].message.content == wanted
        stream = await client.completions.create(
            prompt=[1, 2, 3], stream=True, stream_options={"include_usage": True}, **extra
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == wanted
        assert chunks[-1].usage.completion_tokens == 6
        stream = await client.chat.completions.create(messages=turns, stream=True, **extra)
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted
        assert chunks[-1].choices[0].finish_reason == "length"
        assert [model.id async for model in client.models.list()] == ["fake-model"]
        with pytest.raises(BadRequestError, match="at most 131072"):
            await client.completions.create(prompt="x", model="m", max_tokens=1_000_000)
        await client.close()


async def test_a_stream_says_where_it_is_and_can_be_resumed_there():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", step_s=0.01), web(parts) as client:
        seen, last = "", "0"
        headers = {"x-request-id": "mine", "x-windtunnel-resumable": "1"}
        async with client.stream(
            "POST", "/v1/completions", json=body(40, stream=True), headers=headers
        ) as response:
            assert response.headers["x-request-id"] == "mine"
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    last = line[4:]
                elif line.startswith("data: "):
                    seen += json.loads(line[6:])["choices"][0]["text"]
                    if int(last) > 8:
                        break
        rest = await client.get("/v1/streams/mine", headers={"last-event-id": last})
        pieces = [json.loads(data) for _, data in events(rest.text)[:-1]]
        assert seen + "".join(piece["choices"][0]["text"] for piece in pieces) == text_of(tokens_at(5, 0, 40))
        assert events(rest.text)[-1] == (None, "[DONE]")
        assert (await client.get("/v1/streams/other")).status_code == 404
        bad = await client.get("/v1/streams/mine", headers={"last-event-id": "-1"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_request")


TIERED = [
    ({}, {}, 200, "1"), ({"x-windtunnel-tier": "0"}, {"priority": 9}, 200, "0"),
    ({"x-vllm-priority": "0"}, {"priority": 1}, 200, "0"), ({"x-vllm-priority": "-7"}, {}, 200, "0"),
    ({}, {"priority": 0}, 200, "0"), ({}, {"priority": 44}, 200, "1"),
    ({"x-windtunnel-tier": "2"}, {}, 400, "bad_tier"), ({"x-windtunnel-tier": "-1"}, {}, 400, "bad_tier"),
    ({"x-windtunnel-tier": "²"}, {}, 400, "bad_tier"), ({"x-vllm-priority": "x"}, {}, 400, "bad_tier"),
]  # fmt: skip


async def test_tier_and_sign_by_header_and_body():
    """Ours wins, then vLLM's header, then the body; 0 is the most important; foreign ones are clamped."""
    config = changed(QUICK, scheduling={"default_tier": 1})
    async with running(config) as parts, fleet(parts.grpc, "w0") as (worker,), web(parts) as client:
        for headers, more, status, wanted in TIERED:
            headers = {name: value.encode("utf-8") for name, value in headers.items()}
            response = await client.post("/v1/completions", json=body(1, **more), headers=headers)
            assert response.status_code == status
            if status == 200:
                assert response.headers["x-windtunnel-tier"] == wanted == str(worker.seen[-1].tier)
            else:
                assert response.headers["x-windtunnel-reason"] == wanted


REFUSED = [
    (b"{", 400), (b"[]", 400), (b'{"prompt": 5}', 400), (b'{"prompt": ""}', 400), (b'{"prompt": ["a", "b"]}', 400),
    (b'{"prompt": "x", "max_tokens": -1}', 400), (b'{"prompt": "x", "max_tokens": 1e99}', 400),
    (b'{"prompt": "x", "max_tokens": 1000000}', 400), (b'{"prompt": "x", "n": 2}', 400),
    (b'{"prompt": "\\ud800"}', 400), (b'{"prompt": [-1]}', 400), (b'{"prompt": [4294967296]}', 400),
    (b'{"prompt": "x", "temperature": "hot"}', 400), (b'{"prompt": "x", "top_p": "hot"}', 400),
    (b'{"prompt": "x", "top_k": 1.5}', 400), (b'{"prompt": "x", "min_tokens": 9, "max_tokens": 2}', 400),
    (b'{"prompt": "x", "user": "a\\r\\nb"}', 400), (b'{"prompt": "x", "max_tokens": 0}', 400),
    (b"[" * 60_000, 400), (b"\xff\xfe", 400), (b'{"prompt": "' + b"a" * 70_000 + b'"}', 413),
]  # fmt: skip


async def test_what_is_malformed_is_refused_by_name_and_harms_nobody():
    config = changed(QUICK, limits={"body_bytes": 65_536})
    async with running(config) as parts, fleet(parts.grpc, "w0") as (worker,), web(parts) as client:
        for raw, status in REFUSED:
            response = await client.post("/v1/completions", content=raw)
            assert response.status_code == status, raw[:60]
            error = response.json()["error"]
            assert error["code"] in ("bad_request", "too_long")
            assert response.headers["x-windtunnel-reason"] == error["code"]
        assert worker.seen == []
        for name, value in (("x-request-id", "a b"), ("x-slo-ttft-ms", "-3"), ("x-windtunnel-tenant", "a;b")):
            response = await client.post("/v1/completions", json=body(1), headers={name: value})
            assert response.status_code == 400
        assert (await client.post("/v1/completions", json=body(1))).status_code == 200
        assert parts.heart.desk.failures[0] == 0, "bad requests are not the worker's fault"


async def test_a_prompt_that_no_engine_holds_is_too_long():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", model_tokens=50), web(parts) as client:
        response = await client.post("/v1/completions", json=body(1, prompt=list(range(50))))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "too_long")
        assert (await client.post("/v1/completions", json=body(1, prompt=list(range(49))))).status_code == 200


async def test_the_first_over_a_tiers_bound_is_told_to_come_back():
    """Queues are bounded a tier; the other tier is not touched; memory holds no more rows than the bound."""
    tiers = {"tiers": (TierConfig("fast", queue_max=5), TierConfig("slow", queue_max=5))}
    from dataclasses import replace

    async with (
        running(replace(QUICK, **tiers)) as parts,
        fleet(parts.grpc, "w0", mood="silent"),
        web(parts) as client,
    ):
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body(3))) for _ in range(5)]
        await until(lambda: parts.heart.desk.waiting(0) == 5)
        for _ in range(3):
            response = await client.post("/v1/completions", json=body(3))
            assert (response.status_code, response.headers["x-windtunnel-reason"]) == (429, "queue_full")
            assert int(response.headers["retry-after"]) >= 1
        other = asyncio.create_task(
            client.post("/v1/completions", json=body(3), headers={"x-windtunnel-tier": "1"})
        )
        await until(lambda: parts.heart.desk.waiting(1) == 1)
        assert len(parts.heart.answers) == 6
        for task in (*tasks, other):
            task.cancel()
        await asyncio.gather(*tasks, other, return_exceptions=True)
        await until(lambda: parts.heart.desk.board.row_of == {})
        assert parts.heart.metrics.requests.labels("0", "failed", "client_gone")._value.get() == 5


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_engine(stream):
    async with running(QUICK) as parts, fleet(parts.grpc, "w0") as (worker,), web(parts) as client:
        task = asyncio.create_task(client.post("/v1/completions", json=body(100_000, stream=stream)))
        await until(lambda: any(job.sent > 5 for job in worker.jobs.values()))
        number = next(iter(worker.jobs))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: ("cancelled", number) in worker.orders)
        assert parts.heart.desk.board.row_of == {}


async def test_an_error_after_the_first_token_is_an_event_and_no_done():
    config = changed(QUICK, limits={"attempts": 1})
    async with running(config) as parts, web(parts) as client:
        async with FakeWorker(parts.grpc) as worker:
            task = asyncio.create_task(client.post("/v1/completions", json=body(10_000, stream=True)))
            await until(lambda: any(job.sent > 5 for job in worker.jobs.values()))
        response = await task
        found = events(response.text)
        assert response.status_code == 200
        assert json.loads(found[-1][1])["error"]["code"] == "engine_lost"
        assert "[DONE]" not in response.text


async def test_an_error_before_the_first_token_has_its_own_status():
    config = changed(QUICK, timeouts={"queue_s": 0.1, "engine_grace_s": 60.0})
    async with running(config) as parts, fleet(parts.grpc, "w0", mood="silent"), web(parts) as client:
        for stream in (True, False):
            response = await client.post("/v1/completions", json=body(5, stream=stream))
            assert (response.status_code, response.json()["error"]["code"]) == (408, "queue_timeout")


async def test_no_engine_and_draining_are_503():
    async with running(QUICK) as parts, web(parts) as client:
        assert (await client.get("/ready")).status_code == 503
        response = await client.post("/v1/completions", json=body())
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_engine")
        async with fleet(parts.grpc, "w0", step_s=0.01):
            assert (await client.get("/ready")).json() == {"ready": True, "why": ""}
            running_one = asyncio.create_task(client.post("/v1/completions", json=body(60)))
            await until(lambda: parts.heart.answers)
            drain = asyncio.create_task(drained(parts))
            await until(lambda: parts.heart.draining)
            assert (await client.get("/health")).json()["why"] == "draining"
            assert (await client.get("/live")).status_code == 200
            async with grpc.aio.insecure_channel(parts.grpc) as channel:
                said = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert said.status == health_pb2.HealthCheckResponse.NOT_SERVING
            response = await client.post("/v1/completions", json=body())
            assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
            assert (await running_one).status_code == 200, "what runs ends"
            await drain


async def test_a_slow_client_stalls_only_itself():
    """One reads nothing of a long stream: its worker is held back at the window, its neighbours are not."""
    config = changed(QUICK, limits={"window_tokens": 256, "client_bytes": 8192})
    async with running(config) as parts, fleet(parts.grpc, "w0", pace=50), web(parts) as client:
        host, port = parts.http.split(":")
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((host, int(port)))
        _, writer = await asyncio.open_connection(sock=line, limit=1)
        raw = json.dumps(body(100_000, stream=True)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
        writer.write(head + raw)
        await until(lambda: parts.heart.answers and next(iter(parts.heart.answers.values())).tokens)
        slow = next(iter(parts.heart.answers.values()))
        results = await asyncio.gather(*(client.post("/v1/completions", json=body(300)) for _ in range(10)))
        assert [response.status_code for response in results] == [200] * 10
        await until(lambda: len(slow.tokens) == slow.credit_to, 20)
        assert slow.ending is None
        assert len(slow.tokens) - slow.taken <= 256
        writer.close()
        await until(lambda: slow.ending is not None)
        assert slow.ending.reason == "client_gone"


async def test_a_connection_that_dribbles_is_cut_off():
    """Slow-loris: headers that never end, and a body that never comes, both within the named patience."""
    config = changed(QUICK, timeouts={"idle_connection_s": 0.3})
    async with running(config) as parts, fleet(parts.grpc, "w0"):
        host, port = parts.http.split(":")
        for start in (
            b"POST /v1/comp",
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(start)
            said = b""
            with suppress(ConnectionResetError):  # closed with bytes of ours unread
                said = await asyncio.wait_for(reader.read(4096), 10)
            assert said == b"" or b"idle_connection_s" in said
            writer.close()


async def test_header_injection_finds_no_way_through():
    """Line ends in a header's value end the header, as HTTP says; nothing of it comes back."""
    async with running(QUICK) as parts, fleet(parts.grpc, "w0"):
        host, port = parts.http.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        raw = json.dumps(body(1)).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: a%0d%0aset-cookie: b\r\nconnection: close\r\n"
            + f"content-length: {len(raw)}\r\n\r\n".encode() + raw
        )  # fmt: skip
        said = await asyncio.wait_for(reader.read(65_536), 5)
        assert said.startswith(b"HTTP/1.1 400")
        assert b"set-cookie" not in said.split(b"\r\n\r\n")[0].lower()
        writer.close()


async def test_metrics_add_up_at_rest_and_name_no_client():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0"), web(parts) as client:
        for tier in ("0", "1", "1"):
            await client.post(
                "/v1/completions", json=body(4),
                headers={"x-windtunnel-tier": tier, "x-windtunnel-tenant": "acme", "x-session-id": "s1"},
            )  # fmt: skip
        await client.post("/v1/completions", json=body(10**6))
        text = (await client.get("/metrics")).text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert values['windtunnel_arrivals_total{tier="1"}'] == "2.0"
        assert values['windtunnel_requests_total{outcome="finished",reason="length",tier="1"}'] == "2.0"
        assert values['windtunnel_requests_total{outcome="rejected",reason="too_long",tier="0"}'] == "1.0"
        assert values['windtunnel_time_to_first_token_seconds_count{tier="1"}'] == "2.0"
        assert values['windtunnel_engine_state{engine="0",state="serving"}'] == "1.0"
        assert values['windtunnel_requests_in_flight{state="streaming",tier="1"}'] == "0.0"
        assert "acme" not in text
        targets = (await client.get("/targets")).json()
        labels = {"job": "windtunnel-worker", "worker": "w0", "engine_row": "0"}
        assert targets == [{"targets": ["127.0.0.1:9"], "labels": labels}]
        assert (await client.get("/workers")).json()["workers"][0]["serving"] is True
        assert (await client.get("/nowhere")).json()["error"]["code"] == "not_found"


async def test_a_tenants_rate_is_its_own():
    from dataclasses import replace

    from services.config import Keys, UserKey

    keys = Keys(user=(UserKey("k1", "acme", 1, rate_per_s=0.5, burst=2.0), UserKey("k2", "other")))
    async with running(replace(QUICK, keys=keys)) as parts, fleet(parts.grpc, "w0") as (worker,):
        client = AsyncOpenAI(base_url=f"http://{parts.http}/v1", api_key="k1", max_retries=0)
        headers = {"x-windtunnel-tier": "0", "x-windtunnel-tenant": "other"}
        for _ in range(2):
            await client.completions.create(prompt="x", model="m", max_tokens=1, extra_headers=headers)
        assert {asked.tier for asked in worker.seen} == {1}, "capped to its tier"
        with pytest.raises(RateLimitError) as limited:
            await client.completions.create(prompt="x", model="m", max_tokens=1)
        assert limited.value.response.headers["retry-after"] in ("1", "2")
        await client.close()
        async with web(parts, authorization="Bearer k2") as other:
            assert (await other.post("/v1/completions", json=body(1))).status_code == 200
        async with web(parts) as nobody:
            for path in ("/v1/completions", "/v1/chat/completions"):
                assert (await nobody.post(path, json=body(1))).status_code == 401
            assert (await nobody.get("/v1/models", headers={"authorization": "Bearer k"})).status_code == 401
