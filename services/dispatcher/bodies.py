"""OpenAI bodies and headers read into a submission: what is honoured, and what is passed on to the engine."""

import hashlib
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import orjson

from services.config import Config
from services.dispatcher.intake import Client, Refusal, trace_of
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire

INTEGER_MAX = 2**31 - 1
COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for completions."""


Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
One = Annotated[int, msgspec.Meta(ge=1, le=1)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:~@/+=-]{0,128}$")]
Token = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct):
    """What else a stream carries."""

    include_usage: bool = False


class Body(msgspec.Struct):
    """Fields of both bodies that are honoured here; the others go on to the engine as they are."""

    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    user: Name | None = None
    seed: int | None = None
    temperature: float | None = None
    n: One | None = None


class CompletionBody(Body, kw_only=True):
    """Of /v1/completions."""

    prompt: Text | Annotated[list[Token | Text | list[Token]], msgspec.Meta(min_length=1)]


class Message(msgspec.Struct):
    """One turn of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(Body, kw_only=True):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]


HONOURED = {name for kind in (CompletionBody, ChatBody) for name in kind.__struct_fields__} - {"messages"}


def parse(raw: bytes, chat: bool) -> tuple[CompletionBody | ChatBody, dict[str, Any]]:
    """A body and the fields to be passed on; raises Refusal that says what is wrong."""
    try:
        document = orjson.loads(raw)
        kind: type[CompletionBody | ChatBody] = ChatBody if chat else CompletionBody
        body = msgspec.convert(document, kind, strict=True)
    except (orjson.JSONDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise Refusal("bad_request", str(error)[:300]) from None
    return body, {name: value for name, value in document.items() if name not in HONOURED}


def submission(raw: bytes, chat: bool, headers: Mapping[str, str], config: Config, client: Client) -> tuple[
    door.SubmitRequest, CompletionBody | ChatBody
]:  # fmt: skip
    """A submission from one HTTP request, not yet checked; raises Refusal."""
    body, others = parse(raw, chat)
    asked = door.SubmitRequest(request_id=headers.get("x-request-id") or f"wt-{uuid4().hex}", want_text=True)
    asked.tier = tier_of(headers, body.priority, config)
    asked.chat = chat
    asked.traceparent = trace_of(headers.get("traceparent", ""))
    try:
        fill_prompt(asked.prompt, body)
        asked.model = body.model or ""
        asked.tenant = client.tenant or headers.get("x-windtunnel-tenant") or body.user or ""
    except ValueError as error:  # a lone surrogate, a token beyond 32 bits
        raise Refusal("bad_request", str(error)[:300]) from None
    asked.session = session_of(headers.get("x-session-id", ""))
    for name, field in (("x-slo-ttft-ms", "slo_ttft_s"), ("x-slo-tpot-ms", "slo_tpot_s")):
        if name in headers:
            setattr(asked, field, milliseconds(headers[name], name))
    fill_sampling(asked.sampling, body, chat, config)
    if others:
        asked.sampling.passed_on = orjson.dumps(others)
    return asked, body


def fill_prompt(prompt: wire.Prompt, body: CompletionBody | ChatBody) -> None:
    """Write a prompt, as ids if they were given."""
    if isinstance(body, ChatBody):
        prompt.text = "".join(f"{turn.role}: {text_of(turn.content)}\n" for turn in body.messages)
        return
    given: Any = body.prompt
    if isinstance(given, list) and any(isinstance(one, str | list) for one in given):
        if len(given) != 1:
            raise Refusal("bad_request", "prompt: only one a request")
        given = given[0]
    if isinstance(given, str):
        prompt.text = given
    else:
        prompt.ids.ids.extend(given)


def text_of(content: str | list[dict[str, Any]] | None) -> str:
    """The text of a turn; parts that are not text count for nothing here."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text", "")) for part in content)


def fill_sampling(sampling: wire.Sampling, body: Body, chat: bool, config: Config) -> None:
    """Write lengths and draws; a length that no one could mean is refused by name."""
    most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if most is None:
        most = min(4096, config.limits.output_tokens) if chat else COMPLETION_TOKENS
    sampling.max_tokens, sampling.min_tokens = most, body.min_tokens or 0
    sampling.ignore_eos = bool(body.ignore_eos)
    if body.temperature is not None:
        if not isfinite(body.temperature):
            raise Refusal("bad_request", "temperature is not finite")
        sampling.temperature = body.temperature
    if body.seed is not None:
        sampling.seed = body.seed & (2**64 - 1)


def tier_of(headers: Mapping[str, str], priority: int | None, config: Config) -> int:
    """Our own header, else vLLM's header or the body's priority clamped (lower is sooner), else the default."""
    most = len(config.tiers) - 1
    own = headers.get("x-windtunnel-tier")
    if own is not None:
        if not own.isascii() or not own.isdigit() or len(own) > 4 or int(own) > most:
            raise Refusal("bad_tier", f"X-Windtunnel-Tier: 0..{most}")
        return int(own)
    theirs = headers.get("x-vllm-priority")
    if theirs is not None:
        try:
            priority = int(theirs[:20])
        except ValueError:
            raise Refusal("bad_tier", "X-Vllm-Priority is not a number") from None
    return config.scheduling.default_tier if priority is None else max(0, min(most, priority))


def session_of(text: str) -> int:
    """A number for a conversation, -1 without one; the same text gives the same number."""
    if not text:
        return -1
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:6], "big")


def milliseconds(text: str, name: str) -> float:
    """A header in milliseconds as seconds."""
    try:
        value = float(text) / 1e3
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1e9:
        raise Refusal("bad_request", f"{name}: milliseconds above 0")
    return value
