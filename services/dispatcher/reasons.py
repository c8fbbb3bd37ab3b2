"""Every way in which a request can end: outcome, status, whether to try again (reference/live.md 2.3)."""

from typing import NamedTuple

import grpc

from services.rpc.windtunnel.v1 import request_pb2 as wire

FINISHED, REJECTED = wire.OUTCOME_FINISHED, wire.OUTCOME_REJECTED
EXPIRED, FAILED = wire.OUTCOME_EXPIRED, wire.OUTCOME_FAILED
OUTCOMES = {FINISHED: "finished", REJECTED: "rejected", EXPIRED: "expired", FAILED: "failed"}


class Reason(NamedTuple):
    """One row of the table; ``blames``: it counts against the worker."""

    outcome: "wire.Outcome.ValueType"
    http: int
    grpc: grpc.StatusCode
    retry: bool
    blames: bool
    says: str


_CODE = grpc.StatusCode
REASONS = {
    "stop": Reason(FINISHED, 200, _CODE.OK, False, False, "the answer is complete"),
    "length": Reason(FINISHED, 200, _CODE.OK, False, False, "the answer has the most tokens asked for"),
    "bad_request": Reason(REJECTED, 400, _CODE.INVALID_ARGUMENT, False, False, "the request is malformed"),
    "bad_tier": Reason(REJECTED, 400, _CODE.INVALID_ARGUMENT, False, False, "there is no such tier"),
    "too_long": Reason(REJECTED, 400, _CODE.INVALID_ARGUMENT, False, False, "no engine can ever hold it"),
    "queue_full": Reason(REJECTED, 429, _CODE.RESOURCE_EXHAUSTED, True, False, "the tier's queue is full"),
    "rate_limited": Reason(REJECTED, 429, _CODE.RESOURCE_EXHAUSTED, True, False, "over the tenant's rate"),
    "shed": Reason(REJECTED, 429, _CODE.RESOURCE_EXHAUSTED, True, False, "the policy turned it away"),
    "no_engine": Reason(REJECTED, 503, _CODE.UNAVAILABLE, True, False, "no engine serves"),
    "draining": Reason(REJECTED, 503, _CODE.UNAVAILABLE, True, False, "the dispatcher is shutting down"),
    "store_down": Reason(REJECTED, 503, _CODE.UNAVAILABLE, True, False, "the journal can't be written"),
    "queue_timeout": Reason(EXPIRED, 408, _CODE.DEADLINE_EXCEEDED, False, False, "waited past the limit"),
    "deadline": Reason(EXPIRED, 408, _CODE.DEADLINE_EXCEEDED, False, False, "dropped as hopeless"),
    "engine_lost": Reason(FAILED, 502, _CODE.UNAVAILABLE, False, True, "its engines died"),
    "engine_error": Reason(FAILED, 502, _CODE.INTERNAL, False, True, "its engines failed"),
    "stalled": Reason(FAILED, 504, _CODE.DEADLINE_EXCEEDED, False, True, "its engines went silent"),
    "client_gone": Reason(FAILED, 499, _CODE.CANCELLED, False, False, "the client left"),
    "internal": Reason(FAILED, 500, _CODE.INTERNAL, False, False, "the dispatcher failed"),
}
"""The codes that travel in headers, errors, metrics and result rows."""


def ending(reason: str, message: str = "") -> wire.Ending:
    """An ending with its outcome and words filled in; an unknown reason is ``internal``."""
    row = REASONS.get(reason)
    if row is None:
        return ending("internal", f"{reason}: {message}")
    return wire.Ending(outcome=row.outcome, reason=reason, message=message or row.says, engine=-1)
