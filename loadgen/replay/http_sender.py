"""Sends a window to any OpenAI-compatible server over HTTP: many connections and a large read buffer."""

import asyncio
import json
from math import nan
from typing import Any

import aiohttp
import orjson

from loadgen.facts import EXPIRED, FAILED, FINISHED, REJECTED
from loadgen.replay.schedule import Asked, Schedule
from loadgen.replay.tokens import piece_of, token_at
from loadgen.replay.trails import Ending, Trails
from schedulers.errors import InputError

READ_BYTES = 1 << 20
"""Read buffer of a connection: at 64 KiB long prompts and fast streams measured the client."""

STATUS = {
    400: "bad_request",
    408: "queue_timeout",
    413: "prompt_too_long",
    429: "queue_full",
    503: "no_engine",
}
"""Reasons by HTTP status where the server names none."""


class HttpSender:
    """One session for all requests; ``checks_text`` where answers are those of the seed."""

    def __init__(self, url: str, schedule: Schedule, model: str = "", key: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"not an address: {url}", where="--target", fix="write http://HOST:PORT")
        self.url, self.schedule, self.model = url.rstrip("/"), schedule, model
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "HttpSender":
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        self.session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=READ_BYTES, headers=self.headers
        )
        if not self.model:
            try:
                self.model = await self._first_model()
            except BaseException:
                await self.session.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.session is not None:
            await self.session.close()

    async def _first_model(self) -> str:
        assert self.session is not None
        try:
            async with self.session.get(f"{self.url}/v1/models") as response:
                return str((await response.json(content_type=None))["data"][0]["id"])
        except (aiohttp.ClientError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"no OpenAI-compatible server answers ({error})",
                where=self.url,
                fix="start it, or give --model",
            ) from None

    def body(self, asked: Asked) -> bytes:
        """Return a request's body: the prompt as token ids, the answer's length forced."""
        return orjson.dumps(
            {
                "model": self.model,
                "prompt": self.schedule.prompt_ids(asked.row),
                "max_tokens": asked.output_tokens,
                "min_tokens": asked.output_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0.0,
                "seed": asked.seed,
                "priority": asked.tier,
            }
        )

    async def send(self, asked: Asked, trails: Trails) -> None:
        """Send one request and read its answer to the end."""
        assert self.session is not None
        loop, began_s = asyncio.get_running_loop(), trails.now_s
        clock_s = loop.time() - began_s
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": asked.request_id,
            "X-Windtunnel-Offsets": "1",  # our dispatcher then says how many tokens a chunk ends at
            "X-Windtunnel-Tier": str(asked.tier),
            "X-Windtunnel-Tenant": f"t{asked.tenant}",
        }
        if asked.session >= 0:
            headers["X-Session-ID"] = f"{self.schedule.window_id}.{asked.session}"
        reader = Reader(asked, trails, lambda: loop.time() - clock_s)
        try:
            async with self.session.post(
                f"{self.url}/v1/completions", data=self.body(asked), headers=headers
            ) as response:
                if response.status != 200:
                    reader.refused(
                        response.status,
                        await response.read(),
                        response.headers.get("X-Windtunnel-Reason", ""),
                    )
                    return
                async for line in response.content:
                    reader.hear(line)
            reader.finish("unfinished")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reader.finish("unreachable" if isinstance(error, aiohttp.ClientConnectorError) else "engine_lost")


class Reader:
    """Reads one answer's events and notes them."""

    def __init__(self, asked: Asked, trails: Trails, now_s: Any) -> None:
        self.asked, self.trails, self.now_s = asked, trails, now_s
        self.offset = 0
        self.told = -1  # tokens so far as an `id:` line says, where the server has them
        self.usage = -1
        self.reason = ""
        self.text = b""
        self.closed = False

    def hear(self, line: bytes) -> None:
        """Take one line of the stream."""
        if line.startswith(b"id:"):
            self.told = int(line[3:])
        elif line.startswith(b"data:"):
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.finish("")
            else:
                self._event(orjson.loads(payload))

    def _event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            told = event["error"] or {}
            self._end(FAILED, str(told.get("code") or "internal"))
            return
        if event.get("usage"):
            self.usage = int(event["usage"].get("completion_tokens", -1))
        for choice in event.get("choices") or ():
            self.reason = choice.get("finish_reason") or self.reason
            ids = choice.get("token_ids")
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if ids:
                self._took(ids, len(ids))
            elif text:
                self._took(text, 1 if self.told < 0 else self.told - self.offset)

    def _took(self, what: Any, count: int) -> None:
        """Note tokens: their ids, or a text that stands for so many."""
        row, trails, now_s = self.asked.row, self.trails, self.now_s()
        if not isinstance(what, str):
            trails.took(row, self.offset, what, now_s)
        elif trails.checked:
            tokens = [token_at(trails.seeds[row], index) for index in range(self.offset, self.offset + count)]
            if what == "".join(map(piece_of, tokens)):
                trails.took(row, self.offset, tokens, now_s)
            else:
                trails.took(row, self.offset, [-1] * count, now_s)  # false tokens, counted as such
        else:
            trails.took(row, self.offset, count, now_s)
        self.offset += count

    def refused(self, status: int, body: bytes, named: str) -> None:
        """The server answered with an error status."""
        reason = named
        if not reason:
            try:
                reason = str(json.loads(body)["error"]["code"])
            except (ValueError, KeyError, TypeError):
                reason = STATUS.get(status, "internal")
        outcome = EXPIRED if status == 408 else REJECTED if status in (400, 413, 422, 429, 503) else FAILED
        self._end(outcome, reason)

    def finish(self, broken: str) -> None:
        """The stream ended: well, or with a word for what broke it."""
        if broken:
            self._end(FAILED, broken)
        elif self.reason in ("", "stop", "length") and self.trails.tokens[self.asked.row] > 0:
            self._end(FINISHED, self.reason or "stop")
        else:
            self._end(FAILED, self.reason or "internal")

    def _end(self, outcome: int, reason: str) -> None:
        if not self.closed:
            self.closed = True
            ending = Ending(outcome, reason, usage_tokens=self.usage, started_after_s=nan)
            self.trails.ended(self.asked.row, ending, self.now_s())
