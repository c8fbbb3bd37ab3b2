"""The HTTP doors described in OpenAPI: made from the very structs that read the bodies."""

from typing import Any

import msgspec

from services.dispatcher.bodies import ChatBody, CompletionBody
from services.dispatcher.reasons import REASONS

TIER = {
    "name": "X-Windtunnel-Tier",
    "in": "header",
    "schema": {"type": "integer", "minimum": 0, "maximum": 99},
}
PRIORITY = {"name": "X-Vllm-Priority", "in": "header", "schema": {"type": "integer"}}
REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:~@/+=-]{1,128}$"},
}
SESSION = {"name": "X-Session-ID", "in": "header", "schema": {"type": "string"}}
LAST = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer", "minimum": 0}}
ERRORS = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "string", "enum": [*REASONS, "not_found", "unauthorized", "forbidden"]},
            },
        }
    },
}


def answers(*kinds: str) -> dict[str, Any]:
    """Responses of an operation: what is well, and every refusal."""
    well = {"description": "well", "content": {kind: {} for kind in kinds}}
    error = {"description": "refused; the code says why", "content": {"application/json": {"schema": ERRORS}}}
    return {"200": well, "default": error}


def operation(
    says: str, *parameters: dict[str, Any], kinds: tuple[str, ...] = ("application/json",)
) -> dict[str, Any]:
    """An operation without a body."""
    return {"summary": says, "parameters": list(parameters), "responses": answers(*kinds)}


def describe(version: str, tiers: int, output_tokens: int) -> dict[str, Any]:
    """The OpenAPI document of a dispatcher with so many tiers that makes at most so long answers."""
    bodies, parts = msgspec.json.schema_components(
        [CompletionBody, ChatBody], ref_template="#/components/schemas/{name}"
    )
    lengths = {"type": "integer", "minimum": 1, "maximum": output_tokens}
    for body in parts.values():
        for name in {"max_tokens", "max_completion_tokens"} & set(body.get("properties", ())):
            body["properties"][name] = lengths
    tier = {"type": "integer", "minimum": 0, "maximum": tiers - 1}
    in_tier = {"name": "X-Windtunnel-Tier", "in": "header", "schema": tier}
    paths: dict[str, Any] = {}
    both = ("application/json", "text/event-stream")
    for path, body, says in (
        ("/v1/completions", bodies[0], "An answer to a prompt"),
        ("/v1/chat/completions", bodies[1], "An answer in a chat"),
    ):
        asked = operation(says, in_tier, PRIORITY, REQUEST_ID, SESSION, kinds=both)
        asked["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        paths[path] = {"post": asked}
    stream = {
        "name": "request_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    paths["/v1/streams/{request_id}"] = {
        "get": operation("The rest of a stream", stream, LAST, kinds=("text/event-stream",))
    }
    for path, says in (
        ("/v1/models", "Models"),
        ("/version", "Version"),
        ("/workers", "Workers"),
        ("/targets", "Targets for Prometheus"),
        ("/live", "Up?"),
        ("/ready", "Takes requests?"),
        ("/health", "Takes requests?"),
    ):
        paths[path] = {"get": operation(says)}
    paths["/metrics"] = {"get": operation("Metrics", kinds=("text/plain",))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windtunnel dispatcher", "version": version},
        "paths": paths,
        "components": {"schemas": parts},
    }
