"""Answers under way: how far each was made, sent and kept, so that the link can be cut at any moment.

Tokens are a pure function of (seed, index), so an answer is kept by its indexes alone and can be sent again
from any of them.
"""

from asyncio import Queue
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from math import log

from loadgen.replay.tokens import VOCABULARY, piece_of, token_at, tokens_at
from services.rpc.windtunnel.v1.request_pb2 import Sampling, TokenRun
from services.rpc.windtunnel.v1.worker_pb2 import Enqueue, Final, Held, RequestTokens
from services.worker.rows import Ask

RUN_MAX = 4096
"""Most tokens of one run: a message stays far below gRPC's 4 MiB."""

LENGTH_MEAN = 180.0
"""Mean length of an answer that may end by itself, tokens."""

LENGTH_DRAW = 1 << 40
"""Index of the draw that an answer's own length comes from; no answer is so long."""


@dataclass
class Real:
    """What a model has said here: a token an index from ``Answer.first`` on, with its text."""

    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """One request on this worker; indexes count tokens from 0 over all attempts, ends are exclusive."""

    number: int  # the dispatcher's, or below 0 for a client of the worker itself
    attempt: int
    seed: int
    wants_text: bool
    length: int  # tokens of the whole answer
    ends_by: str  # "length" or "stop"
    prompt_tokens: int
    tier: int
    enqueued_s: float
    first: int  # index of the first token made here
    made: int
    sent: int
    kept_to: int
    credit_to: int
    final: Final | None = None
    final_sent: bool = False
    started_after_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0
    evictions: int = 0
    sink: Queue[RequestTokens] | None = field(default=None, repr=False)  # a client of the worker itself
    real: "Real | None" = field(
        default=None, repr=False
    )  # what a model says; None: a pure function of the seed

    @property
    def sendable(self) -> bool:
        """True if tokens or the end could go out now."""
        return self.sent < min(self.made, self.credit_to) or self.ending_due

    @property
    def ending_due(self) -> bool:
        """True if everything but the end has been sent."""
        return self.final is not None and not self.final_sent and self.sent == self.made

    def take(self) -> RequestTokens:
        """Return the next tokens that may be sent, with the end if they are the last, as sent."""
        stop = min(self.made, self.credit_to, self.sent + RUN_MAX)
        tokens = self.tokens(self.sent, max(self.sent, stop))
        run = TokenRun(offset=self.sent, tokens=tokens)
        if self.wants_text:
            run.pieces.extend(self.pieces(self.sent, tokens))
        message = RequestTokens(number=abs(self.number), attempt=self.attempt, run=run)
        if self.sent <= self.first and self.started_after_s >= 0.0:
            message.started_after_s = self.started_after_s
        self.sent += len(tokens)
        if self.ending_due:
            assert self.final is not None
            message.final.CopyFrom(self.final)
            self.final_sent = True
        return message

    def tokens(self, start: int, stop: int) -> list[int]:
        """Return the tokens of indexes [start, stop), which have been made here."""
        if self.real is None:
            return tokens_at(self.seed, start, stop - start)
        return self.real.tokens[start - self.first : stop - self.first]

    def pieces(self, start: int, tokens: list[int]) -> list[str]:
        """Return the text of each of these tokens, the first of which has this index."""
        if self.real is None:
            return list(map(piece_of, tokens))
        return self.real.pieces[start - self.first : start - self.first + len(tokens)]

    def rewind(self, index: int) -> None:
        """Send again from an index; what was acknowledged is not sent again."""
        self.sent = max(self.kept_to, min(index, self.made))
        self.final_sent = False

    def end(self, reason: str, message: str = "") -> None:
        """Say how it ended; the first word stands."""
        if self.final is None:
            self.final = Final(
                reason=reason, prompt_tokens=self.prompt_tokens, preemptions=self.evictions, message=message
            )

    def held(self) -> Held:
        """What a reconnecting worker says of it."""
        return Held(number=self.number, attempt=self.attempt, kept_from=self.kept_to, generated=self.made)


def seed_of(sampling: Sampling, request_id: str) -> int:
    """Return the seed of a request's tokens: as told, else drawn from its id."""
    return sampling.seed or int.from_bytes(sha256(request_id.encode()).digest()[:8], "big") | 1


def own_length(seed: int) -> int:
    """Return the length at which a simulated answer ends by itself: exponential, a pure function of the seed."""
    share = (token_at(seed, LENGTH_DRAW) + 0.5) / VOCABULARY
    return 1 + int(-log(1.0 - share) * LENGTH_MEAN)


def length_of(sampling: Sampling, seed: int) -> tuple[int, str]:
    """Return how long an answer gets, tokens, and what ends it: "length" or "stop"."""
    most = max(1, sampling.max_tokens)
    if sampling.ignore_eos:
        return most, "length"
    drawn = max(own_length(seed), sampling.min_tokens)
    return (drawn, "stop") if drawn < most else (most, "length")


def opened(order: Enqueue, now_s: float) -> Answer:
    """Return the answer to an order, nothing made here yet."""
    seed = seed_of(order.sampling, order.request_id)
    length, ends_by = length_of(order.sampling, seed)
    begun = len(order.generated)
    return Answer(
        number=order.number,
        attempt=order.attempt,
        seed=seed,
        wants_text=order.want_text,
        length=max(length, begun),
        ends_by=ends_by,
        prompt_tokens=order.prompt_tokens,
        tier=order.tier,
        enqueued_s=now_s,
        first=begun,
        made=begun,
        sent=begun,
        kept_to=begun,
        credit_to=order.credit_to,
    )


def asked(order: Enqueue, answer: Answer, offset_s: float) -> Ask:
    """Return the order as the engine gets it; ``offset_s`` is own clock minus the dispatcher's."""
    return Ask(
        arrival_s=order.arrival_s + offset_s,
        prompt_tokens=order.prompt_tokens,
        output_tokens=answer.length,
        forecast_tokens=order.forecast_tokens or LENGTH_MEAN,
        tier=order.tier,
        tenant=order.tenant,
        session=order.session,
        luck=order.luck,
        generated_tokens=answer.first,
    )


def runs(answers: Iterable[Answer]) -> list[RequestTokens]:
    """Return what can be sent of these answers."""
    return [answer.take() for answer in answers if answer.sendable]
