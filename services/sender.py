"""Sends a window to the dispatcher's gRPC door: many requests on a few streams, resumed by themselves after a cut."""

import asyncio
from math import nan

from loadgen.facts import EXPIRED, FAILED, FINISHED, REJECTED
from loadgen.replay.schedule import Asked, Schedule
from loadgen.replay.trails import Ending, Moved, Trails
from services.client import Conversation
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1.dispatcher_pb2 import SubmitRequest

CONNECTIONS = 2
"""Streams to the dispatcher; requests take turns."""

FAREWELL_S = 0.3
"""How long cancels may take to leave before the streams are closed."""

OUTCOMES = {
    wire.OUTCOME_FINISHED: FINISHED,
    wire.OUTCOME_REJECTED: REJECTED,
    wire.OUTCOME_EXPIRED: EXPIRED,
    wire.OUTCOME_FAILED: FAILED,
}


class GrpcSender:
    """Conversations with one dispatcher (``address`` is HOST:PORT) that carry all requests of a schedule."""

    def __init__(self, address: str, schedule: Schedule, key: str = "") -> None:
        self.schedule = schedule
        self.talks = [Conversation(address, key) for _ in range(CONNECTIONS)]

    async def __aenter__(self) -> "GrpcSender":
        for talk in self.talks:
            await talk.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what nobody waits for any more: else it would load the next run."""
        left = [(talk, request_id) for talk in self.talks for request_id in talk.open]
        for talk, request_id in left:
            talk.cancel(request_id)
        if left:
            await asyncio.sleep(FAREWELL_S)
        for talk in self.talks:
            await talk.__aexit__(None, None, None)

    @property
    def reconnects(self) -> int:
        """How often a stream was cut and came back."""
        return sum(talk.reconnects for talk in self.talks)

    def request(self, asked: Asked) -> SubmitRequest:
        """Return a request as it travels: the prompt by its length and hashes, the answer's length forced."""
        prompt = wire.Prompt(
            synthetic=wire.Synthetic(tokens=asked.prompt_tokens),
            prefix_hashes=self.schedule.hashes(asked.row),
            prefix_tokens=self.schedule.block_tokens,
        )
        sampling = wire.Sampling(
            max_tokens=asked.output_tokens, min_tokens=asked.output_tokens, ignore_eos=True, seed=asked.seed
        )
        return SubmitRequest(
            request_id=asked.request_id,
            prompt=prompt,
            sampling=sampling,
            tier=asked.tier,
            tenant=f"t{asked.tenant}",
            session=asked.session,
            forecast_tokens=asked.forecast_tokens,
            luck=asked.luck,
        )

    async def send(self, asked: Asked, trails: Trails) -> None:
        """Send one request and note its answer to the end."""
        loop, row = asyncio.get_running_loop(), asked.row
        start_s = loop.time() - trails.now_s
        stream = self.talks[row % len(self.talks)].submit(self.request(asked))
        async for event in stream:
            kind = event.WhichOneof("kind")
            if kind == "tokens":
                trails.took(row, event.tokens.offset, event.tokens.tokens, loop.time() - start_s)
            elif kind == "ending":
                trails.ended(row, ending_of(event.ending), loop.time() - start_s)
        trails.lost[row] += stream.gaps
        trails.repeated[row] += stream.repeated


def ending_of(told: wire.Ending) -> Ending:
    """Return an ending as results know it."""
    return Ending(
        outcome=OUTCOMES.get(told.outcome, FAILED),
        reason=told.reason,
        engine=told.engine,
        migrations=told.migrations,
        preemptions=told.preemptions,
        dispatched_after_s=told.dispatched_after_s if told.HasField("dispatched_after_s") else nan,
        started_after_s=told.started_after_s if told.HasField("started_after_s") else nan,
        usage_tokens=told.output_tokens,
        moves=tuple(
            Moved(one.way, one.bytes, one.stall_s if one.HasField("stall_s") else nan, one.why)
            for one in told.moves
        ),
    )
