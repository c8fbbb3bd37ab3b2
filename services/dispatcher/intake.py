"""What is asked at the door: is the request well-formed, whose is it, which tier, may it come so often?"""

import hashlib
import hmac
import re
import zlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from math import isfinite

from msgspec import MsgspecError

from schedulers.recall import Prefix
from services.config import Config, UserKey
from services.dispatcher.answer import Refused
from services.dispatcher.reasons import ending
from services.draws import draws_of
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire

NAME = re.compile(r"[A-Za-z0-9._:~@/+=-]{1,128}")
"""Request ids and tenants: nothing that could break a header, a log line or a metric."""
TRACE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
"""W3C traceparent: version, trace, parent, flags."""
TENANTS_MAX = 64
BLOCK_TOKENS = 16
"""Tokens of a block by which prompts are recalled that come without hashes."""
BYTES_A_TOKEN = 4
"""Of prompts that come as text: an estimate for queues and limits; the engine's own count is in the usage."""


class Refusal(Refused):
    """A refusal by reason and words."""

    def __init__(self, reason: str, message: str = "", retry_after_s: float = 0.0) -> None:
        row = ending(reason, message)
        if retry_after_s > 0.0:
            row.retry_after_s = retry_after_s
        super().__init__(row)


@dataclass(frozen=True)
class Client:
    """Who asks: a tenant's name, the most important tier that it may use."""

    tenant: str
    tier_cap: int = 0
    key: UserKey | None = None


class Doorkeeper:
    """Keys, tenants' rates and the checks that every request passes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.buckets: dict[str, tuple[float, float]] = {}
        self.rows: OrderedDict[str, int] = OrderedDict()

    def client(self, authorization: str) -> Client | None:
        """Who shows this header; None if it opens nothing. Every key is compared, in constant time."""
        users = self.config.keys.user
        if not users:
            return Client("")
        scheme, _, shown = authorization.partition(" ")
        found: UserKey | None = None
        for user in users:
            if same_secret(shown, user.key) and scheme.lower() == "bearer":
                found = user
        return Client(found.tenant, found.tier_cap, found) if found else None

    def row_of(self, tenant: str) -> int:
        """A tenant's row in the policy's tables; the rarest share the last one."""
        row = self.rows.get(tenant)
        if row is None:
            row = min(len(self.rows), TENANTS_MAX - 1)
            if len(self.rows) < 4 * TENANTS_MAX:
                self.rows[tenant] = row
        return row

    def pass_rate(self, client: Client, now_s: float) -> None:
        """Take one from the tenant's bucket; raises Refusal if it is empty."""
        key = client.key
        if key is None or key.rate_per_s <= 0.0:
            return
        size = max(key.burst, key.rate_per_s, 1.0)
        level, then_s = self.buckets.get(key.tenant, (size, now_s))
        level = min(size, level + (now_s - then_s) * key.rate_per_s)
        if level < 1.0:
            wait_s = (1.0 - level) / key.rate_per_s
            raise Refusal("rate_limited", f"over {key.rate_per_s:g} requests a second", wait_s)
        self.buckets[key.tenant] = (level - 1.0, now_s)

    def check(self, asked: door.SubmitRequest, client: Client) -> int:
        """Complete a submission in place (tier, tenant, seed); return its prompt tokens; raises Refusal."""
        if not NAME.fullmatch(asked.request_id):
            raise Refusal("bad_request", "request_id: 1 to 128 letters, digits or ._:~@/+=-")
        if asked.tenant and not NAME.fullmatch(asked.tenant):
            raise Refusal("bad_request", "tenant: 1 to 128 letters, digits or ._:~@/+=-")
        tiers = len(self.config.tiers)
        if asked.tier >= tiers:
            raise Refusal("bad_tier", f"tier {asked.tier}: there are 0..{tiers - 1}")
        asked.tier = max(asked.tier, client.tier_cap)
        if asked.traceparent:
            asked.traceparent = trace_of(asked.traceparent)
        if client.key is not None:
            asked.tenant = client.tenant
        tokens = prompt_tokens(asked)
        if tokens == 0:
            raise Refusal("bad_request", "the prompt is empty")
        sampling, most = asked.sampling, self.config.limits.output_tokens
        if sampling.max_tokens == 0:
            raise Refusal("bad_request", "max_tokens must be at least 1")
        if sampling.max_tokens > most:
            raise Refusal("too_long", f"max_tokens {sampling.max_tokens}: at most {most}")
        if sampling.min_tokens > sampling.max_tokens:
            raise Refusal("bad_request", "min_tokens is above max_tokens")
        if not all(map(isfinite, (asked.luck, asked.forecast_tokens, sampling.temperature))):
            raise Refusal("bad_request", "a number is not finite")
        try:
            draws_of(sampling.passed_on)
        except MsgspecError as error:
            raise Refusal("bad_request", f"sampling: {str(error)[:200]}") from None
        if not 0.0 <= asked.luck < 1.0 or asked.forecast_tokens < 0.0 or abs(asked.session) > 1 << 60:
            raise Refusal("bad_request", "luck, forecast_tokens or session is out of range")
        mark = hashlib.sha256(asked.request_id.encode()).digest()
        if not asked.HasField("luck"):
            asked.luck = (int.from_bytes(mark[8:16], "big") >> 11) * 2.0**-53
        if sampling.seed == 0:
            sampling.seed = int.from_bytes(mark[:8], "big") | 1
        return tokens


def prompt_tokens(asked: door.SubmitRequest) -> int:
    """Tokens of a prompt, estimated from the bytes of a text."""
    form = asked.prompt.WhichOneof("form")
    if form == "ids":
        return len(asked.prompt.ids.ids)
    if form == "synthetic":
        return int(asked.prompt.synthetic.tokens)
    return -(-len(asked.prompt.text.encode("utf-8", "replace")) // BYTES_A_TOKEN)


def prefix_of(prompt: wire.Prompt, *, wanted: bool = True) -> Prefix:
    """A prompt's beginning as it is recalled: by the hashes that came with it, else by sums of its own blocks."""
    if not wanted:
        return Prefix()
    if prompt.prefix_hashes or prompt.WhichOneof("form") == "synthetic":
        return Prefix(tuple(prompt.prefix_hashes), int(prompt.prefix_tokens))
    ids = prompt.WhichOneof("form") == "ids"
    raw = array("I", prompt.ids.ids).tobytes() if ids else prompt.text.encode("utf-8", "replace")
    size, chained, sums = BLOCK_TOKENS * BYTES_A_TOKEN, 0, list[int]()
    for start in range(0, len(raw) - size + 1, size):  # a token is 4 bytes, or is taken to have 4
        chained = zlib.crc32(raw[start : start + size], chained)
        sums.append(chained)
    return Prefix(tuple(sums), BLOCK_TOKENS)


def packed(asked: door.SubmitRequest) -> tuple[bytes, bytes]:
    """A submission's bytes for the journal, and a mark that tells it from another one under the same id."""
    raw = asked.SerializeToString(deterministic=True)
    if not asked.from_index and not asked.traceparent:
        return raw, hashlib.sha256(raw).digest()[:16]
    plain = door.SubmitRequest()
    plain.CopyFrom(asked)
    plain.from_index, plain.traceparent = 0, ""  # these may differ when a client asks again
    return raw, hashlib.sha256(plain.SerializeToString(deterministic=True)).digest()[:16]


def trace_of(shown: str) -> str:
    """A W3C trace context as it is passed on; '' for one that is malformed, which counts as none."""
    found = TRACE.fullmatch(shown)
    return shown if found and found[1] != "ff" and found[2].strip("0") and found[3].strip("0") else ""


def same_secret(shown: str, secret: str) -> bool:
    """True if a secret was shown; takes the same time whatever is shown. An empty secret is never shown."""
    equal = hmac.compare_digest(shown.encode("utf-8", "replace"), secret.encode())
    return equal and bool(secret)
