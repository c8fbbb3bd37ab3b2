"""One accepted request and its answer: tokens by index, each once, and who listens."""

from array import array
from typing import Protocol

from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link

GAP, NOTHING = -1, 0


class Listener(Protocol):
    """Somebody who wants to know that an answer has grown or ended."""

    def notify(self, answer: "Answer") -> None:
        """Take note; must not wait."""


class Engine(Protocol):
    """A worker as the heart sees it: messages go out, in order, without waiting."""

    row: int
    worker_id: str
    deterministic: bool
    migrates: bool
    peer_address: str
    connected: bool

    def send(self, message: link.DispatcherMessage) -> None:
        """Put a message on its way."""


class Answer:
    """Facts of one request, times in seconds on the dispatcher's clock."""

    __slots__ = (
        "arrived_s", "asked_from", "attempt", "client_to", "credit_to", "digest", "dispatched_s", "ended_s",
        "ending", "engine", "first_s", "journalled", "kept", "last_s", "listeners", "longest_gap_s",
        "migrations", "most", "moves", "noted", "number", "owner", "pieces", "preemptions", "prompt_tokens",
        "request_id", "resumable", "sequence", "started_s", "submission", "taken", "tenant", "tokens", "unsure_from",
    )  # fmt: skip

    def __init__(self, number: int, submission: door.SubmitRequest, owner: str, arrived_s: float) -> None:
        self.number, self.submission, self.owner = number, submission, owner
        self.request_id = submission.request_id
        self.most = int(submission.sampling.max_tokens)
        self.digest = b""
        self.arrived_s = arrived_s
        self.dispatched_s = self.started_s = self.first_s = self.last_s = self.ended_s = -1.0
        self.longest_gap_s = 0.0
        self.prompt_tokens = self.tenant = 0
        self.attempt = self.sequence = self.migrations = self.preemptions = 0
        self.moves: list[wire.Move] = []  # since this process started; the journal counts them only
        self.engine = -1
        self.tokens: array[int] = array("I")
        self.pieces: list[str] = []
        self.noted = self.kept = 0  # tokens given to the journal; tokens that are in it
        self.taken = 0  # tokens that the client has taken off our hands
        self.client_to = 0  # tokens that some client may have seen
        self.credit_to = 0
        self.asked_from = -1  # a gap is asked for once
        self.unsure_from = -1  # tokens from here on may differ from those that a client saw
        self.journalled = False
        self.resumable = False
        self.ending: wire.Ending | None = None
        self.listeners: set[Listener] = set()

    def add(self, run: wire.TokenRun, now_s: float) -> int:
        """Append what is new of a run; returns how many tokens were, or GAP if some before it are missing."""
        have, offset = len(self.tokens), run.offset
        if offset > have:
            return GAP
        fresh = offset + len(run.tokens) - have
        if fresh <= 0:
            return NOTHING
        self.asked_from = -1
        if fresh == len(run.tokens):
            self.tokens.extend(run.tokens)
            if run.pieces:
                self.pieces.extend(run.pieces)
        else:
            self.tokens.extend(run.tokens[-fresh:])
            self.pieces.extend(run.pieces[-fresh:])
        if self.first_s < 0.0:
            self.first_s = now_s
        else:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
            if self.moves and not self.moves[-1].HasField("stall_s"):
                self.moves[-1].stall_s = now_s - self.last_s
        self.last_s = now_s
        return fresh

    def notify(self) -> None:
        """Tell the listeners."""
        for listener in self.listeners:
            listener.notify(self)

    def run_from(self, index: int) -> wire.TokenRun:
        """The tokens from an index on."""
        run = wire.TokenRun(offset=index, tokens=self.tokens[index:])
        if self.pieces:
            run.pieces.extend(self.pieces[index:])
        return run

    def text_from(self, index: int) -> str:
        """Their text."""
        return "".join(self.pieces[index:])

    def close(self, ending: wire.Ending, now_s: float) -> None:
        """Write down how it ended, once."""
        self.ended_s = now_s
        ending.prompt_tokens = ending.prompt_tokens or self.prompt_tokens
        ending.output_tokens = len(self.tokens)
        ending.engine, ending.attempts = self.engine, self.attempt
        ending.migrations, ending.preemptions = self.migrations, self.preemptions
        ending.moves.extend(self.moves)
        ending.ended_after_s = now_s - self.arrived_s
        if self.dispatched_s >= 0.0:
            ending.dispatched_after_s = self.dispatched_s - self.arrived_s
        if self.started_s >= 0.0:
            ending.started_after_s = self.started_s - self.arrived_s
        if self.first_s >= 0.0:
            ending.first_token_after_s = self.first_s - self.arrived_s
        if len(self.tokens) > 1:
            ending.longest_gap_s = self.longest_gap_s
        self.ending = ending


def enqueue_of(answer: Answer, attempt: int, sequence: int) -> link.Enqueue:
    """A request as a worker gets it, with what earlier engines made of it."""
    asked = answer.submission
    return link.Enqueue(
        number=answer.number, attempt=attempt, request_id=answer.request_id, prompt=asked.prompt,
        prompt_tokens=answer.prompt_tokens, sampling=asked.sampling, generated=answer.tokens,
        tier=asked.tier, tenant=answer.tenant, session=asked.session, arrival_s=answer.arrived_s,
        forecast_tokens=asked.forecast_tokens, luck=asked.luck, want_text=asked.want_text,
        credit_to=answer.credit_to, sequence=sequence, traceparent=asked.traceparent,
    )  # fmt: skip


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The request was not taken; carries its ending."""

    def __init__(self, ending: wire.Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending
