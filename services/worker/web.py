"""The worker's HTTP side: health, metrics, the part of vLLM's API that a client needs, and orders to fail."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
import orjson
from aiohttp import web

from loadgen.replay.tokens import text_of
from schedulers.errors import InputError
from services.rpc.windtunnel.v1.request_pb2 import Sampling
from services.rpc.windtunnel.v1.worker_pb2 import Enqueue, RequestTokens
from services.worker.answers import opened
from services.worker.faults import Faults
from services.worker.link import Link
from services.worker.worker import Worker

CREDIT = 1 << 40
"""A client of the worker itself reads as fast as it can; TCP holds it back."""

BODY_MAX = 16 << 20
"""Most bytes of a request's body."""


class StreamOptions(msgspec.Struct):
    """What else a stream shall carry."""

    include_usage: bool = False


class Body(msgspec.Struct):
    """The part of a completion request that is honoured; other fields are let pass."""

    prompt: str | list[int] = ""
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    priority: int = 0
    seed: int = 0
    model: str = ""
    stream_options: StreamOptions | None = None


class Chaos(msgspec.Struct):
    """An order to fail (``services.worker.faults``)."""

    fault: str
    seconds: float = 0.0
    factor: float = 1.0
    step: int = 0
    phase: str = ""


class Web:
    """Routes of one worker."""

    def __init__(self, worker: Worker, link: Link, faults: Faults) -> None:
        self.worker, self.link, self.faults = worker, link, faults
        self.model = worker.model
        self._numbers = count(1)

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=BODY_MAX)
        app.add_routes(
            [
                web.get("/live", self.live),
                web.get("/ready", self.ready),
                web.get("/health", self.ready),
                web.get("/metrics", self.metrics),
                web.get("/v1/models", self.models),
                web.post("/v1/completions", self.completions),
                web.get("/totals", self.totals),
            ]
        )
        if self.worker.config.chaos:
            app.add_routes([web.post("/chaos", self.chaos)])
        return app

    async def live(self, request: web.Request) -> web.Response:
        """The process is up."""
        return web.json_response({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        """200 while the dispatcher has this worker and it takes work."""
        good = self.link.up.is_set() and not self.worker.draining
        return web.json_response({"ready": good}, status=200 if good else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """The page that Prometheus reads."""
        return web.Response(body=self.worker.gauges.text(), content_type="text/plain")

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def totals(self, request: web.Request) -> web.Response:
        """What the engine has done since the start, as the simulator tells it of a run."""
        engine = self.worker.engine
        return web.json_response(
            {
                "policy": self.worker.policy,
                "tally": engine.rig.plant.tally[0].tolist(),
                "steps": int(engine.rig.known.engines.steps[0]),
                "blocks": engine.setup.blocks,
                "block_tokens": engine.setup.block_tokens,
                "modelled_s": engine.modelled_s,
            }
        )

    async def chaos(self, request: web.Request) -> web.Response:
        """Bring a fault about; answers before it happens, so that even a dying worker answers."""
        try:
            order = msgspec.json.decode(await request.read(), type=Chaos)
            if order.fault in ("hang", "die"):
                asyncio.get_running_loop().call_later(0.02, self._obey, order)
            else:
                self._obey(order)
        except (msgspec.DecodeError, InputError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response({"ordered": order.fault})

    def _obey(self, order: Chaos) -> None:
        self.faults.order(order.fault, order.seconds, order.factor, order.step, order.phase)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Serve a request that comes past the dispatcher."""
        try:
            body = msgspec.json.decode(await request.read(), type=Body)
        except msgspec.DecodeError as error:
            told = {"error": {"message": str(error), "type": "invalid_request_error", "code": "bad_request"}}
            return web.json_response(told, status=400)
        if body.stream:
            return await self._stream(request, body)
        parts = [part async for part in self._serve(body)]
        reason = parts[-1].final.reason
        if reason not in ("stop", "length"):
            told = {"error": {"message": parts[-1].final.message or reason, "type": "engine", "code": reason}}
            return web.json_response(told, status=400 if reason == "too_long" else 502)
        tokens = [token for part in parts for token in part.run.tokens]
        chunk = self._chunk(text_of(tokens), reason)
        return web.json_response(chunk | {"usage": _usage(parts[-1], len(tokens))})

    async def _stream(self, request: web.Request, body: Body) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        made = 0
        async for part in self._serve(body):
            made += len(part.run.tokens)
            ended = part.HasField("final")
            if ended and part.final.reason not in ("stop", "length"):
                await response.write(
                    _event({"error": {"message": part.final.message, "code": part.final.reason}})
                )
                return response
            chunk = self._chunk(text_of(part.run.tokens), part.final.reason if ended else None)
            if ended and body.stream_options is not None and body.stream_options.include_usage:
                chunk["usage"] = _usage(part, made)
            await response.write(_event(chunk))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _serve(self, body: Body) -> AsyncIterator[RequestTokens]:
        """Yield tokens as they are made, the end with the last; a client that leaves frees the engine."""
        worker, number = self.worker, -next(self._numbers)
        prompt = len(body.prompt) if isinstance(body.prompt, list) else max(1, len(body.prompt.split()))
        order = Enqueue(
            request_id=f"direct{number}",
            prompt_tokens=prompt,
            sampling=Sampling(
                max_tokens=body.max_tokens,
                min_tokens=body.min_tokens,
                ignore_eos=body.ignore_eos,
                seed=body.seed,
            ),
            tier=min(max(0, body.priority), len(worker.engine.setup.tiers.weight) - 1),
            session=-1,
            arrival_s=worker.now_s() - worker.offset_s,
            credit_to=CREDIT,
        )
        answer = opened(order, worker.now_s())
        answer.number, answer.sink = number, asyncio.Queue()
        worker.step(worker.now_s(), before=True)
        worker.start(answer, order)
        worker.flush_soon(worker.now_s())
        try:
            while not answer.final_sent or not answer.sink.empty():
                yield await answer.sink.get()
        finally:
            worker.forget(number)

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        return {
            "id": "cmpl-direct",
            "object": "text_completion",
            "created": 0,
            "model": self.model,
            "choices": [choice],
        }


def _usage(part: RequestTokens, made: int) -> dict[str, int]:
    prompt = part.final.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def _event(told: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(told) + b"\n\n"
