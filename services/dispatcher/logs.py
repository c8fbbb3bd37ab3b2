"""Structured logs: one JSON object a line on stderr, and never a key, a prompt or an Authorization header."""

import logging
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import orjson
import structlog

if TYPE_CHECKING:
    from services.dispatcher.answer import Answer

SECRETS = ("authorization", "key", "password", "token", "secret", "prompt", "cookie")


def without_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank the value of every field whose name says that it is a secret."""
    for name in event:
        if any(word in name.lower() for word in SECRETS):
            event[name] = "[hidden]"
    return event


def configure(level: str = "info") -> None:
    """Send logs of this level and above to stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            without_secrets,
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=False,
    )


log = structlog.get_logger()


def traced(answer: "Answer") -> None:
    """Write the end of a request that came with a trace context into the log; others are in the metrics alone."""
    how, trace = answer.ending, answer.submission.traceparent
    if trace and how is not None:
        log.info(
            "request ended", traceparent=trace, request_id=answer.request_id, reason=how.reason,
            engine=answer.engine, answered=len(answer.tokens), seconds=round(how.ended_after_s, 6),
        )  # fmt: skip
